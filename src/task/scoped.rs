//! Coroutines that may borrow, because they have ended before their caller goes on.
#![allow(unsafe_code)] // # Safety: one call; `Running` doesn't let the coroutine outlive what it borrows from.

use std::panic::{self, AssertUnwindSafe, Location};
use std::sync::Arc;
use std::thread;

use super::{JoinHandle, spawn_scoped};
use crate::coroutine::Home;

/// Runs `f` as a coroutine of `home`, and the loop, by `turn`s of it, until that has ended: for the home's thread,
/// outside of coroutines. (On another thread it would never start.)
///
/// # Panics
///
/// - If `f` panics, with its payload.
/// - If a turn does, with its payload, after the coroutine has been unwound.
/// - If no stack can be had.
///
/// # Aborts
///
/// If the coroutine is to be unwound and refuses: its borrows could not be ended.
pub(crate) fn run<T>(
    home: Arc<dyn Home>,
    location: &'static Location<'static>,
    turn: impl Fn(),
    f: impl FnOnce() -> T,
) -> T {
    // SAFETY: `Running` doesn't let us leave before the coroutine has ended.
    let spawned = unsafe { spawn_scoped(home, location, f) };
    let running = Running { handle: Some(spawned.expect("no stack for a coroutine")), turn };
    running.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
}

/// A coroutine that ends before this is gone.
struct Running<T, F: Fn()> {
    handle: Option<JoinHandle<T>>,
    turn: F,
}

impl<T, F: Fn()> Running<T, F> {
    fn join(mut self) -> thread::Result<T> {
        while self.handle.as_ref().is_some_and(|handle| !handle.is_finished()) {
            (self.turn)();
        }
        let handle = self.handle.take().expect("taken only here");
        handle.join()
    }
}

impl<T, F: Fn()> Drop for Running<T, F> {
    fn drop(&mut self) {
        // Only when a turn panicked: the coroutine borrows from our caller, so it has to end now.
        if let Some(handle) = self.handle.take() {
            handle.cancel();
            while !handle.is_finished() {
                // A second panic has been reported by the hook; the first one is on its way up.
                let _ = panic::catch_unwind(AssertUnwindSafe(&self.turn));
            }
        }
    }
}
