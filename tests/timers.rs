//! Timers: the same with every monitor.

mod common;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aioco::aio::Timer;
use aioco::{AioContext, aio};
use common::{Count, each, rounds, settle, spawn};

const MILLI: Duration = Duration::from_millis(1);

/// A timer that counts how often it fires.
fn counted(context: &AioContext) -> (Timer, Count) {
    let count = Count::default();
    let fired = count.clone();
    (context.timer(move || fired.raise()), count)
}

/// A reproducible sequence of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn a_timer_fires_once_not_early_and_only_in_a_turn() {
    each(|context| {
        let (timer, fired) = counted(context);
        assert!(!timer.is_armed() && !context.poll(false));
        let deadline = Instant::now() + 10 * MILLI;
        timer.arm(deadline);
        while Instant::now() < deadline - MILLI {
            let progress = context.poll(false);
            assert_eq!(progress, fired.get() == 1);
            assert!(fired.get() == 0 || Instant::now() >= deadline, "early");
        }
        thread::sleep(5 * MILLI);
        let before = fired.get();
        context.poll(false);
        assert_eq!(fired.get(), 1, "{before} before");
        assert!(!timer.is_armed() && !context.poll(false));

        let start = Instant::now();
        timer.arm_after(5 * MILLI);
        while fired.get() == 1 {
            context.poll(true);
        }
        assert!(start.elapsed() >= 5 * MILLI && fired.get() == 2);
    });
}

#[test]
fn timers_and_sleepers_fire_in_the_order_of_their_deadlines_and_equal_ones_as_they_were_armed() {
    each(|context| {
        let order = Rc::new(RefCell::new(Vec::new()));
        let start = Instant::now();
        let timers: Vec<_> = [30, 10, 20, 10, 30, 10]
            .into_iter()
            .enumerate()
            .map(|(number, after)| {
                let order = order.clone();
                let timer = context.timer(move || order.borrow_mut().push(number));
                timer.arm(start + after * MILLI);
                timer
            })
            .collect();
        // Armed anew for the same time: behind the others.
        timers[1].arm(start + 10 * MILLI);
        context.run_until(|| timers.iter().all(|timer| !timer.is_armed()));
        assert_eq!(*order.borrow(), [3, 5, 1, 2, 0, 4]);
    });
}

#[test]
fn a_timer_is_set_to_another_time_or_cancelled() {
    each(|context| {
        let (timer, fired) = counted(context);
        let far = Instant::now() + Duration::from_secs(3600);
        timer.arm(far);
        timer.arm_no_later(far + MILLI);
        timer.arm_no_later(Instant::now() + 2 * MILLI);
        assert!(context.poll(true), "not in an hour");
        assert_eq!(fired.get(), 1);
        timer.arm_after(MILLI);
        timer.arm(far);
        thread::sleep(2 * MILLI);
        assert!(!context.poll(false));
        assert!(timer.cancel() && !timer.cancel() && !timer.is_armed());
        timer.arm_after(MILLI);
        assert!(timer.cancel());
        thread::sleep(2 * MILLI);
        assert!(!context.poll(false));
        assert_eq!(fired.get(), 1);
    });
}

#[test]
fn far_deadlines_saturate_and_past_ones_fire_in_the_next_turn() {
    each(|context| {
        let (far, never) = counted(context);
        far.arm_after(Duration::MAX);
        assert!(far.is_armed());
        let (past, fired) = counted(context);
        past.arm(Instant::now() - MILLI);
        assert_eq!(fired.get(), 0, "not within the call");
        assert!(context.poll(true));
        assert_eq!((fired.get(), never.get()), (1, 0));
    });
}

#[test]
fn a_callback_may_arm_cancel_and_delete_its_own_timer_and_others() {
    each(|context| {
        let timers: Rc<RefCell<Vec<Option<Timer>>>> = Rc::default();
        let runs = Rc::new(Cell::new(0));
        let dropped = Count::default();
        for own in 0..3 {
            let (all, runs, guard) = (timers.clone(), runs.clone(), dropped.guard());
            let timer = context.timer(move || {
                let _guard = &guard;
                runs.set(runs.get() + 1);
                let mut all = all.borrow_mut();
                if runs.get() < 4 {
                    // In the past: still not before the next turn.
                    all[own].as_ref().expect("it isn't deleted").arm(Instant::now());
                } else {
                    all.iter_mut().for_each(|timer| *timer = None);
                }
            });
            timers.borrow_mut().push(Some(timer));
        }
        timers.borrow()[0].as_ref().expect("made above").arm_after(MILLI);
        for expected in 1..=4 {
            while !context.poll(true) {}
            assert_eq!(runs.get(), expected, "once a turn");
        }
        assert_eq!(dropped.get(), 3);
        settle(context);
        assert_eq!(runs.get(), 4);
    });
}

#[test]
fn a_panic_comes_out_of_the_turn_and_the_others_keep_theirs() {
    each(|context| {
        let bad = context.timer(|| panic!("a bad timer"));
        let (good, fired) = counted(context);
        let now = Instant::now();
        bad.arm(now);
        good.arm(now);
        let payload = catch_unwind(AssertUnwindSafe(|| context.poll(true)));
        assert_eq!(payload.expect_err("panics").downcast_ref(), Some(&"a bad timer"));
        assert!(context.poll(true));
        assert_eq!(fired.get(), 1);
        bad.arm(now);
        catch_unwind(AssertUnwindSafe(|| context.poll(true))).expect_err("it can be armed again");
    });
}

#[test]
fn other_threads_arm_a_timer_of_a_sleeping_loop_to_an_earlier_time_and_cancel_it() {
    each(|context| {
        let (timer, fired) = counted(context);
        timer.arm_after(Duration::from_secs(3600));
        for round in 1..=3 {
            let alarm = timer.alarm();
            let thread = thread::spawn(move || {
                thread::sleep(5 * MILLI);
                let start = Instant::now();
                alarm.arm(start + MILLI);
                start
            });
            context.run_until(|| fired.get() == round);
            assert!(thread.join().expect("no panic") + MILLI <= Instant::now());
        }
        timer.arm_after(20 * MILLI);
        let alarm = timer.alarm();
        thread::spawn(move || assert!(alarm.cancel())).join().expect("it was armed");
        thread::sleep(21 * MILLI);
        context.poll(false);
        assert_eq!(fired.get(), 3);
    });
}

/// A cancel from elsewhere says whether the timer fires: not if it was in time, and once otherwise.
#[test]
fn a_cancel_that_was_in_time_is_final() {
    each(|context| {
        let (timer, fired) = counted(context);
        let alarm = timer.alarm();
        let turns = Count::default();
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), turns.clone());
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut random = Random(1);
            let (mut in_time, mut late) = (0, 0);
            for _ in rounds(2000) {
                let before = fired.get();
                alarm.arm_after(Duration::from_micros(random.below(40)));
                while alarm.is_armed() && random.below(50) != 0 {
                    std::hint::spin_loop();
                }
                if alarm.cancel() {
                    in_time += 1;
                    let now = seen.get();
                    while seen.get() < now + 3 {
                        std::hint::spin_loop();
                    }
                    assert_eq!(fired.get(), before, "it was in time");
                } else {
                    late += 1;
                    while fired.get() == before {
                        std::hint::spin_loop();
                    }
                }
            }
            stopped.store(true, Ordering::Release);
            println!("{in_time} in time, {late} late");
        });
        while !stop.load(Ordering::Acquire) && !thread.is_finished() {
            context.poll(false);
            turns.raise();
        }
        thread.join().expect("no panic");
    });
}

/// Arming, cancelling and firing at random, from the outside and from callbacks, against a list.
#[test]
fn whatever_is_armed_and_cancelled_fires_when_a_simple_model_says() {
    each(|context| {
        let mut random = Random(7);
        let start = Instant::now();
        let at = |micros: u64| start + Duration::from_micros(micros);
        let fired = Rc::new(RefCell::new(Vec::new()));
        let timers: Vec<_> = (0..40)
            .map(|number| {
                let fired = fired.clone();
                context.timer(move || fired.borrow_mut().push(number))
            })
            .collect();
        let mut model: Vec<Option<u64>> = vec![None; timers.len()];
        for _ in 0..4000 {
            let number = random.below(timers.len() as u64) as usize;
            match random.below(5) {
                0 | 1 => {
                    // Some in the past, some soon, some never.
                    let now = start.elapsed().as_micros() as u64;
                    let deadline = match random.below(3) {
                        0 => now.saturating_sub(random.below(100)),
                        1 => now + random.below(200),
                        _ => now + 3_600_000_000,
                    };
                    timers[number].arm(at(deadline));
                    model[number] = Some(deadline);
                }
                2 => {
                    let was_armed = timers[number].cancel();
                    assert_eq!(was_armed, model[number].take().is_some());
                }
                3 => assert_eq!(timers[number].is_armed(), model[number].is_some()),
                _ => {
                    let before = start.elapsed().as_micros() as u64;
                    context.poll(false);
                    let after = Instant::now();
                    let fired = std::mem::take(&mut *fired.borrow_mut());
                    for &number in &fired {
                        let deadline = model[number].take().expect("it was armed");
                        assert!(at(deadline) <= after, "early");
                    }
                    let late = |deadline: &Option<u64>| deadline.is_some_and(|deadline| deadline < before);
                    assert!(!model.iter().any(late), "one is forgotten");
                }
            }
        }
    });
}

/// The same from within callbacks, with few timers and many.
#[test]
fn whatever_callbacks_arm_and_cancel_fires_when_a_simple_model_says() {
    struct Model {
        random: Random,
        deadlines: Vec<Option<Instant>>,
        timers: Vec<Timer>,
        fired: u64,
    }

    fn change(model: &RefCell<Model>) {
        let model = &mut *model.borrow_mut();
        let number = model.random.below(model.timers.len() as u64) as usize;
        let (timer, deadline) = (&model.timers[number], &mut model.deadlines[number]);
        match model.random.below(4) {
            0 => assert_eq!(timer.cancel(), deadline.take().is_some()),
            kind => {
                let random = Duration::from_micros(model.random.below(300));
                // Past, soon, or never.
                let new = [Instant::now() - random, Instant::now() + random, Instant::now() + 3_600_000 * MILLI];
                let new = new[kind as usize - 1];
                *deadline = Some(new);
                timer.arm(new);
            }
        }
    }

    each(|context| {
        for count in [1, 2, 3, 50] {
            let (deadlines, timers) = (vec![None; count], Vec::new());
            let model = Rc::new(RefCell::new(Model { random: Random(count as u64), deadlines, timers, fired: 0 }));
            for number in 0..count {
                let own = Rc::downgrade(&model);
                let timer = context.timer(move || {
                    let model = own.upgrade().expect("it is turned");
                    let deadline = model.borrow_mut().deadlines[number].take().expect("it was armed");
                    assert!(deadline <= Instant::now(), "early");
                    model.borrow_mut().fired += 1;
                    (0..2).for_each(|_| change(&model));
                });
                model.borrow_mut().timers.push(timer);
            }
            let limit = Instant::now() + 1000 * MILLI;
            while model.borrow().fired < 2000 && Instant::now() < limit {
                // With all cancelled, or far away, it begins anew.
                change(&model);
                let armed = model.borrow().deadlines.clone();
                let before = Instant::now();
                context.poll(false);
                // What callbacks arm for the past has its turn in the next turn; what was armed before has had it.
                for (deadline, armed) in model.borrow().deadlines.iter().zip(armed) {
                    let is_due = armed.is_some_and(|armed| armed < before);
                    assert!(!is_due || *deadline != armed, "one is forgotten");
                }
            }
            // All that is due fires, and nothing else is left of it.
            let alone = model.borrow().timers.iter().filter(|timer| timer.cancel()).count();
            assert_eq!(alone, model.borrow().deadlines.iter().flatten().count());
            assert!(!context.poll(false));
        }
    });
}

#[test]
fn a_timer_outlives_its_context_and_does_nothing() {
    each(|context| {
        let kind = context.monitor().kind();
        let context = AioContext::builder().monitor(kind).build().expect("a context");
        let (timer, fired) = counted(&context);
        let alarm = timer.alarm();
        timer.arm_after(MILLI);
        drop(context);
        timer.arm_after(MILLI);
        thread::spawn(move || {
            alarm.arm_after(MILLI);
            assert!(!alarm.is_armed());
        })
        .join()
        .expect("no panic");
        assert!(!timer.is_armed());
        assert_eq!(fired.get(), 0);
    });
}

#[test]
fn a_callback_finds_its_context_and_may_spawn_there() {
    each(|context| {
        let done = Count::default();
        let count = done.clone();
        let timer = context.timer(move || {
            let count = count.clone();
            spawn_on_current(move || {
                aio::sleep(MILLI);
                count.raise();
            });
        });
        timer.arm_after(MILLI);
        context.run_until(|| done.get() == 1);
        assert!(aio::current().is_none());
        spawn(context, || assert!(aio::current().is_some())).join().expect("no panic");
    });
}

fn spawn_on_current(f: impl FnOnce() + Send + 'static) {
    drop(aio::current().expect("in a callback").spawn(f).expect("a stack"));
}
