//! A context as other threads see it.

use std::fmt;
use std::io;
use std::panic::{self, Location};
use std::sync::Arc;

use super::bh;
use super::parameters::{Coalescing, Polling};
use super::shared::Shared;
use crate::coroutine::{Builder, Cancelled, Home, in_coroutine};
use crate::task::{self, JoinHandle};

/// An [`AioContext`](super::AioContext) as other threads see it.
///
/// # Dropping
///
/// does nothing to the context.
#[derive(Clone)]
pub struct Remote {
    shared: Arc<Shared>,
}

impl Remote {
    pub(super) fn of(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Spawns `f` as a coroutine of the context, on its thread.
    ///
    /// # Errors
    ///
    /// - If no stack can be had.
    /// - [`NotConnected`](io::ErrorKind::NotConnected) if the context has ended.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        self.shared.refuse_if_ended()?;
        task::spawn_sendable(self.shared.clone(), Builder::new(), Location::caller(), f)
    }

    /// Runs `f` as a coroutine of the context, and waits for its result: a coroutine parks, a thread blocks, or runs
    /// its loop if it is the context's own. A coroutine of that very thread just calls `f`.
    ///
    /// # Errors
    ///
    /// - As [`spawn`](Self::spawn).
    /// - [`NotConnected`](io::ErrorKind::NotConnected) if the context ended before `f` did.
    ///
    /// # Panics
    ///
    /// If `f` panics, with its payload.
    #[track_caller]
    pub fn call<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        if self.shared.is_current() && in_coroutine() {
            return Ok(f());
        }
        match self.spawn(f)?.join() {
            Ok(value) => Ok(value),
            Err(payload) if payload.is::<Cancelled>() => {
                Err(io::Error::new(io::ErrorKind::NotConnected, "the AioContext ended before the call returned"))
            }
            Err(payload) => panic::resume_unwind(payload),
        }
    }

    /// Runs `f` once, on the context's thread, in its turn among the bottom halves. If the context has ended, or ends
    /// before that, `f` is dropped.
    pub fn schedule_once(&self, f: impl FnOnce() + Send + 'static) {
        self.shared.push_bottom_half(bh::Node::once_sent(&self.shared, f));
    }

    /// Changes how the loop polls before it sleeps. Takes effect at once, also if it sleeps.
    pub fn set_polling(&self, polling: Polling) {
        self.shared.change_parameters(|parameters| parameters.polling = polling);
    }

    /// Changes how many events the loop sleeps for. Takes effect at once, also if it sleeps.
    pub fn set_coalescing(&self, coalescing: Coalescing) {
        self.shared.change_parameters(|parameters| parameters.coalescing = coalescing);
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}
