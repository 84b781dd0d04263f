//! Sleeping, and time limits.

mod common;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use aioco::aio::{Elapsed, sleep, sleep_until, timeout};
use aioco::coroutine::Cancelled;
use aioco::{park, yield_now};
use common::{OnDrop, context};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(3);

#[test]
fn nothing_wakes_early_and_wakes_do_not_cut_a_sleep_short() {
    let context = context();
    context.block_on(|| {
        for micros in [0, 1, 50, 700, 3000] {
            let duration = Duration::from_micros(micros);
            let start = Instant::now();
            park::waker().wake();
            sleep(duration);
            assert!(start.elapsed() >= duration, "{micros} µs");
        }
        let past = Instant::now() - SHORT;
        sleep_until(past);
    });
    let start = Instant::now();
    sleep(SHORT);
    assert!(start.elapsed() >= SHORT, "on a plain thread");
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines_and_equal_ones_in_the_order_of_their_calls() {
    let context = context();
    let order: Rc<RefCell<Vec<usize>>> = Rc::default();
    let now = Instant::now();
    let handles: Vec<_> = [30, 10, 20, 10, 30, 20]
        .into_iter()
        .enumerate()
        .map(|(i, millis)| {
            let order = order.clone();
            let sleeper = move || {
                sleep_until(now + Duration::from_millis(millis));
                order.borrow_mut().push(i);
            };
            context.spawn_local(sleeper).unwrap()
        })
        .collect();
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    assert_eq!(*order.borrow(), [1, 3, 2, 5, 0, 4]);
}

#[test]
fn a_far_deadline_saturates() {
    let context = context();
    let handle = context.spawn(|| sleep(Duration::MAX)).unwrap();
    while context.poll(false) {}
    assert!(!handle.is_finished());
    handle.cancel();
    assert!(handle.join().unwrap_err().is::<Cancelled>());
    assert_eq!(context.block_on(|| timeout(Duration::MAX, || 1)), Ok(1));
}

#[test]
fn a_time_limit_unwinds_what_takes_too_long_before_it_returns() {
    let context = context();
    context.block_on(|| {
        let (started, unwound) = (Cell::new(false), Cell::new(false));
        // On a machine that is slow enough, the time is up before it has begun.
        for factor in 1.. {
            let result = timeout(factor * SHORT, || {
                started.set(true);
                let _guard = OnDrop(|| unwound.set(true));
                sleep(LONG);
            });
            assert_eq!(result, Err(Elapsed));
            if started.get() {
                break;
            }
        }
        assert!(unwound.get());
    });
}

#[test]
fn what_is_quick_enough_returns_its_value_and_may_borrow() {
    let context = context();
    let mut log = vec![1];
    let value = context.block_on(|| {
        timeout(LONG, || {
            yield_now();
            sleep(SHORT);
            log.push(2);
            log.len()
        })
    });
    assert_eq!(value, Ok(2));
    assert_eq!(log, [1, 2]);
}

#[test]
fn a_time_limit_of_zero_still_ends_what_never_started_and_what_yields_for_ever() {
    let context = context();
    context.block_on(|| {
        let started = Cell::new(false);
        assert_eq!(timeout(Duration::ZERO, || started.set(true)), Err(Elapsed));
        assert!(!started.get());
        for _ in 0..10 {
            let limited = timeout(SHORT, || {
                loop {
                    yield_now();
                }
            });
            assert_eq!(limited, Err::<(), _>(Elapsed));
        }
    });
    // The queue entries of those that were ended are gone, and their blocks serve again.
    assert_eq!(context.block_on(|| timeout(LONG, || 5)), Ok(5));
}

#[test]
fn a_panic_under_a_time_limit_comes_out() {
    let context = context();
    let payload = catch_unwind(AssertUnwindSafe(|| {
        context.block_on(|| {
            timeout(LONG, || -> () {
                yield_now();
                panic!("inside")
            })
        })
    }))
    .unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"inside"));
}

#[test]
fn whoever_is_unwound_under_its_time_limits_takes_all_along() {
    let context = context();
    let dropped: Rc<Cell<u32>> = Rc::default();
    let count = dropped.clone();
    let handle = context
        .spawn_local(move || {
            let _outer = OnDrop(|| count.set(count.get() + 1));
            timeout(LONG, || {
                let _middle = OnDrop(|| count.set(count.get() + 1));
                timeout(LONG, || {
                    let _inner = OnDrop(|| count.set(count.get() + 1));
                    sleep(LONG);
                })
            })
        })
        .unwrap();
    while context.poll(false) {}
    handle.cancel();
    assert!(handle.join().unwrap_err().is::<Cancelled>());
    assert_eq!(dropped.get(), 3);
}

#[test]
fn a_context_that_ends_takes_sleepers_and_limited_ones_along() {
    let context = context();
    let held = Rc::new(());
    let (first, second) = (held.clone(), held.clone());
    let sleeper = context.spawn_local(move || {
        let _held = first;
        sleep(LONG);
    });
    let limited = context.spawn_local(move || {
        let _ = timeout(LONG, move || {
            let _held = second;
            sleep(LONG);
        });
    });
    while context.poll(false) {}
    drop(context);
    assert_eq!(Rc::strong_count(&held), 1);
    assert!(sleeper.unwrap().join().unwrap_err().is::<Cancelled>());
    assert!(limited.unwrap().join().unwrap_err().is::<Cancelled>());
}

#[test]
fn outside_of_a_coroutine_a_time_limit_is_refused() {
    let payload = catch_unwind(|| timeout(LONG, || ())).unwrap_err();
    let message = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    assert!(message.unwrap().contains("outside of a coroutine"));
}
