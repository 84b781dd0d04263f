//! Bottom halves: QEMU's scenarios, and what it doesn't promise.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aioco::AioContext;
use aioco::aio::BottomHalf;

fn counted(context: &AioContext) -> (BottomHalf, Rc<Cell<u32>>) {
    let runs = Rc::new(Cell::new(0));
    let count = runs.clone();
    (context.bottom_half(move || count.set(count.get() + 1)), runs)
}

#[test]
fn it_runs_once_in_the_next_turn_however_often_it_was_scheduled() {
    let context = AioContext::new().unwrap();
    let (bh, runs) = counted(&context);
    bh.schedule();
    bh.schedule();
    assert_eq!(runs.get(), 0);
    assert!(context.poll(true));
    assert_eq!(runs.get(), 1);
    assert!(!context.poll(false));
    assert_eq!(runs.get(), 1);
}

#[test]
fn one_that_schedules_itself_runs_once_a_turn() {
    let context = AioContext::new().unwrap();
    let runs = Rc::new(Cell::new(0));
    let own = Rc::new(RefCell::new(None::<BottomHalf>));
    let (count, this) = (runs.clone(), own.clone());
    let bh = context.bottom_half(move || {
        count.set(count.get() + 1);
        if count.get() < 10 {
            this.borrow().as_ref().unwrap().schedule();
        }
    });
    own.replace(Some(bh));
    own.borrow().as_ref().unwrap().schedule();
    for turn in 1..=10 {
        assert!(context.poll(true));
        assert_eq!(runs.get(), turn);
    }
    assert!(!context.poll(false));
    assert_eq!(runs.get(), 10);
    own.take();
}

#[test]
fn cancelled_and_deleted_ones_do_not_run() {
    let context = AioContext::new().unwrap();
    let (cancelled, cancelled_runs) = counted(&context);
    cancelled.schedule();
    cancelled.cancel();
    let (deleted, deleted_runs) = counted(&context);
    deleted.schedule();
    drop(deleted);
    assert!(!context.poll(false));
    assert_eq!((cancelled_runs.get(), deleted_runs.get()), (0, 0));
    cancelled.schedule();
    assert!(context.poll(false));
    assert_eq!(cancelled_runs.get(), 1);
}

#[test]
fn a_callback_may_delete_its_own_bottom_half_and_others() {
    let context = AioContext::new().unwrap();
    let limits = [1, 3, 2, 4];
    let owners: Rc<RefCell<Vec<Option<BottomHalf>>>> = Rc::default();
    let runs = Rc::new(RefCell::new([0; 4]));
    for (i, limit) in limits.into_iter().enumerate() {
        let (all, count) = (owners.clone(), runs.clone());
        let bh = context.bottom_half(move || {
            count.borrow_mut()[i] += 1;
            if count.borrow()[i] == limit {
                let own = all.borrow_mut()[i].take();
                drop(own);
            } else {
                all.borrow()[i].as_ref().unwrap().schedule();
            }
        });
        bh.schedule();
        owners.borrow_mut().push(Some(bh));
    }
    assert!(context.poll(true));
    assert_eq!(*runs.borrow(), [1, 1, 1, 1]);
    assert!(owners.borrow()[0].is_none());
    while context.poll(false) {}
    assert_eq!(*runs.borrow(), limits);
    assert!(owners.borrow().iter().all(Option::is_none));
}

#[test]
fn the_callback_and_what_it_holds_are_dropped_with_the_bottom_half() {
    let context = AioContext::new().unwrap();
    let held = Rc::new(());
    let hold = held.clone();
    let bh = context.bottom_half(move || drop(hold.clone()));
    bh.schedule();
    drop(bh);
    assert_eq!(Rc::strong_count(&held), 1);
    let hold = held.clone();
    context.schedule_once(move || drop(hold));
    drop(context);
    assert_eq!(Rc::strong_count(&held), 1, "also when the context ends first");
}

#[test]
fn they_run_in_the_order_in_which_they_were_scheduled() {
    let context = AioContext::new().unwrap();
    let order: Rc<RefCell<Vec<u32>>> = Rc::default();
    for i in 0..10 {
        let order = order.clone();
        context.schedule_once(move || order.borrow_mut().push(i));
    }
    assert!(context.poll(true));
    assert_eq!(*order.borrow(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_nested_turn_runs_what_the_outer_one_has_not_run_yet() {
    let context = Rc::new(AioContext::new().unwrap());
    let order: Rc<RefCell<Vec<&str>>> = Rc::default();
    let log = |name: &'static str| {
        let order = order.clone();
        move || order.borrow_mut().push(name)
    };
    let (inner, begin, end, late) = (context.clone(), log("begin"), log("end"), log("scheduled inside"));
    context.schedule_once(move || {
        begin();
        inner.schedule_once(late);
        assert!(inner.poll(true));
        end();
    });
    context.schedule_once(log("second"));
    assert!(context.poll(true));
    assert_eq!(*order.borrow(), ["begin", "second", "scheduled inside", "end"]);
}

#[test]
fn an_idle_one_is_no_progress_and_is_not_waited_for_long() {
    let context = AioContext::new().unwrap();
    let (bh, runs) = counted(&context);
    bh.schedule_idle();
    assert!(!context.poll(true), "it returns, as nothing else would make it return");
    assert_eq!(runs.get(), 1);
    bh.schedule_idle();
    bh.schedule();
    assert!(context.poll(true), "a normal schedule on top of an idle one counts");
    assert_eq!(runs.get(), 2);
}

#[test]
fn a_panic_comes_out_of_the_turn_and_the_others_keep_theirs() {
    let context = AioContext::new().unwrap();
    let bh = context.bottom_half(|| panic!("in a bottom half"));
    bh.schedule();
    let (other, runs) = counted(&context);
    other.schedule();
    let payload = catch_unwind(AssertUnwindSafe(|| context.poll(true))).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"in a bottom half"));
    assert!(context.poll(true));
    assert_eq!(runs.get(), 1);
    bh.schedule();
    assert!(catch_unwind(AssertUnwindSafe(|| context.poll(true))).is_err(), "the callback was kept");
}

#[test]
fn a_panic_loses_no_wake_of_the_same_turn() {
    let context = AioContext::new().unwrap();
    let sleeper = context.spawn(|| aioco::aio::sleep(Duration::from_millis(1))).unwrap();
    context.poll(false);
    thread::sleep(Duration::from_millis(2));
    context.schedule_once(|| panic!("in a bottom half"));
    assert!(catch_unwind(AssertUnwindSafe(|| context.poll(true))).is_err());
    context.poll(false);
    assert!(sleeper.is_finished());
}

#[test]
fn other_threads_schedule_it_and_wake_a_sleeping_loop() {
    let context = AioContext::new().unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let written = Arc::new(AtomicUsize::new(0));
    let (see, read) = (seen.clone(), written.clone());
    let bh = context.bottom_half(move || {
        see.fetch_max(read.load(Ordering::Relaxed), Ordering::Relaxed);
    });
    const ROUNDS: usize = 20_000;
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (trigger, write) = (bh.trigger(), written.clone());
            thread::spawn(move || {
                for _ in 0..ROUNDS {
                    write.fetch_add(1, Ordering::Relaxed);
                    trigger.schedule();
                }
            })
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    while seen.load(Ordering::Relaxed) < 2 * ROUNDS {
        context.poll(true);
        assert!(Instant::now() < deadline);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_other_threads_leave_to_an_ended_context_is_dropped() {
    let context = AioContext::new().unwrap();
    let remote = context.remote();
    let (bh, _) = counted(&context);
    let trigger = bh.trigger();
    drop(context);
    trigger.schedule();
    let held = Arc::new(());
    let hold = held.clone();
    thread::spawn(move || remote.schedule_once(move || drop(hold))).join().unwrap();
    assert_eq!(Arc::strong_count(&held), 1);
}
