//! Threads that run contexts, and calls from one to another.

mod common;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use aioco::aio::{IoThread, Polling, sleep};
use aioco::{in_coroutine, park};
use common::{builder, context};

/// What [`IoThread::new`] makes, but for the monitor.
fn io_thread(name: &str) -> IoThread {
    IoThread::with(name, builder().polling(Polling::up_to(Duration::from_nanos(32_768)))).unwrap()
}

#[test]
fn a_call_runs_on_the_threads_context_and_brings_the_result_back() {
    let io_thread = io_thread("io");
    let ran = io_thread.remote().call(|| (thread::current().name().map(str::to_owned), in_coroutine())).unwrap();
    assert_eq!(ran, (Some("io".to_owned()), true));
}

#[test]
fn a_call_comes_from_coroutines_of_other_contexts_and_of_the_same() {
    let (here, there) = (context(), io_thread("there"));
    let (remote, again) = (there.remote().clone(), there.remote().clone());
    let nested = here.block_on(move || {
        let inner = move || again.call(|| thread::current().id()).unwrap() == thread::current().id();
        remote.call(inner).unwrap()
    });
    assert!(nested, "a call from the context itself runs there and then");
    assert_eq!(here.remote().call(|| 3).unwrap(), 3, "from its own thread, outside of coroutines, the loop runs");
}

#[test]
fn a_call_that_panics_panics_at_the_caller_and_the_thread_goes_on() {
    let io_thread = io_thread("io");
    let call = || io_thread.remote().call(|| -> () { panic!("over there") });
    let payload = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"over there"));
    assert_eq!(io_thread.remote().call(|| 1).unwrap(), 1);
}

#[test]
fn dropping_it_ends_what_lives_on_it_and_joins() {
    let io_thread = io_thread("io");
    let alive = Arc::new(());
    let handles: Vec<_> = (0..10)
        .map(|_| {
            let alive = alive.clone();
            let sleeper = move || {
                let _alive = alive;
                sleep(Duration::from_secs(3600));
            };
            io_thread.remote().spawn(sleeper).unwrap()
        })
        .collect();
    let remote = io_thread.remote().clone();
    remote.call(|| ()).unwrap();
    drop(io_thread);
    assert_eq!(Arc::strong_count(&alive), 1);
    assert!(handles.into_iter().all(|handle| handle.join().is_err()));
    assert_eq!(remote.call(|| ()).unwrap_err().kind(), io::ErrorKind::NotConnected);
}

#[test]
fn a_thread_may_drop_its_own_io_thread() {
    let io_thread = io_thread("io");
    let remote = io_thread.remote().clone();
    remote.call(move || drop(io_thread)).unwrap();
}

#[test]
fn a_panic_in_the_loop_is_what_join_returns() {
    let io_thread = io_thread("io");
    io_thread.remote().schedule_once(|| panic!("in a bottom half"));
    // It ends the loop before this has its turn.
    assert_eq!(io_thread.remote().call(|| ()).unwrap_err().kind(), io::ErrorKind::NotConnected);
    let payload = io_thread.join().unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"in a bottom half"));
}

#[test]
fn coroutines_of_two_threads_wake_each_other_without_losing_a_wake() {
    const ROUNDS: usize = 20_000;
    let threads = [io_thread("even"), io_thread("odd")];
    let turn = Arc::new(AtomicUsize::new(0));
    let wakers = Arc::new([const { std::sync::OnceLock::new() }; 2]);
    let players: Vec<_> = (0..2)
        .map(|own| {
            let (turn, wakers) = (turn.clone(), wakers.clone());
            let player = move || {
                wakers[own].set(park::waker()).unwrap();
                // The first one may come before the second one has a waker.
                while wakers[1 - own].get().is_none() {
                    aioco::yield_now();
                }
                for round in (own..ROUNDS).step_by(2) {
                    while turn.load(Ordering::Acquire) != round {
                        park::park();
                    }
                    turn.store(round + 1, Ordering::Release);
                    wakers[1 - own].get().unwrap().wake_by_ref();
                }
            };
            threads[own].remote().spawn(player).unwrap()
        })
        .collect();
    players.into_iter().for_each(|player| player.join().unwrap());
    assert_eq!(turn.load(Ordering::Relaxed), ROUNDS);
}
