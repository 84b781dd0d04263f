//! The coroutine's side of its outcome.
#![allow(unsafe_code)] // # Safety: one call, in `complete`, for which a join started the coroutine that it is called by.

use std::cell::Cell;
use std::thread;

use super::handle::Owner;
use super::oneshot::Sender;
use crate::coroutine::{self, Cancelled};

/// Tells the join handle how the coroutine ended, at the latest when it is dropped.
pub(super) struct Completion<T>(Cell<Option<Sender<thread::Result<T>, Owner>>>);

impl<T> Completion<T> {
    pub(super) fn new(sender: Sender<thread::Result<T>, Owner>) -> Self {
        Self(Cell::new(Some(sender)))
    }

    /// The coroutine was abandoned: it will neither complete nor be dropped.
    pub(super) fn cancelled(&self) {
        if let Some(sender) = self.0.take() {
            sender.send(Err(Box::new(Cancelled)));
        }
    }

    /// The calling coroutine, whose completion this is, has come to its end.
    #[inline]
    pub(super) fn complete(self, result: thread::Result<T>) {
        match self.0.take() {
            // SAFETY: its handle is on this thread's stack, in a join that hasn't come to waiting, and goes on when this
            // coroutine has ended.
            Some(sender) if coroutine::runs_inside_join() => unsafe { sender.send_unobserved(result) },
            Some(sender) => sender.send(result),
            None => {}
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        self.cancelled();
    }
}
