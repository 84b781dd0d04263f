//! The event loop: spawning, joining, cancelling, `block_on`, turns, descriptors, deadlines, and how a context ends.

mod common;

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use aioco::coroutine::{self, Builder, Cancelled, Interest, enter_home, pool, unwind_all};
use aioco::{AioContext, Coroutine, JoinHandle, Remote, fd, in_coroutine, park, task, yield_now};
use common::{
    Count, LIMIT, OnDrop, assert_cancelled, assert_order, child, context, coroutine, eventually, message_of, rounds,
    scaled, settle, sockets, spawn, within,
};

/// A context that turns on a thread of its own until it is told to stop.
struct LoopThread {
    remote: Remote,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl LoopThread {
    fn start() -> Self {
        let (give, take) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let context = context();
            give.send(context.remote()).expect("the test waits");
            while !stopped.load(Ordering::Acquire) {
                context.poll(true);
            }
        });
        let remote = take.recv().expect("the thread has started");
        Self { remote, stop, thread: Some(thread) }
    }

    fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        self.remote.spawn(f).expect("a stack")
    }
}

impl Drop for LoopThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        drop(self.remote.spawn(|| ()));
        let result = self.thread.take().expect("taken only here").join();
        if !thread::panicking() {
            result.expect("no panic in the loop");
        }
    }
}

// ---- spawn and turns ------------------------------------------------------------------------------------------------

#[test]
fn a_spawned_coroutine_starts_at_the_next_turn_and_poll_says_whether_something_was_done() {
    let context = context();
    assert!(!context.poll(false));
    let flag = Count::default();
    let inside = flag.clone();
    let handle = spawn(&context, move || inside.raise());
    assert_eq!((flag.get(), handle.is_finished()), (0, false));
    assert!(context.poll(true), "it doesn't block: there is something to do");
    assert_eq!((flag.get(), handle.is_finished()), (1, true));
    assert!(!context.poll(false));
    handle.join().expect("no panic");
}

#[test]
fn spawned_coroutines_start_in_order_and_a_yield_lets_the_others_run() {
    let context = context();
    let log = Arc::new(Mutex::new(Vec::new()));
    for name in ["a", "b", "c"] {
        let log = log.clone();
        spawn(&context, move || {
            for _ in 0..2 {
                log.lock().expect("not poisoned").push(name);
                yield_now();
            }
        });
    }
    settle(&context);
    assert_order(&log.lock().expect("not poisoned"), &["a", "b", "c", "a", "b", "c"]);
}

#[test]
fn a_turn_runs_a_coroutine_that_yields_for_ever_once() {
    let context = context();
    let flag = Count::default();
    let inside = flag.clone();
    let handle = spawn(&context, move || {
        loop {
            inside.raise();
            yield_now();
        }
    });
    for turns in 1..=100 {
        assert!(context.poll(turns % 2 == 0));
        assert_eq!(flag.get(), turns);
    }
    handle.cancel();
    assert_cancelled(handle.join().map(|_: ()| ()));
    assert!(!context.poll(false));
}

#[test]
fn a_coroutine_that_a_coroutine_spawns_runs_and_can_be_joined_there() {
    let context = context();
    let remote = context.remote();
    let sum = context.block_on(|| {
        let all: Vec<_> = (0..100u32).map(|n| remote.spawn(move || n).expect("a stack")).collect();
        assert!(all.iter().all(|handle| !handle.is_finished()), "not from within spawn");
        all.into_iter().map(|handle| handle.join().expect("no panic")).sum::<u32>()
    });
    assert_eq!(sum, 4950);
}

#[test]
fn spawn_with_takes_a_stack_size_and_refuses_nonsense() {
    let context = context();
    let deep = Builder::new().name("deep").stack_size(4 << 20);
    let handle = context.spawn_with(deep, || common::dirty_stack(4000)).expect("a stack");
    handle.join().expect("no overflow");
    let error = context.spawn_with(Builder::new().stack_size(0), || ()).expect_err("nonsense");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(!context.poll(false));
}

#[test]
fn poll_and_block_on_inside_of_a_coroutine_are_refused() {
    let context = Rc::new(context());
    let messages = Rc::new(RefCell::new(Vec::new()));
    let (inside, heard) = (context.clone(), messages.clone());
    coroutine(move || {
        heard.borrow_mut().push(message_of(|| _ = inside.poll(false)));
        heard.borrow_mut().push(message_of(|| inside.block_on(|| ())));
        heard.borrow_mut().push(message_of(|| inside.home().turn()));
    })
    .enter();
    let messages = messages.borrow();
    for (message, function) in messages.iter().zip(["poll", "block_on", "turn"]) {
        assert!(message.contains(&format!("AioContext::{function} was called inside of a coroutine")), "{message}");
    }
    assert_eq!(messages.len(), 3);
    assert_eq!(context.block_on(|| 5), 5);
}

#[test]
fn the_hooks_of_a_context_are_refused_on_another_thread() {
    within(LIMIT, || {
        let context = context();
        let home = context.home();
        assert!(home.is_current());
        let there = thread::spawn(move || {
            assert!(!home.is_current());
            let (ours, _theirs) = sockets();
            let waker = park::waker();
            [
                message_of(|| _ = home.watch_fd(ours.as_fd(), Interest::Readable, waker.clone())),
                message_of(|| _ = home.watch_deadline(Instant::now(), waker.clone())),
                message_of(|| home.clone().turn()),
                message_of(|| drop(enter_home(home.clone()))),
            ]
        });
        for message in there.join().expect("no panic") {
            assert!(message.contains("own"), "{message}");
        }
        assert_eq!(context.block_on(|| 5), 5);
    });
}

#[test]
fn the_current_home_is_the_loop_that_runs() {
    assert!(coroutine::current_home().is_none());
    let (outer, inner) = (context(), context());
    let is = |context: &AioContext| {
        let current = coroutine::current_home();
        current.is_some_and(|home| std::ptr::addr_eq(Arc::as_ptr(&home), Arc::as_ptr(&context.home())))
    };
    outer.block_on(|| assert!(is(&outer)));
    {
        let _outer = enter_home(outer.home());
        inner.block_on(|| assert!(is(&inner) && !is(&outer)));
        assert!(is(&outer));
    }
    assert!(coroutine::current_home().is_none());
}

#[test]
fn two_contexts_on_one_thread_serve_their_own_coroutines() {
    within(LIMIT, || {
        let (a, b) = (context(), context());
        let (mut writer, ours) = sockets();
        let of_b = spawn(&b, move || {
            fd::wait_readable(&ours).expect("a wait");
            7
        });
        assert!(b.poll(false));
        writer.write_all(b"x").expect("room");
        assert!(!a.poll(false), "the other's descriptor is none of its business");
        assert_eq!(a.block_on(|| 5), 5);
        assert_eq!(of_b.join().expect("no panic"), 7);
    });
}

// ---- join -----------------------------------------------------------------------------------------------------------

#[test]
fn join_works_from_a_coroutine_from_the_loops_thread_and_from_a_plain_thread() {
    within(LIMIT, || {
        let home = LoopThread::start();
        let slow = || {
            (0..10).for_each(|_| yield_now());
            6 * 7
        };
        assert_eq!(home.spawn(slow).join().expect("no panic"), 42, "from a plain thread");
        let (other, first) = (home.remote.clone(), home.spawn(slow));
        let joined = home.spawn(move || first.join().expect("no panic") + 1);
        assert_eq!(joined.join().expect("no panic"), 43, "from a coroutine of the same loop");
        let context = context();
        let there = other.spawn(slow).expect("a stack");
        let here = context.block_on(|| there.join().expect("no panic") + 2);
        assert_eq!(here, 44, "from a coroutine of another loop");
        assert_eq!(spawn(&context, slow).join().expect("no panic"), 42, "from the loop's thread");
        let finished = home.spawn(slow);
        assert!(eventually(|| finished.is_finished()));
        assert_eq!(finished.join().expect("no panic"), 42, "after the end");
    });
}

#[test]
fn coroutines_of_two_loops_join_each_other_many_times() {
    within(LIMIT, || {
        let (a, b) = (LoopThread::start(), LoopThread::start());
        let both: Vec<_> = [(&a, &b), (&b, &a)]
            .into_iter()
            .map(|(here, there)| {
                let there = there.remote.clone();
                here.spawn(move || {
                    for round in rounds(scaled(20_000)) {
                        assert_eq!(there.spawn(move || round).expect("a stack").join().expect("no panic"), round);
                    }
                })
            })
            .collect();
        both.into_iter().for_each(|handle| handle.join().expect("no panic"));
    });
}

#[test]
fn a_panic_goes_to_the_join_with_its_payload_and_the_loop_goes_on() {
    let context = context();
    let panics = spawn(&context, || {
        yield_now();
        panic_any(17u8);
    });
    let goes_on = spawn(&context, || {
        (0..5).for_each(|_| yield_now());
        5
    });
    settle(&context);
    let payload = panics.join().map(|_: ()| ()).expect_err("panics");
    assert_eq!(payload.downcast_ref(), Some(&17u8));
    assert_eq!(goes_on.join().expect("no panic"), 5);
}

#[test]
fn a_coroutine_whose_handle_is_dropped_goes_on_and_its_panic_is_its_own() {
    let context = context();
    let flag = Count::default();
    let (inside, guard) = (flag.clone(), flag.guard());
    drop(spawn(&context, move || {
        let _guard = guard;
        yield_now();
        inside.raise();
    }));
    drop(spawn(&context, || panic!("on purpose, detached")));
    settle(&context);
    assert_eq!(flag.get(), 2);
}

#[test]
fn results_are_handed_over_or_dropped_exactly_once() {
    let context = context();
    let flag = Count::default();
    let guard = flag.guard();
    let handle = spawn(&context, move || guard);
    settle(&context);
    let guard = handle.join().unwrap_or_else(|_| unreachable!());
    assert_eq!(flag.get(), 0);
    drop(guard);
    assert_eq!(flag.get(), 1);
    for early in [true, false] {
        let flag = Count::default();
        let guard = flag.guard();
        let handle = spawn(&context, move || guard);
        let handle = if early {
            drop(handle);
            None
        } else {
            Some(handle)
        };
        settle(&context);
        drop(handle);
        assert_eq!(flag.get(), 1);
    }
}

// ---- joining what was just spawned ----------------------------------------------------------------------------------

/// What happened, in order, as a test's coroutines tell it.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<&'static str>>>);

impl Log {
    fn add(&self, what: &'static str) {
        self.0.borrow_mut().push(what);
    }

    #[track_caller]
    fn assert(&self, want: &[&'static str]) {
        assert_order(&self.0.borrow(), want);
    }
}

/// Spawns a coroutine that says its name, calls `then`, and says its name again, in capitals.
fn spawn_named(
    context: &AioContext,
    log: &Log,
    names: [&'static str; 2],
    then: impl FnOnce() + 'static,
) -> JoinHandle<()> {
    let log = log.clone();
    let body = move || {
        log.add(names[0]);
        then();
        log.add(names[1]);
    };
    context.spawn_local(body).expect("a stack")
}

#[test]
fn a_join_starts_what_was_just_spawned_before_others_have_their_turn() {
    let context = context();
    let log = Log::default();
    let _ready = spawn_named(&context, &log, ["other", "OTHER"], || ());
    context.block_on(|| {
        yield_now();
        let later = spawn_named(&context, &log, ["later", "LATER"], yield_now);
        yield_now();
        let [a, b, c] = [["a", "A"], ["b", "B"], ["c", "C"]].map(|names| spawn_named(&context, &log, names, || ()));
        assert!(!a.is_finished());
        a.join().expect("no panic");
        log.add("joined a");
        b.join().expect("no panic");
        log.add("joined b");
        later.join().expect("no panic");
        c.join().expect("no panic");
    });
    log.assert(&["other", "OTHER", "later", "a", "A", "joined a", "b", "B", "joined b", "LATER", "c", "C"]);
}

#[test]
fn spawned_coroutines_start_in_order_whichever_is_joined_and_whoever_spawned_them() {
    let context = Rc::new(context());
    let log = Log::default();
    context.block_on(|| {
        let [a, b] = [["a", "A"], ["b", "B"]].map(|names| spawn_named(&context, &log, names, yield_now));
        b.join().expect("no panic");
        a.join().expect("no panic");
        let c = spawn_named(&context, &log, ["c", "C"], || ());
        let (inside, its_log) = (context.clone(), log.clone());
        // A coroutine that is driven by hand spawns the next.
        coroutine(move || drop(spawn_named(&inside, &its_log, ["d", "D"], || ()))).enter();
        let (inside, its_log) = (context.clone(), log.clone());
        // One that starts inside of a join leaves what it spawns for later.
        let e = spawn_named(&context, &log, ["e", "E"], move || {
            drop(spawn_named(&inside, &its_log, ["f", "F"], || ()));
        });
        c.join().expect("no panic");
        e.join().expect("no panic");
        yield_now();
        yield_now();
        let (inside, its_log) = (context.clone(), log.clone());
        let g = spawn_named(&context, &log, ["g", "G"], move || {
            drop(spawn_named(&inside, &its_log, ["i", "I"], || ()));
            yield_now();
        });
        let h = spawn_named(&context, &log, ["h", "H"], || ());
        g.join().expect("no panic");
        h.join().expect("no panic");
    });
    log.assert(&["a", "b", "A", "B", "c", "C", "d", "D", "e", "E", "f", "F", "g", "h", "H", "i", "I", "G"]);
}

#[test]
fn what_a_join_starts_may_suspend_and_its_joiner_waits() {
    within(LIMIT, || {
        let context = context();
        let home = context.home();
        let sum = context.block_on(|| {
            let spawn = |f: fn() -> u32| task::spawn_on(&home, Builder::new(), f).expect("a stack");
            let yields = spawn(|| {
                (0..3).for_each(|_| yield_now());
                1
            });
            let sleeps = spawn(|| {
                aioco::aio::sleep(Duration::from_millis(1));
                2
            });
            let woken = context.spawn(|| {
                let waker = park::waker();
                let waking = thread::spawn(move || waker.wake());
                park::park();
                waking.join().expect("no panic");
                4
            });
            yields.join().expect("no panic")
                + sleeps.join().expect("no panic")
                + woken.expect("a stack").join().expect("no panic")
        });
        assert_eq!(sum, 7);
    });
}

/// Whatever the result is: only what crosses threads has to be `Send`.
#[test]
fn a_handle_may_be_sent_and_shared_if_its_result_may_be_sent() {
    fn check<T: Send + Sync + Unpin>() {}
    check::<JoinHandle<(Cell<u8>, std::marker::PhantomPinned)>>();
}

#[test]
fn joins_nest_as_deep_as_there_are_stacks() {
    fn depth(context: &Rc<AioContext>, left: u32) -> u32 {
        if left == 0 {
            return 0;
        }
        let inside = context.clone();
        let next = context.spawn_local(move || depth(&inside, left - 1)).expect("a stack");
        1 + next.join().expect("no panic")
    }
    let context = Rc::new(context());
    assert_eq!(context.block_on(|| depth(&context, 1000)), 1000);
}

#[test]
fn a_coroutine_that_joins_for_ever_lets_others_and_other_threads_in() {
    within(LIMIT, || {
        let context = context();
        let local = Rc::new(Cell::new(false));
        let other = local.clone();
        let remote = context.remote();
        let sent = Arc::new(AtomicBool::new(false));
        context.block_on(|| {
            drop(context.spawn_local(move || other.set(true)).expect("a stack"));
            let there = sent.clone();
            thread::spawn(move || remote.spawn(move || there.store(true, Ordering::Relaxed)));
            // The first one spawned is handed over when the second is spawned, or here.
            while !local.get() || !sent.load(Ordering::Relaxed) {
                spawn(&context, || ()).join().expect("no panic");
            }
        });
    });
}

#[test]
fn a_panic_of_what_a_join_starts_is_its_result_and_what_it_woke_runs_after_the_joiner() {
    for joiner_wakes_too in [true, false] {
        let context = Rc::new(context());
        let log = Log::default();
        let (give, take) = mpsc::channel();
        let asleep = ["one", "two"].map(|name| {
            let (log, give) = (log.clone(), give.clone());
            let handle = context.spawn_local(move || {
                give.send(park::waker()).expect("the test waits");
                park::park();
                log.add(name);
            });
            handle.expect("a stack")
        });
        settle(&context);
        let [one, two]: [Waker; 2] = [take.recv().expect("started"), take.recv().expect("started")];
        let by_hand = panics_when_woken(&context, "by hand");
        let by_hand_waker = by_hand.waker();
        let joiner = spawn_named(&context, &log, ["joiner", "joiner ends"], {
            let (context, log) = (context.clone(), log.clone());
            move || {
                if joiner_wakes_too {
                    one.wake_by_ref();
                }
                let wakes = context.spawn_local(move || {
                    by_hand_waker.wake();
                    one.wake();
                    two.wake();
                    panic_any(17u8)
                });
                let payload = wakes.expect("a stack").join().map(|_: ()| ()).expect_err("panics");
                assert_eq!(payload.downcast_ref(), Some(&17u8));
                log.add("joined");
            }
        });
        let out = catch_unwind(AssertUnwindSafe(|| context.poll(false))).expect_err("the one driven by hand panics");
        assert_eq!(out.downcast_ref(), Some(&"by hand"));
        assert!(joiner.is_finished() && asleep.iter().all(JoinHandle::is_finished));
        log.assert(&["joiner", "joined", "joiner ends", "one", "two"]);
    }
}

#[test]
fn a_join_of_what_was_cancelled_before_it_started_drops_it() {
    let context = context();
    let dropped = Count::default();
    let guard = dropped.guard();
    context.block_on(|| {
        let never = spawn(&context, move || {
            let _guard = guard;
            unreachable!("it was cancelled")
        });
        let other = spawn(&context, || 5);
        never.cancel();
        assert_eq!(dropped.get(), 0, "not from within the call");
        assert_cancelled(never.join().map(|_: ()| ()));
        assert_eq!(dropped.get(), 1);
        assert_eq!(other.join().expect("no panic"), 5);
    });
}

#[test]
fn a_joiner_that_is_cancelled_before_or_inside_of_its_join_unwinds_there() {
    for when in ["before", "inside"] {
        let context = Rc::new(context());
        let own: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
        let cancel = {
            let own = own.clone();
            move || own.borrow().as_ref().expect("given").cancel()
        };
        let log = Log::default();
        let joiner = spawn_named(&context, &log, ["joiner", "not reached"], {
            let (context, log) = (context.clone(), log.clone());
            move || {
                let child = spawn_named(&context, &log, ["child", "CHILD"], {
                    let cancel = cancel.clone();
                    move || {
                        if when == "inside" {
                            cancel()
                        }
                    }
                });
                if when == "before" {
                    cancel();
                }
                let _guard = OnDrop(|| log.add("unwinds"));
                child.join().expect("no panic");
            }
        });
        *own.borrow_mut() = Some(joiner);
        settle(&context);
        match when {
            "before" => log.assert(&["joiner", "unwinds", "child", "CHILD"]),
            _ => log.assert(&["joiner", "child", "CHILD", "unwinds"]),
        }
        assert_cancelled(own.take().expect("given").join());
    }
}

#[test]
fn a_context_that_is_dropped_by_what_a_join_started_ends_the_joiner_and_those_not_started() {
    within(LIMIT, || {
        let context = context();
        let home = context.home();
        let place: Rc<RefCell<Option<AioContext>>> = Rc::default();
        let log = Log::default();
        let joiner = spawn_named(&context, &log, ["joiner", "not reached"], {
            let (place, log) = (place.clone(), log.clone());
            move || {
                let in_place = place.borrow();
                let context = in_place.as_ref().expect("given");
                let child = spawn_named(context, &log, ["child", "CHILD"], {
                    let (place, log, home) = (place.clone(), log.clone(), home.clone());
                    move || {
                        drop(place.take());
                        log.add("ended");
                        let late = task::spawn_on(&home, Builder::new(), || ()).expect("a stack");
                        assert!(late.is_finished(), "dropped at once");
                        assert_cancelled(late.join());
                    }
                });
                for _ in 0..2 {
                    let at_drop = OnDrop({
                        let log = log.clone();
                        move || log.add("sibling dropped")
                    });
                    drop(spawn_named(context, &log, ["not reached", "not reached"], move || drop(at_drop)));
                }
                drop(in_place);
                let _guard = OnDrop(|| log.add("joiner unwinds"));
                child.join().expect("no panic");
            }
        });
        *place.borrow_mut() = Some(context);
        assert_cancelled(joiner.join());
        log.assert(&["joiner", "child", "sibling dropped", "sibling dropped", "ended", "CHILD", "joiner unwinds"]);
    });
}

#[test]
fn a_timeout_that_is_up_before_its_coroutine_starts_leaves_the_others_in_order() {
    let context = context();
    let log = Log::default();
    context.block_on(|| {
        let a = spawn_named(&context, &log, ["a", "A"], || ());
        let dropped = Count::default();
        let guard = dropped.guard();
        let up = aioco::aio::timeout(Duration::ZERO, move || {
            let _guard = guard;
            unreachable!("the time was up")
        });
        assert!(up.map(|_: ()| ()).is_err());
        assert_eq!(dropped.get(), 1);
        // Has the stack, and the control block, of the one that never started.
        let by_hand = coroutine({
            let log = log.clone();
            move || log.add("by hand")
        });
        let [b, c] = [["b", "B"], ["c", "C"]].map(|names| spawn_named(&context, &log, names, || ()));
        c.join().expect("no panic");
        [a, b].into_iter().for_each(|handle| handle.join().expect("no panic"));
        by_hand.enter();
    });
    log.assert(&["a", "A", "b", "B", "c", "C", "by hand"]);
}

#[test]
fn stacks_of_what_joins_start_are_used_again() {
    let exit = child("", |_| {
        let context = context();
        context.block_on(|| {
            for round in 0..10_000 {
                let handle = spawn(&context, move || {
                    if round % 16 == 0 {
                        yield_now()
                    }
                });
                if round % 5 == 0 {
                    handle.cancel();
                    assert_cancelled(handle.join());
                } else {
                    handle.join().expect("no panic");
                }
                if round % 7 == 0 {
                    _ = aioco::aio::timeout(Duration::ZERO, || ());
                }
            }
        });
        let stats = pool::stats();
        assert_eq!((stats.live, stats.leaked), (0, 0));
        assert!(stats.idle < 8, "{} stacks", stats.idle);
    });
    exit.assert_success();
}

// ---- cancel ---------------------------------------------------------------------------------------------------------

#[test]
fn cancel_unwinds_a_coroutine_in_whatever_state_and_drops_what_it_owns() {
    within(LIMIT, || {
        for state in ["unstarted", "parked", "woken", "in a yield loop", "waiting for a descriptor", "for a deadline"] {
            let context = context();
            let (captured, local) = (Count::default(), Count::default());
            let (capture, guard) = (captured.guard(), local.clone());
            let (ours, _theirs) = sockets();
            let (give, take) = mpsc::channel();
            let handle = spawn(&context, move || {
                let _capture = capture;
                let _guard = guard.guard();
                give.send(park::waker()).expect("the test waits");
                loop {
                    match state {
                        "in a yield loop" => yield_now(),
                        "waiting for a descriptor" => fd::wait_readable(&ours).expect("a wait"),
                        "for a deadline" => park::park_until(Instant::now() + Duration::from_secs(1000)),
                        _ => park::park(),
                    }
                }
            });
            if state != "unstarted" {
                (0..3).for_each(|_| _ = context.poll(false));
            }
            if state == "woken" {
                take.recv().expect("it has started").wake();
            }
            assert_eq!(captured.get(), 0);
            handle.cancel();
            handle.cancel();
            assert_eq!(captured.get(), 0, "{state}: not from within the call");
            assert_cancelled(handle.join().map(|_: ()| ()));
            assert_eq!((captured.get(), local.get()), (1, u32::from(state != "unstarted")), "{state}");
            settle(&context);
        }
    });
}

#[test]
fn cancel_from_another_thread_reaches_a_sleeping_loop() {
    within(LIMIT, || {
        let home = LoopThread::start();
        for round in rounds(scaled(4000)) {
            let flag = Count::default();
            let guard = flag.guard();
            let handle = home.spawn(move || {
                let _guard = guard;
                loop {
                    if round % 3 == 0 { yield_now() } else { park::park() }
                }
            });
            if round % 2 == 0 {
                thread::yield_now();
            }
            handle.cancel();
            assert_cancelled(handle.join().map(|_: ()| ()));
            // One that was cancelled before its start may still be dropping its closure.
            assert!(eventually(|| flag.get() == 1));
        }
    });
}

#[test]
fn a_running_coroutine_that_is_cancelled_goes_on_to_its_next_suspension() {
    for how in ["yields", "parks", "parks woken"] {
        let context = context();
        let own: Arc<Mutex<Option<JoinHandle<()>>>> = Arc::default();
        let stage = Count::default();
        let (inside, at) = (own.clone(), stage.clone());
        let handle = spawn(&context, move || {
            inside.lock().expect("not poisoned").as_ref().expect("given").cancel();
            at.raise();
            match how {
                "yields" => yield_now(),
                "parks" => park::park(),
                _ => {
                    park::waker().wake();
                    park::park();
                }
            }
            at.raise();
        });
        *own.lock().expect("not poisoned") = Some(handle);
        settle(&context);
        let handle = own.lock().expect("not poisoned").take().expect("given");
        assert!(handle.is_finished());
        assert_cancelled(handle.join());
        assert_eq!(stage.get(), 1, "{how}");
    }
}

#[test]
fn a_coroutine_that_ends_without_suspending_is_not_cancelled() {
    let context = context();
    let handle = spawn(&context, || 5);
    settle(&context);
    handle.cancel();
    settle(&context);
    assert_eq!(handle.join().expect("it has ended"), 5);
}

#[test]
fn a_cancelled_coroutine_may_catch_it_and_return_or_panic_anew() {
    let context = context();
    let returns = spawn(&context, || {
        assert!(catch_unwind(park::park).expect_err("cancelled").is::<Cancelled>());
        5
    });
    let panics = spawn(&context, || {
        let _ = catch_unwind(park::park);
        panic_any("anew");
    });
    settle(&context);
    returns.cancel();
    panics.cancel();
    assert_eq!(returns.join().expect("it returned"), 5);
    let payload = panics.join().map(|_: ()| ()).expect_err("panics");
    assert_eq!(payload.downcast_ref(), Some(&"anew"));
}

#[test]
fn a_coroutine_that_swallows_its_cancellation_for_ever_is_given_up_and_join_returns() {
    let exit = child("", |_| {
        within(LIMIT, || {
            for suspend in [yield_now as fn(), park::park] {
                let before = pool::stats().leaked;
                let context = context();
                let swallowed = Count::default();
                let inside = swallowed.clone();
                let handle = spawn(&context, move || {
                    loop {
                        if catch_unwind(suspend).is_err() {
                            inside.raise();
                        }
                    }
                });
                context.poll(false);
                handle.cancel();
                assert_cancelled(handle.join().map(|_: ()| ()));
                assert_eq!((swallowed.get(), pool::stats().leaked), (100, before + 1));
                assert_eq!(context.block_on(|| 5), 5);
            }
        });
    });
    exit.assert_success();
}

#[test]
fn a_coroutine_that_is_cancelled_in_a_join_leaves_the_other_one_alone() {
    let context = context();
    let other = spawn(&context, || {
        park::park();
        5
    });
    let (give, take) = mpsc::channel();
    let waiting = spawn(&context, move || {
        let _back = OnDrop(|| ());
        give.send(()).expect("the test waits");
        other.join()
    });
    settle(&context);
    take.recv().expect("it has started");
    waiting.cancel();
    assert_cancelled(waiting.join());
    settle(&context);
}

#[test]
fn cancelled_is_an_error_with_a_message() {
    let context = context();
    let handle = spawn(&context, park::park);
    settle(&context);
    handle.cancel();
    let payload = handle.join().expect_err("cancelled");
    let cancelled = *payload.downcast::<Cancelled>().expect("that payload");
    let error: &dyn std::error::Error = &cancelled;
    assert_eq!(error.to_string(), "the coroutine was cancelled");
}

// ---- block_on -------------------------------------------------------------------------------------------------------

#[test]
fn block_on_borrows_runs_other_coroutines_meanwhile_and_returns_what_it_is_given() {
    within(LIMIT, || {
        let context = context();
        let mut buffer = [0u8; 8];
        let text = String::from("borrowed");
        let (mut theirs, mut ours) = sockets();
        let other = spawn(&context, move || {
            yield_now();
            theirs.write_all(b"12345678").expect("room");
        });
        let local = Rc::new(Cell::new(0));
        let returned: &str = context.block_on(|| {
            fd::wait_readable(&ours).expect("a wait");
            ours.read_exact(&mut buffer).expect("eight bytes");
            local.set(1);
            &text[..3]
        });
        assert_eq!((returned, &buffer, local.get()), ("bor", b"12345678", 1));
        assert!(other.is_finished());
    });
}

#[test]
fn block_on_passes_a_panic_on_and_the_context_can_be_used_again() {
    let context = context();
    for round in 0..3 {
        let payload = catch_unwind(AssertUnwindSafe(|| {
            context.block_on(|| {
                yield_now();
                panic_any(round);
            })
        }));
        assert_eq!(payload.map(|_: ()| ()).expect_err("panics").downcast_ref(), Some(&round));
        assert_eq!(context.block_on(|| round), round);
    }
}

/// A coroutine driven by hand that panics when it is woken in the context's loop.
fn panics_when_woken(context: &AioContext, payload: &'static str) -> Coroutine {
    let _home = enter_home(context.home());
    let co = coroutine(move || {
        park::park();
        panic_any(payload);
    });
    co.enter();
    co
}

#[test]
fn block_on_unwinds_its_coroutine_before_it_passes_on_the_panic_of_another() {
    within(LIMIT, || {
        let context = context();
        for suspended in ["parked", "yielding", "waiting", "never started"] {
            let bad = panics_when_woken(&context, "the other's");
            let waker = bad.waker();
            let unwound = Cell::new(false);
            let mut borrowed = vec![1, 2, 3];
            let (ours, _theirs) = sockets();
            if suspended == "never started" {
                waker.wake_by_ref();
            }
            let result = catch_unwind(AssertUnwindSafe(|| {
                context.block_on(|| {
                    let _guard = OnDrop(|| unwound.set(true));
                    borrowed.push(4);
                    waker.wake_by_ref();
                    loop {
                        match suspended {
                            "yielding" => yield_now(),
                            "waiting" => fd::wait_readable(&ours).expect("a wait"),
                            _ => park::park(),
                        }
                    }
                })
            }));
            let payload = result.map(|_: ()| ()).expect_err("panics");
            assert_eq!(payload.downcast_ref(), Some(&"the other's"), "{suspended}");
            let ran = suspended != "never started";
            assert_eq!((unwound.get(), borrowed.len()), (ran, if ran { 4 } else { 3 }), "{suspended}");
            assert!(!thread::panicking() && bad.is_finished());
            settle(&context);
        }
        // Two that panic: the first one's payload comes out, and nothing hangs.
        let (one, two) = (panics_when_woken(&context, "one"), panics_when_woken(&context, "two"));
        let wakers = [one.waker(), two.waker()];
        let result = catch_unwind(AssertUnwindSafe(|| {
            context.block_on(|| {
                wakers.iter().for_each(Waker::wake_by_ref);
                park::park();
                park::park();
            });
        }));
        assert_eq!(result.expect_err("panics").downcast_ref(), Some(&"one"));
        settle(&context);
        assert_eq!(context.block_on(|| 5), 5);
    });
}

#[test]
fn poll_passes_on_the_panic_of_a_coroutine_driven_by_hand_and_the_others_keep_their_turn() {
    let context = context();
    let bad = panics_when_woken(&context, "on purpose");
    let before = spawn(&context, || 1);
    bad.waker().wake();
    let after = spawn(&context, || 2);
    let payload = catch_unwind(AssertUnwindSafe(|| context.poll(false))).expect_err("panics");
    assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
    assert_eq!((before.is_finished(), after.is_finished()), (true, false));
    assert!(context.poll(false));
    assert_eq!(after.join().expect("no panic"), 2);
}

#[test]
fn block_on_works_in_a_drop_guard_while_its_thread_unwinds() {
    let context = context();
    let count = Cell::new(0);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _guard = OnDrop(|| {
            context.block_on(|| {
                yield_now();
                count.set(5);
            });
        });
        panic_any("outer");
    }));
    assert_eq!(result.map(|_: ()| ()).expect_err("panics").downcast_ref(), Some(&"outer"));
    assert_eq!(count.get(), 5);
    assert!(!thread::panicking());
}

// ---- ends -----------------------------------------------------------------------------------------------------------

#[test]
fn a_context_that_is_dropped_ends_its_coroutines_in_whatever_state() {
    within(LIMIT, || {
        let context = context();
        let flag = Count::default();
        let (ours, _theirs) = sockets();
        let guarded = |f: fn()| {
            let guard = flag.guard();
            move || {
                let _guard = guard;
                f();
            }
        };
        let parked = spawn(&context, guarded(park::park));
        let yielding = spawn(
            &context,
            guarded(|| {
                loop {
                    yield_now();
                }
            }),
        );
        let timed = spawn(&context, guarded(|| park::park_until(Instant::now() + Duration::from_secs(1000))));
        let guard = flag.guard();
        let waiting = spawn(&context, move || {
            let _guard = guard;
            fd::wait_readable(&ours).expect("a wait");
        });
        let (give, take) = mpsc::channel();
        let guard = flag.guard();
        let woken = spawn(&context, move || {
            let _guard = guard;
            give.send(park::waker()).expect("the test waits");
            park::park();
        });
        (0..3).for_each(|_| _ = context.poll(false));
        take.recv().expect("it has started").wake();
        let unstarted = spawn(&context, guarded(|| unreachable!("it started")));
        let (remote, closure) = (context.remote(), guarded(|| unreachable!("it started")));
        let from_elsewhere = thread::spawn(move || remote.spawn(closure).expect("a stack")).join().expect("no panic");
        drop(spawn(&context, guarded(|| unreachable!("it started"))));
        assert_eq!(flag.get(), 0);
        drop(context);
        assert_eq!(flag.get(), 8, "all guards have run");
        for handle in [parked, yielding, timed, waiting, woken, unstarted, from_elsewhere] {
            assert!(handle.is_finished());
            assert_cancelled(handle.join());
        }
    });
}

#[test]
fn drop_guards_may_wake_and_spawn_while_their_context_ends() {
    within(LIMIT, || {
        let context = context();
        let flag = Count::default();
        let home = context.home();
        let mut all = Vec::new();
        for _ in 0..10 {
            let (home, spawned) = (home.clone(), flag.guard());
            let (give, take) = mpsc::channel();
            all.push(spawn(&context, move || {
                give.send(park::waker()).expect("the test waits");
                park::park();
            }));
            context.poll(false);
            let waker: Waker = take.recv().expect("it has started");
            all.push(spawn(&context, move || {
                let mut spawned = Some(spawned);
                let _guard = OnDrop(move || {
                    waker.wake_by_ref();
                    let spawned = spawned.take();
                    let late = task::spawn_on(&home, Builder::new(), move || drop(spawned));
                    drop(late.expect("a stack"));
                });
                park::park();
            }));
            context.poll(false);
        }
        drop(context);
        assert_eq!(flag.get(), 10);
        assert!(all.iter().all(JoinHandle::is_finished));
    });
}

#[test]
fn a_context_may_be_dropped_inside_of_a_coroutine_and_while_unwinding() {
    within(LIMIT, || {
        for unwinding in [false, true] {
            let context = context();
            let flag = Count::default();
            let guard = flag.guard();
            let parked = spawn(&context, move || {
                let _guard = guard;
                park::park();
            });
            context.poll(false);
            let co = coroutine(move || {
                assert!(in_coroutine());
                let _context = context;
                if unwinding {
                    panic_any(3);
                }
            });
            assert_eq!(catch_unwind(AssertUnwindSafe(|| co.enter())).is_err(), unwinding);
            assert_eq!(flag.get(), 1);
            assert_cancelled(parked.join());
            assert!(!thread::panicking());
        }
    });
}

#[test]
fn a_remote_of_a_context_that_has_ended_gives_an_error_and_drops_the_closure() {
    let context = context();
    let remote = context.remote();
    drop(context);
    for _ in 0..2 {
        let flag = Count::default();
        let guard = flag.guard();
        let error = remote.spawn(move || drop(guard)).expect_err("it has ended");
        assert_eq!((error.kind(), flag.get()), (ErrorKind::NotConnected, 1));
        let (remote, guard) = (remote.clone(), flag.guard());
        let error = thread::spawn(move || remote.spawn(move || drop(guard)).expect_err("it has ended"));
        assert_eq!(error.join().expect("no panic").kind(), ErrorKind::NotConnected);
        assert_eq!(flag.get(), 2);
    }
}

#[test]
fn remote_spawns_and_wakes_that_race_with_the_end_run_or_are_cancelled_and_none_is_lost() {
    within(LIMIT, || {
        for round in rounds(scaled(2000)) {
            let (give, take) = mpsc::channel();
            let start = Arc::new(Barrier::new(3));
            let home_start = start.clone();
            let home = thread::spawn(move || {
                let context = context();
                let (give_waker, take_waker) = mpsc::channel();
                let parked = spawn(&context, move || {
                    give_waker.send(park::waker()).expect("the loop waits");
                    loop {
                        park::park();
                    }
                });
                context.poll(false);
                give.send((context.remote(), take_waker.recv().expect("it has started"))).expect("the test waits");
                home_start.wait();
                (0..round % 5).for_each(|_| _ = context.poll(false));
                drop(context);
                assert_cancelled(parked.join().map(|_: ()| ()));
            });
            let (remote, waker): (Remote, Waker) = take.recv().expect("the home has started");
            let flag = Count::default();
            let spawners: Vec<_> = (0..2)
                .map(|_| {
                    let (remote, waker, start, flag) = (remote.clone(), waker.clone(), start.clone(), flag.clone());
                    thread::spawn(move || {
                        start.wait();
                        let mut spawned = 0;
                        for _ in 0..10 {
                            waker.wake_by_ref();
                            let guard = flag.guard();
                            match remote.spawn(move || drop(guard)) {
                                Ok(handle) => {
                                    spawned += 1;
                                    if let Err(payload) = handle.join() {
                                        assert!(payload.is::<Cancelled>());
                                    }
                                }
                                Err(error) => assert_eq!(error.kind(), ErrorKind::NotConnected),
                            }
                        }
                        spawned
                    })
                })
                .collect();
            let spawned: u32 = spawners.into_iter().map(|spawner| spawner.join().expect("no panic")).sum();
            home.join().expect("no panic");
            assert!(eventually(|| flag.get() == 20), "{} dropped of 20, {spawned} spawned", flag.get());
        }
    });
}

#[test]
fn contexts_leave_no_descriptors_behind_and_a_limit_of_descriptors_is_an_error_that_passes() {
    let exit = child("", |_| {
        let open = || fs::read_dir("/proc/self/fd").expect("/proc is mounted").count();
        context().block_on(|| ());
        let before = open();
        for _ in 0..200 {
            let context = context();
            let (ours, _theirs) = sockets();
            let waiting = spawn(&context, move || fd::wait_readable(ours));
            context.poll(false);
            drop((context, waiting));
        }
        assert_eq!(open(), before);
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid place for the result.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
        let unlimited = limit;
        // The limit is one of numbers: with a hundred more, there is no gap below the highest.
        let fill: Vec<_> = (0..100).map(|_| File::open("/dev/null").expect("/dev/null")).collect();
        let next = 1 + fill.iter().map(AsRawFd::as_raw_fd).max().expect("a hundred");
        let before = open();
        for spare in 0..2 {
            limit.rlim_cur = (next + spare) as libc::rlim_t;
            // SAFETY: a valid argument.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
            let error = AioContext::new().expect_err("no descriptors");
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{spare} to spare");
            // SAFETY: as above.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &unlimited) }, 0);
            assert_eq!(open(), before);
            assert_eq!(context().block_on(|| 5), 5);
        }
    });
    exit.assert_success();
}

// ---- other threads --------------------------------------------------------------------------------------------------

#[test]
fn a_sleeping_loop_is_woken_by_wakes_and_spawns_of_other_threads() {
    within(LIMIT, || {
        let home = LoopThread::start();
        let threads: Vec<_> = (0..3usize)
            .map(|me| {
                let remote = home.remote.clone();
                thread::spawn(move || {
                    for round in rounds(scaled(20_000)) {
                        // Now and then the loop gets the time to fall asleep.
                        if (round + me) % 16 == 0 {
                            thread::sleep(Duration::from_micros(20));
                        }
                        let handle = remote.spawn(move || round).expect("a stack");
                        if round % 4 == 0 {
                            assert_eq!(handle.join().expect("no panic"), round);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

/// Field report 92.
#[test]
fn a_loop_that_sleeps_between_wakes_misses_none() {
    within(LIMIT, || {
        let home = LoopThread::start();
        const OVER: usize = usize::MAX;
        let (give, take) = mpsc::channel();
        let turn = Arc::new(AtomicUsize::new(0));
        let their_turn = turn.clone();
        let waiting = home.spawn(move || {
            give.send(park::waker()).expect("the test waits");
            for round in 1.. {
                while their_turn.load(Ordering::Acquire) < 2 * round - 1 {
                    park::park();
                }
                if their_turn.load(Ordering::Acquire) == OVER {
                    return;
                }
                their_turn.store(2 * round, Ordering::Release);
            }
        });
        let waker: Waker = take.recv().expect("it has started");
        for round in rounds(scaled(200_000)) {
            // The wake meets the loop before, while, and after it goes to sleep.
            (0..round * 7 % 1000).for_each(|_| std::hint::spin_loop());
            turn.store(2 * round - 1, Ordering::Release);
            waker.wake_by_ref();
            while turn.load(Ordering::Acquire) != 2 * round {
                thread::yield_now();
            }
        }
        turn.store(OVER, Ordering::Release);
        waker.wake();
        waiting.join().expect("no panic");
    });
}

// ---- regressions ----------------------------------------------------------------------------------------------------

#[test]
fn a_panic_in_the_drop_of_a_closure_that_never_ran_loses_no_other_coroutine() {
    let exit = child("", |_| {
        within(Duration::from_secs(10), || {
            let context = context();
            let flag = Count::default();
            let guard = flag.guard();
            let parked = spawn(&context, move || {
                let _guard = guard;
                park::park();
            });
            settle(&context);
            let bad = OnDrop(|| panic!("in a drop"));
            let panics = spawn(&context, move || drop(bad));
            let guard = flag.guard();
            let after = spawn(&context, move || drop(guard));
            let _ = catch_unwind(AssertUnwindSafe(|| drop(context)));
            assert_eq!(flag.get(), 2);
            for handle in [parked, panics, after] {
                assert!(handle.is_finished());
                assert_cancelled(handle.join());
            }
            assert_eq!(pool::stats().live, 0);
        });
    });
    exit.assert_success();
}

#[test]
fn what_a_context_that_has_ended_drops_may_use_its_home() {
    within(LIMIT, || {
        let context = context();
        let home = context.home();
        drop(context);
        let dropped = Count::default();
        let (at_drop, inside) = (home.clone(), dropped.clone());
        let guard = OnDrop(move || {
            inside.raise();
            let (ours, _theirs) = sockets();
            let watch = at_drop.watch_fd(ours.as_fd(), Interest::Readable, park::waker());
            assert_eq!(watch.expect_err("it has ended").kind(), ErrorKind::NotConnected);
        });
        let late = task::spawn_on(&home, Builder::new(), move || drop(guard)).expect("a stack");
        assert_eq!(dropped.get(), 1);
        assert_cancelled(late.join());
    });
}

#[test]
fn a_detached_coroutine_whose_result_panics_when_dropped_leaves_the_loop_alone() {
    let context = context();
    drop(spawn(&context, || OnDrop(|| panic!("in the drop of a result"))));
    let other = spawn(&context, || 5);
    assert!(catch_unwind(AssertUnwindSafe(|| settle(&context))).is_ok());
    assert_eq!(other.join().expect("no panic"), 5);
}

#[test]
fn the_result_of_a_detached_coroutine_is_dropped_once_whatever_its_drop_does() {
    let exit = child("", |_| {
        struct Stubborn(Count);
        impl Drop for Stubborn {
            fn drop(&mut self) {
                self.0.raise();
                loop {
                    let _ = catch_unwind(park::park);
                }
            }
        }
        let context = context();
        let flag = Count::default();
        let result = Stubborn(flag.clone());
        drop(spawn(&context, move || result));
        settle(&context);
        assert_eq!(flag.get(), 1);
        drop(context);
        assert_eq!(flag.get(), 1);
    });
    exit.assert_success();
}

#[test]
fn a_join_returns_after_the_closure_of_a_cancelled_coroutine_has_been_dropped() {
    within(LIMIT, || {
        let home = LoopThread::start();
        // Keeps the loop busy until the cancel has come.
        let (let_go, wait) = mpsc::channel::<()>();
        let busy = home.spawn(move || _ = wait.recv());
        let dropped = Count::default();
        let inside = dropped.clone();
        let guard = OnDrop(move || {
            thread::sleep(Duration::from_millis(50));
            inside.raise();
        });
        let handle = home.spawn(move || drop(guard));
        handle.cancel();
        let_go.send(()).expect("the loop waits");
        assert_cancelled(handle.join());
        assert_eq!(dropped.get(), 1);
        busy.join().expect("no panic");
    });
}

#[test]
fn a_coroutine_is_unwound_on_its_own_thread_only() {
    // In a child, where the second thread surely inherits what the runtime kept for the first.
    let exit = child("", |_| {
        let unwound_on = Arc::new(Mutex::new(None));
        let inside = unwound_on.clone();
        let home = thread::spawn(move || {
            let context = context();
            let mut guard = Some(inside);
            let handle = spawn(&context, move || {
                let unwound_on = guard.take().expect("given");
                let _guard = OnDrop(move || {
                    *unwound_on.lock().expect("not poisoned") = Some(thread::current().id());
                });
                park::park();
            });
            context.poll(false);
            let home = context.home();
            std::mem::forget((context, handle));
            home
        });
        let home = home.join().expect("no panic");
        thread::spawn(move || {
            coroutine(|| ()).enter();
            unwind_all(&*home);
        })
        .join()
        .expect("no panic");
        assert_eq!(*unwound_on.lock().expect("not poisoned"), None);
    });
    exit.assert_success();
}

#[test]
fn a_panic_payload_that_panics_when_dropped_loses_no_woken_coroutine() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic_any("in the drop of a payload");
        }
    }
    let make = |f: fn()| {
        let co = coroutine(move || {
            park::park();
            f();
        });
        co.enter();
        co
    };
    let first = make(|| panic_any("first"));
    let second = make(|| resume_unwind(Box::new(Bad)));
    let third = make(|| ());
    let wakers = [first.waker(), second.waker(), third.waker()];
    let co = coroutine(move || wakers.iter().for_each(Waker::wake_by_ref));
    assert!(catch_unwind(AssertUnwindSafe(|| co.enter())).is_err());
    assert!(third.is_finished());
}
