//! How async code waits for a channel: in a future that is polled, instead of a frame that parks.
//!
//! | stage | the node | the slot |
//! |---|---|---|
//! | `New` | is in no list | is the future's |
//! | `Joined` | is in the list, or has had its turn | is as [`channel`](super::channel) says |
//! | `Over` | is in no list | is the future's |
//!
//! The node lives in the future, which is pinned when it joins: it stays where it is until it is dropped, and that
//! takes it out, as an unwind does for a frame. A turn that it was given, and didn't use, is handed on. The memory of a
//! pinned future that is never dropped (it was forgotten) isn't reused, so its node stays valid, and in the list.
//!
//! The waker of a future may be another one at each poll. The latest is woken: it takes the place of the one before
//! under the lock, unless the turn has come meanwhile. Wakers are other people's code, which may do anything when they
//! are cloned, woken or dropped: none of that is done under the lock.
//!
//! # Safety
//!
//! Others reach into a future that is polled, by its node. They touch what is in cells, by the rules of
//! [`wait_list`](super::wait_list); and as the future isn't `Unpin`, the reference by which it is polled isn't taken
//! for the only way there.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread::panicking;

use super::channel::{Receivers, Senders, Slot};
use super::wait::{Queue, Waiting};
use super::wait_list::Waiter;
use crate::primitive::mutant::mutant;

/// Those who wait to send, or those who wait to receive.
pub(crate) trait Side<T>: Queue<Slot<T>> {
    type Output;

    /// Does it if it can be done at once, or refuses what never can be. A message to be sent is in the slot, and stays
    /// there if the caller has to wait.
    ///
    /// # Safety
    ///
    /// The slot is the caller's.
    unsafe fn attempt(&self, slot: &Slot<T>) -> Poll<Self::Output>;

    /// Joins those who wait, unless an attempt would be of use by now. Returns whether it joined.
    ///
    /// # Safety
    ///
    /// If it joins, the waiter stays where it is, and isn't dropped, until it has its turn or has been withdrawn.
    unsafe fn join(&self, waiter: &Waiter<Slot<T>>) -> bool;

    /// Has a waiter that has joined woken by `waker`. Returns the one before; or `waker`, if it has had its turn.
    fn replace_waker(&self, waiter: &Waiter<Slot<T>>, waker: Waker) -> Result<Waker, Waker>;

    /// What came of it, by what is in the slot of one who has had its turn.
    fn outcome(message: Option<T>) -> Self::Output;
}

/// A message that is sent, or received, by async code.
pub(crate) struct Pending<T, S: Side<T>> {
    side: S,
    waiter: Waiter<Slot<T>>,
    stage: Cell<Stage>,
    _pinned: PhantomPinned,
}

/// A message on its way into a channel.
pub(crate) type Sending<'a, T> = Pending<T, Senders<'a, T>>;
/// A message on its way out of a channel.
pub(crate) type Receiving<'a, T> = Pending<T, Receivers<'a, T>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Joined,
    Over,
}

// SAFETY: the message and the waker may be sent; the neighbours of the node are reached under the lock of the list.
unsafe impl<T: Send, S: Side<T> + Send> Send for Pending<T, S> {}
// SAFETY: nothing can be done with a shared reference.
unsafe impl<T: Send, S: Side<T> + Sync> Sync for Pending<T, S> {}

impl<T, S: Side<T>> Pending<T, S> {
    /// For a message to be sent, or for `None`, which is to become one.
    pub(super) fn new(side: S, message: Option<T>) -> Self {
        let waiter = Waiter::without_waker(Slot::new(message));
        Self { side, waiter, stage: Cell::new(Stage::New), _pinned: PhantomPinned }
    }

    /// Goes without having waited to the end, and hands on the turn if there was one. Then the slot is the future's.
    fn leave(&self) {
        if self.stage.replace(Stage::Over) == Stage::Joined {
            Waiting::new(&self.side, &self.waiter).leave();
        }
    }
}

impl<T> Sending<'_, T> {
    /// Gives up. Returns the message, unless it has been sent, or given back already.
    pub(crate) fn take_back(self: Pin<&mut Self>) -> Option<T> {
        let this = self.into_ref().get_ref();
        if !mutant!("taken_back_while_it_waits") {
            this.leave();
        }
        // SAFETY: it has left.
        unsafe { this.waiter.payload.take() }
    }
}

impl<T, S: Side<T>> Future for Pending<T, S> {
    type Output = S::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<S::Output> {
        let this = self.into_ref().get_ref();
        while this.stage.get() == Stage::New {
            // SAFETY: it hasn't joined.
            let attempt = unsafe { this.side.attempt(&this.waiter.payload) };
            if attempt.is_ready() {
                this.stage.set(Stage::Over);
                return attempt;
            }
            // SAFETY: it hasn't joined.
            unsafe { this.waiter.set_waker(context.waker().clone()) };
            // SAFETY: it is pinned, and is withdrawn when it is dropped.
            if unsafe { this.side.join(&this.waiter) } {
                this.stage.set(Stage::Joined);
                return Poll::Pending;
            }
        }
        assert!(this.stage.get() == Stage::Joined, "a future of a channel was polled after it was over");
        while this.waiter.turn().is_none() {
            if mutant!("later_waker_is_ignored")
                || this.side.replace_waker(&this.waiter, context.waker().clone()).is_ok()
            {
                return Poll::Pending;
            }
        }
        this.stage.set(Stage::Over);
        // SAFETY: it has had its turn.
        Poll::Ready(S::outcome(unsafe { this.waiter.payload.take() }))
    }
}

impl<T, S: Side<T>> Drop for Pending<T, S> {
    fn drop(&mut self) {
        // A model is only unwound when it has failed.
        if cfg!(not(all(test, loom))) || !panicking() {
            self.leave();
        }
    }
}

impl<T, S: Side<T>> fmt::Debug for Pending<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
