//! The crate in a program that is built with `panic = "abort"`, where nothing can be unwound.
//!
//! The standard test harness unwinds, so this is a program of its own, which has something to do only in a build with
//! `RUSTFLAGS="-C panic=abort"` (`ci/test.sh` makes one).

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, thread};

use aioco::coroutine::{Cancelled, pool};
use aioco::{AioContext, Coroutine, park, yield_now};

const PANICS: &str = "AIOCO_PANICS";

fn main() {
    if cfg!(panic = "unwind") {
        println!("panic_abort: skipped, as this build unwinds");
        return;
    }
    if env::var_os(PANICS).is_some() {
        Coroutine::new(|| panic!("in a coroutine")).expect("a stack").enter();
        unreachable!("a panic aborts");
    }
    for (name, test) in [
        ("coroutines_run", coroutines_run as fn()),
        ("a_context_runs", a_context_runs),
        ("a_suspended_coroutine_that_is_dropped_is_lost", a_suspended_coroutine_that_is_dropped_is_lost),
        ("a_queued_coroutine_that_is_dropped_is_lost", a_queued_coroutine_that_is_dropped_is_lost),
        ("a_context_that_ends_loses_its_coroutines", a_context_that_ends_loses_its_coroutines),
        ("a_panic_in_a_coroutine_aborts", a_panic_in_a_coroutine_aborts),
    ] {
        test();
        println!("panic_abort: {name} ... ok");
    }
}

fn coroutines_run() {
    for _ in 0..1000 {
        let co = Coroutine::new(yield_now).expect("a stack");
        co.enter();
        assert!(!co.is_finished());
        co.enter();
        assert!(co.is_finished());
    }
}

fn a_context_runs() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let context = AioContext::new().expect("a context");
    let waiter = context.block_on(|| {
        let waker = park::waker();
        let waiter = thread::spawn(move || {
            DONE.store(true, Ordering::Release);
            waker.wake();
        });
        while !DONE.load(Ordering::Acquire) {
            park::park();
        }
        waiter
    });
    waiter.join().expect("the other thread doesn't panic");
    assert_eq!(context.spawn(|| 42).expect("a stack").join().expect("it doesn't panic"), 42);
}

/// Drop guards don't run, the count says that a stack is gone, and others go on.
fn a_suspended_coroutine_that_is_dropped_is_lost() {
    let before = pool::stats();
    let co = Coroutine::new(|| {
        let _guard = Unreachable;
        yield_now();
    });
    let co = co.expect("a stack");
    co.enter();
    drop(co);
    let after = pool::stats();
    assert_eq!((after.leaked, after.live), (before.leaked + 1, before.live));
    coroutines_run();
}

/// It stands in its home's queue when it is lost: what comes out of the queue is not to be used again.
fn a_queued_coroutine_that_is_dropped_is_lost() {
    let context = AioContext::new().expect("a context");
    let leaked = pool::stats().leaked;
    let co = Coroutine::new(|| {
        let _guard = Unreachable;
        loop {
            park::park();
        }
    });
    let co = co.expect("a stack");
    context.block_on(|| co.enter());
    co.waker().wake();
    drop(co);
    context.poll(false);
    assert_eq!(pool::stats().leaked, leaked + 1);
    context.block_on(coroutines_run);
}

fn a_context_that_ends_loses_its_coroutines() {
    let context = AioContext::new().expect("a context");
    let handle = context.spawn(|| {
        let _guard = Unreachable;
        loop {
            park::park();
        }
    });
    let handle = handle.expect("a stack");
    context.poll(false);
    drop(context);
    let payload = handle.join().expect_err("it didn't end by itself");
    assert!(payload.is::<Cancelled>());
}

fn a_panic_in_a_coroutine_aborts() {
    let program = env::current_exe().expect("this program has a path");
    let output = Command::new(program).env(PANICS, "1").stdin(Stdio::null()).output().expect("it can be run again");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("in a coroutine"), "{output:?}");
}

/// A drop guard that nobody runs.
struct Unreachable;

impl Drop for Unreachable {
    fn drop(&mut self) {
        unreachable!("a frame that can't be unwound was unwound");
    }
}
