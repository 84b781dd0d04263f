//! The raw wait queue: waiters, and nothing that they wait for.
//!
//! Whoever wakes takes the lock of the list, also when nobody waits; so does whoever joins. One of the two comes first:
//! if the waker does, the waiter sees what it did before; if the waiter does, the waker finds it. Hence no wake is missed
//! by a waiter that looks at its condition *after* it has joined, whatever the condition is made of. Checked by the
//! models `wait_queue` of `loom-tests/`.
//!
//! # Waiters are woken, not moved to the mutex's queue
//!
//! [`wake_all`](RawWaitQueue::wake_all) could leave those who need a mutex next asleep, and move them to the queue of
//! that, to be woken one by one by the unlocks. Measured with 64 waiters, by letting each wake the next when it has
//! unlocked, which is the best that moving them could come to: 47 ns a waiter instead of 45 if they are of one thread,
//! and 500 instead of 210 if they are of two, where each unlock then waits for a thread to wake up. (They find the mutex
//! free, since those of one thread run one after the other.) It pays only if all are of one thread and suspend with the
//! mutex held, where it is 430 instead of 490. So it isn't done.
#![allow(unsafe_code)] // # Safety: a waiter that joins the list stays in its frame until it is out.

use std::fmt;
use std::time::Instant;

use super::wait::{Queue, Waiting};
use super::wait_list::{Turn, WaitList, Waiter, give_all};
use crate::primitive::mutant::mutant;
use crate::primitive::{ShortLock, const_unless_model};

/// Where a waiter joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

/// A queue of waiters.
pub(crate) struct RawWaitQueue {
    waiters: ShortLock<WaitList<()>>,
}

impl RawWaitQueue {
    const_unless_model! {
        pub(crate) fn new() -> Self {
            Self { waiters: ShortLock::new(WaitList::new()) }
        }
    }

    /// Joins, calls `before`, and waits to be woken; then calls `after` and returns what that does. `before` gets to know
    /// whether there is anything to wait for: if it returns false, this is over at once.
    ///
    /// Passes false to `after` if the wait ended otherwise than by a wake: `before` said so, or the deadline passed.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), `before` and `after`. If the caller was woken then by
    /// [`wake_one`](Self::wake_one), the next one is.
    pub(crate) fn wait<T>(
        &self,
        end: End,
        deadline: Option<Instant>,
        before: impl FnOnce() -> bool,
        after: impl FnOnce(bool) -> T,
    ) -> T {
        let waiter = Waiter::new(());
        // SAFETY: the waiter stays in this frame until `waiting` has taken it out.
        let join = || unsafe { self.join(end, &waiter) };
        let (waiting, go_on) = if mutant!("look_before_joining") {
            let go_on = before();
            (join(), go_on)
        } else {
            (join(), before())
        };
        if !go_on {
            waiting.leave();
            return after(false);
        }
        let woken = waiting.wait(deadline);
        // If this is unwound, the turn is handed on.
        let result = after(woken);
        waiting.use_turn();
        result
    }

    /// # Safety
    ///
    /// The waiter stays where it is until what is returned has taken it out.
    unsafe fn join<'a>(&'a self, end: End, waiter: &'a Waiter<()>) -> Waiting<'a, (), Self> {
        let mut list = self.waiters.lock();
        // SAFETY: contract.
        unsafe {
            match end {
                End::Front => list.push_front(waiter),
                End::Back => list.push_back(waiter),
            }
        }
        Waiting::new(self, waiter)
    }

    /// Wakes the first one. Returns whether there was one.
    pub(crate) fn wake_one(&self) -> bool {
        if mutant!("wake_two") {
            self.wake_all();
        }
        let waker = self.waiters.lock().give_front(Turn::Own);
        waker.map(|waker| waker.wake()).is_some()
    }

    /// Wakes all who wait now.
    pub(crate) fn wake_all(&self) {
        give_all(|| self.waiters.lock());
    }

    /// Whether nobody waits at this moment.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.lock().is_empty()
    }
}

impl Queue<()> for RawWaitQueue {
    fn withdraw(&self, waiter: &Waiter<()>) -> bool {
        self.waiters.lock().remove(waiter)
    }

    fn hand_on(&self, _: &Waiter<()>, turn: Turn) {
        if turn == Turn::Own && !mutant!("wake_is_not_handed_on") {
            self.wake_one();
        }
    }
}

impl fmt::Debug for RawWaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawWaitQueue").field("is_empty", &self.is_empty()).finish()
    }
}
