//! The raw threshold: a count, and waiters in the order of the numbers that they wait for.
//!
//! An advance that wakes nobody is one read-modify-write of the word and at most one load: it compares the count with
//! the lowest number that somebody waits for.
//!
//! # Ordering
//!
//! A waiter lowers `lowest` and *then* sets [`WAITED`] in the word; an advance changes the word and *then* loads
//! `lowest`. Both change the word by read-modify-writes, which have an order. If the advance comes second, it sees
//! `WAITED`, and by Release and Acquire `lowest` as well. If it comes first, the waiter sees the count. Setting `WAITED`
//! when it is set already is a read-modify-write all the same, and is never left out.
//!
//! `lowest` is raised under the lock only, when those who waited for less are out. An advance that still sees the old
//! value takes the lock for nothing.
//!
//! What was done before an advance is visible to whoever sees the count that it made (Release and Acquire of the word).
//! Checked by the models `threshold` of `loom-tests/`.
#![allow(unsafe_code)] // # Safety: a waiter that joins the list stays in its frame until `Waiting` has taken it out.

use std::fmt;
use std::time::Instant;

use super::wait::{Queue, Waiting};
use super::wait_list::{Turn, WaitList, Waiter, wake_each};
use crate::primitive::atomic::{AtomicU64, Ordering};
use crate::primitive::mutant::{mutant, ordering};
use crate::primitive::{ShortLock, const_unless_model};

/// Somebody waits. The count is above it.
const WAITED: u64 = 1;
const COUNT_SHIFT: u32 = 1;

/// A count that can be waited for.
pub(crate) struct RawThreshold {
    word: AtomicU64,
    /// While `WAITED`: the lowest number that somebody waits for, or a lower one.
    lowest: AtomicU64,
    /// Sorted by their numbers; first come, first served among equals.
    waiters: ShortLock<WaitList<u64>>,
}

impl RawThreshold {
    const_unless_model! {
        pub(crate) fn new() -> Self {
            Self { word: AtomicU64::new(0), lowest: AtomicU64::new(0), waiters: ShortLock::new(WaitList::new()) }
        }
    }

    #[inline]
    pub(crate) fn count(&self) -> u64 {
        // Acquire: pairs with the Release of `advance`.
        self.word.load(ordering!(Acquire, "count_not_acquired" => Relaxed)) >> COUNT_SHIFT
    }

    /// Adds to the count, and wakes those whose number it has reached.
    #[inline]
    pub(crate) fn advance(&self, by: u64) {
        // Release: pairs with the Acquires of those who see the count. Acquire: pairs with the Release of `join`, for
        // `lowest`.
        let order = ordering!(AcqRel, "advance_not_released" => Acquire, "advance_not_acquired" => Release);
        let word = self.word.fetch_add(by << COUNT_SHIFT, order);
        let count = (word >> COUNT_SHIFT).wrapping_add(by);
        if word & WAITED != 0 && self.lowest.load(Ordering::Relaxed) <= count {
            self.wake_due();
        }
    }

    #[cold]
    fn wake_due(&self) {
        wake_each(|| {
            let mut list = self.waiters.lock();
            let is_due = list.front().is_some_and(|first| first.payload <= self.count());
            let waker = if is_due { list.give_front(Turn::Shared) } else { None };
            self.update_lowest(&list);
            waker
        });
    }

    /// Under the lock, after waiters have gone.
    fn update_lowest(&self, list: &WaitList<u64>) {
        if mutant!("lowest_is_not_raised") {
            return;
        }
        match list.front() {
            Some(first) => self.lowest.store(first.payload, Ordering::Relaxed),
            // Relaxed: nobody learns anything from it. The count's release sequence goes on.
            None => _ = self.word.fetch_and(!WAITED, Ordering::Relaxed),
        }
    }

    /// Whether an advance would be one read-modify-write.
    #[cfg(all(test, loom))]
    pub(crate) fn is_idle(&self) -> bool {
        self.word.load(Ordering::Relaxed) & WAITED == 0
    }

    /// Waits until the count has reached `number`. Returns whether it has; not if the deadline passed first.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub(crate) fn wait(&self, number: u64, deadline: Option<Instant>) -> bool {
        if self.count() >= number {
            return true;
        }
        let waiter = Waiter::new(number);
        let is_due = self.join(&waiter);
        let waiting = Waiting::new(self, &waiter);
        if is_due {
            waiting.leave();
            return true;
        }
        let reached = waiting.wait(deadline);
        waiting.use_turn();
        reached
    }

    /// Puts the waiter into the list. Returns whether its number has been reached already.
    fn join(&self, waiter: &Waiter<u64>) -> bool {
        let mut list = self.waiters.lock();
        // SAFETY: the waiter stays in its frame until `Waiting` has taken it out.
        unsafe { list.insert_sorted(waiter, |&other| other <= waiter.payload) };
        if let Some(first) = list.front() {
            self.lowest.store(first.payload, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire of `advance`, for `lowest`. Acquire: pairs with its Release.
        let order = ordering!(AcqRel, "join_not_released" => Acquire, "join_not_acquired" => Release);
        let word = self.word.fetch_or(WAITED, order);
        word >> COUNT_SHIFT >= waiter.payload && !mutant!("join_without_look")
    }
}

impl Queue<u64> for RawThreshold {
    fn withdraw(&self, waiter: &Waiter<u64>) -> bool {
        let mut list = self.waiters.lock();
        let was_there = list.remove(waiter);
        if was_there {
            self.update_lowest(&list);
        }
        was_there
    }

    /// Nobody had to go without.
    fn hand_on(&self, _: &Waiter<u64>, _: Turn) {}
}

impl fmt::Debug for RawThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawThreshold").field("count", &self.count()).finish()
    }
}
