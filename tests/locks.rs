//! Mutexes, read-write locks and semaphores: order, hand-over, leaving, deadlocks, panics.

mod common;

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use aioco::coroutine::Builder;
use aioco::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore};
use aioco::{AioContext, Coroutine, JoinHandle, aio, yield_now};
use common::{
    LIMIT, assert_cancelled, assert_order, child, context, coroutine, eventually, message_of, rounds, scaled, settle,
    spawn, within,
};

/// What happened, in order.
type Log = Rc<RefCell<Vec<&'static str>>>;

fn log() -> Log {
    Log::default()
}

fn note(log: &Log, what: &'static str) {
    log.borrow_mut().push(what);
}

/// Spawns a coroutine that needn't be `Send`.
#[track_caller]
fn go(context: &AioContext, f: impl FnOnce() + 'static) -> JoinHandle<()> {
    context.spawn_local(f).expect("a stack")
}

/// A mutex that is locked by a coroutine that unlocks it when it is entered again.
fn held<T: 'static>(mutex: &Rc<Mutex<T>>) -> Coroutine {
    let mutex = mutex.clone();
    let holder = coroutine(move || {
        let _guard = mutex.lock();
        yield_now();
    });
    holder.enter();
    holder
}

/// Coroutines that wait for a mutex in turn, log their names, and unlock it.
fn waiters(context: &AioContext, mutex: &Rc<Mutex<()>>, log: &Log, names: &[&'static str]) -> Vec<JoinHandle<()>> {
    let wait = |&name| {
        let (mutex, log) = (mutex.clone(), log.clone());
        go(context, move || {
            let _guard = mutex.lock();
            note(&log, name);
        })
    };
    let all = names.iter().map(wait).collect();
    settle(context);
    all
}

// ---- mutex ----------------------------------------------------------------------------------------------------------

#[test]
fn a_coroutine_waits_for_a_mutex_and_runs_when_the_holder_is_done() {
    let mutex = Rc::new(Mutex::new(0));
    let holder = held(&mutex);
    assert!(mutex.is_locked());
    let second = coroutine({
        let mutex = mutex.clone();
        move || {
            let mut value = mutex.lock();
            *value = 1;
            yield_now();
            *value = 2;
        }
    });
    second.enter();
    assert!(!second.is_finished());
    second.enter(); // a wake-up out of nothing
    holder.enter();
    assert!(holder.is_finished());
    assert!(mutex.is_locked(), "the second one has run, and has it");
    assert!(mutex.try_lock().is_none());
    second.enter();
    assert!(second.is_finished());
    assert_eq!(*mutex.lock(), 2);
}

#[test]
fn the_next_owner_runs_in_the_enter_that_unlocks_if_it_has_a_home_there() {
    let context = context();
    let mutex = Arc::new(Mutex::new(false));
    let handle = context.block_on(|| {
        let guard = mutex.lock();
        let other = mutex.clone();
        let waiter = spawn(&context, move || *other.lock() = true);
        yield_now();
        yield_now();
        assert!(!waiter.is_finished());
        drop(guard);
        assert!(!waiter.is_finished(), "never from within the unlock");
        yield_now();
        assert!(waiter.is_finished());
        waiter
    });
    handle.join().expect("no panic");
    assert!(*mutex.lock());
}

#[test]
fn waiters_have_the_mutex_in_the_order_in_which_they_came() {
    let context = context();
    let (mutex, log) = (Rc::new(Mutex::new(())), log());
    let holder = held(&mutex);
    let all = waiters(&context, &mutex, &log, &["a", "b", "c", "d"]);
    holder.enter();
    settle(&context);
    assert_order(&log.borrow(), &["a", "b", "c", "d"]);
    assert!(all.iter().all(JoinHandle::is_finished));
}

#[test]
fn nobody_overtakes_those_who_wait() {
    let context = context();
    let mutex = Arc::new(Mutex::new(Vec::new()));
    context.block_on(|| {
        let guard = mutex.lock();
        let other = mutex.clone();
        let waiter = spawn(&context, move || other.lock().push("waiter"));
        yield_now();
        drop(guard);
        // It has been handed over, though the waiter hasn't run.
        assert!(mutex.try_lock().is_none());
        mutex.lock().push("unlocker");
        waiter.join().expect("no panic");
    });
    assert_eq!(*mutex.lock(), ["waiter", "unlocker"]);
}

/// Until it runs, and no longer.
#[test]
fn one_that_sleeps_on_another_thread_may_be_overtaken() {
    within(LIMIT, || {
        let mutex = Arc::new(Mutex::new(()));
        let ((queued, is_queued), (come, has_come)) = (mpsc::channel(), mpsc::channel());
        let ((sleep, sleeping), (end, ended)) = (mpsc::channel(), mpsc::channel());
        let guard = mutex.lock();
        let other = {
            let mutex = mutex.clone();
            thread::spawn(move || {
                let says = |word: &str| format!("{mutex:?}").contains(word);
                let context = context();
                context.block_on(|| {
                    let waiter = mutex.clone();
                    let waiter = spawn(&context, move || {
                        let _guard = waiter.lock();
                        ended.recv().expect("the test ends it");
                    });
                    while !says("queued: true") {
                        yield_now();
                    }
                    queued.send(()).expect("the test waits");
                    sleeping.recv().expect("the test ends it");
                    while says("called: true") {
                        yield_now();
                    }
                    come.send(()).expect("the test waits");
                    waiter.join().expect("no panic");
                });
            })
        };
        is_queued.recv().expect("it queues");
        drop(guard);
        let guard = mutex.try_lock().expect("the one that is next hasn't run");
        sleep.send(()).expect("it sleeps");
        has_come.recv().expect("it comes");
        drop(guard);
        assert!(mutex.try_lock().is_none(), "it is the next one's");
        end.send(()).expect("it has the mutex");
        other.join().expect("no panic");
        assert!(mutex.try_lock().is_some());
    });
}

/// Field report 38: constant stack, linear time.
#[test]
fn a_hundred_thousand_unlock_one_another_on_small_stacks() {
    within(2 * LIMIT, || {
        let n = scaled(100_000);
        let context = context();
        let mutex = Arc::new(Mutex::new(0));
        let holder = {
            let mutex = mutex.clone();
            spawn(&context, move || {
                let _guard = mutex.lock();
                yield_now();
                yield_now();
            })
        };
        context.poll(false);
        let all: Vec<_> = (0..n)
            .map(|_| {
                let mutex = mutex.clone();
                let body = move || *mutex.lock() += 1;
                context.spawn_with(Builder::new().stack_size(64 << 10), body).expect("a stack")
            })
            .collect();
        context.run_until(|| holder.is_finished() && all.iter().all(JoinHandle::is_finished));
        assert_eq!(*mutex.lock(), n);
    });
}

#[test]
fn a_hundred_thousand_readers_are_let_in_by_one_writer() {
    within(2 * LIMIT, || {
        let n = scaled(100_000);
        let context = context();
        let lock = Arc::new(RwLock::new(0));
        let inside = Arc::new(AtomicUsize::new(0));
        let writer = lock.clone();
        let writer = spawn(&context, move || {
            let mut value = writer.write();
            yield_now();
            yield_now();
            *value = 1;
        });
        context.poll(false);
        let all: Vec<_> = (0..n)
            .map(|_| {
                let (lock, inside) = (lock.clone(), inside.clone());
                let body = move || {
                    assert_eq!(*lock.read(), 1);
                    inside.fetch_add(1, Ordering::Relaxed);
                };
                context.spawn_with(Builder::new().stack_size(64 << 10), body).expect("a stack")
            })
            .collect();
        context.run_until(|| writer.is_finished() && all.iter().all(JoinHandle::is_finished));
        assert_eq!(inside.load(Ordering::Relaxed), n);
    });
}

/// Field report 42: one that waits at the head, in the middle, at the tail.
#[test]
fn a_waiter_that_is_cancelled_leaves_the_queue() {
    for cancelled in 0..3 {
        let context = context();
        let (mutex, log) = (Rc::new(Mutex::new(())), log());
        let holder = held(&mutex);
        let mut all = waiters(&context, &mutex, &log, &["a", "b", "c"]);
        let handle = all.remove(cancelled);
        handle.cancel();
        settle(&context);
        assert_cancelled(handle.join());
        holder.enter();
        settle(&context);
        let mut rest = vec!["a", "b", "c"];
        rest.remove(cancelled);
        assert_order(&log.borrow(), &rest);
        assert!(!mutex.is_locked());
    }
}

/// Field report 42: the holder of each kind of lock.
#[test]
fn a_holder_that_is_cancelled_gives_the_lock_back() {
    let context = context();
    let mutex = Arc::new(Mutex::new(()));
    let lock = Arc::new(RwLock::new(()));
    let semaphore = Arc::new(Semaphore::new(1));
    let holder = {
        let (mutex, lock, semaphore) = (mutex.clone(), lock.clone(), semaphore.clone());
        spawn(&context, move || {
            let _guards = (mutex.lock(), lock.write(), semaphore.acquire(1));
            aio::sleep(LIMIT);
        })
    };
    let reader = {
        let lock = lock.clone();
        spawn(&context, move || {
            let _guard = lock.read();
            aio::sleep(LIMIT);
        })
    };
    settle(&context);
    let waiter = {
        let (mutex, semaphore) = (mutex.clone(), semaphore.clone());
        spawn(&context, move || drop((mutex.lock(), semaphore.acquire(1))))
    };
    settle(&context);
    assert!(!waiter.is_finished());
    holder.cancel();
    settle(&context);
    assert!(waiter.is_finished());
    assert!(lock.try_write().is_none(), "the reader has it");
    reader.cancel();
    settle(&context);
    drop(lock.try_write().expect("free"));
    assert!(!mutex.is_locked());
    assert_eq!(semaphore.available(), 1);
}

#[test]
fn a_waiter_that_is_cancelled_after_the_hand_over_hands_it_on() {
    let context = context();
    let (mutex, log) = (Rc::new(Mutex::new(())), log());
    let guard = mutex.lock();
    let all = waiters(&context, &mutex, &log, &["a", "b", "c"]);
    drop(guard); // it is a's, which hasn't run
    all[0].cancel();
    settle(&context);
    assert_order(&log.borrow(), &["b", "c"]);
    assert!(!mutex.is_locked());
}

#[test]
fn a_lock_that_does_not_come_in_time_is_given_up() {
    within(LIMIT, || {
        let context = context();
        let (mutex, log) = (Rc::new(Mutex::new(())), log());
        let holder = held(&mutex);
        let before = waiters(&context, &mutex, &log, &["a"]);
        let timed = {
            let (mutex, log) = (mutex.clone(), log.clone());
            go(&context, move || {
                assert!(mutex.try_lock_for(Duration::from_millis(1)).is_none());
                assert!(mutex.try_lock_until(Instant::now()).is_none());
                note(&log, "gave up");
            })
        };
        let after = waiters(&context, &mutex, &log, &["b"]);
        context.run_until(|| timed.is_finished());
        holder.enter();
        settle(&context);
        assert_order(&log.borrow(), &["gave up", "a", "b"]);
        assert!(before.iter().chain(&after).all(JoinHandle::is_finished));
        assert!(mutex.try_lock_for(Duration::MAX).is_some(), "free, and a time that the clock can't count");
    });
}

/// Field report 41: the deadline passes at the moment of the unlock.
#[test]
fn a_deadline_at_the_moment_of_the_hand_over_loses_nothing() {
    within(LIMIT, || {
        let mutex = Arc::new(Mutex::new(0u64));
        let mut in_time = 0;
        for round in rounds(20_000) {
            let guard = mutex.lock();
            let waiter = {
                let mutex = mutex.clone();
                move || mutex.try_lock_for(Duration::from_micros(round as u64 % 100)).map(|mut value| *value += 1)
            };
            let waiter = thread::spawn(move || waiter().is_some());
            let end = Instant::now() + Duration::from_micros(50);
            while Instant::now() < end {}
            drop(guard);
            in_time += u64::from(waiter.join().expect("no panic"));
            assert!(!mutex.is_locked());
        }
        assert_eq!(*mutex.lock(), in_time);
    });
}

#[test]
fn coroutines_and_threads_exclude_one_another() {
    within(LIMIT, || {
        let mutex = Arc::new(Mutex::new(0u64));
        let times = Arc::new(AtomicU64::new(0));
        let end = Instant::now() + Duration::from_millis(300);
        let work = {
            let (mutex, times) = (mutex.clone(), times.clone());
            move |suspend: bool| {
                while Instant::now() < end {
                    let mut value = mutex.lock();
                    let before = *value;
                    if suspend && before.is_multiple_of(16) {
                        yield_now();
                    }
                    *value = before + 1;
                    drop(value);
                    times.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let mut threads = Vec::new();
        for _ in 0..2 {
            let plain = work.clone();
            threads.push(thread::spawn(move || plain(false)));
            let work = work.clone();
            threads.push(thread::spawn(move || {
                let context = context();
                let all: Vec<_> = (0..4)
                    .map(|_| {
                        let work = work.clone();
                        spawn(&context, move || work(true))
                    })
                    .collect();
                context.run_until(|| all.iter().all(JoinHandle::is_finished));
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(*mutex.lock(), times.load(Ordering::Relaxed));
    });
}

// ---- deadlocks ------------------------------------------------------------------------------------------------------

/// The message has both places, which are in this file.
#[track_caller]
fn assert_names_two_places(message: &str, what: &str) {
    assert!(message.contains(what), "{message}");
    assert!(message.matches(file!()).count() >= 2, "{message}");
}

#[test]
fn a_recursive_lock_is_reported_with_both_places() {
    let mutex = Mutex::new(());
    let lock = RwLock::new(());
    let held = mutex.lock();
    let message = message_of(|| drop(mutex.lock()));
    assert_names_two_places(&message, "locks a mutex that it has locked");
    assert!(message.contains("a_recursive_lock_is_reported"), "names the thread: {message}");
    assert_names_two_places(&message_of(|| drop(mutex.try_lock_for(LIMIT))), "a mutex");
    assert!(mutex.try_lock().is_none(), "a try is no deadlock");
    drop(held);
    drop(mutex.lock());

    let held = lock.write();
    assert_names_two_places(&message_of(|| drop(lock.write())), "locks an rwlock that it has locked");
    assert_names_two_places(&message_of(|| drop(lock.read())), "locks an rwlock that it has locked");
    drop(held);
    drop((lock.read(), lock.read()));
    if cfg!(debug_assertions) {
        let held = lock.read();
        assert_names_two_places(&message_of(|| drop(lock.write())), "locks an rwlock that it has locked");
        drop(held);
    }
    drop(lock.write());
}

#[test]
fn a_recursive_lock_in_a_coroutine_is_reported_with_its_name() {
    let co = Builder::new().name("flush").create(|| {
        let mutex = Mutex::new(());
        let _held = mutex.lock();
        drop(mutex.lock());
    });
    let message = message_of(|| co.expect("a stack").enter());
    assert_names_two_places(&message, "locks a mutex that it has locked");
    assert!(message.contains("coroutine \"flush\""), "{message}");
}

#[test]
fn a_thread_that_waits_for_a_coroutine_of_its_own_loop_is_told() {
    let context = context();
    let mutex = Arc::new(Mutex::new(()));
    let other = mutex.clone();
    let holder = spawn(&context, move || {
        let _guard = other.lock();
        aio::sleep(LIMIT);
    });
    settle(&context);
    let message = message_of(|| drop(mutex.lock()));
    assert_names_two_places(&message, "would block the thread");
    holder.cancel();
    settle(&context);
    drop(mutex.lock());
}

#[test]
fn the_holder_of_one_mutex_is_not_taken_for_that_of_another() {
    let context = context();
    let (a, b) = (Mutex::new(()), Mutex::new(()));
    let guard = a.lock();
    drop(b.lock());
    drop(guard);
    drop(a.lock());
    // The one that locks and the one that locks afterwards may have the same stack.
    let mutex = Rc::new(Mutex::new(0));
    for _ in 0..100 {
        let mutex = mutex.clone();
        go(&context, move || *mutex.lock() += 1);
        settle(&context);
    }
    assert_eq!(*mutex.lock(), 100);
}

/// As a closure with a time limit returns it: the coroutine that has locked has ended, and its block is another one's.
#[test]
fn a_guard_may_be_given_to_another_coroutine() {
    within(LIMIT, || {
        let context = context();
        let mutex = Arc::new(Mutex::new(0));
        context.block_on(|| {
            let mut guard = aio::timeout(LIMIT, || mutex.lock()).expect("free");
            let all: Vec<_> = (0..4)
                .map(|_| {
                    let mutex = mutex.clone();
                    spawn(&context, move || *mutex.lock() += 1)
                })
                .collect();
            yield_now();
            *guard += 1;
            drop(guard);
            all.into_iter().for_each(|handle| handle.join().expect("no false alarm"));
        });
        assert_eq!(*mutex.lock(), 5);
    });
}

/// Field report 35: what is borrowed over a suspension is found borrowed, cleanly.
#[test]
fn what_is_borrowed_over_a_suspension_is_found_borrowed() {
    let cell = Rc::new(RefCell::new(0));
    let std_mutex = Rc::new(StdMutex::new(0));
    let first = {
        let (cell, std_mutex) = (cell.clone(), std_mutex.clone());
        coroutine(move || {
            let _borrows = (cell.borrow_mut(), std_mutex.lock());
            yield_now();
        })
    };
    first.enter();
    let second = coroutine(move || {
        assert!(std_mutex.try_lock().is_err(), "a lock() would block the thread for ever");
        cell.borrow_mut();
    });
    assert!(message_of(|| second.enter()).contains("already"));
    first.enter();
    assert!(first.is_finished());
}

// ---- panics ---------------------------------------------------------------------------------------------------------

#[test]
fn there_is_no_poison() {
    let context = context();
    let mutex = Arc::new(Mutex::new(0));
    let lock = Arc::new(RwLock::new(0));
    let semaphore = Arc::new(Semaphore::new(1));
    let change = {
        let (mutex, lock, semaphore) = (mutex.clone(), lock.clone(), semaphore.clone());
        move || {
            let mut guards = (mutex.lock(), lock.write(), semaphore.acquire(1));
            *guards.0 += 1;
            *guards.1 += 1;
            yield_now();
            panic!("with the locks held");
        }
    };
    let result = spawn(&context, change.clone()).join();
    assert!(result.is_err());
    assert_eq!((*mutex.lock(), *lock.read(), semaphore.available()), (1, 1, 1));

    // A forced unwind does the same.
    let handle = spawn(&context, change);
    context.poll(false);
    handle.cancel();
    assert_cancelled(handle.join());
    assert_eq!((*mutex.lock(), *lock.read(), semaphore.available()), (2, 2, 1));
}

#[test]
fn a_panic_of_the_holder_lets_the_next_one_in() {
    let context = context();
    let mutex = Arc::new(Mutex::new(()));
    let other = mutex.clone();
    let holder = spawn(&context, move || {
        let _guard = other.lock();
        yield_now();
        yield_now();
        panic!("with the lock held");
    });
    let waiter = spawn(&context, move || drop(mutex.lock()));
    waiter.join().expect("let in");
    assert!(holder.join().is_err());
}

/// Field report 103: a drop guard that waits.
#[test]
fn waiting_for_a_lock_while_unwinding_ends_the_process() {
    struct Locks(Rc<Mutex<()>>);

    impl Drop for Locks {
        fn drop(&mut self) {
            drop(self.0.lock());
        }
    }

    let exit = child("waits", |_| {
        let mutex = Rc::new(Mutex::new(()));
        let _holder = held(&mutex);
        let locks = Locks(mutex.clone());
        let co = coroutine(move || {
            let _locks = locks;
            yield_now();
        });
        co.enter();
        drop(co);
    });
    exit.assert_killed_by(libc::SIGABRT);
    exit.assert_says("tried to suspend while it is unwinding");
}

/// But it may take a lock that is free, and give it back.
#[test]
fn a_free_lock_can_be_taken_while_unwinding() {
    struct Locks(Rc<Mutex<u32>>);

    impl Drop for Locks {
        fn drop(&mut self) {
            *self.0.lock() += 1;
        }
    }

    let mutex = Rc::new(Mutex::new(0));
    let locks = Locks(mutex.clone());
    let co = coroutine(move || {
        let _locks = locks;
        yield_now();
    });
    co.enter();
    drop(co);
    assert_eq!(*mutex.lock(), 1);
    let locks = Locks(mutex.clone());
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        let _locks = locks;
        panic!("outside of coroutines");
    }));
    assert!(result.is_err());
    assert_eq!(*mutex.lock(), 2);
}

// ---- rwlock ---------------------------------------------------------------------------------------------------------

#[test]
fn readers_share_and_writers_do_not() {
    let lock = RwLock::new(1);
    let first = lock.read();
    let second = lock.try_read().expect("shared");
    assert!(lock.try_write().is_none());
    assert!(lock.is_locked());
    drop((first, second));
    let mut writer = lock.try_write().expect("free");
    assert!(lock.try_read().is_none());
    *writer = 2;
    drop(writer);
    assert_eq!(lock.into_inner(), 2);
}

/// A coroutine that takes a lock, logs, and gives it back when it is entered again.
fn reader(lock: &Rc<RwLock<()>>, log: &Log, name: &'static str) -> Coroutine {
    let (lock, log) = (lock.clone(), log.clone());
    coroutine(move || {
        let _guard = lock.read();
        note(&log, name);
        yield_now();
    })
}

fn writer(lock: &Rc<RwLock<()>>, log: &Log, name: &'static str) -> Coroutine {
    let (lock, log) = (lock.clone(), log.clone());
    coroutine(move || {
        let _guard = lock.write();
        note(&log, name);
        yield_now();
    })
}

#[test]
fn readers_do_not_overtake_a_writer_that_waits() {
    let (lock, log) = (Rc::new(RwLock::new(())), log());
    let [r1, r2] = ["r1", "r2"].map(|name| reader(&lock, &log, name));
    let w = writer(&lock, &log, "w");
    r1.enter();
    w.enter();
    r2.enter();
    assert!(lock.try_read().is_none(), "a writer waits");
    assert_order(&log.borrow(), &["r1"]);
    r1.enter();
    assert_order(&log.borrow(), &["r1", "w"]);
    w.enter();
    r2.enter();
    assert_order(&log.borrow(), &["r1", "w", "r2"]);
}

/// Field report 37.
#[test]
fn a_downgrade_lets_in_the_readers_at_the_head_and_nobody_else() {
    let (lock, log) = (Rc::new(RwLock::new(())), log());
    let w1 = {
        let (lock, log) = (lock.clone(), log.clone());
        coroutine(move || {
            let guard = lock.write();
            note(&log, "w1");
            yield_now();
            let guard = RwLockWriteGuard::downgrade(guard);
            note(&log, "w1 reads");
            yield_now();
            drop(guard);
        })
    };
    w1.enter();
    let [r1, r2, r3] = ["r1", "r2", "r3"].map(|name| reader(&lock, &log, name));
    let w2 = writer(&lock, &log, "w2");
    [&r1, &r2, &w2, &r3].iter().for_each(|co| co.enter());
    w1.enter();
    assert_order(&log.borrow(), &["w1", "w1 reads", "r1", "r2"]);
    [&w1, &r1, &r2].iter().for_each(|co| co.enter());
    assert_order(&log.borrow(), &["w1", "w1 reads", "r1", "r2", "w2"]);
    w2.enter();
    assert_order(&log.borrow(), &["w1", "w1 reads", "r1", "r2", "w2", "r3"]);
    r3.enter();
    drop(lock.try_write().expect("nobody is left"));
}

#[test]
fn an_upgrade_goes_behind_those_who_wait() {
    let (lock, log) = (Rc::new(RwLock::new(())), log());
    let upgrader = {
        let (lock, log) = (lock.clone(), log.clone());
        coroutine(move || {
            let guard = lock.read();
            yield_now();
            let _guard = RwLockReadGuard::upgrade(guard);
            note(&log, "upgraded");
            yield_now();
        })
    };
    upgrader.enter();
    let w = writer(&lock, &log, "w");
    w.enter();
    upgrader.enter(); // gives up its read lock
    let r = reader(&lock, &log, "r");
    r.enter();
    assert_order(&log.borrow(), &["w"]);
    w.enter();
    assert_order(&log.borrow(), &["w", "upgraded"]);
    upgrader.enter();
    r.enter();
    assert_order(&log.borrow(), &["w", "upgraded", "r"]);
}

#[test]
fn two_readers_that_upgrade_do_not_wait_for_each_other() {
    let context = context();
    let lock = Arc::new(RwLock::new(0));
    let upgrade = || {
        let lock = lock.clone();
        spawn(&context, move || {
            let guard = lock.read();
            yield_now();
            *RwLockReadGuard::upgrade(guard) += 1;
        })
    };
    let both = [upgrade(), upgrade()];
    both.into_iter().for_each(|handle| handle.join().expect("no panic"));
    assert_eq!(*lock.read(), 2);
}

#[test]
fn a_try_to_upgrade_gives_the_guard_back() {
    let lock = RwLock::new(1);
    let (first, second) = (lock.read(), lock.read());
    let first = RwLockReadGuard::try_upgrade(first).expect_err("there is another reader");
    assert_eq!(*first, 1);
    drop(second);
    let mut writer = RwLockReadGuard::try_upgrade(first).expect("the only reader");
    *writer += 1;
    assert!(lock.try_read().is_none());
    let reader = RwLockWriteGuard::downgrade(writer);
    assert_eq!((*reader, *lock.read()), (2, 2));
}

#[test]
fn an_upgrade_that_does_not_come_in_time_leaves_nothing() {
    let lock = RwLock::new(());
    let (first, second) = (lock.read(), lock.read());
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = lock.read();
            assert!(RwLockReadGuard::upgrade_until(guard, Instant::now()).is_none());
        });
    });
    drop((first, second));
    drop(lock.try_write().expect("nobody is left"));
}

#[test]
fn readers_behind_a_writer_that_leaves_are_let_in() {
    let (lock, log) = (Rc::new(RwLock::new(())), log());
    let [r1, r2, r3] = ["r1", "r2", "r3"].map(|name| reader(&lock, &log, name));
    let w = writer(&lock, &log, "w");
    [&r1, &w, &r2, &r3].iter().for_each(|co| co.enter());
    assert_order(&log.borrow(), &["r1"]);
    drop(w);
    assert_order(&log.borrow(), &["r1", "r2", "r3"]);
}

// ---- semaphore ------------------------------------------------------------------------------------------------------

#[test]
fn permits_are_taken_in_order_whatever_the_amount() {
    let semaphore = Rc::new(Semaphore::new(4));
    let log = log();
    let take = |count, name| {
        let (semaphore, log) = (semaphore.clone(), log.clone());
        coroutine(move || {
            let permits = semaphore.acquire(count);
            note(&log, name);
            yield_now();
            drop(permits);
        })
    };
    let (three, four, one) = (take(3, "three"), take(4, "four"), take(1, "one"));
    [&three, &four, &one].iter().for_each(|co| co.enter());
    assert!(semaphore.try_acquire(1).is_none(), "there is one, but others wait");
    assert_eq!(semaphore.available(), 1);
    three.enter();
    assert_order(&log.borrow(), &["three", "four"]);
    four.enter();
    assert_order(&log.borrow(), &["three", "four", "one"]);
    one.enter();
    assert_eq!(semaphore.available(), 4);
}

#[test]
fn a_large_request_that_leaves_lets_the_small_ones_in() {
    let semaphore = Rc::new(Semaphore::new(2));
    let done = Rc::new(Cell::new(0));
    let held = semaphore.acquire(1);
    let take = |count| {
        let (semaphore, done) = (semaphore.clone(), done.clone());
        coroutine(move || {
            let _permits = semaphore.acquire(count);
            done.set(done.get() + 1);
        })
    };
    let (large, small, other) = (take(2), take(1), take(1));
    [&large, &small, &other].iter().for_each(|co| co.enter());
    assert_eq!(done.get(), 0);
    drop(large);
    assert_eq!(done.get(), 2, "woken by the one that left, and run after it");
    assert!(small.is_finished() && other.is_finished());
    drop(held);
    assert_eq!(semaphore.available(), 2);
    assert!(semaphore.try_acquire_for(3, Duration::from_millis(1)).is_none());
    assert!(semaphore.try_acquire_until(3, Instant::now()).is_none());
    assert_eq!(semaphore.available(), 2);
}

#[test]
fn permits_can_be_split_merged_forgotten_and_added() {
    let semaphore = Semaphore::new(5);
    let mut all = semaphore.acquire(5);
    let two = all.split(2).expect("five are there");
    assert!(all.split(4).is_none());
    assert_eq!((all.count(), two.count()), (3, 2));
    drop(all);
    assert_eq!(semaphore.available(), 3);
    let mut more = semaphore.acquire(1);
    more.merge(two);
    assert_eq!(more.count(), 3);
    more.forget();
    assert_eq!(semaphore.available(), 2);
    semaphore.add_permits(8);
    drop(semaphore.acquire(10));
    drop(semaphore.acquire(0));
    let other = Semaphore::new(1);
    assert!(message_of(|| semaphore.acquire(1).merge(other.acquire(1))).contains("two semaphores"));
    assert!(message_of(|| semaphore.add_permits(Semaphore::MAX_PERMITS)).contains("too many"));
    assert!(message_of(|| _ = Semaphore::new(usize::MAX)).contains("too many"));
}

#[test]
fn permits_go_back_from_another_thread() {
    within(LIMIT, || {
        let context = context();
        let semaphore = Arc::new(Semaphore::new(0));
        let waiter = {
            let semaphore = semaphore.clone();
            spawn(&context, move || drop(semaphore.acquire(3)))
        };
        settle(&context);
        let adder = thread::spawn(move || (0..3).for_each(|_| semaphore.add_permits(1)));
        waiter.join().expect("no panic");
        adder.join().expect("no panic");
    });
}

// ---- all ------------------------------------------------------------------------------------------------------------

/// Field report 40, for locks: the next owner frees the lock as soon as it has it.
#[test]
fn a_lock_may_be_freed_by_the_next_owner() {
    within(LIMIT, || {
        let context = context();
        for _ in rounds(2000) {
            let mutex = Arc::new(Mutex::new(()));
            let semaphore = Arc::new(Semaphore::new(0));
            let holder = {
                let (mutex, semaphore) = (mutex.clone(), semaphore.clone());
                thread::spawn(move || {
                    let guard = mutex.lock();
                    semaphore.add_permits(1);
                    drop(guard);
                })
            };
            context.block_on(move || {
                drop(semaphore.acquire(1));
                drop(mutex.lock());
                drop(mutex);
            });
            holder.join().expect("no panic");
        }
    });
}

#[test]
fn locks_can_be_shared_and_printed() {
    fn shared<T: Send + Sync>(_: &T) {}

    static MUTEX: Mutex<Cell<u32>> = Mutex::new(Cell::new(1));
    let lock = RwLock::new(String::from("data"));
    let semaphore = Semaphore::new(1);
    shared(&MUTEX);
    shared(&lock);
    shared(&semaphore);
    shared(&semaphore.acquire(1));
    assert!(format!("{MUTEX:?}").contains('1'));
    let guard = MUTEX.lock();
    assert!(format!("{MUTEX:?}").contains("locked") && format!("{guard:?}").contains('1'));
    assert!(format!("{lock:?}").contains("data"));
    let guard = lock.write();
    assert!(format!("{lock:?}").contains("locked") && format!("{guard:?}").contains("data"));
    assert!(format!("{semaphore:?}").contains("available"));
    assert_eq!(*Mutex::<u32>::default().get_mut() + *RwLock::from(2).get_mut(), 2);
}

#[test]
fn a_lock_on_a_busy_thread_is_handed_to_a_sleeping_one() {
    within(LIMIT, || {
        let mutex = Arc::new(Mutex::new(false));
        let guard = mutex.lock();
        let waiter = {
            let mutex = mutex.clone();
            thread::spawn(move || {
                let context = context();
                context.block_on(|| *mutex.lock() = true);
            })
        };
        thread::sleep(Duration::from_millis(5));
        drop(guard);
        assert!(eventually(|| mutex.try_lock().is_some_and(|value| *value)));
        waiter.join().expect("no panic");
    });
}
