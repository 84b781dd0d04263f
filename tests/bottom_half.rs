//! Bottom halves: QEMU's scenarios, and what it doesn't promise, with every monitor.

mod common;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aioco::aio::BottomHalf;
use aioco::{AioContext, aio};
use common::{Count, alike, each, rounds, settle, watch_something};

fn counted(context: &AioContext) -> (BottomHalf, Rc<Cell<u32>>) {
    let runs = Rc::new(Cell::new(0));
    let count = runs.clone();
    (context.bottom_half(move || count.set(count.get() + 1)), runs)
}

#[test]
fn it_runs_once_in_the_next_turn_however_often_it_was_scheduled() {
    each(|context| {
        let (bh, runs) = counted(context);
        bh.schedule();
        bh.schedule();
        assert_eq!(runs.get(), 0);
        assert!(context.poll(true));
        assert_eq!(runs.get(), 1);
        assert!(!context.poll(false));
        assert_eq!(runs.get(), 1);
    });
}

#[test]
fn one_that_schedules_itself_runs_once_a_turn() {
    each(|context| {
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
    });
}

#[test]
fn cancelled_and_deleted_ones_do_not_run() {
    each(|context| {
        let (cancelled, cancelled_runs) = counted(context);
        cancelled.schedule();
        cancelled.cancel();
        let (deleted, deleted_runs) = counted(context);
        deleted.schedule();
        drop(deleted);
        assert!(!context.poll(false));
        assert_eq!((cancelled_runs.get(), deleted_runs.get()), (0, 0));
        cancelled.schedule();
        assert!(context.poll(false));
        assert_eq!(cancelled_runs.get(), 1);
    });
}

#[test]
fn a_callback_may_delete_its_own_bottom_half_and_others() {
    each(|context| {
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
    });
}

#[test]
fn the_callback_and_what_it_holds_are_dropped_with_the_bottom_half() {
    each(|context| {
        let context = alike(context);
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
    });
}

#[test]
fn they_run_in_the_order_in_which_they_were_scheduled() {
    each(|context| {
        let order: Rc<RefCell<Vec<u32>>> = Rc::default();
        for i in 0..10 {
            let order = order.clone();
            context.schedule_once(move || order.borrow_mut().push(i));
        }
        assert!(context.poll(true));
        assert_eq!(*order.borrow(), (0..10).collect::<Vec<_>>());
    });
}

#[test]
fn those_of_other_threads_keep_their_place_among_ours() {
    each(|context| {
        let order: Rc<RefCell<Vec<u32>>> = Rc::default();
        let bottom_halves: Vec<_> = (0..6)
            .map(|i| {
                let order = order.clone();
                context.bottom_half(move || order.borrow_mut().push(i))
            })
            .collect();
        for pair in bottom_halves.chunks(2) {
            let trigger = pair[0].trigger();
            thread::spawn(move || trigger.schedule()).join().unwrap();
            pair[1].schedule();
        }
        assert!(context.poll(true));
        assert_eq!(*order.borrow(), [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn a_nested_turn_runs_what_the_outer_one_has_not_run_yet() {
    each(|context| {
        let context = Rc::new(alike(context));
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
    });
}

#[test]
fn an_idle_one_is_no_progress_and_is_not_waited_for_long() {
    each(|context| {
        let (bh, runs) = counted(context);
        bh.schedule_idle();
        assert!(!context.poll(true), "it returns, as nothing else would make it return");
        assert_eq!(runs.get(), 1);
        bh.schedule_idle();
        bh.schedule();
        assert!(context.poll(true), "a normal schedule on top of an idle one counts");
        assert_eq!(runs.get(), 2);
    });
}

#[test]
fn a_panic_comes_out_of_the_turn_and_the_others_keep_theirs() {
    each(|context| {
        let bh = context.bottom_half(|| panic!("in a bottom half"));
        bh.schedule();
        let (other, runs) = counted(context);
        other.schedule();
        let payload = catch_unwind(AssertUnwindSafe(|| context.poll(true))).unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"in a bottom half"));
        assert!(context.poll(true));
        assert_eq!(runs.get(), 1);
        bh.schedule();
        assert!(catch_unwind(AssertUnwindSafe(|| context.poll(true))).is_err(), "the callback was kept");
    });
}

#[test]
fn a_panic_loses_no_wake_of_the_same_turn() {
    each(|context| {
        let sleeper = context.spawn(|| aioco::aio::sleep(Duration::from_millis(1))).unwrap();
        context.poll(false);
        thread::sleep(Duration::from_millis(2));
        context.schedule_once(|| panic!("in a bottom half"));
        assert!(catch_unwind(AssertUnwindSafe(|| context.poll(true))).is_err());
        context.poll(false);
        assert!(sleeper.is_finished());
    });
}

#[test]
fn other_threads_schedule_it_and_wake_a_sleeping_loop() {
    each(|context| {
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
    });
}

#[test]
fn what_other_threads_leave_to_an_ended_context_is_dropped() {
    each(|context| {
        let context = alike(context);
        let remote = context.remote();
        let (bh, _) = counted(&context);
        let trigger = bh.trigger();
        drop(context);
        trigger.schedule();
        let held = Arc::new(());
        let hold = held.clone();
        thread::spawn(move || remote.schedule_once(move || drop(hold))).join().unwrap();
        assert_eq!(Arc::strong_count(&held), 1);
    });
}

#[test]
fn one_that_cancels_or_deletes_itself_after_it_scheduled_itself_does_not_run_again() {
    each(|context| {
        let own = Rc::new(RefCell::new(None::<BottomHalf>));
        let (this, runs, dropped) = (own.clone(), Count::default(), Count::default());
        let (count, guard) = (runs.clone(), dropped.guard());
        let bh = context.bottom_half(move || {
            let _guard = &guard;
            count.raise();
            let mut this = this.borrow_mut();
            this.as_ref().unwrap().schedule();
            match count.get() {
                1 => this.as_ref().unwrap().cancel(),
                _ => *this = None,
            }
        });
        own.replace(Some(bh));
        for run in 1..=2 {
            own.borrow().as_ref().unwrap().schedule();
            assert!(context.poll(true));
            assert!(!context.poll(false));
            assert_eq!((runs.get(), dropped.get()), (run, run - 1));
        }
    });
}

#[test]
fn a_nested_turn_of_a_callback_that_has_deleted_itself_and_others_runs_the_rest() {
    each(|context| {
        let all: Rc<RefCell<Vec<BottomHalf>>> = Rc::default();
        let order: Rc<RefCell<Vec<&str>>> = Rc::default();
        let dropped = Count::default();
        let named = |name: &'static str| {
            let (order, guard) = (order.clone(), dropped.guard());
            move || {
                let _guard = &guard;
                order.borrow_mut().push(name);
            }
        };
        let first = {
            let (all, begins, ends) = (all.clone(), named("first"), named("first ends"));
            let mut added = Some(named("added"));
            context.bottom_half(move || {
                begins();
                all.borrow_mut().clear();
                let context = aio::current().expect("in a callback");
                context.schedule_once(added.take().expect("it runs once"));
                assert!(context.poll(true));
                ends();
            })
        };
        all.borrow_mut().extend([first, context.bottom_half(named("second")), context.bottom_half(named("third"))]);
        let fourth = context.bottom_half(named("fourth"));
        all.borrow().iter().for_each(BottomHalf::schedule);
        fourth.schedule();
        assert!(context.poll(true));
        assert!(!context.poll(false));
        assert_eq!(*order.borrow(), ["first", "fourth", "added", "first ends"]);
        drop(fourth);
        assert_eq!(dropped.get(), 6, "all are gone, and each was dropped once");
    });
}

#[test]
fn one_that_was_cancelled_is_scheduled_again_while_its_loop_sleeps() {
    each(|context| {
        let (bh, runs) = counted(context);
        for round in 1..=8 {
            let _watched = (round > 4).then(|| watch_something(context));
            bh.schedule();
            bh.cancel();
            let (trigger, is_idle) = (bh.trigger(), round % 2 == 0);
            let thread = thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                if is_idle { trigger.schedule_idle() } else { trigger.schedule() }
            });
            context.run_until(|| runs.get() == round);
            thread.join().unwrap();
        }
    });
}

/// Each schedule that isn't taken back leads to a run that sees what its thread had written.
#[test]
fn schedules_and_cancels_of_four_threads_mix_up_nothing() {
    each(|context| {
        let written: Arc<[AtomicUsize; 4]> = Arc::default();
        let seen: Arc<[AtomicUsize; 4]> = Arc::default();
        let (read, see) = (written.clone(), seen.clone());
        let bh = context.bottom_half(move || {
            for (read, see) in read.iter().zip(&*see) {
                see.store(read.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        });
        let done = Count::default();
        let threads: Vec<_> = (0..4)
            .map(|own| {
                let (trigger, written, done) = (bh.trigger(), written.clone(), done.guard());
                thread::spawn(move || {
                    for number in rounds(10_000) {
                        written[own].store(number, Ordering::Relaxed);
                        trigger.schedule();
                        if number % 4 == own {
                            trigger.cancel();
                        } else {
                            trigger.schedule_idle();
                        }
                    }
                    drop(done);
                    // Not taken back by anybody: the others may be at it, but each has a last one.
                    trigger.schedule();
                })
            })
            .collect();
        while done.get() < 4 {
            context.poll(true);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        settle(context);
        for (written, seen) in written.iter().zip(&*seen) {
            assert_eq!(written.load(Ordering::Relaxed), seen.load(Ordering::Relaxed));
        }
    });
}

#[test]
fn a_thread_that_waits_for_each_of_its_closures_never_waits_in_vain() {
    each(|context| {
        wait_for_each(context);
        let _watched = watch_something(context);
        wait_for_each(context);
    });
}

fn wait_for_each(context: &AioContext) {
    let (remote, ended) = (context.remote(), Count::default());
    let end = ended.guard();
    let thread = thread::spawn(move || {
        let ran = Arc::new(AtomicUsize::new(0));
        for number in rounds(20_000) {
            let run = ran.clone();
            remote.schedule_once(move || run.store(number, Ordering::Release));
            while ran.load(Ordering::Acquire) != number {
                // On one processor, the loop needs it.
                thread::yield_now();
            }
        }
        remote.schedule_once(move || drop(end));
    });
    while ended.get() == 0 {
        context.poll(true);
    }
    thread.join().unwrap();
}

/// Whoever schedules touches neither the closure nor the context once the loop may have dropped them.
#[test]
fn closures_that_drop_what_they_were_scheduled_by_do_no_harm_to_who_schedules() {
    each(|context| {
        let dropped = Count::default();
        let mut made = 0;
        for round in rounds(500) {
            let context = alike(context);
            let ran = Count::default();
            let all: Rc<RefCell<Vec<BottomHalf>>> = Rc::default();
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let count = ran.clone();
                    let (own, place) = (all.clone(), all.borrow().len());
                    let bh = context.bottom_half(move || {
                        count.raise();
                        // Its own and, with the first that runs, those of the others.
                        own.borrow_mut().truncate(place);
                    });
                    let (trigger, remote) = (bh.trigger(), context.remote());
                    all.borrow_mut().push(bh);
                    let (run, held) = (ran.clone(), (dropped.guard(), context.remote()));
                    thread::spawn(move || {
                        trigger.schedule();
                        remote.schedule_once(move || {
                            drop(held);
                            run.raise();
                        });
                    })
                })
                .collect();
            made += 3;
            // Some contexts end while the threads are at it.
            while ran.get() < round as u32 % 5 {
                context.poll(true);
            }
            drop(all);
            drop(context);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(dropped.get(), made, "round {round}");
        }
    });
}
