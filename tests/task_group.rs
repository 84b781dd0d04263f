//! Groups of coroutines that end before their parent goes on.

mod common;

use std::cell::{Cell, RefCell};
use std::io;
use std::panic;
use std::rc::Rc;
use std::time::Duration;

use aioco::sync::{Event, TaskGroup, task_group};
use aioco::{AioContext, aio, yield_now};
use common::{
    Count, LIMIT, OnDrop, assert_cancelled, child, context, coroutine as create, message_of, settle, spawn, within,
};

/// Runs `f` in a coroutine that may borrow.
fn inside<T>(f: impl FnOnce() -> T) -> T {
    context().block_on(f)
}

type Never = Result<(), io::Error>;

#[test]
fn children_borrow_and_have_ended_when_the_group_returns() {
    inside(|| {
        let words = ["one", "two", "three"].map(String::from);
        let lengths = RefCell::new(Vec::new());
        let result = task_group(2, |group| {
            for word in &words {
                let lengths = &lengths;
                group.spawn(move || {
                    yield_now();
                    lengths.borrow_mut().push(word.len());
                    Ok(())
                })?;
            }
            io::Result::Ok("done")
        });
        assert_eq!(result.expect("no error"), "done");
        let mut lengths = lengths.into_inner();
        lengths.sort();
        assert_eq!(lengths, [3, 3, 5]);
        assert_eq!(words.len(), 3);
    });
}

#[test]
fn no_more_run_at_a_time_than_allowed() {
    inside(|| {
        for limit in [1, 3, usize::MAX] {
            let (running, most, all) = (Cell::new(0), Cell::new(0), Cell::new(0));
            let result: Never = task_group(limit, |group| {
                for _ in 0..20 {
                    group.spawn(|| {
                        running.set(running.get() + 1);
                        most.set(most.get().max(running.get()));
                        (0..3).for_each(|_| yield_now());
                        running.set(running.get() - 1);
                        all.set(all.get() + 1);
                        Ok(())
                    })?;
                }
                Ok(())
            });
            result.expect("no error");
            assert_eq!((most.get(), all.get()), (limit.min(20), 20));
        }
    });
}

#[test]
fn the_first_error_in_time_is_kept_and_the_others_go_on() {
    inside(|| {
        let done = Cell::new(0);
        let result = task_group(10, |group| {
            for n in 0..5u32 {
                let done = &done;
                group
                    .spawn(move || {
                        (0..10 - 2 * n).for_each(|_| yield_now());
                        done.set(done.get() + 1);
                        if n % 2 == 1 { Err(n) } else { Ok(()) }
                    })
                    .expect("a stack");
            }
            assert!(!group.has_failed());
            (0..20).for_each(|_| yield_now());
            assert!(group.has_failed());
            Err::<(), _>(100)
        });
        assert_eq!(result, Err(3), "the one that came first, not the one that was spawned first, nor the parent's");
        assert_eq!(done.get(), 5);

        let result = task_group(1, |group| {
            let spawned = group.spawn(|| {
                yield_now();
                Err(1)
            });
            spawned.expect("a stack");
            Err::<(), _>(2)
        });
        assert_eq!(result, Err(2), "the parent's came first");
    });
}

#[test]
fn a_panic_of_a_child_comes_out_when_all_have_ended() {
    inside(|| {
        let done = Cell::new(0);
        let message = message_of(|| {
            let _: Never = task_group(3, |group| {
                for n in 0..3 {
                    let done = &done;
                    group.spawn(move || {
                        (0..n).for_each(|_| yield_now());
                        done.set(done.get() + 1);
                        assert_ne!(n, 0, "the first one fails");
                        Ok(())
                    })?;
                }
                Ok(())
            });
        });
        assert!(message.contains("the first one fails"), "{message}");
        assert_eq!(done.get(), 3);
    });
}

#[test]
fn a_panic_of_the_parent_cancels_the_children() {
    inside(|| {
        let unwound = Count::default();
        let message = message_of(|| {
            let _: Never = task_group(3, |group| {
                for suspends in [false, true] {
                    let guard = unwound.guard();
                    group.spawn(move || {
                        let _guard = guard;
                        if suspends {
                            aio::sleep(LIMIT);
                        }
                        Ok(())
                    })?;
                }
                yield_now();
                // This one never starts.
                let guard = unwound.guard();
                group.spawn(move || {
                    drop(guard);
                    panic!("it was started");
                })?;
                assert_eq!(unwound.get(), 1);
                panic!("of the parent");
            });
        });
        assert_eq!(message, "of the parent");
        assert_eq!(unwound.get(), 3, "all have ended");
    });
}

#[test]
fn a_parent_that_is_cancelled_ends_its_children_first() {
    let context = context();
    let order = Rc::new(RefCell::new(Vec::new()));
    for waits_inside in [true, false] {
        order.borrow_mut().clear();
        let parent = {
            let order = order.clone();
            let body = move || {
                let on_end = OnDrop(|| order.borrow_mut().push("parent"));
                let result: Never = task_group(1, |group| {
                    group.spawn(|| {
                        let _on_end = OnDrop(|| order.borrow_mut().push("child"));
                        aio::sleep(LIMIT);
                        Ok(())
                    })?;
                    if waits_inside {
                        // There is no place for another one.
                        group.spawn(|| Ok(()))?;
                    }
                    Ok(())
                });
                drop((result, on_end));
            };
            context.spawn_local(body).expect("a stack")
        };
        settle(&context);
        parent.cancel();
        settle(&context);
        assert_cancelled(parent.join());
        assert_eq!(*order.borrow(), ["child", "parent"]);
    }
}

#[test]
fn children_end_with_their_context() {
    let unwound = Count::default();
    let context = context();
    let guard = unwound.guard();
    let inner = unwound.clone();
    let parent = spawn(&context, move || {
        let _guard = guard;
        let _: Never = task_group(2, |group| {
            for _ in 0..2 {
                let guard = inner.guard();
                group.spawn(move || {
                    let _guard = guard;
                    aio::sleep(LIMIT);
                    Ok(())
                })?;
            }
            Ok(())
        });
    });
    settle(&context);
    drop(context);
    assert_eq!(unwound.get(), 3);
    assert_cancelled(parent.join());
}

#[test]
fn a_group_with_a_time_limit_ends_its_children() {
    within(LIMIT, || {
        inside(|| {
            let unwound = Count::default();
            let result = aio::timeout(Duration::from_millis(1), || {
                let _: Never = task_group(1, |group| {
                    let guard = unwound.guard();
                    group.spawn(move || {
                        let _guard = guard;
                        Event::new().wait();
                        Ok(())
                    })
                });
            });
            assert!(result.is_err());
            assert_eq!(unwound.get(), 1);
        });
    });
}

#[test]
fn children_spawn_others_and_have_groups_of_their_own() {
    fn fan_out<'scope, 'env>(
        group: &'scope TaskGroup<'scope, 'env, io::Error>,
        depth: u32,
        count: &'scope Cell<u32>,
    ) -> io::Result<()> {
        count.set(count.get() + 1);
        if depth > 0 {
            for _ in 0..2 {
                group.spawn(move || fan_out(group, depth - 1, count))?;
            }
        }
        Ok(())
    }

    inside(|| {
        let count = Cell::new(0);
        let result = task_group(usize::MAX, |group| group.spawn(|| fan_out(group, 5, &count)));
        result.expect("no error");
        assert_eq!(count.get(), 63);

        let sum = Cell::new(0);
        let result: Never = task_group(2, |outer| {
            for n in 0..4 {
                let sum = &sum;
                outer.spawn(move || {
                    let product = Cell::new(1);
                    task_group(2, |inner| {
                        for factor in [2, 3] {
                            let product = &product;
                            inner.spawn(move || {
                                yield_now();
                                product.set(product.get() * factor);
                                Ok(())
                            })?;
                        }
                        io::Result::Ok(())
                    })?;
                    sum.set(sum.get() + n * product.get());
                    Ok(())
                })?;
            }
            Ok(())
        });
        result.expect("no error");
        assert_eq!(sum.get(), 36);
    });
}

#[test]
fn many_children_one_after_the_other() {
    inside(|| {
        let count = Cell::new(0u32);
        let result: Never = task_group(8, |group| {
            for _ in 0..20_000 {
                group.spawn(|| {
                    count.set(count.get() + 1);
                    Ok(())
                })?;
            }
            Ok(())
        });
        result.expect("no error");
        assert_eq!(count.get(), 20_000);
    });
}

#[test]
fn a_group_outside_of_a_coroutine_is_refused() {
    let empty = || _ = task_group(1, |_| Ok::<(), ()>(()));
    assert!(message_of(empty).contains("outside of a coroutine"));
    assert!(message_of(|| create(empty).enter()).contains("outside of a coroutine"), "it has no home");
    let message = message_of(|| inside(|| _ = task_group(0, |_| Ok::<(), ()>(()))));
    assert!(message.contains("without room"));
}

#[test]
fn a_child_that_refuses_to_be_unwound_ends_the_process() {
    let exit = child("stubborn", |_| {
        let context = AioContext::new().expect("a context");
        let parent = spawn(&context, || {
            let _: Never = task_group(1, |group| {
                group.spawn(|| {
                    loop {
                        let _ = panic::catch_unwind(|| aio::sleep(LIMIT));
                    }
                })
            });
        });
        settle(&context);
        parent.cancel();
        settle(&context);
    });
    exit.assert_killed_by(libc::SIGABRT);
    exit.assert_says("a coroutine with borrows");
}

/// What a child has borrowed from is still there while it is unwound.
#[test]
fn children_may_use_what_they_borrow_while_they_are_unwound() {
    inside(|| {
        let log = RefCell::new(Vec::new());
        let result = panic::catch_unwind(panic::AssertUnwindSafe(|| {
            let _: Never = task_group(2, |group| {
                let log = &log;
                for n in 0..2 {
                    group.spawn(move || {
                        let _on_end = OnDrop(|| log.borrow_mut().push(n));
                        yield_now();
                        aio::sleep(LIMIT);
                        Ok(())
                    })?;
                }
                yield_now();
                panic::resume_unwind(Box::new(()));
            });
        }));
        assert!(result.is_err());
        assert_eq!(*log.borrow(), [0, 1]);
    });
}
