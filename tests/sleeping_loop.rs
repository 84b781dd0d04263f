//! What ends a loop's sleep, and what doesn't: the same with every monitor.

mod common;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use aioco::aio::{Coalescing, FdCallbacks, FdHandler, Polling};
use aioco::coroutine::Interest;
use aioco::{AioContext, aio, fd, park};
use common::{
    Count, alike, assert_cancelled, builder_like, each, eventfd, lower, message_of, raise, rounds, settle, sockets,
    spawn, watch_something,
};

const MILLI: Duration = Duration::from_millis(1);

/// Blocking turns within 100 ms, one of which is for the end of that time.
fn turns_of_a_while(context: &AioContext) -> u32 {
    let sleeping = spawn(context, || aio::sleep(100 * MILLI));
    let mut turns = 0;
    while !sleeping.is_finished() {
        context.poll(true);
        turns += 1;
    }
    turns
}

fn on_readable(callback: impl FnMut() + 'static) -> FdCallbacks {
    FdCallbacks::new().on_readable(callback)
}

/// A pipe's ends, which block.
fn pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = io::pipe().expect("a pipe");
    (reader.into(), writer.into())
}

// ---- changes by other threads ---------------------------------------------------------------------------------------

/// Has another thread do something while the loop sleeps without limit, and turns until that shows.
fn while_it_sleeps(context: &AioContext, change: impl FnOnce() + Send + 'static, shows: impl FnMut() -> bool) {
    settle(context);
    let thread = thread::spawn(move || {
        thread::sleep(3 * MILLI);
        change();
    });
    context.run_until(shows);
    thread.join().expect("no panic");
}

#[test]
fn what_other_threads_schedule_and_spawn_and_wake_runs() {
    each(|context| {
        for round in 1..=4 {
            let _watched = (round % 2 == 0).then(|| watch_something(context));
            let ran = Count::default();
            let (remote, count) = (context.remote(), ran.clone());
            while_it_sleeps(context, move || remote.schedule_once(move || count.raise()), || ran.get() == 1);
            let count = ran.clone();
            let bh = context.bottom_half(move || count.raise());
            let trigger = bh.trigger();
            while_it_sleeps(context, move || trigger.schedule(), || ran.get() == 2);
            let trigger = bh.trigger();
            while_it_sleeps(context, move || trigger.schedule_idle(), || ran.get() == 3);
            let (remote, guard) = (context.remote(), ran.guard());
            while_it_sleeps(context, move || drop(remote.spawn(move || drop(guard))), || ran.get() == 4);

            let (waker, own) = (Arc::new(OnceLock::<Waker>::new()), Arc::new(OnceLock::new()));
            let (place, is_woken) = (waker.clone(), own.clone());
            let parked = spawn(context, move || {
                place.get_or_init(park::waker);
                while is_woken.get().is_none() {
                    park::park();
                }
            });
            let wake = move || {
                own.set(()).expect("set once");
                waker.wait().wake_by_ref();
            };
            while_it_sleeps(context, wake, || parked.is_finished());
            parked.join().expect("no panic");

            let parked = Arc::new(spawn(context, || {
                loop {
                    park::park();
                }
            }));
            let cancelled = parked.clone();
            while_it_sleeps(context, move || cancelled.cancel(), || parked.is_finished());
            assert!(Arc::into_inner(parked).is_some_and(|parked| parked.join().is_err()), "round {round}");
        }
    });
}

#[test]
fn what_other_threads_change_of_handlers_and_timers_and_parameters_takes_effect() {
    each(|context| {
        change_everything(context);
        let _watched = watch_something(context);
        change_everything(context);
    });
}

fn change_everything(context: &AioContext) {
    let event = Rc::new(eventfd());
    raise(&event);
    let (calls, dropped) = (Count::default(), Count::default());
    let (count, guard) = (calls.clone(), dropped.guard());
    let callback = move || {
        let _guard = &guard;
        count.raise();
    };
    let handler = Arc::new(context.add_owned_fd(event, on_readable(callback)).expect("a handler"));
    handler.disable(Interest::Readable);
    let (enabled, before) = (handler.clone(), calls.get());
    while_it_sleeps(context, move || enabled.enable(Interest::Readable), || calls.get() > before);
    handler.disable(Interest::Readable);
    let removed = Arc::into_inner(handler).expect("the thread has ended");
    while_it_sleeps(context, move || drop(removed), || dropped.get() == 1);

    // A handler that is made from elsewhere, of a descriptor that is ready.
    let (remote, told) = (context.remote(), Count::default());
    let count = told.clone();
    let handlers: Arc<Mutex<Vec<FdHandler<'static>>>> = Arc::default();
    let place = handlers.clone();
    let add = move || {
        remote.schedule_once(move || {
            let event = Rc::new(eventfd());
            raise(&event);
            let own = event.clone();
            let callback = move || {
                lower(&own);
                count.raise();
            };
            let context = aio::current().expect("in a callback");
            place.lock().unwrap().push(context.add_owned_fd(event, on_readable(callback)).expect("a handler"));
        });
    };
    while_it_sleeps(context, add, || told.get() == 1);
    handlers.lock().unwrap().clear();

    // A timer that wasn't armed, and one that was armed for much later.
    let fired = Count::default();
    let count = fired.clone();
    let timer = context.timer(move || count.raise());
    let alarm = timer.alarm();
    while_it_sleeps(context, move || alarm.arm_after(MILLI), || fired.get() == 1);
    timer.arm_after(Duration::from_secs(3600));
    let alarm = timer.alarm();
    while_it_sleeps(context, move || alarm.arm_no_later(Instant::now() + MILLI), || fired.get() == 2);
    timer.arm_after(Duration::from_secs(3600));
    let alarm = timer.alarm();
    while_it_sleeps(context, move || alarm.arm(Instant::now()), || fired.get() == 3);

    for polling in [true, false] {
        let (remote, changed) = (context.remote(), Count::default());
        let guard = changed.guard();
        let change = move || {
            drop(guard);
            match polling {
                true => remote.set_polling(Polling::up_to(MILLI)),
                false => remote.set_coalescing(Coalescing::new(2, MILLI)),
            }
        };
        while_it_sleeps(context, change, || changed.get() == 1);
    }
}

#[test]
fn a_turn_that_another_thread_tries_is_refused_and_swallows_no_wake() {
    each(|context| {
        let _watched = watch_something(context);
        let (ended, home, remote) = (Count::default(), context.home(), context.remote());
        let guard = ended.guard();
        let thread = thread::spawn(move || {
            let ran = Count::default();
            for number in rounds(50) {
                let count = ran.clone();
                remote.schedule_once(move || count.raise());
                let home = home.clone();
                assert!(message_of(|| home.turn()).contains("own"));
                while ran.get() < number as u32 {
                    thread::yield_now();
                }
            }
            remote.schedule_once(move || drop(guard));
        });
        context.run_until(|| ended.get() == 1);
        thread.join().expect("no panic");
    });
}

// ---- a loop with nothing to wait for --------------------------------------------------------------------------------

#[test]
fn a_loop_without_anything_to_wait_for_sleeps_and_returns_what_its_documentation_says() {
    each(|context| {
        let waits = |turn: &dyn Fn() -> bool| {
            settle(context);
            let before = context.stats().waits;
            let progress = turn();
            (progress, context.stats().waits - before)
        };
        // Nothing but a wake-up, which is no progress.
        let (progress, calls) = waits(&|| {
            let remote = context.remote();
            let thread = thread::spawn(move || {
                thread::sleep(20 * MILLI);
                remote.set_polling(Polling::OFF);
            });
            let progress = context.poll(true);
            thread.join().expect("no panic");
            progress
        });
        assert!(!progress && calls <= 2, "{calls} waits");
        settle(context);
        // Nothing but a timer.
        let timer = context.timer(|| ());
        let (progress, calls) = waits(&|| {
            timer.arm_after(20 * MILLI);
            context.poll(true)
        });
        assert!(progress && calls <= 2, "{calls} waits");
        // Nothing but a bottom half.
        let bh = context.bottom_half(|| ());
        let (progress, calls) = waits(&|| {
            bh.schedule();
            context.poll(true)
        });
        assert!(progress && calls <= 1, "{calls} waits");
        // Nothing but one that has time.
        let (progress, calls) = waits(&|| {
            bh.schedule_idle();
            context.poll(true)
        });
        assert!(!progress && calls <= 2, "{calls} waits");
        // Nothing but one that was cancelled, and what then comes.
        let (progress, calls) = waits(&|| {
            timer.arm_after(20 * MILLI);
            bh.schedule();
            bh.cancel();
            context.poll(true)
        });
        assert!(progress && calls <= 2, "{calls} waits");
    });
}

#[test]
fn wake_ups_are_cleared_and_the_loop_sleeps_again() {
    each(|context| {
        for round in 0..4 {
            let _watched = (round % 2 == 0).then(|| watch_something(context));
            let (remote, ran) = (context.remote(), Count::default());
            let count = ran.clone();
            let thread = thread::spawn(move || {
                for _ in 0..100 {
                    let count = count.clone();
                    remote.schedule_once(move || count.raise());
                    thread::sleep(MILLI / 20);
                }
            });
            context.run_until(|| ran.get() == 100);
            thread.join().expect("no panic");
            settle(context);
            let turns = turns_of_a_while(context);
            assert!(turns < 10, "{turns} turns");
        }
    });
}

#[test]
fn timers_fire_after_few_waits_and_not_early() {
    each(|context| {
        let polling = builder_like(context).polling(Polling::up_to(MILLI / 5)).build().expect("a context");
        for context in [context, &polling] {
            for micros in [1, 90, 900, 10_400] {
                for _ in 0..5 {
                    let timer = context.timer(|| ());
                    settle(context);
                    let before = context.stats().waits;
                    let deadline = Instant::now() + Duration::from_micros(micros);
                    timer.arm(deadline);
                    context.run_until(|| !timer.is_armed());
                    let waits = context.stats().waits - before;
                    assert!(Instant::now() >= deadline, "{micros} µs: early");
                    assert!(waits <= 3, "{micros} µs: {waits} waits");
                }
            }
        }
        // One that is due doesn't make a turn wait, whether it blocks or not.
        let far = context.timer(|| ());
        far.arm_after(Duration::from_secs(3600));
        for blocking in [false, true] {
            let due = context.timer(|| ());
            due.arm(Instant::now());
            assert!(context.poll(blocking) && !due.is_armed());
        }
    });
}

// ---- hang-ups and what nobody reads ---------------------------------------------------------------------------------

#[test]
fn a_hang_up_that_no_callback_is_for_ends_no_sleep() {
    each(|context| {
        let (ours, theirs) = sockets();
        let idle = context.add_fd(&ours, FdCallbacks::new()).expect("a handler");
        let disabled = context.add_fd(&ours, on_readable(|| unreachable!("it is disabled"))).expect("a handler");
        disabled.disable(Interest::Readable);
        let told = Count::default();
        let count = told.clone();
        let once = context.add_fd(&ours, FdCallbacks::new().on_error(move || count.raise())).expect("a handler");
        settle(context);
        drop(theirs);
        let turns = turns_of_a_while(context);
        assert!(turns < 10 && told.get() == 1, "{turns} turns");
        // Nor does one that has only been told to who waits for room, and has gone then.
        let (reader, writer) = pipe();
        let gone: Rc<Mutex<Option<FdHandler<'static>>>> = Rc::default();
        let (own, count) = (gone.clone(), told.clone());
        let callback = move || {
            count.raise();
            *own.lock().unwrap() = None;
        };
        drop(reader);
        let handler = context.add_owned_fd(writer, FdCallbacks::new().on_writable(callback)).expect("a handler");
        *gone.lock().unwrap() = Some(handler);
        let turns = turns_of_a_while(context);
        assert!(turns < 10 && told.get() == 2, "{turns} turns");
        drop((idle, disabled, once));
    });
}

#[test]
fn what_a_callback_leaves_unread_is_told_again_in_each_turn_and_blocks_nobody() {
    each(|context| {
        let (reader, writer) = pipe();
        let event = eventfd();
        for descriptor in [&reader, &event] {
            let calls = Count::default();
            let count = calls.clone();
            let handler = context.add_fd(descriptor, on_readable(move || count.raise())).expect("a handler");
            assert!(!context.poll(false));
            match descriptor.as_raw_fd() == event.as_raw_fd() {
                true => raise(&event),
                // SAFETY: a valid buffer.
                false => assert_eq!(unsafe { libc::write(writer.as_raw_fd(), [0u8].as_ptr().cast(), 1) }, 1),
            }
            for turn in 1..=20 {
                assert!(context.poll(turn % 2 == 0));
                assert_eq!(calls.get(), turn);
            }
            drop(handler);
            assert!(turns_of_a_while(context) < 10);
            assert_eq!(calls.get(), 20);
        }
    });
}

// ---- what has to reach the kernel first -----------------------------------------------------------------------------

#[test]
fn whatever_is_to_be_watched_is_watched_when_the_loop_sleeps() {
    const MANY: usize = 1000;
    each(|context| {
        let events: Arc<[OwnedFd]> = (0..MANY).map(|_| eventfd()).collect();
        for last in [0, 1, MANY / 2, MANY - 1] {
            let waiting: Vec<_> = (0..MANY)
                .map(|number| {
                    let events = events.clone();
                    spawn(context, move || fd::wait_readable(&events[number]).expect("a wait"))
                })
                .collect();
            // Their first turns begin the waits; the second sleeps. Nobody looks at descriptors in between.
            let ready = events.clone();
            let thread = thread::spawn(move || {
                thread::sleep(5 * MILLI);
                raise(&ready[last]);
            });
            context.run_until(|| waiting[last].is_finished());
            thread.join().expect("no panic");
            lower(&events[last]);
            waiting.iter().for_each(|handle| handle.cancel());
            for (number, handle) in waiting.into_iter().enumerate() {
                match number == last {
                    true => handle.join().expect("no panic"),
                    false => assert_cancelled(handle.join()),
                }
            }
            settle(context);
        }
    });
}

#[test]
fn what_a_callback_has_added_is_watched_in_its_nested_turns_and_after_its_panic() {
    each(|context| {
        for ends_by in ["a nested turn", "a panic"] {
            let context = alike(context);
            let (event, told) = (Arc::new(eventfd()), Count::default());
            let (own, count) = (event.clone(), told.clone());
            context.schedule_once(move || {
                let context = aio::current().expect("in a callback");
                let (read, counted) = (own.clone(), count.clone());
                let callback = move || {
                    lower(&read);
                    counted.raise();
                };
                let handler = context.add_owned_fd(own.clone(), on_readable(callback)).expect("a handler");
                // It lives on with its context.
                std::mem::forget(handler);
                if ends_by == "a panic" {
                    panic!("in a bottom half");
                }
                let thread = thread::spawn(move || {
                    thread::sleep(5 * MILLI);
                    raise(&own);
                });
                context.run_until(|| count.get() == 1);
                thread.join().expect("no panic");
            });
            let outcome = catch_unwind(AssertUnwindSafe(|| context.poll(true)));
            assert_eq!(outcome.is_err(), ends_by == "a panic");
            let before = told.get();
            let thread = thread::spawn(move || {
                thread::sleep(5 * MILLI);
                raise(&event);
            });
            context.run_until(|| told.get() > before);
            thread.join().expect("no panic");
        }
    });
}
