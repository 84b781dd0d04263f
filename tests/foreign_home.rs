//! A loop that isn't ours as a home: a mutex, a condition variable, and a helper thread for each descriptor.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use aioco::coroutine::{
    Builder, Home, HomeCell, HomeGuard, Interest, RunQueue, Watch, Woken, WokenList, current_home, enter_home,
    unwind_all,
};
use aioco::{JoinHandle, fd, in_coroutine, park, task, yield_now};
use common::{
    Count, LIMIT, OnDrop, assert_cancelled, assert_order, child, context, coroutine, message_of, rounds, scaled,
    sockets, within,
};

// ---- the loop -------------------------------------------------------------------------------------------------------

/// What the loop's home side is, shared with other threads.
struct Mini {
    thread: ThreadId,
    woken: RunQueue,
    watches: Mutex<Watches>,
    bell: Condvar,
}

#[derive(Default)]
struct Watches {
    next: u64,
    all: BTreeMap<u64, Arc<Shot>>,
    deadlines: BTreeMap<(Instant, u64), Arc<Shot>>,
}

/// A watch that fires once, unless it is called off before.
struct Shot {
    state: AtomicU8,
    waker: Waker,
}

const PENDING: u8 = 0;
const FIRED: u8 = 1;
const CALLED_OFF: u8 = 2;

impl Shot {
    fn fire(&self) {
        if self.state.compare_exchange(PENDING, FIRED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.waker.wake_by_ref();
        }
    }
}

impl Mini {
    fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().expect("not poisoned")
    }

    fn add(&self, waker: Waker) -> (u64, Arc<Shot>) {
        let mut watches = self.watches();
        let number = watches.next;
        watches.next += 1;
        let shot = Arc::new(Shot { state: AtomicU8::new(PENDING), waker });
        watches.all.insert(number, shot.clone());
        (number, shot)
    }
}

impl Home for Mini {
    fn schedule(&self, woken: Woken) {
        if self.woken.push(woken) {
            let _watches = self.watches();
            self.bell.notify_one();
        }
    }

    fn is_current(&self) -> bool {
        thread::current().id() == self.thread
    }

    fn watch_fd(&self, fd: BorrowedFd<'_>, interest: Interest, waker: Waker) -> io::Result<Watch> {
        let fd = fd.try_clone_to_owned()?;
        let (number, shot) = self.add(waker);
        let events = match interest {
            Interest::Readable => libc::POLLIN,
            Interest::Writable => libc::POLLOUT,
        };
        thread::spawn(move || {
            let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
            while shot.state.load(Ordering::Relaxed) == PENDING {
                // SAFETY: one valid entry.
                if unsafe { libc::poll(&mut entry, 1, 1) } != 0 {
                    shot.fire();
                }
            }
        });
        Ok(Watch(number))
    }

    fn watch_deadline(&self, deadline: Instant, waker: Waker) -> Watch {
        let (number, shot) = self.add(waker);
        self.watches().deadlines.insert((deadline, number), shot);
        Watch(number)
    }

    fn unwatch(&self, Watch(number): Watch) -> bool {
        let shot = self.watches().all.remove(&number).expect("called once for each watch");
        shot.state.swap(CALLED_OFF, Ordering::AcqRel) == FIRED
    }

    fn turn(self: Arc<Self>) {
        self.run_once();
    }
}

impl Mini {
    fn run_once(self: &Arc<Self>) {
        assert!(!in_coroutine(), "the loop was turned inside of a coroutine");
        let _home = enter_home(self.clone());
        let mut watches = self.watches();
        let due = loop {
            let now = Instant::now();
            let later = watches.deadlines.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut watches.deadlines, later);
            if !due.is_empty() || !self.woken.is_empty() {
                break due;
            }
            let next = watches.deadlines.keys().next().map(|(deadline, _)| deadline.duration_since(now));
            watches = match next {
                Some(timeout) => self.bell.wait_timeout(watches, timeout).expect("not poisoned").0,
                None => self.bell.wait(watches).expect("not poisoned"),
            };
        };
        drop(watches);
        due.values().for_each(|shot| shot.fire());
        self.woken.run();
    }
}

/// The loop itself, which its thread owns.
struct Loop(Arc<Mini>);

impl Loop {
    fn new() -> Self {
        Self(Arc::new(Mini {
            thread: thread::current().id(),
            woken: RunQueue::new(),
            watches: Mutex::default(),
            bell: Condvar::new(),
        }))
    }

    fn home(&self) -> Arc<dyn Home> {
        self.0.clone()
    }

    #[track_caller]
    fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        spawn_on(&self.home(), f)
    }

    /// Runs until nothing is left to do without waiting.
    fn settle(&self) {
        while !self.0.woken.is_empty() {
            self.0.run_once();
        }
    }
}

#[track_caller]
fn spawn_on<T: Send + 'static>(home: &Arc<dyn Home>, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    task::spawn_on(home, Builder::new(), f).expect("a stack")
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _home = enter_home(self.home());
        drop(self.0.woken.close());
        unwind_all(&*self.0);
    }
}

// ---- the loop as a home ---------------------------------------------------------------------------------------------

#[test]
fn spawned_coroutines_run_on_the_loops_thread_and_are_joined_there() {
    within(LIMIT, || {
        let mini = Loop::new();
        let here = thread::current().id();
        let handle = mini.spawn(move || {
            assert_eq!(thread::current().id(), here);
            (0..5).for_each(|_| yield_now());
            42
        });
        assert!(!handle.is_finished());
        assert_eq!(handle.join().expect("no panic"), 42);
        let home = mini.home();
        let nested = mini.spawn(move || spawn_on(&home, || 43).join().expect("no panic"));
        assert_eq!(nested.join().expect("no panic"), 43);
        let payload = mini.spawn(|| panic_any(7u8)).join().map(|_: ()| ()).expect_err("panics");
        assert_eq!(payload.downcast_ref(), Some(&7u8));
        let handle = mini.spawn(|| {
            loop {
                yield_now();
            }
        });
        mini.0.run_once();
        handle.cancel();
        assert_cancelled(handle.join().map(|_: ()| ()));
    });
}

#[test]
fn plain_threads_and_coroutines_of_other_loops_spawn_there_and_join() {
    within(LIMIT, || {
        let (give, take) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mini = Loop::new();
            give.send(mini.home()).expect("the test waits");
            while !stopped.load(Ordering::Acquire) {
                mini.0.run_once();
            }
            thread::current().id()
        });
        let home = take.recv().expect("the thread has started");
        let mut ran_on = Vec::new();
        for _ in rounds(scaled(4000)) {
            ran_on.push(spawn_on(&home, || thread::current().id()).join().expect("no panic"));
        }
        let context = context();
        context.block_on(|| {
            for _ in rounds(scaled(4000)) {
                ran_on.push(spawn_on(&home, || thread::current().id()).join().expect("no panic"));
            }
        });
        stop.store(true, Ordering::Release);
        drop(spawn_on(&home, || ()));
        let there = thread.join().expect("no panic");
        assert!(ran_on.iter().all(|&id| id == there));
    });
}

#[test]
fn descriptors_and_deadlines_are_waited_for_through_the_hooks() {
    within(LIMIT, || {
        let mini = Loop::new();
        let (theirs, ours) = sockets();
        let writer = thread::spawn(move || {
            for byte in 0..20u8 {
                (&theirs).write_all(&[byte]).expect("room");
                let mut answer = [0];
                (&theirs).read_exact(&mut answer).expect("an answer");
                assert_eq!(answer[0], byte + 1);
            }
        });
        let reader = mini.spawn(move || {
            for _ in 0..20 {
                fd::wait_readable(&ours).expect("a wait");
                let mut byte = [0];
                (&ours).read_exact(&mut byte).expect("a byte");
                fd::wait_writable(&ours).expect("a wait");
                (&ours).write_all(&[byte[0] + 1]).expect("room");
            }
        });
        let deadline = Instant::now() + Duration::from_millis(5);
        let timed = mini.spawn(move || {
            park::park_until(deadline);
            Instant::now()
        });
        assert!(timed.join().expect("no panic") >= deadline);
        reader.join().expect("no panic");
        writer.join().expect("no panic");
        // One that is called off, and one that is ended by a wake.
        let (_theirs, ours) = sockets();
        let waiting = mini.spawn(move || fd::wait_readable(&ours).expect("a wait"));
        let (give, take) = mpsc::channel();
        let far = mini.spawn(move || {
            give.send(park::waker()).expect("the test waits");
            park::park_until(Instant::now() + Duration::from_secs(1000));
        });
        mini.settle();
        waiting.cancel();
        assert_cancelled(waiting.join());
        let waker: Waker = take.recv().expect("it has started");
        waker.wake();
        far.join().expect("no panic");
        assert!(mini.0.watches().all.is_empty(), "each watch was ended");
    });
}

#[test]
fn wakes_from_other_threads_reach_the_loop_and_none_is_lost() {
    within(LIMIT, || {
        let mini = Loop::new();
        let all: Vec<_> = (0..3)
            .map(|_| {
                let (give, take) = mpsc::channel::<(Arc<AtomicUsize>, usize, Waker)>();
                let worker = thread::spawn(move || {
                    for (done, number, waker) in take {
                        done.store(number, Ordering::Release);
                        waker.wake();
                    }
                });
                let handle = mini.spawn(move || {
                    let done = Arc::new(AtomicUsize::new(0));
                    for number in rounds(scaled(20_000)) {
                        give.send((done.clone(), number, park::waker())).expect("the worker is there");
                        while done.load(Ordering::Acquire) != number {
                            park::park();
                        }
                    }
                });
                (handle, worker)
            })
            .collect();
        for (handle, worker) in all {
            handle.join().expect("no panic");
            worker.join().expect("no panic");
        }
    });
}

#[test]
fn coroutines_driven_by_hand_live_there_too() {
    within(LIMIT, || {
        let mini = Loop::new();
        let count = Rc::new(Cell::new(0));
        let inside = count.clone();
        let co = coroutine(move || {
            loop {
                park::park();
                inside.set(inside.get() + 1);
            }
        });
        assert!(current_home().is_none());
        {
            let _home = enter_home(mini.home());
            assert!(current_home().is_some_and(|home| home.is_current()));
            co.enter();
        }
        for round in 1..=3 {
            let waker = co.waker();
            thread::spawn(move || waker.wake()).join().expect("no panic");
            assert_eq!(count.get(), round - 1);
            mini.0.run_once();
            assert_eq!(count.get(), round);
        }
        drop(mini);
        co.waker().wake();
        co.enter();
        assert_eq!(count.get(), 4, "it outlives the loop");
    });
}

#[test]
fn a_foreign_loop_and_a_context_share_a_thread() {
    within(LIMIT, || {
        let mini = Loop::new();
        let context = context();
        let (give, take) = mpsc::channel();
        let of_mini = mini.spawn(move || {
            give.send(park::waker()).expect("the test waits");
            park::park();
            5
        });
        mini.settle();
        let waker: Waker = take.recv().expect("it has started");
        let of_context = context.spawn(move || {
            waker.wake();
            yield_now();
            6
        });
        assert_eq!(of_context.expect("a stack").join().expect("no panic"), 6);
        assert_eq!(of_mini.join().expect("no panic"), 5);
    });
}

#[test]
fn a_loop_that_is_dropped_ends_its_coroutines_in_whatever_state() {
    within(LIMIT, || {
        let mini = Loop::new();
        let dropped = Count::default();
        let guarded = |f: fn()| {
            let guard = dropped.guard();
            move || {
                let _guard = guard;
                f();
            }
        };
        let (ours, _theirs) = sockets();
        let guard = dropped.guard();
        let handles = [
            mini.spawn(guarded(park::park)),
            mini.spawn(guarded(|| {
                loop {
                    yield_now();
                }
            })),
            mini.spawn(guarded(|| park::park_until(Instant::now() + Duration::from_secs(1000)))),
            mini.spawn(move || {
                let _guard = guard;
                fd::wait_readable(&ours).expect("a wait");
            }),
        ];
        (0..3).for_each(|_| mini.0.run_once());
        let unstarted = mini.spawn(guarded(|| unreachable!("it started")));
        let (home, closure) = (mini.home(), guarded(|| unreachable!("it started")));
        let from_elsewhere = thread::spawn(move || spawn_on(&home, closure)).join().expect("no panic");
        let home = mini.home();
        drop(mini);
        assert_eq!(dropped.get(), 6);
        handles.into_iter().chain([unstarted, from_elsewhere]).for_each(|handle| assert_cancelled(handle.join()));
        // What comes after the end is dropped unrun, here and elsewhere.
        assert_cancelled(spawn_on(&home, guarded(|| unreachable!("it started"))).join());
        let late = guarded(|| unreachable!("it started"));
        thread::spawn(move || assert_cancelled(spawn_on(&home, late).join())).join().expect("no panic");
        assert_eq!(dropped.get(), 8);
    });
}

#[test]
fn entering_a_home_on_a_foreign_thread_is_refused() {
    let mini = Loop::new();
    let home = mini.home();
    let message = thread::spawn(move || message_of(|| drop(enter_home(home)))).join().expect("caught");
    assert!(message.contains("own thread"), "{message}");
}

// ---- the pieces -----------------------------------------------------------------------------------------------------

/// A home that keeps what is scheduled, for the test to do with as it likes.
#[derive(Default)]
struct Tray {
    woken: Mutex<Vec<Woken>>,
}

impl Tray {
    fn take(&self) -> Vec<Woken> {
        std::mem::take(&mut self.woken.lock().expect("not poisoned"))
    }

    fn take_one(&self) -> Woken {
        let mut woken = self.take();
        assert_eq!(woken.len(), 1);
        woken.pop().expect("one")
    }
}

impl Home for Tray {
    fn schedule(&self, woken: Woken) {
        self.woken.lock().expect("not poisoned").push(woken);
    }

    fn is_current(&self) -> bool {
        true
    }

    fn watch_fd(&self, _: BorrowedFd<'_>, _: Interest, _: Waker) -> io::Result<Watch> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn watch_deadline(&self, _: Instant, _: Waker) -> Watch {
        Watch(0)
    }

    fn unwatch(&self, _: Watch) -> bool {
        true
    }

    fn turn(self: Arc<Self>) {
        self.take().into_iter().for_each(Woken::run);
    }
}

fn tray() -> (Arc<Tray>, Arc<dyn Home>) {
    let tray = Arc::new(Tray::default());
    (tray.clone(), tray)
}

#[test]
fn queues_and_lists_keep_the_order_and_run_each_entry_once() {
    let (tray, home) = tray();
    let log = Arc::new(Mutex::new(Vec::new()));
    let spawn = |n: usize| {
        let log = log.clone();
        spawn_on(&home, move || log.lock().expect("not poisoned").push(n))
    };
    let handles: Vec<_> = (0..9).map(spawn).collect();
    let mut entries = tray.take().into_iter();
    let mut next = || entries.next().expect("nine");
    let (queue, mut list, mut other) = (RunQueue::new(), WokenList::new(), WokenList::default());
    assert!(queue.is_empty() && list.is_empty());
    assert!(queue.push(next()), "it was empty");
    assert!(!queue.push(next()));
    assert!(!queue.push(next()));
    let mut taken = queue.take_all();
    assert!(queue.is_empty() && queue.take_all().is_empty());
    list.append(&mut taken);
    assert!(taken.is_empty());
    list.push_back(next());
    other.push_back(next());
    other.push_back(next());
    list.append(&mut other);
    list.append(&mut other);
    assert!(other.is_empty() && other.next().is_none());
    other.push_back(next());
    other.append(&mut list);
    // 6 0 1 2 3 4 5; the rest by way of another queue.
    let queue = RunQueue::default();
    (&mut other).for_each(|woken| _ = queue.push(woken));
    queue.push(next());
    queue.push(next());
    queue.take_all().for_each(Woken::run);
    assert_order(&log.lock().expect("not poisoned"), &[6usize, 0, 1, 2, 3, 4, 5, 7, 8]);
    assert!(handles.iter().all(JoinHandle::is_finished));
    assert!(entries.next().is_none());
}

#[test]
fn a_queue_runs_what_it_had_and_what_a_panic_left_is_scheduled_once_more() {
    let mini = Loop::new();
    let log = Arc::new(Mutex::new(Vec::new()));
    let note = |number: u32| {
        let log = log.clone();
        move || log.lock().expect("not poisoned").push(number)
    };
    let co = coroutine(|| {
        park::park();
        panic_any("on purpose");
    });
    {
        let _home = enter_home(mini.home());
        co.enter();
    }
    let noting = note(0);
    let first = mini.spawn(move || {
        noting();
        yield_now();
        noting();
    });
    co.waker().wake();
    let others = [1, 2].map(|number| mini.spawn(note(number)));
    let woken = &mini.0.woken;
    let payload = catch_unwind(AssertUnwindSafe(|| woken.run())).expect_err("panics");
    assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
    assert_order(&log.lock().expect("not poisoned"), &[0u32]);
    assert!(!woken.is_empty(), "the loop knows that there is more to run");
    woken.run();
    assert_order(&log.lock().expect("not poisoned"), &[0u32, 0, 1, 2]);
    assert!(woken.is_empty());
    first.join().expect("no panic");
    others.into_iter().for_each(|other| other.join().expect("no panic"));
}

#[test]
fn a_queue_that_is_closed_gives_what_it_had_and_drops_what_comes() {
    let ((tray, home), queue) = (tray(), RunQueue::new());
    let handles = [(); 3].map(|()| spawn_on(&home, || ()));
    let mut woken = tray.take().into_iter();
    let mut next = || woken.next().expect("three");
    assert!(queue.push(next()));
    queue.close().for_each(Woken::run);
    assert!(!queue.push(next()));
    thread::scope(|scope| {
        let last = next();
        scope.spawn(|| queue.push(last));
    });
    assert!(queue.is_empty() && queue.take_all().is_empty() && queue.close().is_empty());
    let [ran, here, elsewhere] = handles;
    ran.join().expect("no panic");
    assert_cancelled(here.join());
    assert_cancelled(elsewhere.join());
}

#[test]
fn a_cell_of_a_home_is_opened_on_its_thread_only() {
    let count = Count::default();
    let guard = Rc::new(count.guard());
    let cell = HomeCell::new(guard.clone());
    assert!(cell.is_current());
    assert_eq!(cell.with(|guard| Rc::strong_count(guard)), 2);
    let cell = thread::spawn(move || {
        assert!(!cell.is_current());
        let message = message_of(|| cell.with(|_| ()));
        assert!(message.contains("thread that is not its own"), "{message}");
        assert!(!format!("{cell:?}").contains("Guard"));
        cell
    })
    .join()
    .expect("caught");
    drop(cell);
    assert_eq!(Rc::strong_count(&guard), 1);
    // Dropped elsewhere, it leaks what it has.
    let cell = HomeCell::new(guard);
    thread::spawn(move || drop(cell)).join().expect("no panic");
    assert_eq!(count.get(), 0);
}

#[test]
fn a_join_by_the_thread_of_a_loop_that_others_run_is_refused() {
    struct Guest(Arc<Tray>);
    impl Home for Guest {
        fn schedule(&self, woken: Woken) {
            self.0.schedule(woken);
        }

        fn is_current(&self) -> bool {
            true
        }

        fn watch_fd(&self, fd: BorrowedFd<'_>, interest: Interest, waker: Waker) -> io::Result<Watch> {
            self.0.watch_fd(fd, interest, waker)
        }

        fn watch_deadline(&self, deadline: Instant, waker: Waker) -> Watch {
            self.0.watch_deadline(deadline, waker)
        }

        fn unwatch(&self, watch: Watch) -> bool {
            self.0.unwatch(watch)
        }
    }
    let (tray, _) = tray();
    let home: Arc<dyn Home> = Arc::new(Guest(tray.clone()));
    let handle = spawn_on(&home, || ());
    let message = message_of(|| handle.join().expect("no panic"));
    assert!(message.contains("in another coroutine"), "{message}");
    let handle = spawn_on(&home, || ());
    tray.take().into_iter().for_each(Woken::run);
    handle.join().expect("it has ended");
}

#[test]
fn a_woken_coroutine_that_was_not_started_is_dropped_with_its_entry_on_whatever_thread() {
    for elsewhere in [false, true] {
        let (tray, home) = tray();
        let dropped = Count::default();
        let guard = dropped.guard();
        let handle = spawn_on(&home, move || drop(guard));
        let woken = tray.take_one();
        assert!(format!("{woken:?}").starts_with("Woken"));
        if elsewhere {
            thread::spawn(move || drop(woken)).join().expect("no panic")
        } else {
            drop(woken)
        }
        assert_eq!(dropped.get(), 1);
        assert_cancelled(handle.join());
        assert!(tray.take().is_empty());
    }
}

/// A coroutine of the tray's that counts its wakes.
fn counting(tray: &Tray, home: &Arc<dyn Home>) -> (JoinHandle<()>, Waker, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let inside = count.clone();
    let (give, take) = mpsc::channel();
    let handle = spawn_on(home, move || {
        give.send(park::waker()).expect("the test waits");
        loop {
            park::park();
            inside.fetch_add(1, Ordering::Relaxed);
        }
    });
    tray.take_one().run();
    (handle, take.recv().expect("it has started"), count)
}

#[test]
fn the_entry_of_a_suspended_coroutine_that_is_dropped_on_its_thread_unwinds_it() {
    for state in ["parked", "yielded"] {
        let (tray, home) = tray();
        let dropped = Count::default();
        let guard = dropped.guard();
        let (give, take) = mpsc::channel();
        let handle = spawn_on(&home, move || {
            let _guard = guard;
            give.send(park::waker()).expect("the test waits");
            if state == "parked" { park::park() } else { yield_now() }
        });
        tray.take_one().run();
        let waker: Waker = take.recv().expect("it has started");
        waker.wake();
        drop(tray.take_one());
        assert_eq!(dropped.get(), 1);
        assert_cancelled(handle.join());
    }
}

#[test]
fn the_entry_of_a_parked_coroutine_that_is_dropped_or_run_elsewhere_leaves_it_to_the_next_wake() {
    for how in ["dropped", "run"] {
        let (tray, home) = tray();
        let (handle, waker, count) = counting(&tray, &home);
        for round in 1..=3 {
            waker.wake_by_ref();
            let woken = tray.take_one();
            thread::spawn(move || match how {
                "dropped" => drop(woken),
                _ => {
                    let message = message_of(|| woken.run());
                    assert!(message.contains("thread"), "{message}");
                }
            })
            .join()
            .expect("no panic");
            assert_eq!(count.load(Ordering::Relaxed), round - 1);
            assert!(tray.take().is_empty());
            waker.wake_by_ref();
            tray.take_one().run();
            assert_eq!(count.load(Ordering::Relaxed), round);
        }
        handle.cancel();
        tray.take_one().run();
        assert_cancelled(handle.join());
    }
}

#[test]
fn a_home_that_runs_what_it_is_given_at_once_loses_nothing() {
    struct Eager;
    impl Home for Eager {
        fn schedule(&self, woken: Woken) {
            woken.run();
        }

        fn is_current(&self) -> bool {
            true
        }

        fn watch_fd(&self, _: BorrowedFd<'_>, _: Interest, _: Waker) -> io::Result<Watch> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn watch_deadline(&self, _: Instant, _: Waker) -> Watch {
            Watch(0)
        }

        fn unwatch(&self, _: Watch) -> bool {
            true
        }

        fn turn(self: Arc<Self>) {}
    }
    let home: Arc<dyn Home> = Arc::new(Eager);
    let count = Arc::new(AtomicU32::new(0));
    let inside = count.clone();
    let (give, take) = mpsc::channel();
    let handle = spawn_on(&home, move || {
        (0..100).for_each(|_| yield_now());
        give.send(park::waker()).expect("the test waits");
        for _ in 0..3 {
            park::park();
            inside.fetch_add(1, Ordering::Relaxed);
        }
    });
    let waker: Waker = take.recv().expect("it ran");
    for round in 1..=3 {
        assert!(!handle.is_finished());
        waker.wake_by_ref();
        assert_eq!(count.load(Ordering::Relaxed), round);
    }
    handle.join().expect("no panic");
}

#[test]
fn the_panic_of_a_coroutine_driven_by_hand_comes_out_of_run() {
    let (tray, home) = tray();
    let co = coroutine(|| {
        park::park();
        panic_any("on purpose");
    });
    {
        let _home = enter_home(home.clone());
        co.enter();
    }
    co.waker().wake();
    let woken = tray.take_one();
    let payload = catch_unwind(AssertUnwindSafe(|| woken.run())).expect_err("panics");
    assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
    // A spawned one's goes to its handle.
    let handle = spawn_on(&home, || panic_any("its own"));
    tray.take_one().run();
    assert_eq!(handle.join().map(|_: ()| ()).expect_err("panics").downcast_ref(), Some(&"its own"));
}

#[test]
fn a_home_gets_what_its_coroutines_spawn_when_they_suspend_and_is_let_go_by_all() {
    for how in ["ends", "yields", "parks", "is cancelled", "isn't joined", "isn't joined in time"] {
        let (tray, home) = tray();
        let spawner = spawn_on(&home, {
            let (tray, home) = (tray.clone(), home.clone());
            move || {
                let child = spawn_on(&home, move || match how {
                    "yields" => yield_now(),
                    "parks" => {
                        park::waker().wake();
                        park::park();
                        let waker = park::waker();
                        thread::spawn(move || waker.wake()).join().expect("no panic");
                        yield_now();
                        park::park();
                    }
                    _ => (),
                });
                assert!(tray.take().is_empty(), "not yet");
                match how {
                    "is cancelled" => {
                        child.cancel();
                        assert_cancelled(child.join());
                    }
                    "isn't joined" => drop(child),
                    "isn't joined in time" => {
                        yield_now();
                        child.join().expect("no panic");
                    }
                    _ => child.join().expect("no panic"),
                }
            }
        });
        for turn in 0.. {
            let woken = tray.take();
            if woken.is_empty() {
                break;
            }
            woken.into_iter().for_each(Woken::run);
            assert!(turn < 10, "{how}");
        }
        spawner.join().expect("no panic");
        assert!(tray.take().is_empty());
        drop(home);
        assert_eq!(Arc::strong_count(&tray), 1, "{how}");
    }
}

#[test]
fn unwind_all_ends_the_parked_coroutines_of_one_home_only() {
    let ((tray_a, home_a), (tray_b, home_b)) = (tray(), tray());
    let (a, _, _) = counting(&tray_a, &home_a);
    let (b, wakes_b, count_b) = counting(&tray_b, &home_b);
    let by_hand = coroutine(|| {
        loop {
            park::park();
        }
    });
    {
        let _home = enter_home(home_a.clone());
        by_hand.enter();
    }
    unwind_all(&*home_a);
    assert_cancelled(a.join());
    assert!(!b.is_finished() && !by_hand.is_finished());
    wakes_b.wake();
    tray_b.take_one().run();
    assert_eq!(count_b.load(Ordering::Relaxed), 1);
    unwind_all(&*home_b);
    assert_cancelled(b.join());
}

#[test]
fn unwind_all_ends_a_coroutine_that_yielded_and_whose_turn_was_dropped_elsewhere() {
    let (tray, home) = tray();
    let dropped = Count::default();
    let guard = dropped.guard();
    let handle = spawn_on(&home, move || {
        let _guard = guard;
        yield_now();
    });
    tray.take_one().run();
    let turn = tray.take_one();
    thread::spawn(move || drop(turn)).join().expect("no panic");
    assert_eq!(dropped.get(), 0);
    unwind_all(&*home);
    assert_eq!(dropped.get(), 1);
    assert_cancelled(handle.join());
}

#[test]
fn homes_nest_and_are_restored() {
    let ((_, a), (_, b)) = (tray(), tray());
    let is = |home: &Arc<dyn Home>| current_home().is_some_and(|current| Arc::ptr_eq(&current, home));
    let log = RefCell::new(Vec::new());
    let note = || log.borrow_mut().push((is(&a), is(&b)));
    note();
    {
        let _a = enter_home(a.clone());
        note();
        {
            let _b = enter_home(b.clone());
            note();
        }
        note();
    }
    note();
    assert_order(&log.borrow(), &[(false, false), (true, false), (false, true), (true, false), (false, false)]);
}

// ---- regressions ----------------------------------------------------------------------------------------------------

#[test]
fn the_entry_of_a_coroutine_that_yielded_is_not_lost_when_it_is_dropped_elsewhere() {
    let exit = child("", |_| {
        within(Duration::from_secs(10), || {
            let (tray, home) = tray();
            let (give, take) = mpsc::channel();
            let handle = spawn_on(&home, move || {
                give.send(park::waker()).expect("the test waits");
                loop {
                    yield_now();
                }
            });
            tray.take_one().run();
            let woken = tray.take_one();
            thread::spawn(move || drop(woken)).join().expect("no panic");
            // It is suspended; a wake schedules it, or else the end of its home finds it.
            let waker: Waker = take.recv().expect("it has started");
            waker.wake();
            drop(tray.take());
            unwind_all(&*home);
            assert_cancelled(handle.join().map(|_: ()| ()));
        });
    });
    exit.assert_success();
}

#[test]
fn a_home_may_enter_another_while_it_is_called() {
    /// A tray that is another home's guest.
    struct Guest {
        tray: Arc<Tray>,
        host: Arc<dyn Home>,
    }

    impl Guest {
        fn enter_host(&self) -> HomeGuard {
            let guard = enter_home(self.host.clone());
            assert!(current_home().is_some_and(|current| Arc::ptr_eq(&current, &self.host)));
            guard
        }
    }

    impl Home for Guest {
        fn schedule(&self, woken: Woken) {
            let _host = self.enter_host();
            self.tray.schedule(woken);
        }

        fn is_current(&self) -> bool {
            let _host = self.enter_host();
            true
        }

        fn watch_fd(&self, _: BorrowedFd<'_>, _: Interest, _: Waker) -> io::Result<Watch> {
            let _host = self.enter_host();
            Ok(Watch(0))
        }

        fn watch_deadline(&self, _: Instant, _: Waker) -> Watch {
            let _host = self.enter_host();
            Watch(0)
        }

        fn unwatch(&self, _: Watch) -> bool {
            let _host = self.enter_host();
            true
        }

        fn turn(self: Arc<Self>) {
            drop(self.enter_host());
            self.tray.take().into_iter().for_each(Woken::run);
        }
    }

    let ((tray, _), (_, host)) = (tray(), tray());
    let guest: Arc<dyn Home> = Arc::new(Guest { tray: tray.clone(), host });
    let _home = enter_home(guest.clone());
    let handle = spawn_on(&guest, {
        let guest = guest.clone();
        move || {
            let waker = park::waker();
            (0..3).for_each(|_| yield_now());
            let child = spawn_on(&guest, yield_now);
            waker.wake();
            park::park_until(Instant::now() + Duration::from_secs(1000));
            child.join().expect("no panic");
            let (ours, _theirs) = sockets();
            park::waker().wake();
            fd::wait_readable(&ours).expect("a wait");
        }
    });
    handle.join().expect("no panic");
    assert!(current_home().is_some_and(|current| Arc::ptr_eq(&current, &guest)));
}

#[test]
fn a_home_that_stops_being_current_while_it_is_called_lives_through_the_call() {
    /// Keeps what is scheduled, but in its last call runs it, and then leaves the loop.
    struct Leaving {
        tray: Arc<Tray>,
        guard: HomeCell<Option<HomeGuard>>,
        is_dropped: Arc<AtomicBool>,
    }

    impl Drop for Leaving {
        fn drop(&mut self) {
            self.is_dropped.store(true, Ordering::Relaxed);
        }
    }

    impl Home for Leaving {
        fn schedule(&self, woken: Woken) {
            let Some(guard) = self.guard.with(Option::take) else { return self.tray.schedule(woken) };
            woken.run();
            drop(guard);
            assert!(!self.is_dropped.load(Ordering::Relaxed));
        }

        fn is_current(&self) -> bool {
            self.guard.is_current()
        }

        fn watch_fd(&self, _: BorrowedFd<'_>, _: Interest, _: Waker) -> io::Result<Watch> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn watch_deadline(&self, _: Instant, _: Waker) -> Watch {
            Watch(0)
        }

        fn unwatch(&self, _: Watch) -> bool {
            true
        }
    }

    let (tray, _) = tray();
    let is_dropped = Arc::new(AtomicBool::new(false));
    let leaving = Arc::new(Leaving { tray: tray.clone(), guard: HomeCell::new(None), is_dropped: is_dropped.clone() });
    let home: Arc<dyn Home> = leaving.clone();
    drop(spawn_on(&home, yield_now));
    let guard = enter_home(home);
    leaving.guard.with(|kept| *kept = Some(guard));
    drop(leaving);
    tray.take_one().run();
    assert!(current_home().is_none() && is_dropped.load(Ordering::Relaxed));
}

#[test]
fn a_coroutine_that_borrows_is_run_and_dropped_on_no_other_thread() {
    for how in ["run", "dropped"] {
        let exit = child(how, |how| {
            let how = how.to_owned();
            within(Duration::from_secs(10), move || {
                let (tray, home) = tray();
                let touched_on = Arc::new(Mutex::new(Vec::new()));
                let inside = touched_on.clone();
                let here = thread::current().id();
                let outer = spawn_on(&home, move || {
                    // What runs under the timeout borrows, and isn't `Send`.
                    let local = Rc::new(Cell::new(0));
                    let touch = || inside.lock().expect("not poisoned").push(thread::current().id());
                    let guard = OnDrop(touch);
                    aioco::aio::timeout(Duration::from_secs(1000), || {
                        let _guard = guard;
                        local.set(local.get() + 1);
                    })
                });
                tray.take_one().run();
                let inner = tray.take_one();
                let elsewhere = thread::spawn(move || {
                    catch_unwind(AssertUnwindSafe(|| if how == "run" { inner.run() } else { drop(inner) })).is_err()
                });
                elsewhere.join().expect("no panic");
                outer.cancel();
                tray.take().into_iter().for_each(Woken::run);
                unwind_all(&*home);
                let touched_on = touched_on.lock().expect("not poisoned");
                assert!(touched_on.iter().all(|&id| id == here), "touched by another thread");
            });
        });
        exit.assert_success();
    }
}
