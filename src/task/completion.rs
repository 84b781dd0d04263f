//! The coroutine's side of its outcome.

use std::cell::Cell;
use std::thread;

use super::handle::Owner;
use super::oneshot::Sender;
use crate::coroutine::Cancelled;

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
        if let Some(sender) = self.0.take() {
            sender.send(result);
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        self.cancelled();
    }
}
