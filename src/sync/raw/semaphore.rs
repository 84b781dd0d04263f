//! The raw semaphore: a [`Gate`] with room for as many as there are permits.
//!
//! The first in the queue is served first, though those behind it may want less: nobody starves.

use std::fmt;
use std::time::Instant;

use super::gate::{Gate, Rule, WORD};
use crate::primitive::const_unless_model;

/// Permits; the word is how many there are.
pub(crate) struct Permits;

impl Rule for Permits {
    const CALLS: bool = false;

    fn enter(word: usize, need: usize) -> Option<usize> {
        word.checked_sub(need)
    }

    fn leave(word: usize, need: usize) -> usize {
        let sum = word.checked_add(need).filter(|&sum| sum <= MAX_PERMITS);
        sum.expect("a semaphore has too many permits")
    }
}

/// As many permits as a semaphore can have.
pub(crate) const MAX_PERMITS: usize = WORD;

/// A counting semaphore.
pub(crate) struct RawSemaphore(Gate<Permits>);

impl RawSemaphore {
    const_unless_model! {
        pub(crate) fn new(permits: usize) -> Self {
            assert!(permits <= MAX_PERMITS, "a semaphore has too many permits");
            Self(Gate::new(permits))
        }
    }

    /// Takes permits. Returns whether it has; not if the deadline passed first.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    #[inline]
    pub(crate) fn acquire(&self, permits: usize, deadline: Option<Instant>) -> bool {
        self.0.try_enter(permits) || self.0.enter_slow(permits, deadline)
    }

    /// Takes permits if there are enough and nobody waits.
    #[inline]
    pub(crate) fn try_acquire(&self, permits: usize) -> bool {
        self.0.try_enter(permits)
    }

    /// Adds permits, or gives them back.
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_PERMITS`] then.
    #[inline]
    pub(crate) fn release(&self, permits: usize) {
        self.0.leave(permits);
    }

    /// How many are there at this moment.
    pub(crate) fn available(&self) -> usize {
        self.0.word()
    }
}

impl fmt::Debug for RawSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
