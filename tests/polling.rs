//! Adaptive polling and waits for many events, with every monitor.

mod common;

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use aioco::aio::{Coalescing, FdCallbacks, FdHandler, MonitorKind, PollSource, Polling};
use aioco::{AioContext, aio, fd, park};
use common::{Count, each, eventfd, lower, raise, rounds, scaled, settle, spawn};

const MILLI: Duration = Duration::from_millis(1);

/// A window that no event misses, however loaded the machine is.
const LONG: Duration = Duration::from_secs(1000);

/// A device with a flag in shared memory, and an eventfd that it signals if it is told to.
#[derive(Clone)]
struct Device(Rc<Parts>);

struct Parts {
    event: Rc<OwnedFd>,
    has_work: Cell<bool>,
    /// What becomes of `has_work` in the last look, after the loop has said that it will sleep.
    comes_late: Cell<bool>,
    polls: Count,
    done_by_polling: Count,
    done_by_event: Count,
    begins: Count,
    ends: Count,
    dropped: Count,
}

impl Device {
    fn new() -> Self {
        Self(Rc::new(Parts {
            event: Rc::new(eventfd()),
            has_work: Cell::default(),
            comes_late: Cell::default(),
            polls: Count::default(),
            done_by_polling: Count::default(),
            done_by_event: Count::default(),
            begins: Count::default(),
            ends: Count::default(),
            dropped: Count::default(),
        }))
    }

    fn attach(&self, context: &AioContext) -> FdHandler<'static> {
        let device = self.clone();
        let on_event = move || {
            lower(&device.0.event);
            device.0.has_work.set(false);
            device.0.done_by_event.raise();
        };
        let callbacks = FdCallbacks::new().on_readable(on_event).polled(Source(self.clone(), self.0.dropped.guard()));
        context.add_owned_fd(self.0.event.clone(), callbacks).expect("a handler")
    }

    /// Has it looked at from now on: a source that has had no event isn't.
    fn warm_up(&self, context: &AioContext) {
        raise(&self.0.event);
        assert!(context.poll(true));
        assert_eq!(self.0.done_by_event.get(), 1);
    }
}

struct Source(Device, #[expect(dead_code, reason = "dropped with it")] common::Guard);

impl PollSource for Source {
    fn poll(&mut self) -> bool {
        self.0.0.polls.raise();
        self.0.0.has_work.get()
    }

    fn ready(&mut self) {
        self.0.0.has_work.set(false);
        self.0.0.done_by_polling.raise();
    }

    fn begin(&mut self) {
        self.0.0.begins.raise();
    }

    fn end(&mut self) {
        self.0.0.ends.raise();
        if self.0.0.comes_late.take() {
            self.0.0.has_work.set(true);
        }
    }
}

/// A context with the same monitor that polls.
fn with(context: &AioContext, polling: Polling) -> AioContext {
    AioContext::builder().monitor(context.monitor().kind()).polling(polling).build().expect("a context")
}

/// Has the window grow by some events, each of which is found when it has closed.
fn open_window(context: &AioContext, device: &Device) {
    for _ in 0..4 {
        raise(&device.0.event);
        assert!(context.poll(true));
    }
}

// ---- polling --------------------------------------------------------------------------------------------------------

#[test]
fn off_means_off() {
    each(|context| {
        let device = Device::new();
        let _handler = device.attach(context);
        device.warm_up(context);
        context.block_on(|| aio::sleep(MILLI));
        raise(&device.0.event);
        assert!(context.poll(true));
        let stats = context.stats();
        assert_eq!((stats.polls, stats.poll_hits, stats.polled), (0, 0, Duration::ZERO));
        assert_eq!(device.0.polls.get() + device.0.begins.get(), 0);
    });
}

#[test]
fn what_polling_finds_costs_no_system_call() {
    each(|context| {
        let context = &with(context, Polling::up_to(LONG));
        let device = Device::new();
        let _handler = device.attach(context);
        device.warm_up(context);
        open_window(context, &device);
        let counts = || (device.0.done_by_event.get(), device.0.begins.get() - device.0.ends.get());
        let (events, _) = counts();
        let before = context.stats();
        // Fewer than the turns after which a loop looks at descriptors in any case.
        for round in 1..=10 {
            device.0.has_work.set(true);
            assert!(context.poll(true), "progress");
            assert_eq!(device.0.done_by_polling.get(), round);
        }
        let after = context.stats();
        assert_eq!(after.poll_hits - before.poll_hits, 10);
        assert!(after.waits + after.control_calls <= before.waits + before.control_calls + 1, "{before:?} {after:?}");
        assert_eq!(counts(), (events, 1), "it still counts on being looked at");
    });
}

#[test]
fn waking_a_polling_context_costs_no_system_call() {
    each(|context| {
        let context = &with(context, Polling::up_to(LONG));
        let (waker, woken) = (Arc::new(std::sync::OnceLock::new()), Count::default());
        let sleeper = spawn(context, {
            let (waker, woken) = (waker.clone(), woken.clone());
            move || {
                waker.get_or_init(park::waker);
                loop {
                    park::park();
                    woken.raise();
                }
            }
        });
        settle(context);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, seen) = (stop.clone(), woken.clone());
        let thread = thread::spawn(move || {
            let waker: &std::task::Waker = waker.wait();
            for round in 1..=2000 {
                waker.wake_by_ref();
                while seen.get() < round && !stopped.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                // Long enough for a window to grow.
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(2) {}
            }
        });
        // The window grows until it holds.
        let window_is_open = |context: &AioContext| context.stats().poll_hits > 100;
        context.run_until(|| window_is_open(context) || woken.get() >= 1000);
        assert!(window_is_open(context), "{:?}", context.stats());
        let before = context.stats();
        context.run_until(|| woken.get() >= 2000);
        let after = context.stats();
        // Some, when the waker's thread has been off its processor for longer than the window; and a look at
        // descriptors every so many turns.
        let (signals, looks) = (after.signals - before.signals, after.waits - before.waits);
        assert!(signals < 100 && looks < 200, "{before:?} {after:?}");
        stop.store(true, Ordering::Release);
        thread.join().expect("no panic");
        sleeper.cancel();
    });
}

#[test]
fn a_source_is_looked_at_once_more_after_it_has_been_told_of_the_sleep() {
    each(|context| {
        let context = &with(context, Polling::up_to(50 * Duration::from_micros(1)).leave_after(LONG));
        let device = Device::new();
        let _handler = device.attach(context);
        // The window grows while events come soon after the wait has begun.
        let found = (0..1000).any(|_| {
            raise(&device.0.event);
            context.poll(true);
            device.0.comes_late.set(true);
            let by_polling = device.0.done_by_polling.get();
            // If it isn't looked at, it sleeps: not for long.
            let timer = context.timer(|| ());
            timer.arm_after(MILLI);
            context.poll(true);
            device.0.comes_late.set(false);
            device.0.has_work.set(false);
            device.0.done_by_polling.get() > by_polling
        });
        assert!(found, "what comes between the last look and the sleep is seen");
        assert_eq!(device.0.begins.get(), device.0.ends.get());
    });
}

#[test]
fn a_source_that_is_idle_is_left_out_until_it_has_an_event() {
    each(|context| {
        let context = &with(context, Polling::up_to(LONG).leave_after(5 * MILLI));
        let device = Device::new();
        let handler = device.attach(context);
        device.warm_up(context);
        open_window(context, &device);
        thread::sleep(6 * MILLI);
        // Timers keep the loop going, and are no source.
        context.block_on(|| aio::sleep(MILLI));
        let before = (device.0.polls.get(), context.stats().polls);
        context.block_on(|| aio::sleep(MILLI));
        assert_eq!((device.0.polls.get(), context.stats().polls), before, "it is left out");
        assert_eq!(device.0.begins.get(), device.0.ends.get());
        device.warm_up_again(context);
        drop(handler);
        context.block_on(|| aio::sleep(MILLI));
        assert_eq!(device.0.dropped.get(), 1);
    });
}

impl Device {
    fn warm_up_again(&self, context: &AioContext) {
        let before = self.0.done_by_event.get();
        raise(&self.0.event);
        assert!(context.poll(true));
        assert_eq!(self.0.done_by_event.get(), before + 1);
    }
}

/// QEMU's `test-nested-aio-poll`.
#[test]
fn a_source_whose_work_polls_nested_is_not_looked_at_there() {
    struct Nesting {
        calls: Rc<Cell<u32>>,
        inside: Rc<Cell<bool>>,
        other: Rc<OwnedFd>,
        other_done: Count,
    }

    impl PollSource for Nesting {
        fn poll(&mut self) -> bool {
            assert!(!self.inside.get(), "looked at in the nested turn");
            true
        }

        fn ready(&mut self) {
            assert!(!self.inside.replace(true));
            self.calls.set(self.calls.get() + 1);
            raise(&self.other);
            let before = self.other_done.get();
            let context = aio::current().expect("in a callback");
            while self.other_done.get() == before {
                assert!(context.poll(true));
            }
            self.inside.set(false);
        }
    }

    each(|context| {
        let context = &with(context, Polling::up_to(MILLI).grow(2).shrink(2));
        let (event, other) = (Rc::new(eventfd()), Rc::new(eventfd()));
        let (calls, by_event, other_done) = (Rc::new(Cell::new(0)), Count::default(), Count::default());
        let count = by_event.clone();
        let own = event.clone();
        let on_event = move || {
            lower(&own);
            count.raise();
        };
        let inside = Rc::new(Cell::new(false));
        let source = Nesting { calls: calls.clone(), inside, other: other.clone(), other_done: other_done.clone() };
        let callbacks = FdCallbacks::new().on_readable(on_event).polled(source);
        let _handler = context.add_owned_fd(event.clone(), callbacks).expect("a handler");
        let own = other.clone();
        let count = other_done.clone();
        let on_other = move || {
            lower(&own);
            count.raise();
        };
        let _other = context.add_owned_fd(other, FdCallbacks::new().on_readable(on_other)).expect("a handler");
        assert!(!context.poll(false), "nothing has happened");
        if context.monitor().kind() != MonitorKind::IoUring {
            // The other descriptor can't be looked at without a system call: no polling.
            raise(&event);
            assert!(context.poll(true));
            assert_eq!((by_event.get(), calls.get()), (1, 0));
            return;
        }
        // The descriptor's event puts the source on the list, and opens its window.
        while calls.get() == 0 {
            raise(&event);
            assert!(context.poll(true));
            // The source is looked at if its window is open.
            let timer = context.timer(|| ());
            timer.arm_after(MILLI);
            assert!(context.poll(true));
        }
        for round in calls.get() + 1..calls.get() + 4 {
            assert!(context.poll(true));
            assert_eq!(calls.get(), round, "it is back on the list");
        }
    });
}

#[test]
fn descriptors_that_cannot_be_looked_at_keep_a_loop_from_polling() {
    each(|context| {
        let context = &with(context, Polling::up_to(LONG));
        let device = Device::new();
        let _handler = device.attach(context);
        device.warm_up(context);
        open_window(context, &device);
        let (ours, _theirs) = common::sockets();
        let waiting = spawn(context, move || fd::wait_readable(&ours));
        settle(context);
        let before = context.stats().polls;
        context.block_on(|| aio::sleep(MILLI));
        let polls = context.stats().polls - before;
        match context.monitor().kind() {
            MonitorKind::IoUring => assert!(polls > 0),
            _ => assert_eq!(polls, 0),
        }
        waiting.cancel();
    });
}

#[test]
fn other_threads_change_the_parameters_of_a_sleeping_loop() {
    each(|context| {
        let device = Device::new();
        let _handler = device.attach(context);
        let remote = context.remote();
        let thread = thread::spawn(move || {
            thread::sleep(5 * MILLI);
            remote.set_polling(Polling::up_to(LONG));
        });
        assert!(!context.poll(true), "it is no progress");
        thread.join().expect("no panic");
        device.warm_up(context);
        open_window(context, &device);
        assert!(context.stats().polls > 0);
        context.set_polling(Polling::OFF);
        let before = context.stats().polls;
        raise(&device.0.event);
        context.poll(true);
        assert_eq!(context.stats().polls, before);
    });
}

/// A device whose other side signals only if it is told to: what comes while the loop stops polling is seen all the same.
#[test]
fn no_event_is_lost_between_the_last_look_and_the_sleep() {
    #[derive(Default)]
    struct Memory {
        produced: AtomicU64,
        wants_no_signals: AtomicBool,
    }

    struct Consumer {
        memory: Arc<Memory>,
        consumed: Arc<AtomicU64>,
    }

    impl Consumer {
        fn consume(&self) {
            self.consumed.store(self.memory.produced.load(Ordering::Acquire), Ordering::Release);
        }
    }

    impl PollSource for Consumer {
        fn poll(&mut self) -> bool {
            self.memory.produced.load(Ordering::Acquire) != self.consumed.load(Ordering::Relaxed)
        }

        fn ready(&mut self) {
            self.consume();
        }

        fn begin(&mut self) {
            self.memory.wants_no_signals.store(true, Ordering::SeqCst);
        }

        fn end(&mut self) {
            self.memory.wants_no_signals.store(false, Ordering::SeqCst);
            // Pairs with the producer's: either it sees that it must signal, or the last look sees what it produced.
            fence(Ordering::SeqCst);
        }
    }

    each(|context| {
        let context = &with(context, Polling::up_to(MILLI / 5));
        let memory = Arc::new(Memory::default());
        let (event, consumed) = (Arc::new(eventfd()), Arc::new(AtomicU64::new(0)));
        let (own, told) = (event.clone(), Consumer { memory: memory.clone(), consumed: consumed.clone() });
        let on_event = move || {
            lower(&own);
            told.consume();
        };
        let source = Consumer { memory: memory.clone(), consumed: consumed.clone() };
        let callbacks = FdCallbacks::new().on_readable(on_event).polled(source);
        let _handler = context.add_owned_fd(event.clone(), callbacks).expect("a handler");
        let (remote, ended) = (context.remote(), Count::default());
        let guard = ended.guard();
        let producer = thread::spawn(move || {
            let mut signals = 0;
            for number in rounds(scaled(20_000)) {
                memory.produced.store(number as u64, Ordering::Release);
                fence(Ordering::SeqCst);
                if !memory.wants_no_signals.load(Ordering::SeqCst) {
                    raise(&event);
                    signals += 1;
                }
                while consumed.load(Ordering::Acquire) != number as u64 {
                    thread::yield_now();
                }
                // Sometimes about as long as the window, so that the next comes when it closes.
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(number as u64 % 250) {}
            }
            println!("{signals} signals");
            remote.schedule_once(move || drop(guard));
        });
        context.run_until(|| ended.get() == 1);
        producer.join().expect("no panic");
        println!("{:?}", context.stats());
    });
}

#[test]
fn a_loop_polls_at_most_once_before_each_sleep_and_an_idle_one_hardly_ever_sleeps_anew() {
    each(|context| {
        let context = &with(context, Polling::up_to(MILLI));
        let device = Device::new();
        let _handler = device.attach(context);
        // Many events, then few.
        for pause in [Duration::ZERO, MILLI / 10, 5 * MILLI] {
            let remote = context.remote();
            let (ran, count) = (Count::default(), if pause > MILLI { 20 } else { 300 });
            let raised = ran.clone();
            let thread = thread::spawn(move || {
                for _ in 0..count {
                    let ran = raised.clone();
                    remote.schedule_once(move || ran.raise());
                    thread::sleep(pause);
                }
            });
            let before = context.stats();
            let mut turns = 0;
            while ran.get() < count {
                context.poll(true);
                turns += 1;
            }
            thread.join().expect("no panic");
            let after = context.stats();
            let (polls, hits) = (after.polls - before.polls, after.poll_hits - before.poll_hits);
            assert!(polls <= turns && hits <= polls && turns <= 2 * u64::from(count), "{before:?} {after:?}");
        }
        // Nothing at all, but for a deadline.
        let before = context.stats();
        let timer = context.timer(|| ());
        timer.arm_after(100 * MILLI);
        context.run_until(|| !timer.is_armed());
        let after = context.stats();
        assert!(after.polls - before.polls <= 3 && after.waits - before.waits <= 6, "{before:?} {after:?}");
    });
}

// ---- waits for many events ------------------------------------------------------------------------------------------

/// Makes descriptors ready while the loop sleeps, one after the other, each group when the one before has been told of;
/// returns how many turns told of them.
fn turns_for(context: &AioContext, groups: &'static [u32]) -> u32 {
    let count = groups.iter().sum();
    let events: Vec<_> = (0..count).map(|_| Arc::new(eventfd())).collect();
    let told = Count::default();
    let handlers: Vec<_> = events
        .iter()
        .map(|event| {
            let (own, told) = (event.clone(), told.clone());
            let callback = move || {
                lower(&own);
                told.raise();
            };
            context.add_owned_fd(event.clone(), FdCallbacks::new().on_readable(callback)).expect("a handler")
        })
        .collect();
    settle(context);
    let seen = told.clone();
    let thread = thread::spawn(move || {
        let (mut events, mut raised) = (events.into_iter(), 0);
        for &size in groups {
            while seen.get() < raised {
                thread::yield_now();
            }
            for event in events.by_ref().take(size as usize) {
                thread::sleep(3 * MILLI);
                raise(&event);
            }
            raised += size;
        }
    });
    let mut turns = 0;
    while told.get() < count {
        turns += u32::from(context.poll(true));
    }
    thread.join().expect("no panic");
    drop(handlers);
    settle(context);
    turns
}

#[test]
fn a_sleep_lasts_until_there_are_so_many_events() {
    each(|context| {
        context.set_coalescing(Coalescing::new(10, LONG));
        assert_eq!(turns_for(context, &[10]), 1);
        context.set_coalescing(Coalescing::new(5, LONG));
        assert_eq!(turns_for(context, &[5, 5]), 2);
        context.set_coalescing(Coalescing::OFF);
        assert_eq!(turns_for(context, &[1, 1, 1, 1]), 4);
    });
}

#[test]
fn what_comes_alone_is_held_back_for_the_longest_time_and_no_longer() {
    each(|context| {
        context.set_coalescing(Coalescing::new(1000, 5 * MILLI));
        assert!(turns_for(context, &[1, 1, 1]) >= 1);
        // A wake-up by another thread.
        let remote = context.remote();
        let done = Count::default();
        let count = done.clone();
        let thread = thread::spawn(move || {
            thread::sleep(20 * MILLI);
            remote.schedule_once(move || count.raise());
        });
        context.run_until(|| done.get() == 1);
        thread.join().expect("no panic");
    });
}

#[test]
fn deadlines_are_kept_however_many_events_a_sleep_is_for() {
    each(|context| {
        context.set_coalescing(Coalescing::new(1000, LONG));
        context.block_on(|| aio::sleep(MILLI));
        let event = Arc::new(eventfd());
        let told = Count::default();
        let count = told.clone();
        let callbacks = FdCallbacks::new().on_readable(move || count.raise());
        let _handler = context.add_owned_fd(event.clone(), callbacks).expect("a handler");
        raise(&event);
        // The event alone isn't enough for a sleep to end.
        context.block_on(|| aio::sleep(5 * MILLI));
        assert!(told.get() >= 1);
    });
}
