//! Turns within turns: a callback that turns its own loop until something else has happened. The same with every monitor.
//! Those that are about one kind of callback are with its other tests.

mod common;

use std::cell::{Cell, RefCell};
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use aioco::aio::{BottomHalf, FdCallbacks, IoThread, Local, Remote, Timer};
use aioco::{AioContext, aio, park, yield_now};
use common::{Count, builder_like, each, eventfd, lower, raise, rounds, settle, watch_something};

const MILLI: Duration = Duration::from_millis(1);

fn current() -> Local {
    aio::current().expect("in a callback")
}

/// Schedules a closure on the other context, and turns the own one, which blocks, until that has run.
fn ask_and_wait(other: &Remote, own: &Remote, answered: &Arc<AtomicU32>) {
    let (answer, back) = (answered.clone(), own.clone());
    let before = answered.load(Ordering::Acquire);
    other.schedule_once(move || {
        answer.fetch_add(1, Ordering::Release);
        // What wakes whoever waits.
        back.schedule_once(|| ());
    });
    current().run_until(|| answered.load(Ordering::Acquire) > before);
}

#[test]
fn bottom_halves_of_two_threads_wait_for_each_other_in_nested_turns() {
    each(|context| {
        let threads = ["even", "odd"].map(|name| IoThread::with(name, builder_like(context)).expect("a thread"));
        // It stays with its context.
        threads[0].remote().call(|| mem::forget(watch_something(&current()))).expect("it runs");
        let remotes = [0, 1].map(|own: usize| threads[own].remote().clone());
        let done = Count::default();
        let mut asked = 0;
        for _ in rounds(500) {
            for own in [0, 1] {
                let [me, other] = [own, 1 - own].map(|number| remotes[number].clone());
                let guard = done.guard();
                remotes[own].schedule_once(move || {
                    ask_and_wait(&other, &me, &Arc::default());
                    drop(guard);
                });
                asked += 1;
            }
            // Most of the time both are at it, each in a nested turn, and sometimes several of each.
            while done.get() + 4 < asked {
                thread::yield_now();
            }
        }
        assert!(common::eventually(|| done.get() == asked));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

/// What happens, in a nested turn of its own, to a bottom half that was scheduled, or a timer that was armed, anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    Cancelled,
    Deleted,
}

#[test]
fn a_bottom_half_that_is_scheduled_while_it_turns_its_loop_runs_once_more_afterwards() {
    each(|context| {
        for then in [Then::Nothing, Then::Cancelled, Then::Deleted] {
            for idle in [false, true] {
                let (runs, own) = (Count::default(), Rc::new(RefCell::new(None::<BottomHalf>)));
                let (count, this) = (runs.clone(), own.clone());
                let bh = context.bottom_half(move || {
                    count.raise();
                    if count.get() > 1 {
                        return;
                    }
                    let trigger = this.borrow().as_ref().expect("made").trigger();
                    let schedule = move || if idle { trigger.schedule_idle() } else { trigger.schedule() };
                    thread::spawn(schedule).join().expect("no panic");
                    settle(&current());
                    match then {
                        Then::Nothing => {}
                        Then::Cancelled => this.borrow().as_ref().expect("made").cancel(),
                        Then::Deleted => *this.borrow_mut() = None,
                    }
                    settle(&current());
                    assert_eq!(count.get(), 1, "entered twice");
                });
                bh.schedule();
                own.replace(Some(bh));
                context.poll(true);
                let again = u32::from(then == Then::Nothing);
                context.run_until(|| runs.get() == 1 + again);
                settle(context);
                assert_eq!(runs.get(), 1 + again, "{then:?}, idle: {idle}");
                if let Some(bh) = own.take() {
                    bh.schedule();
                    assert!(context.poll(true));
                    assert_eq!(runs.get(), 2 + again, "{then:?}, idle: {idle}");
                }
            }
        }
    });
}

#[test]
fn a_timer_that_is_armed_while_it_turns_its_loop_fires_once_more_afterwards() {
    each(|context| {
        for then in [Then::Nothing, Then::Cancelled, Then::Deleted] {
            let (runs, own) = (Count::default(), Rc::new(RefCell::new(None::<Timer>)));
            let (count, this) = (runs.clone(), own.clone());
            let timer = context.timer(move || {
                count.raise();
                if count.get() > 1 {
                    return;
                }
                this.borrow().as_ref().expect("made").arm_after(Duration::ZERO);
                settle(&current());
                match then {
                    Then::Nothing => assert!(this.borrow().as_ref().expect("made").is_armed()),
                    Then::Cancelled => assert!(this.borrow().as_ref().expect("made").cancel()),
                    Then::Deleted => *this.borrow_mut() = None,
                }
                settle(&current());
                assert_eq!(count.get(), 1, "entered twice");
            });
            timer.arm_after(Duration::ZERO);
            own.replace(Some(timer));
            let again = u32::from(then == Then::Nothing);
            context.run_until(|| runs.get() == 1 + again);
            settle(context);
            assert_eq!(runs.get(), 1 + again, "{then:?}");
            if let Some(timer) = own.take() {
                timer.arm_after(Duration::ZERO);
                assert!(context.poll(true));
                assert_eq!(runs.get(), 2 + again, "{then:?}");
            }
        }
    });
}

#[test]
fn a_timer_that_turns_its_loop_is_left_alone_and_the_others_fire() {
    each(|context| {
        let depth = Rc::new(Cell::new(0));
        let others = Count::default();
        let count = others.clone();
        let other = Rc::new(context.timer(move || count.raise()));
        let own = Rc::new(RefCell::new(None::<Timer>));
        let runs = Count::default();
        let (this, other_timer, count, inside, fired) =
            (own.clone(), other.clone(), runs.clone(), depth.clone(), others.clone());
        let timer = context.timer(move || {
            assert_eq!(inside.replace(1), 0, "entered twice");
            count.raise();
            // Armed, and due, while it runs.
            this.borrow().as_ref().expect("made").arm_after(Duration::ZERO);
            let before = fired.get();
            other_timer.arm_after(MILLI);
            current().run_until(|| fired.get() > before);
            inside.set(0);
        });
        own.replace(Some(timer));
        own.borrow().as_ref().expect("made").arm_after(MILLI);
        context.run_until(|| runs.get() == 3);
        assert_eq!(others.get(), 3);
        own.take();
    });
}

#[test]
fn coroutines_and_their_waits_go_on_in_nested_turns() {
    each(|context| {
        let steps = Rc::new(Cell::new(0));
        let count = steps.clone();
        let walker = context.spawn_local(move || {
            for _ in 0..10 {
                count.set(count.get() + 1);
                yield_now();
                aio::sleep(MILLI / 10);
            }
            park::park_until(std::time::Instant::now());
        });
        let walker = Rc::new(walker.expect("a stack"));
        for depth in [1, 2, 5] {
            let (steps, goal) = (steps.clone(), (steps.get() + 2).min(10));
            descend(context, depth, Rc::new(move || steps.get() >= goal));
        }
        context.run_until(|| walker.is_finished());
        assert_eq!(steps.get(), 10);
    });
}

/// Turns until `done` in a closure within a closure, so deep.
fn descend(context: &Local, depth: u32, done: Rc<dyn Fn() -> bool>) {
    if depth == 0 {
        return context.run_until(|| done());
    }
    let entered = Rc::new(Cell::new(false));
    let flag = entered.clone();
    context.schedule_once(move || {
        descend(&current(), depth - 1, done);
        flag.set(true);
    });
    context.run_until(|| entered.get());
}

/// On a small stack: a handler that was entered again for the event that it hasn't cleared would overflow it.
#[test]
fn a_hundred_handlers_that_turn_their_loop_before_they_clear_their_events_nest_once_each() {
    each(|context| {
        const MANY: u32 = 100;
        let kind = context.monitor().kind();
        let small = thread::Builder::new().stack_size(1 << 20).spawn(move || {
            let context = AioContext::builder().monitor(kind).build().expect("a context");
            let (depth, deepest, calls) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Count::default());
            let handlers: Vec<_> = (0..MANY)
                .map(|_| {
                    let event = Rc::new(eventfd());
                    raise(&event);
                    let (own, depth, deepest, calls) = (event.clone(), depth.clone(), deepest.clone(), calls.clone());
                    let callback = move || {
                        depth.set(depth.get() + 1);
                        deepest.set(deepest.get().max(depth.get()));
                        calls.raise();
                        for _ in 0..3 {
                            current().poll(false);
                        }
                        lower(&own);
                        depth.set(depth.get() - 1);
                    };
                    let callbacks = FdCallbacks::new().on_readable(callback);
                    context.add_owned_fd(event, callbacks).expect("a handler")
                })
                .collect();
            context.run_until(|| calls.get() >= MANY);
            settle(&context);
            assert_eq!((calls.get(), depth.get()), (MANY, 0), "each had one event");
            assert!(
                (MANY / 2..=MANY).contains(&deepest.get()),
                "{} deep: a nested turn runs what is left",
                deepest.get()
            );
            drop(handlers);
        });
        small.expect("a thread").join().expect("no overflow");
    });
}
