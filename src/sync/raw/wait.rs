//! How a waiter waits, whatever for: until it has its turn, its deadline passes, or it is unwound.
//!
//! Each way out takes the waiter's node off the list. A waiter that leaves without a turn is withdrawn; if it turns out
//! to have been given its turn just before, then a deadline that has passed doesn't matter (it has what it waited for),
//! and a waiter that is unwound hands the turn on, as if it had used it.

use std::mem;
use std::time::Instant;

use super::wait_list::{Turn, Waiter};
use crate::park;
use crate::primitive::mutant::mutant;

/// What has waiters.
pub(crate) trait Queue<P> {
    /// A waiter without a turn is awake: if it was only called, it looks. Returns whether it has what it waited for.
    fn answer(&self, _: &Waiter<P>) -> bool {
        false
    }

    /// Takes a waiter off the list, and gives those behind it the turns that they needn't wait for any more. Returns
    /// whether it was in the list; otherwise it has its turn.
    fn withdraw(&self, waiter: &Waiter<P>) -> bool;

    /// Gives the turn of a waiter that can't use it to whoever is next.
    fn hand_on(&self, waiter: &Waiter<P>, turn: Turn);
}

/// A waiter that has joined its queue, and is in the frame of whoever waits. It leaves the queue when this is dropped,
/// and hands on the turn that it has been given, if any, unless that was [used](Self::use_turn).
pub(super) struct Waiting<'a, P, Q: Queue<P>> {
    queue: &'a Q,
    waiter: &'a Waiter<P>,
}

impl<'a, P, Q: Queue<P>> Waiting<'a, P, Q> {
    /// The waiter has joined the queue.
    pub(super) fn new(queue: &'a Q, waiter: &'a Waiter<P>) -> Self {
        Self { queue, waiter }
    }

    /// Waits for the waiter's turn. Returns whether it has it; not if the deadline passed first, and then it has left.
    ///
    /// # Panics
    ///
    /// As [`park`](park::park()).
    pub(super) fn wait(&self, deadline: Option<Instant>) -> bool {
        loop {
            if self.waiter.turn().is_some() || self.queue.answer(self.waiter) {
                return true;
            }
            // A model can't unwind: the count of panics is that of the thread on which its threads run.
            #[cfg(all(test, loom))]
            if park::is_cancelled() {
                self.withdraw();
                return false;
            }
            match deadline {
                None => park::park(),
                Some(deadline) if Instant::now() < deadline => park::park_until(deadline),
                Some(_) => return !self.queue.withdraw(self.waiter) && !mutant!("late_turn_is_lost"),
            }
        }
    }

    /// Leaves the queue, and hands on the turn if there was one.
    pub(super) fn leave(self) {
        self.withdraw();
        mem::forget(self);
    }

    fn withdraw(&self) {
        if !self.queue.withdraw(self.waiter)
            && let Some(turn) = self.waiter.turn()
            && !mutant!("unwound_waiter_keeps_its_turn")
        {
            self.queue.hand_on(self.waiter, turn);
        }
    }

    /// The turn, if there was one, has been used; the waiter isn't in the queue any more.
    pub(super) fn use_turn(self) {
        mem::forget(self);
    }
}

impl<P, Q: Queue<P>> Drop for Waiting<'_, P, Q> {
    fn drop(&mut self) {
        // A model is only unwound when it has failed.
        if cfg!(not(all(test, loom))) {
            self.withdraw();
        }
    }
}
