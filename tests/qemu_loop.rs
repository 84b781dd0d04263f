//! The scenarios of QEMU's `test-aio` and `test-aio-multithread`, with every monitor. Those of bottom halves alone are in
//! `bottom_half`, that of `test-nested-aio-poll` is in `polling`, and what is about locks comes with these.

mod common;

use std::cell::{Cell, RefCell};
use std::mem;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use aioco::aio::{FdCallbacks, FdHandler, IoThread, Timer};
use aioco::{AioContext, aio, park};
use common::{Count, builder_like, each, eventfd, lower, raise, rounds, scaled, settle, watch_something};

/// An eventfd whose handler clears it, counts, and sets it again for as long as there are rounds left.
struct Notifier {
    event: Rc<OwnedFd>,
    calls: Count,
    rounds_left: Rc<Cell<u32>>,
}

impl Notifier {
    fn new() -> Self {
        Self { event: Rc::new(eventfd()), calls: Count::default(), rounds_left: Rc::default() }
    }

    fn add(&self, context: &AioContext) -> FdHandler<'static> {
        let (event, calls, rounds_left) = (self.event.clone(), self.calls.clone(), self.rounds_left.clone());
        let callback = move || {
            lower(&event);
            calls.raise();
            if let Some(left) = rounds_left.get().checked_sub(1) {
                rounds_left.set(left);
                raise(&event);
            }
        };
        context.add_owned_fd(self.event.clone(), FdCallbacks::new().on_readable(callback)).expect("a handler")
    }

    fn set(&self) {
        raise(&self.event);
    }
}

// ---- test-aio -------------------------------------------------------------------------------------------------------

#[test]
fn to_add_and_to_remove_a_handler_is_no_progress() {
    each(|context| {
        let handler = Notifier::new().add(context);
        assert!(!context.poll(false));
        drop(handler);
        assert!(!context.poll(false));
    });
}

#[test]
fn an_event_is_one_call_and_one_progress() {
    each(|context| {
        let notifier = Notifier::new();
        let handler = notifier.add(context);
        settle(context);
        assert_eq!(notifier.calls.get(), 0);
        for calls in 1..=3 {
            notifier.set();
            assert!(context.poll(false));
            assert_eq!(notifier.calls.get(), calls);
            assert!(!context.poll(false));
            assert_eq!(notifier.calls.get(), calls);
        }
        notifier.set();
        drop(handler);
        assert!(!context.poll(false));
        assert_eq!(notifier.calls.get(), 3);
    });
}

#[test]
fn each_of_two_events_is_told_to_its_own_handler() {
    each(|context| {
        let (first, second) = (Notifier::new(), Notifier::new());
        let calls = || (first.calls.get(), second.calls.get());
        let _first = first.add(context);
        first.set();
        assert!(context.poll(true));
        assert_eq!(calls(), (1, 0));
        let _second = second.add(context);
        assert!(!context.poll(false));
        first.set();
        assert!(context.poll(true));
        assert!(!context.poll(false));
        assert_eq!(calls(), (2, 0));
        second.set();
        assert!(context.poll(true));
        assert!(!context.poll(false));
        assert_eq!(calls(), (2, 1));
        first.set();
        second.set();
        assert!(context.poll(true));
        settle(context);
        assert_eq!(calls(), (3, 2));
    });
}

#[test]
fn an_event_that_its_callback_sets_again_is_told_once_a_turn() {
    each(|context| {
        let notifier = Notifier::new();
        let _handler = notifier.add(context);
        notifier.rounds_left.set(9);
        notifier.set();
        for turn in 1..=10 {
            assert!(context.poll(true));
            assert_eq!(notifier.calls.get(), turn);
        }
        assert!(!context.poll(false));
        assert_eq!(notifier.calls.get(), 10);
    });
}

#[test]
fn a_wake_up_alone_leaves_nothing_to_do() {
    each(|context| {
        let remote = context.remote();
        thread::spawn(move || remote.set_polling(aio::Polling::OFF)).join().expect("no panic");
        settle(context);
        assert!(!context.poll(false));
        // What was scheduled and taken back is a wake-up, too.
        let bh = context.bottom_half(|| unreachable!("it was cancelled"));
        let trigger = bh.trigger();
        thread::spawn(move || {
            trigger.schedule();
            trigger.cancel();
        })
        .join()
        .expect("no panic");
        assert!(!context.poll(false));
    });
}

#[test]
fn a_timer_fires_in_turns_only_and_is_what_a_turn_that_blocks_waits_for() {
    const DELAY: Duration = Duration::from_millis(75);
    each(|context| {
        // A descriptor that is watched, and never ready.
        let _dummy = Notifier::new().add(context);
        let (fired, armed_for) = (Count::default(), Rc::new(Cell::new(Instant::now() + DELAY)));
        let own = Rc::new(OnceLock::<Timer>::new());
        let (count, deadline, this) = (fired.clone(), armed_for.clone(), own.clone());
        let timer = context.timer(move || {
            assert!(Instant::now() >= deadline.get(), "early");
            count.raise();
            if count.get() < 2 {
                deadline.set(Instant::now() + DELAY);
                this.get().expect("made").arm(deadline.get());
            }
        });
        timer.arm(armed_for.get());
        own.set(timer).expect("made once");
        let is_due = || Instant::now() >= armed_for.get();
        assert_eq!(fired.get(), 0);
        let progress = context.poll(false);
        assert!(is_due() || !progress);
        thread::sleep(DELAY * 4 / 3);
        let before = fired.get();
        if before == 0 {
            assert!(context.poll(false));
        }
        assert_eq!(fired.get(), 1, "{before} before the turn");
        let progress = context.poll(false);
        assert!(is_due() || !progress, "it is armed anew");
        if fired.get() == 1 {
            assert!(context.poll(true));
        }
        assert_eq!(fired.get(), 2);
        assert!(!own.get().expect("made").is_armed());
        assert!(!context.poll(false));
        own.get().expect("made").cancel();
    });
}

#[test]
fn two_coroutines_of_a_context_wake_each_other_25000_times_in_constant_stack() {
    const ROUNDS: u32 = 25_000;
    each(|context| {
        let kind = context.monitor().kind();
        let small = thread::Builder::new().stack_size(128 << 10).spawn(move || {
            let context = AioContext::builder().monitor(kind).build().expect("a context");
            let wakers: Rc<RefCell<[Option<Waker>; 2]>> = Rc::default();
            let counts: Rc<[Cell<u32>; 2]> = Rc::default();
            let players = [0, 1].map(|own| {
                let (wakers, counts) = (wakers.clone(), counts.clone());
                let player = move || {
                    wakers.borrow_mut()[own] = Some(park::waker());
                    while counts[own].get() < ROUNDS {
                        if let Some(other) = &wakers.borrow()[1 - own] {
                            other.wake_by_ref();
                        }
                        counts[own].set(counts[own].get() + 1);
                        park::park();
                    }
                    wakers.borrow()[1 - own].as_ref().expect("it has played").wake_by_ref();
                };
                context.spawn_local(player).expect("a stack")
            });
            context.run_until(|| players.iter().all(|player| player.is_finished()));
            assert_eq!([counts[0].get(), counts[1].get()], [ROUNDS, ROUNDS]);
            assert!(!context.poll(false));
        });
        small.expect("a thread").join().expect("no overflow");
    });
}

#[test]
fn what_a_plain_thread_spawns_runs_in_the_next_turn_of_the_contexts_thread() {
    each(|context| {
        let here = thread::current().id();
        let (ran, remote) = (Count::default(), context.remote());
        let count = ran.clone();
        let coroutine = move || {
            assert_eq!(thread::current().id(), here);
            count.raise();
        };
        let handle = thread::spawn(move || remote.spawn(coroutine).expect("a stack")).join().expect("no panic");
        assert_eq!(ran.get(), 0);
        assert!(context.poll(true));
        assert_eq!(ran.get(), 1);
        assert!(!context.poll(false));
        handle.join().expect("no panic");
    });
}

// ---- test-aio-multithread -------------------------------------------------------------------------------------------

const THREADS: usize = 5;

fn io_threads(context: &AioContext) -> [IoThread; THREADS] {
    [0, 1, 2, 3, 4].map(|number| IoThread::with(format!("io-{number}"), builder_like(context)).expect("a thread"))
}

#[test]
fn threads_are_started_and_joined() {
    each(|context| {
        for _ in 0..10 {
            let threads = io_threads(context);
            for (number, thread) in threads.iter().enumerate() {
                let name = thread.remote().call(|| thread::current().name().map(str::to_owned));
                assert_eq!(name.expect("it runs"), Some(format!("io-{number}")));
            }
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            // At once, too.
            drop(io_threads(context));
        }
    });
}

/// Coroutines that have gone to sleep, or are about to, each with its context's number.
#[derive(Default)]
struct Sleepers {
    parked: [Mutex<Option<Waker>>; THREADS],
    stop: AtomicBool,
    wakes_elsewhere: AtomicU64,
    wakes_here: AtomicU64,
    retries: AtomicU64,
}

impl Sleepers {
    /// Wakes the coroutine of a context, if it sleeps.
    fn wake(&self, number: usize, count: &AtomicU64) {
        let waker = self.parked[number].lock().unwrap().take();
        let count = if waker.is_some() { count } else { &self.retries };
        count.fetch_add(1, Ordering::Relaxed);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Wakes others at random, and sleeps until it is woken itself, over and over. Returns how often it slept.
    fn run(&self, own: usize) -> u64 {
        let (mut slept, mut random) = (0, own as u64);
        while !self.stop.load(Ordering::Acquire) {
            for _ in 0..2 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                self.wake((random >> 33) as usize % THREADS, &self.wakes_elsewhere);
            }
            // Published before it parks: it may be woken before, by its own thread too, but for the stop.
            let before = self.parked[own].lock().unwrap().replace(park::waker());
            assert!(before.is_none(), "it was running");
            while self.parked[own].lock().unwrap().is_some() {
                park::park();
            }
            slept += 1;
        }
        slept
    }
}

#[test]
fn coroutines_of_five_threads_wake_each_other_at_random_and_none_sleeps_for_ever() {
    each(|context| {
        let threads = io_threads(context);
        for thread in &threads[..3] {
            // It stays with its context.
            let watch = || mem::forget(watch_something(&aio::current().expect("in a call")));
            thread.remote().call(watch).expect("it runs");
        }
        let sleepers = Arc::new(Sleepers::default());
        let players: Vec<_> = (0..THREADS)
            .map(|own| {
                let sleepers = sleepers.clone();
                threads[own].remote().spawn(move || sleepers.run(own)).expect("a stack")
            })
            .collect();
        // All may be asleep at once: from time to time, the contexts' own threads wake theirs.
        let mut kicks = 0;
        for round in rounds(scaled(4000)) {
            let (number, sleepers) = (round % THREADS, sleepers.clone());
            threads[number].remote().schedule_once(move || sleepers.wake(number, &sleepers.wakes_here));
            kicks += 1;
            thread::yield_now();
        }
        sleepers.stop.store(true, Ordering::Release);
        let mut slept = 0;
        for (number, player) in players.into_iter().enumerate() {
            // Whoever isn't asleep now will find that it is to stop, or be asleep later.
            while !player.is_finished() {
                let sleepers = sleepers.clone();
                threads[number].remote().call(move || sleepers.wake(number, &sleepers.wakes_here)).expect("it runs");
            }
            slept += player.join().expect("no panic");
        }
        let [elsewhere, here, retries] = [&sleepers.wakes_elsewhere, &sleepers.wakes_here, &sleepers.retries]
            .map(|count| count.load(Ordering::Relaxed));
        println!("{elsewhere} by others, {here} by their own thread in {kicks} kicks, {retries} found nobody");
        assert_eq!(slept, elsewhere + here, "each wake ended a sleep");
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}
