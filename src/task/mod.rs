//! Spawned coroutines and their join handles.
//!
//! A spawned coroutine sends its outcome to its [`JoinHandle`], and wakes whoever waits there. The coroutine's side is
//! a guard, so there is an outcome whatever becomes of the coroutine: it returns, panics, is unwound, or is dropped
//! before it starts.
//!
//! # Async code
//!
//! Coroutines and async code wait for one another without a runtime in common. A coroutine waits for a future by
//! [`block_on`]; async code awaits a coroutine by its handle, which is a future.
#![allow(unsafe_code)] // # Safety: only forwards the contract of `Spawning::spawn`.

mod block_on;
mod completion;
mod handle;
mod oneshot;
pub(crate) mod scoped;

pub use block_on::block_on;
pub use handle::JoinHandle;

use std::io;
use std::mem::ManuallyDrop;
use std::panic::{self, AssertUnwindSafe, Location};
use std::process;
use std::sync::Arc;

use crate::coroutine::{self, Builder, Home};
use completion::Completion;
use handle::Owner;

/// Spawns `f` on `home`: it runs there, on its thread, at one of the next turns; or earlier, in a
/// [join](JoinHandle::join) by the coroutine that spawned it.
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
    unsafe { spawn_unchecked(home, builder, location, false, f, |completion| completion.cancelled()) }
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
    unsafe { spawn_unchecked(home, Builder::new(), location, true, f, |completion| completion.cancelled()) }
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
    // Not dropped by itself, so that it may stay in registers.
    let home = ManuallyDrop::new(home);
    let spawning = match builder.spawning() {
        Ok(spawning) => spawning,
        Err(error) => {
            drop(ManuallyDrop::into_inner(home));
            return Err(error);
        }
    };
    let owner = || Owner { home: ManuallyDrop::into_inner(home), target: spawning.target() };
    let (sender, outcome) = oneshot::channel(owner);
    let handle = JoinHandle::new(outcome);
    // If the body is dropped unrun, the closure goes first, then the outcome is sent.
    let parts = (f, Completion::new(sender));
    let body = move || {
        // Captured whole, for that order.
        let parts = parts;
        let (f, completion) = parts;
        let abandoned = || on_abandon(&completion);
        // SAFETY: the hook lives in this frame until it is forgotten below, or the coroutine ends.
        unsafe { coroutine::on_abandon(&abandoned) };
        let result = panic::catch_unwind(AssertUnwindSafe(f));
        coroutine::forget_on_abandon();
        completion.complete(result);
    };
    // SAFETY: passed on; the body catches panics.
    unsafe { spawning.spawn(&handle.owner().home, location, here, body) };
    Ok(handle)
}
