//! Wait queues, events, barriers and thresholds.

mod common;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use aioco::coroutine::{Builder, Home, Interest, RunQueue, Watch, Woken, enter_home};
use aioco::sync::{Barrier, Event, Mutex, RwLock, Threshold, WaitQueue};
use aioco::{AioContext, JoinHandle, aio, task, yield_now};
use common::{
    Count, LIMIT, assert_cancelled, assert_order, context, coroutine, eventually, rounds, scaled, settle, spawn, within,
};

#[track_caller]
fn go(context: &AioContext, f: impl FnOnce() + 'static) -> JoinHandle<()> {
    context.spawn_local(f).expect("a stack")
}

type Log = Rc<RefCell<Vec<&'static str>>>;

/// Coroutines that wait in turn, and log their names when they have been woken.
fn waiters(context: &AioContext, queue: &Rc<WaitQueue>, log: &Log, names: &[&'static str]) -> Vec<JoinHandle<()>> {
    let wait = |&name| {
        let (queue, log) = (queue.clone(), log.clone());
        go(context, move || {
            queue.wait(());
            log.borrow_mut().push(name);
        })
    };
    let all = names.iter().map(wait).collect();
    settle(context);
    all
}

// ---- wait queue -----------------------------------------------------------------------------------------------------

#[test]
fn waiters_are_woken_in_order_one_or_all() {
    let context = context();
    let (queue, log) = (Rc::new(WaitQueue::new()), Log::default());
    assert!(!queue.wake_one() && queue.is_empty());
    let all = waiters(&context, &queue, &log, &["a", "b", "c", "d"]);
    assert!(!queue.is_empty());
    assert!(queue.wake_one());
    settle(&context);
    assert_order(&log.borrow(), &["a"]);
    queue.wake_all();
    assert!(queue.is_empty());
    settle(&context);
    assert_order(&log.borrow(), &["a", "b", "c", "d"]);
    assert!(all.iter().all(JoinHandle::is_finished));
}

#[test]
fn a_waiter_may_join_at_the_front() {
    let context = context();
    let (queue, log) = (Rc::new(WaitQueue::new()), Log::default());
    waiters(&context, &queue, &log, &["back"]);
    {
        let (queue, log) = (queue.clone(), log.clone());
        go(&context, move || {
            queue.wait_at_front(());
            log.borrow_mut().push("front");
        });
    }
    settle(&context);
    queue.wake_one();
    queue.wake_one();
    settle(&context);
    assert_order(&log.borrow(), &["front", "back"]);
}

#[test]
fn who_joins_after_wake_all_waits_for_the_next_one() {
    let context = context();
    let queue = Rc::new(WaitQueue::new());
    let times = Rc::new(Cell::new(0));
    {
        let (queue, times) = (queue.clone(), times.clone());
        go(&context, move || {
            for _ in 0..3 {
                queue.wait(());
                times.set(times.get() + 1);
            }
        });
    }
    for round in 1..=3 {
        settle(&context);
        queue.wake_all();
        settle(&context);
        assert_eq!(times.get(), round);
    }
}

#[test]
fn the_guard_is_given_back_while_waiting_and_held_afterwards() {
    within(LIMIT, || {
        let shared = Arc::new((Mutex::new(0), WaitQueue::new()));
        let context = context();
        let waiter = {
            let shared = shared.clone();
            spawn(&context, move || {
                let (value, changed) = &*shared;
                let value = changed.wait_while(value.lock(), |value| **value < 3);
                assert!(shared.0.try_lock().is_none());
                *value
            })
        };
        let changer = thread::spawn(move || {
            for _ in 0..3 {
                *shared.0.lock() += 1;
                shared.1.wake_one();
            }
        });
        assert_eq!(waiter.join().expect("no panic"), 3);
        changer.join().expect("no panic");
    });
}

#[test]
fn a_waiter_may_wait_with_guards_of_an_rwlock() {
    let context = context();
    let shared = Arc::new((RwLock::new(0), WaitQueue::new()));
    let reader = {
        let shared = shared.clone();
        spawn(&context, move || *shared.1.wait_while(shared.0.read(), |value| **value == 0))
    };
    let writer = {
        let shared = shared.clone();
        spawn(&context, move || *shared.1.wait_while(shared.0.write(), |value| **value == 0) = 2)
    };
    settle(&context);
    *shared.0.write() = 1;
    shared.1.wake_all();
    assert_eq!(reader.join().expect("no panic"), 1);
    writer.join().expect("no panic");
    assert_eq!(*shared.0.read(), 2);
}

#[test]
fn a_waiter_that_finds_the_condition_false_keeps_its_place() {
    let context = context();
    let shared = Rc::new((Mutex::new(0), WaitQueue::new()));
    let log = Log::default();
    for (name, needed) in [("two", 2), ("one", 1)] {
        let (shared, log) = (shared.clone(), log.clone());
        go(&context, move || {
            let mut left = shared.1.wait_while(shared.0.lock(), |left| **left < needed);
            *left -= needed;
            log.borrow_mut().push(name);
        });
    }
    settle(&context);
    *shared.0.lock() += 1;
    shared.1.wake_one();
    settle(&context);
    assert!(log.borrow().is_empty());
    *shared.0.lock() += 1;
    shared.1.wake_one();
    settle(&context);
    assert_order(&log.borrow(), &["two"]);
}

#[test]
fn a_wait_that_is_not_woken_in_time_ends_with_the_guard() {
    within(LIMIT, || {
        let context = context();
        context.block_on(|| {
            let (value, changed) = (Mutex::new(0), WaitQueue::new());
            let soon = Instant::now() + Duration::from_millis(1);
            let (guard, woken) = changed.wait_until(value.lock(), soon);
            assert!(!woken && changed.is_empty());
            let (guard, is_true) = changed.wait_while_until(guard, |value| **value == 0, Instant::now());
            assert!(!is_true);
            let (mut guard, is_true) = changed.wait_while_until(guard, |value| **value == 1, None);
            assert!(is_true, "nothing to wait for");
            *guard = 1;
            assert!(!changed.wait_condition_until(|| false, soon));
            assert!(changed.wait_condition_until(|| true, soon));
        });
    });
}

#[test]
fn a_woken_waiter_that_is_cancelled_hands_the_wake_on() {
    let context = context();
    let (queue, log) = (Rc::new(WaitQueue::new()), Log::default());
    let all = waiters(&context, &queue, &log, &["a", "b", "c"]);
    queue.wake_one();
    all[0].cancel();
    settle(&context);
    assert_order(&log.borrow(), &["b"]);
    // One that was woken with all others hands nothing on.
    all[2].cancel();
    settle(&context);
    let more = waiters(&context, &queue, &log, &["d"]);
    queue.wake_all();
    more[0].cancel();
    waiters(&context, &queue, &log, &["e"]);
    settle(&context);
    assert_order(&log.borrow(), &["b"]);
    assert!(!queue.is_empty(), "e waits");
    queue.wake_all();
    settle(&context);
}

#[test]
fn a_woken_waiter_that_is_cancelled_before_it_has_the_lock_hands_the_wake_on() {
    let context = context();
    let shared = Rc::new((Mutex::new(()), WaitQueue::new()));
    let log = Log::default();
    let all: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let (shared, log) = (shared.clone(), log.clone());
            go(&context, move || {
                let _guard = shared.1.wait(shared.0.lock());
                log.borrow_mut().push(name);
            })
        })
        .collect();
    settle(&context);
    let guard = shared.0.lock();
    shared.1.wake_one();
    settle(&context); // a waits for the mutex
    all[0].cancel();
    settle(&context);
    drop(guard);
    settle(&context);
    assert_order(&log.borrow(), &["b"]);
    assert!(!shared.0.is_locked());
}

#[test]
fn waiters_that_are_cancelled_leave_the_queue() {
    for cancelled in 0..3 {
        let context = context();
        let (queue, log) = (Rc::new(WaitQueue::new()), Log::default());
        let mut all = waiters(&context, &queue, &log, &["a", "b", "c"]);
        let handle = all.remove(cancelled);
        handle.cancel();
        settle(&context);
        assert_cancelled(handle.join());
        queue.wake_all();
        settle(&context);
        let mut rest = vec!["a", "b", "c"];
        rest.remove(cancelled);
        assert_order(&log.borrow(), &rest);
    }
}

/// A coroutine that is woken by `wake_all` ends others that are yet to be woken.
#[test]
fn waiters_may_leave_while_all_are_being_woken() {
    within(LIMIT, || {
        let queue = Arc::new(WaitQueue::new());
        for _ in rounds(300) {
            let threads: Vec<_> = (0..4)
                .map(|n| {
                    let queue = queue.clone();
                    thread::spawn(move || match n {
                        0 => queue.wait(()),
                        _ => drop(queue.wait_until((), Instant::now() + Duration::from_micros(20 * n))),
                    })
                })
                .collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                queue.wake_all();
            }
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            assert!(queue.is_empty());
        }
    });
}

/// Field report 38.
#[test]
fn a_hundred_thousand_are_woken_at_once_on_small_stacks() {
    within(2 * LIMIT, || {
        let n = scaled(100_000);
        let context = context();
        let queue = Arc::new(WaitQueue::new());
        let woken = Arc::new(AtomicUsize::new(0));
        let all: Vec<_> = (0..n)
            .map(|_| {
                let (queue, woken) = (queue.clone(), woken.clone());
                let body = move || {
                    queue.wait(());
                    woken.fetch_add(1, Ordering::Relaxed);
                    queue.wake_all();
                };
                context.spawn_with(Builder::new().stack_size(64 << 10), body).expect("a stack")
            })
            .collect();
        settle(&context);
        queue.wake_all();
        context.run_until(|| all.iter().all(JoinHandle::is_finished));
        assert_eq!(woken.load(Ordering::Relaxed), n);
    });
}

/// Field report 39: whoever wakes holds a thread's lock that the woken one needs.
#[test]
fn a_wake_with_a_lock_held_only_queues() {
    within(LIMIT, || {
        let context = context();
        let shared = Arc::new((StdMutex::new(0), WaitQueue::new()));
        let waiter = {
            let shared = shared.clone();
            spawn(&context, move || {
                loop {
                    let value = shared.0.lock().expect("no poison");
                    if *value > 0 {
                        return *value;
                    }
                    shared.1.wait_after(|| drop(value));
                }
            })
        };
        settle(&context);
        context.block_on(|| {
            let mut value = shared.0.lock().expect("no poison");
            *value = 1;
            shared.1.wake_all();
            drop(value);
        });
        assert_eq!(waiter.join().expect("no panic"), 1);
    });
}

/// Field report 43: coroutines and threads in one queue.
#[test]
fn one_wake_wakes_one_whatever_it_is() {
    within(LIMIT, || {
        let queue = Arc::new(WaitQueue::new());
        let woken = Count::default();
        let waiting = Arc::new(AtomicUsize::new(0));
        let wait = {
            let (queue, woken, waiting) = (queue.clone(), woken.clone(), waiting.clone());
            move || {
                queue.wait_after(|| _ = waiting.fetch_add(1, Ordering::Release));
                woken.raise();
            }
        };
        let mut threads: Vec<_> = (0..2).map(|_| thread::spawn(wait.clone())).collect();
        threads.push(thread::spawn(move || {
            let context = context();
            let all = [spawn(&context, wait.clone()), spawn(&context, wait)];
            context.run_until(|| all.iter().all(JoinHandle::is_finished));
        }));
        assert!(eventually(|| waiting.load(Ordering::Acquire) == 4));
        for n in 1..=4 {
            assert!(queue.wake_one());
            assert!(eventually(|| woken.get() >= n));
            thread::sleep(Duration::from_millis(2));
            assert_eq!(woken.get(), n);
        }
        assert!(!queue.wake_one());
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

/// Field report 44: the condition is changed outside of any lock.
#[test]
fn a_condition_without_a_lock_is_not_missed() {
    within(LIMIT, || {
        let shared = Arc::new((AtomicU64::new(0), WaitQueue::new()));
        let changer = {
            let shared = shared.clone();
            thread::spawn(move || {
                for round in rounds(20_000) {
                    shared.0.store(2 * round as u64 - 1, Ordering::Release);
                    shared.1.wake_one();
                    shared.1.wait_condition(|| shared.0.load(Ordering::Acquire) == 2 * round as u64);
                }
                shared.0.store(u64::MAX, Ordering::Release);
                shared.1.wake_one();
            })
        };
        let context = context();
        context.block_on(|| {
            loop {
                shared.1.wait_condition(|| shared.0.load(Ordering::Acquire) % 2 == 1);
                let round = shared.0.load(Ordering::Acquire);
                if round == u64::MAX {
                    return;
                }
                shared.0.store(round + 1, Ordering::Release);
                shared.1.wake_one();
            }
        });
        changer.join().expect("no panic");
    });
}

/// Field report 41: a wake and a deadline at the same moment.
#[test]
fn a_wake_is_not_swallowed_by_one_whose_deadline_passes() {
    within(LIMIT, || {
        let queue = Arc::new(WaitQueue::new());
        for round in rounds(5000) {
            let joined = Arc::new(AtomicBool::new(false));
            let other = {
                let (queue, joined) = (queue.clone(), joined.clone());
                thread::spawn(move || queue.wait_after(|| joined.store(true, Ordering::Release)))
            };
            let timed = {
                let queue = queue.clone();
                let wait = move || queue.wait_until((), Instant::now() + Duration::from_micros(round as u64 % 60)).1;
                thread::spawn(wait)
            };
            assert!(eventually(|| joined.load(Ordering::Acquire)));
            assert!(queue.wake_one(), "the other one waits");
            if timed.join().expect("no panic") {
                assert!(queue.wake_one(), "the wake was for the one with the deadline");
            }
            other.join().expect("no panic");
        }
    });
}

// ---- event ----------------------------------------------------------------------------------------------------------

#[test]
fn an_event_wakes_all_who_wait_and_those_who_come_later() {
    within(LIMIT, || {
        let context = context();
        let event = Arc::new(Event::new());
        let wait = {
            let event = event.clone();
            move || event.wait()
        };
        let mut all = vec![spawn(&context, wait.clone()), spawn(&context, wait.clone())];
        let thread = thread::spawn(wait.clone());
        settle(&context);
        assert!(!event.is_set() && !event.wait_for(Duration::from_millis(1)) && !event.wait_until(Instant::now()));
        event.set();
        event.set();
        all.push(spawn(&context, wait));
        all.into_iter().for_each(|handle| handle.join().expect("no panic"));
        thread.join().expect("no panic");
        assert!(event.is_set() && event.wait_for(Duration::ZERO) && event.wait_until(Instant::now()));
    });
}

/// Field report 40: the one that waits frees the event as soon as it is woken.
#[test]
fn an_event_may_be_freed_by_the_one_that_was_woken() {
    within(LIMIT, || {
        let context = context();
        for _ in rounds(5000) {
            let event = Arc::new(Event::new());
            let setter = {
                let event = event.clone();
                thread::spawn(move || event.set())
            };
            context.block_on(move || {
                event.wait();
                drop(event);
            });
            setter.join().expect("no panic");
        }
    });
}

#[test]
fn one_that_waits_for_an_event_may_be_cancelled() {
    let context = context();
    let event = Arc::new(Event::new());
    let [first, second] = [(), ()].map(|()| {
        let event = event.clone();
        spawn(&context, move || event.wait())
    });
    settle(&context);
    first.cancel();
    event.set();
    settle(&context);
    assert_cancelled(first.join());
    second.join().expect("no panic");
}

// ---- barrier --------------------------------------------------------------------------------------------------------

#[test]
fn a_barrier_lets_all_go_again_and_again_with_one_leader() {
    within(LIMIT, || {
        const PARTIES: usize = 5;
        const ROUNDS: u64 = 200;
        let barrier = Arc::new(Barrier::new(PARTIES));
        let leaders = Arc::new(AtomicU64::new(0));
        let round = Arc::new(AtomicU64::new(0));
        let party = {
            let (barrier, leaders, round) = (barrier.clone(), leaders.clone(), round.clone());
            move || {
                for n in 0..ROUNDS {
                    assert_eq!(round.load(Ordering::Acquire), n);
                    if barrier.wait() {
                        leaders.fetch_add(1, Ordering::Relaxed);
                        round.store(n + 1, Ordering::Release);
                    }
                    // Nobody looks at the round before the leader has written it.
                    barrier.wait();
                }
            }
        };
        let threads = [thread::spawn(party.clone()), thread::spawn(party.clone())];
        let context = context();
        let all: Vec<_> = (2..PARTIES).map(|_| spawn(&context, party.clone())).collect();
        all.into_iter().for_each(|handle| handle.join().expect("no panic"));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(leaders.load(Ordering::Relaxed), ROUNDS);
    });
}

#[test]
fn one_that_leaves_a_barrier_has_not_come() {
    let context = context();
    let barrier = Arc::new(Barrier::new(2));
    assert_eq!(barrier.wait_until(Instant::now()), None);
    assert_eq!(barrier.wait_for(Duration::from_millis(1)), None);
    let wait = || {
        let barrier = barrier.clone();
        spawn(&context, move || barrier.wait())
    };
    let cancelled = wait();
    settle(&context);
    assert!(!cancelled.is_finished(), "the one whose time was up doesn't count");
    cancelled.cancel();
    settle(&context);
    assert_cancelled(cancelled.join());
    let first = wait();
    settle(&context);
    assert!(!first.is_finished(), "the one that was cancelled doesn't count");
    let second = wait();
    assert!(second.join().expect("no panic"), "the last one leads");
    assert!(!first.join().expect("no panic"));
}

// ---- threshold ------------------------------------------------------------------------------------------------------

/// A home that counts how often it is given something to run.
struct CountingHome {
    queue: RunQueue,
    scheduled: AtomicUsize,
    thread: OnceLock<thread::ThreadId>,
}

impl CountingHome {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: RunQueue::new(),
            scheduled: AtomicUsize::new(0),
            thread: OnceLock::from(thread::current().id()),
        })
    }

    /// Runs all that is ready; returns how much that was.
    fn run(self: &Arc<Self>) -> usize {
        let _home = enter_home(self.clone());
        self.queue.take_all().map(Woken::run).count();
        self.scheduled.swap(0, Ordering::Relaxed)
    }
}

impl Home for CountingHome {
    fn schedule(&self, woken: Woken) {
        self.scheduled.fetch_add(1, Ordering::Relaxed);
        self.queue.push(woken);
    }

    fn is_current(&self) -> bool {
        self.thread.get() == Some(&thread::current().id())
    }

    fn watch_fd(&self, _: BorrowedFd<'_>, _: Interest, _: Waker) -> io::Result<Watch> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn watch_deadline(&self, _: Instant, _: Waker) -> Watch {
        Watch(0)
    }

    fn unwatch(&self, _: Watch) -> bool {
        false
    }

    fn turn(self: Arc<Self>) {
        self.run();
    }
}

#[test]
fn a_waiter_is_woken_once_for_many_advances() {
    let home = CountingHome::new();
    let threshold = Arc::new(Threshold::new());
    let reached = Arc::new(AtomicU64::new(0));
    let waiter = {
        let (threshold, reached) = (threshold.clone(), reached.clone());
        move || {
            for round in 1..=4 {
                threshold.wait(128 * round);
                reached.store(threshold.count(), Ordering::Relaxed);
            }
        }
    };
    let as_home: Arc<dyn Home> = home.clone();
    let handle = task::spawn_on(&as_home, Builder::new(), waiter).expect("a stack");
    assert_eq!(home.run(), 1);
    for n in 1..=512 {
        threshold.advance(1);
        let due = n % 128 == 0;
        assert_eq!(home.run(), usize::from(due), "at {n}");
        assert_eq!(reached.load(Ordering::Relaxed), n / 128 * 128);
    }
    assert!(handle.is_finished());
}

#[test]
fn an_advance_wakes_those_who_are_due_in_the_order_of_their_numbers() {
    let context = context();
    let threshold = Rc::new(Threshold::new());
    let log = Rc::new(RefCell::new(Vec::new()));
    let wait = |number| {
        let (threshold, log) = (threshold.clone(), log.clone());
        go(&context, move || {
            threshold.wait(number);
            log.borrow_mut().push(number);
        })
    };
    let all = [3, 1, 7, 5, 1, 2].map(wait);
    settle(&context);
    threshold.advance(2);
    settle(&context);
    assert_eq!(*log.borrow(), [1, 1, 2]);
    all[3].cancel();
    settle(&context);
    threshold.advance(3);
    settle(&context);
    assert_eq!(*log.borrow(), [1, 1, 2, 3]);
    threshold.advance(10);
    settle(&context);
    assert_eq!(*log.borrow(), [1, 1, 2, 3, 7]);
    threshold.wait(15);
    assert!(!threshold.wait_until(16, Instant::now()) && !threshold.wait_for(16, Duration::from_millis(1)));
    assert_eq!(threshold.count(), 15);
}

#[test]
fn completions_on_other_threads_are_not_missed() {
    within(LIMIT, || {
        const EACH: u64 = 50_000;
        let threshold = Arc::new(Threshold::new());
        let work = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (threshold, work) = (threshold.clone(), work.clone());
                thread::spawn(move || {
                    for _ in 0..EACH {
                        work.fetch_add(1, Ordering::Relaxed);
                        threshold.advance(1);
                    }
                })
            })
            .collect();
        let context = context();
        let all: Vec<_> = [7, 128, 1000]
            .into_iter()
            .map(|step| {
                let (threshold, work) = (threshold.clone(), work.clone());
                spawn(&context, move || {
                    for number in (step..=2 * EACH).step_by(step as usize) {
                        threshold.wait(number);
                        assert!(work.load(Ordering::Relaxed) >= number);
                    }
                })
            })
            .collect();
        all.into_iter().for_each(|handle| handle.join().expect("no panic"));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(threshold.count(), 2 * EACH);
    });
}

// ---- all ------------------------------------------------------------------------------------------------------------

#[test]
fn they_can_be_shared_and_printed() {
    fn shared<T: Send + Sync + std::fmt::Debug>(value: &T) {
        assert!(!format!("{value:?}").is_empty());
    }

    static QUEUE: WaitQueue = WaitQueue::new();
    static EVENT: Event = Event::new();
    static BARRIER: Barrier = Barrier::new(1);
    static THRESHOLD: Threshold = Threshold::new();
    shared(&QUEUE);
    shared(&EVENT);
    shared(&BARRIER);
    shared(&THRESHOLD);
    assert!(BARRIER.wait());
}

#[test]
fn a_closure_with_a_time_limit_leaves_what_it_waits_for() {
    within(LIMIT, || {
        let context = context();
        context.block_on(|| {
            let (queue, event, barrier, threshold) =
                (WaitQueue::new(), Event::new(), Barrier::new(2), Threshold::new());
            let short = Duration::from_millis(1);
            assert!(aio::timeout(short, || queue.wait(())).is_err());
            assert!(aio::timeout(short, || event.wait()).is_err());
            assert!(aio::timeout(short, || barrier.wait()).is_err());
            assert!(aio::timeout(short, || threshold.wait(1)).is_err());
            assert!(queue.is_empty());
        });
    });
}

/// A coroutine that is driven by its handle, in a home of its own or none.
#[test]
fn a_coroutine_without_a_home_waits_as_well() {
    let queue = Rc::new(WaitQueue::new());
    let waiter = {
        let queue = queue.clone();
        coroutine(move || {
            queue.wait(());
            yield_now();
        })
    };
    waiter.enter();
    waiter.enter();
    assert!(!queue.is_empty(), "a wake-up out of nothing");
    queue.wake_one();
    waiter.enter();
    waiter.enter();
    assert!(waiter.is_finished());
}
