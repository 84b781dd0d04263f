//! Spawned coroutines and their join handles.
//!
//! A spawned coroutine and its [`JoinHandle`] share an outcome: the coroutine puts its result there and wakes
//! whoever waits. The coroutine's side is a guard, so the outcome is decided whatever becomes of the coroutine: it
//! returns, panics, is unwound, or is dropped before it starts.
#![allow(unsafe_code)] // # Safety: only forwards the contract of `Builder::spawn`.

mod handle;
mod outcome;

pub use handle::JoinHandle;

use std::io;
use std::panic::{self, AssertUnwindSafe, Location};
use std::process;
use std::sync::Arc;

use crate::coroutine::{self, Builder, Home};
use outcome::{Completion, Outcome};

/// Spawns `f` on `home`: it runs there, on its thread, at one of the next turns.
///
/// This is for loops of your own; [`AioContext`](crate::AioContext) has `spawn` itself.
///
/// # Errors
///
/// If no stack can be had.
#[track_caller]
pub fn spawn_on<T: Send + 'static>(
    home: &Arc<dyn Home>,
    builder: Builder,
    f: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    spawn_sendable(home.clone(), builder, Location::caller(), f)
}

/// [`spawn_on`], for a home that the caller has counted already.
pub(crate) fn spawn_sendable<T: Send + 'static>(
    home: Arc<dyn Home>,
    builder: Builder,
    location: &'static Location<'static>,
    f: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // SAFETY: `f` is `Send` and borrows nothing.
    unsafe { spawn_unchecked(home, builder, location, false, f, |completion| completion.decide_cancelled()) }
}

/// Spawns, on the calling thread's own `home`, a coroutine that needn't be `Send`.
///
/// # Safety
///
/// `f` borrows nothing.
pub(crate) unsafe fn spawn_local_on<T>(
    home: Arc<dyn Home>,
    location: &'static Location<'static>,
    f: impl FnOnce() -> T,
) -> io::Result<JoinHandle<T>> {
    // SAFETY: passed on.
    unsafe { spawn_unchecked(home, Builder::new(), location, true, f, |completion| completion.decide_cancelled()) }
}

/// Spawns, on the calling thread's own `home`, a coroutine that may borrow. If it refuses to be unwound, so that its
/// borrows can't be ended, the process aborts.
///
/// # Safety
///
/// What `f` and its result borrow lives until the returned handle is finished.
pub(crate) unsafe fn spawn_scoped<T>(
    home: Arc<dyn Home>,
    location: &'static Location<'static>,
    f: impl FnOnce() -> T,
) -> io::Result<JoinHandle<T>> {
    // SAFETY: passed on.
    unsafe {
        spawn_unchecked(home, Builder::new(), location, true, f, move |_| {
            eprintln!("a coroutine with borrows, spawned at {location}, refuses to be unwound");
            process::abort();
        })
    }
}

/// # Safety
///
/// - `f` and its result are `Send`, or the coroutine starts `here`, on the calling thread.
/// - What `f` and its result borrow lives until the coroutine has ended.
unsafe fn spawn_unchecked<T>(
    home: Arc<dyn Home>,
    builder: Builder,
    location: &'static Location<'static>,
    here: bool,
    f: impl FnOnce() -> T,
    on_abandon: impl Fn(&Completion<T>) + 'static,
) -> io::Result<JoinHandle<T>> {
    let outcome = Arc::new(Outcome::new());
    let completion = Completion::new(outcome.clone());
    let mut target = None;
    // If the body is dropped unrun, the closure goes first, then the outcome is decided.
    let parts = (f, completion);
    let body = |own| {
        target = Some(own);
        move || {
            // Captured whole, for that order.
            let parts = parts;
            let (f, completion) = parts;
            let abandoned = || on_abandon(&completion);
            // SAFETY: the hook lives in this frame until it is forgotten below, or the coroutine ends.
            unsafe { coroutine::on_abandon(&abandoned) };
            let result = panic::catch_unwind(AssertUnwindSafe(f));
            coroutine::forget_on_abandon();
            completion.complete(result);
        }
    };
    // SAFETY: passed on; the body catches panics.
    unsafe { builder.spawn(&home, location, here, body)? };
    let target = target.expect("spawn calls the maker of the body");
    Ok(JoinHandle::new(outcome, home, target))
}
