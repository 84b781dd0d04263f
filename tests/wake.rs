//! Wakes: remembered before the park, coalesced, from any thread, stale; and where the woken coroutine runs.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::task::Waker;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use aioco::coroutine::{Builder, Cancelled, enter_home};
use aioco::{Coroutine, park, yield_now};
use common::{Count, LIMIT, context, coroutine, eventually, rounds, scaled, within};

/// A coroutine that counts how often it returns from a park, for ever.
fn counting(count: &Count) -> Coroutine {
    let count = count.clone();
    let co = coroutine(move || {
        loop {
            park::park();
            count.raise();
        }
    });
    co.enter();
    co
}

#[test]
fn a_wake_before_the_park_is_remembered() {
    let parks = Count::default();
    let inside = parks.clone();
    let co = coroutine(move || {
        for _ in 0..100_000 {
            park::waker().wake();
            park::park();
            inside.raise();
        }
        // Consumed: this one suspends.
        park::park();
        inside.raise();
    });
    co.enter();
    assert_eq!(parks.get(), 100_000);
    assert!(!co.is_finished());
    co.enter();
    assert_eq!(parks.get(), 100_001);
}

#[test]
fn a_wake_before_the_start_and_one_before_a_yield_are_remembered() {
    let stage = Count::default();
    let inside = stage.clone();
    let co = coroutine(move || {
        park::park();
        inside.raise();
        park::waker().wake();
        yield_now();
        park::park();
        inside.raise();
        park::park();
    });
    co.waker().wake();
    co.enter();
    assert_eq!(stage.get(), 1, "a yield is not a park: it doesn't consume the wake, and suspends");
    co.enter();
    assert_eq!(stage.get(), 2);
    assert!(!co.is_finished());
}

#[test]
fn a_wake_by_another_thread_between_submission_and_park_is_remembered() {
    within(LIMIT, || {
        let (submit, submissions) = mpsc::channel::<(Arc<AtomicUsize>, usize, Waker)>();
        let worker = thread::spawn(move || {
            for (completed, number, waker) in submissions {
                completed.store(number, Ordering::Release);
                waker.wake();
            }
        });
        let context = context();
        context.block_on(|| {
            let completed = Arc::new(AtomicUsize::new(0));
            for number in rounds(100_000) {
                submit.send((completed.clone(), number, park::waker())).expect("the worker is there");
                while completed.load(Ordering::Acquire) != number {
                    park::park();
                }
            }
        });
        drop(submit);
        worker.join().expect("no panic");
    });
}

#[test]
fn wakes_from_ten_threads_coalesce_into_one_resume() {
    within(LIMIT, || {
        let context = context();
        let _home = enter_home(context.home());
        let count = Count::default();
        let co = counting(&count);
        for round in rounds(200).map(|round| round as u32) {
            let waker = co.waker();
            thread::scope(|scope| {
                for _ in 0..10 {
                    scope.spawn(|| waker.wake_by_ref());
                }
            });
            assert_eq!(count.get(), round - 1, "never from within the wake");
            assert!(context.poll(false));
            assert_eq!(count.get(), round);
            assert!(!context.poll(false));
            assert_eq!(count.get(), round);
        }
    });
}

#[test]
fn kicks_around_a_deadline_resume_once_each_and_never_after_the_end() {
    within(LIMIT, || {
        let context = context();
        let kicker_count = 10;
        let current: Arc<Mutex<Option<Waker>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let kicks = Arc::new(AtomicUsize::new(0));
        let kickers: Vec<_> = (0..kicker_count)
            .map(|_| {
                let (current, stop, kicks) = (current.clone(), stop.clone(), kicks.clone());
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let waker = current.lock().expect("not poisoned").clone();
                        if let Some(waker) = waker {
                            kicks.fetch_add(1, Ordering::Relaxed);
                            waker.wake();
                        }
                        thread::sleep(Duration::from_micros(30));
                    }
                })
            })
            .collect();
        let running = Arc::new(AtomicBool::new(false));
        let resumes = Arc::new(AtomicUsize::new(0));
        let mut want = 0;
        for round in rounds(scaled(8000)) {
            want += round % 3 + 1;
            let (current, running, resumes) = (current.clone(), running.clone(), resumes.clone());
            let handle = context.spawn(move || {
                *current.lock().expect("not poisoned") = Some(park::waker());
                for _ in 0..=round % 3 {
                    park::park_until(Instant::now() + Duration::from_micros(20));
                    assert!(!running.swap(true, Ordering::Relaxed), "resumed while running");
                    resumes.fetch_add(1, Ordering::Relaxed);
                    running.store(false, Ordering::Relaxed);
                }
            });
            handle.expect("a stack").join().expect("no panic");
        }
        stop.store(true, Ordering::Relaxed);
        kickers.into_iter().for_each(|kicker| kicker.join().expect("no panic"));
        assert_eq!(resumes.load(Ordering::Relaxed), want);
        assert!(kicks.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn a_wake_from_a_thread_without_a_loop_resumes_on_the_home_thread() {
    within(LIMIT, || {
        let context = context();
        let (give_waker, take_waker) = mpsc::channel();
        let handle = context.spawn(move || {
            give_waker.send(park::waker()).expect("the test waits");
            park::park();
            thread::current().id()
        });
        let handle = handle.expect("a stack");
        assert!(context.poll(false));
        let waker = take_waker.recv().expect("the coroutine has started");
        thread::spawn(move || waker.wake()).join().expect("no panic");
        assert!(!handle.is_finished(), "it ran on a foreign thread");
        assert!(context.poll(true));
        assert!(handle.is_finished());
        assert_eq!(handle.join().expect("no panic"), thread::current().id());
    });
}

#[test]
fn a_wake_on_the_home_thread_outside_of_coroutines_runs_nothing_until_the_loop_turns() {
    let context = context();
    let _home = enter_home(context.home());
    let count = Count::default();
    let co = counting(&count);
    co.waker().wake();
    assert_eq!(count.get(), 0);
    assert!(context.poll(false));
    assert_eq!(count.get(), 1);
    assert!(!context.poll(false));
}

#[test]
fn a_spawned_coroutine_runs_on_its_home_whoever_spawned_and_whoever_wakes_it() {
    within(LIMIT, || {
        let (give_remote, take_remote) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let home = thread::spawn(move || {
            let context = context();
            give_remote.send(context.remote()).expect("the test waits");
            while !stopped.load(Ordering::Acquire) {
                context.poll(true);
            }
            thread::current().id()
        });
        let remote = take_remote.recv().expect("the home has started");
        // Spawned by this thread, woken by a third one, again and again.
        let (give_waker, take_waker) = mpsc::channel::<Waker>();
        let third = thread::spawn(move || take_waker.into_iter().for_each(Waker::wake));
        let handle = remote.spawn(move || {
            let mut ran_on = vec![thread::current().id()];
            for _ in 0..100 {
                give_waker.send(park::waker()).expect("the third thread is there");
                park::park();
                ran_on.push(thread::current().id());
            }
            ran_on
        });
        let ran_on: Vec<ThreadId> = handle.expect("a stack").join().expect("no panic");
        third.join().expect("no panic");
        stop.store(true, Ordering::Release);
        remote.spawn(|| ()).expect("a stack");
        let home = home.join().expect("no panic");
        assert_eq!(ran_on, vec![home; 101]);
        assert_ne!(home, thread::current().id());
    });
}

#[test]
fn a_coroutine_driven_by_hand_gets_the_loop_in_which_it_first_parks_as_its_home() {
    within(LIMIT, || {
        let context = context();
        let count = Count::default();
        let inside = count.clone();
        let co = coroutine(move || {
            park::park();
            inside.raise();
            park::park();
            inside.raise();
        });
        {
            let _home = enter_home(context.home());
            co.enter();
        }
        let waker = co.waker();
        thread::spawn(move || waker.wake()).join().expect("no panic");
        assert!(context.poll(true));
        assert_eq!(count.get(), 1);
        co.waker().wake();
        assert!(context.poll(true));
        assert_eq!(count.get(), 2);
        assert!(co.is_finished());
    });
}

#[test]
fn a_coroutine_without_a_home_runs_at_its_next_enter_after_a_wake() {
    let count = Count::default();
    let co = counting(&count);
    for wakes in 0..3 {
        let waker = co.waker();
        thread::spawn(move || (0..wakes).for_each(|_| waker.wake_by_ref())).join().expect("no panic");
        (0..wakes).for_each(|_| co.waker().wake());
        let before = count.get();
        co.enter();
        assert_eq!(count.get(), before + 1, "woken {wakes} times from two threads each");
    }
}

#[test]
fn a_coroutine_without_a_home_is_woken_by_another_coroutine_as_often_as_it_parks() {
    let count = Count::default();
    let co = counting(&count);
    for round in 1..=1000 {
        // Lost wakes in between, which leave it parked and woken.
        if round % 3 == 0 {
            co.waker().wake();
        }
        let waker = co.waker();
        coroutine(move || waker.wake()).enter();
        assert_eq!(count.get(), round);
    }
}

#[test]
fn the_waker_of_a_coroutine_that_has_ended_does_nothing_also_when_its_block_is_in_use_again() {
    let context = context();
    let _home = enter_home(context.home());
    let mut stale = Vec::new();
    for _ in 0..100 {
        let finished = coroutine(|| ());
        stale.push(finished.waker());
        finished.enter();
        let unwound = counting(&Count::default());
        stale.push(unwound.waker());
        stale.push(unwound.as_ref().waker());
        drop(unwound);
        stale.push(coroutine(|| ()).waker());
    }
    let count = Count::default();
    let all: Vec<_> = (0..150).map(|_| counting(&count)).collect();
    stale.iter().for_each(Waker::wake_by_ref);
    thread::scope(|scope| {
        scope.spawn(|| stale.iter().for_each(Waker::wake_by_ref));
    });
    coroutine(move || stale.into_iter().for_each(Waker::wake)).enter();
    assert!(!context.poll(false));
    assert_eq!(count.get(), 0);
    // Nor have the wakes been remembered for the new tenants.
    all.iter().for_each(Coroutine::enter);
    assert_eq!(count.get(), 150, "each returns from the one park, and parks again");
}

#[test]
fn a_waker_is_two_words_and_equals_its_clones_and_successors_but_no_others() {
    assert_eq!(size_of::<Waker>(), 2 * size_of::<usize>());
    let co = coroutine(|| {
        let first = park::waker();
        yield_now();
        assert!(park::waker().will_wake(&first));
    });
    co.enter();
    let waker = co.waker();
    assert!(waker.will_wake(&waker.clone()));
    assert!(waker.will_wake(&co.as_ref().waker()));
    let other = coroutine(|| ());
    assert!(!waker.will_wake(&other.waker()));
    co.enter();
    assert!(co.is_finished());
    let heirs: Vec<_> = (0..200).map(|_| coroutine(|| ())).collect();
    assert!(heirs.iter().all(|heir| !heir.waker().will_wake(&waker)));
}

#[test]
fn a_queue_entry_that_was_overtaken_by_hand_is_skipped() {
    let context = context();
    let _home = enter_home(context.home());
    let count = Count::default();
    let co = counting(&count);
    co.waker().wake();
    co.enter();
    assert_eq!(count.get(), 1, "entered by hand while it stands in the queue");
    context.poll(false);
    assert_eq!(count.get(), 1, "the queue entry is stale");
    // The next wake makes a new one.
    co.waker().wake();
    assert!(context.poll(false));
    assert_eq!(count.get(), 2);
}

#[test]
fn a_queue_entry_that_was_overtaken_by_hand_serves_the_next_wake() {
    let context = context();
    let _home = enter_home(context.home());
    let count = Count::default();
    let co = counting(&count);
    co.waker().wake();
    co.enter();
    let waker = co.waker();
    thread::spawn(move || waker.wake()).join().expect("no panic");
    assert!(context.poll(false));
    assert_eq!(count.get(), 2);
    assert!(!context.poll(false));
    assert_eq!(count.get(), 2);
}

#[test]
fn a_queue_entry_that_was_overtaken_by_hand_resumes_no_coroutine_that_has_yielded_since() {
    let context = context();
    let _home = enter_home(context.home());
    let stage = Count::default();
    let inside = stage.clone();
    let co = coroutine(move || {
        park::park();
        inside.raise();
        yield_now();
        inside.raise();
        park::park();
        inside.raise();
    });
    co.enter();
    co.waker().wake();
    co.enter();
    assert_eq!(stage.get(), 1, "it has yielded, and its queue entry is stale");
    co.waker().wake();
    context.poll(false);
    assert_eq!(stage.get(), 1, "only its owner enters it now");
    co.enter();
    assert_eq!(stage.get(), 3, "the wake was remembered for the park");
    assert!(co.is_finished());
}

#[test]
fn a_queue_entry_outlives_its_coroutine_without_harm() {
    let context = context();
    let _home = enter_home(context.home());
    for how in ["entered to its end", "dropped", "dropped with the context's queue full"] {
        let ran = Count::default();
        let inside = ran.clone();
        let co = coroutine(move || {
            park::park();
            inside.raise();
        });
        co.enter();
        co.waker().wake();
        if how == "entered to its end" {
            co.enter();
            assert!(co.is_finished());
        }
        drop(co);
        // The block isn't free yet: these get others.
        let count = Count::default();
        let others: Vec<_> = (0..3).map(|_| counting(&count)).collect();
        if how == "dropped with the context's queue full" {
            others.iter().for_each(|other| other.waker().wake());
        }
        context.poll(false);
        let woken = if how == "dropped with the context's queue full" { 3 } else { 0 };
        assert_eq!((ran.get(), count.get()), (u32::from(how == "entered to its end"), woken), "{how}");
    }
}

#[test]
fn a_coroutine_that_parks_again_after_its_unwind_was_raised_is_not_queued_by_a_wake() {
    let context = context();
    let _home = enter_home(context.home());
    let caught = Count::default();
    let inside = caught.clone();
    let co = coroutine(move || {
        for _ in 0..2 {
            assert!(std::panic::catch_unwind(park::park).expect_err("its handle is gone").is::<Cancelled>());
            inside.raise();
        }
        let waker = park::waker();
        thread::spawn(move || waker.wake()).join().expect("no panic");
    });
    co.enter();
    drop(co);
    assert_eq!(caught.get(), 2);
    assert!(!context.poll(false), "the wake found a coroutine that runs");
}

#[test]
fn a_coroutine_that_wakes_itself_and_ends_leaves_no_entry_that_runs() {
    let context = context();
    let _home = enter_home(context.home());
    for _ in 0..10 {
        let count = Count::default();
        let inside = count.clone();
        let co = coroutine(move || {
            park::park();
            inside.raise();
            park::waker().wake();
            park::waker().wake();
        });
        co.enter();
        co.waker().wake();
        context.poll(false);
        assert!(co.is_finished());
        context.poll(false);
        assert_eq!(count.get(), 1);
    }
}

#[test]
fn wakes_from_many_threads_against_finish_and_reuse_lose_nothing_and_confuse_nobody() {
    within(LIMIT, || {
        const SLOTS: usize = 32;
        let wakers: Arc<Vec<Mutex<Option<Waker>>>> = Arc::new((0..SLOTS).map(|_| Mutex::new(None)).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let hammers: Vec<_> = (0..3)
            .map(|seed| {
                let (wakers, stop) = (wakers.clone(), stop.clone());
                thread::spawn(move || {
                    // Wakers are kept for a while, so that some are stale by generations when they are used.
                    let mut kept: Vec<Waker> = Vec::new();
                    let mut at = seed;
                    while !stop.load(Ordering::Relaxed) {
                        at = (at * 5 + 7) % SLOTS;
                        kept.extend(wakers[at].lock().expect("not poisoned").clone());
                        if kept.len() > 50 {
                            kept.drain(..).for_each(Waker::wake);
                        }
                    }
                })
            })
            .collect();
        let context = context();
        let ended = Arc::new(AtomicUsize::new(0));
        let mut spawned = 0;
        for round in rounds(scaled(100_000)) {
            let (wakers, ends) = (wakers.clone(), ended.clone());
            let handle = context.spawn(move || {
                *wakers[round % SLOTS].lock().expect("not poisoned") = Some(park::waker());
                match round % 4 {
                    // Ends at once, with wakes on their way.
                    0 => {}
                    1 => yield_now(),
                    // Waits for one of the wakes.
                    2 => park::park(),
                    _ => (0..3).for_each(|_| park::park()),
                }
                ends.fetch_add(1, Ordering::Relaxed);
            });
            handle.expect("a stack").join().expect("no panic");
            spawned += 1;
            assert_eq!(ended.load(Ordering::Relaxed), spawned);
        }
        stop.store(true, Ordering::Relaxed);
        hammers.into_iter().for_each(|hammer| hammer.join().expect("no panic"));
        while context.poll(false) {}
        assert_eq!(ended.load(Ordering::Relaxed), spawned);
    });
}

#[test]
fn coroutines_driven_by_hand_and_woken_by_another_thread_at_once_run_once_per_park() {
    within(LIMIT, || {
        let context = context();
        let _home = enter_home(context.home());
        let (give, take) = mpsc::channel::<Waker>();
        let waking = thread::spawn(move || take.into_iter().for_each(Waker::wake));
        let resumes = Count::default();
        for round in rounds(scaled(100_000)) {
            let inside = resumes.clone();
            let before = resumes.get();
            let co = coroutine(move || {
                for _ in 0..2 {
                    park::park();
                    inside.raise();
                }
            });
            co.enter();
            give.send(co.waker()).expect("the other thread is there");
            for _ in 0..round * 7 % 300 {
                std::hint::spin_loop();
            }
            // Races with the wake: it comes before, after, or while this happens.
            co.enter();
            context.poll(false);
            let after_one = resumes.get();
            assert!((before + 1..=before + 2).contains(&after_one), "one enter, at most one wake");
            if co.is_finished() {
                continue;
            }
            if round % 2 == 0 {
                co.enter();
                assert_eq!(resumes.get(), before + 2);
            }
            drop(co);
        }
        drop(give);
        waking.join().expect("no panic");
        while context.poll(false) {}
    });
}

#[test]
fn a_coroutine_that_gets_its_home_while_another_thread_wakes_it_misses_no_later_wake() {
    within(LIMIT, || {
        let context = context();
        let (give, take) = mpsc::channel::<Waker>();
        let waking = thread::spawn(move || take.into_iter().for_each(Waker::wake));
        for round in rounds(scaled(100_000)) {
            let stage = Count::default();
            let inside = stage.clone();
            let co = coroutine(move || {
                // Without a home at first, and then with one.
                park::park();
                while inside.get() == 0 {
                    park::park();
                }
            });
            co.enter();
            give.send(co.waker()).expect("the other thread is there");
            for _ in 0..round * 7 % 300 {
                std::hint::spin_loop();
            }
            let _home = enter_home(context.home());
            co.enter();
            stage.raise();
            co.waker().wake();
            let woken = eventually(|| {
                context.poll(false);
                co.is_finished()
            });
            assert!(woken, "a wake was lost");
        }
        drop(give);
        waking.join().expect("no panic");
        while context.poll(false) {}
    });
}

#[test]
fn threads_park_and_are_woken_like_coroutines() {
    within(LIMIT, || {
        park::waker().wake();
        park::park();
        let flag = Arc::new(AtomicBool::new(false));
        let (waker, raised) = (park::waker(), flag.clone());
        let other = thread::spawn(move || {
            raised.store(true, Ordering::Release);
            waker.wake_by_ref();
            waker.wake();
        });
        while !flag.load(Ordering::Acquire) {
            park::park();
        }
        other.join().expect("no panic");
        let deadline = Instant::now() + Duration::from_millis(5);
        while Instant::now() < deadline {
            park::park_until(deadline);
        }
    });
}

#[test]
fn a_coroutine_and_a_plain_thread_wake_each_other_many_times() {
    within(LIMIT, || {
        let context = context();
        const OVER: usize = usize::MAX;
        let turn = Arc::new(AtomicUsize::new(0));
        let thread_turn = turn.clone();
        let (give, take) = mpsc::channel::<Waker>();
        let (give_back, take_back) = mpsc::channel::<Waker>();
        let plain = thread::spawn(move || {
            give_back.send(park::waker()).expect("the coroutine waits");
            let coroutine = take.recv().expect("the coroutine is there");
            for round in 1.. {
                while thread_turn.load(Ordering::Acquire) < 2 * round - 1 {
                    park::park();
                }
                if thread_turn.load(Ordering::Acquire) == OVER {
                    return;
                }
                thread_turn.store(2 * round, Ordering::Release);
                coroutine.wake_by_ref();
            }
        });
        context.block_on(|| {
            let other = take_back.recv().expect("the thread is there");
            give.send(park::waker()).expect("the thread waits");
            for round in rounds(scaled(40_000)) {
                turn.store(2 * round - 1, Ordering::Release);
                other.wake_by_ref();
                while turn.load(Ordering::Acquire) != 2 * round {
                    park::park();
                }
            }
            turn.store(OVER, Ordering::Release);
            other.wake();
        });
        plain.join().expect("no panic");
    });
}

#[test]
fn wakes_after_the_end_of_the_context_do_nothing_and_a_coroutine_driven_by_hand_lives_on() {
    within(LIMIT, || {
        let context = context();
        let count = Count::default();
        let co = {
            let _home = enter_home(context.home());
            counting(&count)
        };
        let (give, take) = mpsc::channel();
        let spawned = context.spawn(move || {
            give.send(park::waker()).expect("the test waits");
            loop {
                park::park();
            }
        });
        let spawned = spawned.expect("a stack");
        context.poll(false);
        let stale = take.recv().expect("the coroutine has started");
        co.waker().wake();
        drop(context);
        let payload = spawned.join().map(|_: ()| ()).expect_err("cancelled");
        assert!(payload.is::<Cancelled>());
        for _ in 0..2 {
            stale.wake_by_ref();
            co.waker().wake();
            let wakers = [stale.clone(), co.waker()];
            thread::spawn(move || wakers.into_iter().for_each(Waker::wake)).join().expect("no panic");
        }
        assert_eq!(count.get(), 0);
        co.enter();
        co.enter();
        assert_eq!(count.get(), 2);
        let waker = co.waker();
        coroutine(move || waker.wake()).enter();
        assert_eq!(count.get(), 3, "another coroutine's wake needs no home");
    });
}

#[test]
fn a_wake_publishes_what_was_written_before_it_also_when_it_coalesces() {
    within(LIMIT, || {
        let context = context();
        let barrier = Arc::new(Barrier::new(3));
        let over = Arc::new(AtomicBool::new(false));
        let data: Arc<[AtomicUsize; 2]> = Arc::default();
        let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
        let writers: Vec<_> = (0..2)
            .map(|me| {
                let (barrier, over, data, waker) = (barrier.clone(), over.clone(), data.clone(), waker.clone());
                thread::spawn(move || {
                    for round in 1.. {
                        barrier.wait();
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        let waker = waker.lock().expect("not poisoned").clone().expect("given");
                        data[me].store(round, Ordering::Relaxed);
                        waker.wake();
                    }
                })
            })
            .collect();
        context.block_on(|| {
            for round in rounds(scaled(20_000)) {
                *waker.lock().expect("not poisoned") = Some(park::waker());
                barrier.wait();
                while data.iter().any(|item| item.load(Ordering::Relaxed) != round) {
                    // Relaxed loads: a wake whose data this loop didn't see must end the next park.
                    park::park();
                }
            }
        });
        over.store(true, Ordering::Relaxed);
        barrier.wait();
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        assert!(eventually(|| !context.poll(false)));
    });
}

#[test]
fn a_name_is_kept_while_a_finished_coroutine_stands_in_a_queue() {
    let context = context();
    let _home = enter_home(context.home());
    let co = Builder::new().name("late").create(park::park).expect("a stack");
    co.enter();
    co.waker().wake();
    co.enter();
    assert!(co.is_finished());
    assert_eq!(co.name(), Some("late"));
    while context.poll(false) {}
    assert_eq!(co.name(), Some("late"));
}

// ---- regressions ----------------------------------------------------------------------------------------------------

#[test]
fn a_coroutine_that_parks_again_after_its_unwind_was_raised_can_be_woken_while_it_ends() {
    // In a child: where it goes wrong, a block is in the pool and in a queue at once.
    let exit = common::child("", |_| {
        within(LIMIT, || {
            let current: Arc<Mutex<Option<Waker>>> = Arc::default();
            let number = Arc::new(AtomicUsize::new(0));
            let stop = Arc::new(AtomicBool::new(false));
            let (their_current, their_number, their_stop) = (current.clone(), number.clone(), stop.clone());
            let waking = thread::spawn(move || {
                let (mut last, mut delay) = (0, 0);
                while !their_stop.load(Ordering::Relaxed) {
                    let number = their_number.load(Ordering::Acquire);
                    if number == last {
                        thread::yield_now();
                        continue;
                    }
                    last = number;
                    let waker = their_current.lock().expect("not poisoned").clone();
                    delay = (delay + 7) % 1000;
                    (0..delay).for_each(|_| std::hint::spin_loop());
                    waker.expect("given").wake();
                }
            });
            let context = context();
            let _home = enter_home(context.home());
            let this: Rc<Cell<Option<Coroutine>>> = Rc::default();
            let ended = Count::default();
            for round in rounds(scaled(400_000)) {
                let (own, current, number, count) = (this.clone(), current.clone(), number.clone(), ended.clone());
                let co = coroutine(move || {
                    park::park();
                    *current.lock().expect("not poisoned") = Some(park::waker());
                    drop(own.take());
                    number.fetch_add(1, Ordering::Release);
                    // Unwinds, unless the wake was there already.
                    let _ = std::panic::catch_unwind(park::park);
                    count.raise();
                });
                co.enter();
                co.waker().wake();
                this.set(Some(co));
                context.poll(false);
                assert_eq!(ended.get() as usize, round);
            }
            stop.store(true, Ordering::Relaxed);
            waking.join().expect("no panic");
            while context.poll(false) {}
        });
    });
    exit.assert_success();
}

#[test]
fn a_coroutine_that_is_woken_and_then_entered_by_its_waker_can_park_in_a_loop() {
    let exit = common::child("", |_| {
        within(Duration::from_secs(10), || {
            let context = context();
            let stage = Count::default();
            let inside = stage.clone();
            let co = coroutine(move || {
                park::park();
                while inside.get() == 0 {
                    park::park();
                }
                inside.raise();
            });
            // It has no home yet.
            co.enter();
            context.block_on(|| {
                co.waker().wake();
                co.enter();
                stage.raise();
                // Its queue entry is still there, and now it has a wake to serve.
                co.waker().wake();
            });
            while !co.is_finished() {
                context.poll(true);
            }
            assert_eq!(stage.get(), 2);
        });
    });
    exit.assert_success();
}
