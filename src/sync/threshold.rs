//! Waiting for a number of completions.

use std::fmt;
use std::time::{Duration, Instant};

use super::deadline_after;
use super::raw::threshold::RawThreshold;

/// A count that only rises, and that coroutines of any context and plain threads wait for: each for the number that it
/// needs, and each is woken once, when the count has reached that.
///
/// An advance that reaches nobody's number costs about as much as an atomic addition. The waiters are sorted by their
/// numbers, so one that does touches only those who are due. In return, a waiter that joins goes past those with higher
/// numbers, one by one.
///
/// ```
/// use aioco::sync::Threshold;
/// use std::thread;
///
/// let completed = Threshold::new();
/// thread::scope(|scope| {
///     scope.spawn(|| (0..512).for_each(|_| completed.advance(1)));
///     completed.wait(128); // woken once, not 128 times
///     assert!(completed.count() >= 128);
///     completed.wait(512);
/// });
/// assert_eq!(completed.count(), 512);
/// ```
pub struct Threshold {
    raw: RawThreshold,
}

impl Threshold {
    /// A count of 0.
    pub const fn new() -> Self {
        Self { raw: RawThreshold::new() }
    }

    /// The count. What was done before the advances that made it is visible to the caller.
    #[inline]
    pub fn count(&self) -> u64 {
        self.raw.count()
    }

    /// Adds to the count, and wakes those whose number it has reached. It wraps at 2⁶³.
    #[inline]
    pub fn advance(&self, by: u64) {
        self.raw.advance(by);
    }

    /// Waits until the count has reached `number`.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait.
    #[inline]
    pub fn wait(&self, number: u64) {
        self.raw.wait(number, None);
    }

    /// As [`wait`](Self::wait), but at most until `deadline`. Returns whether the count has reached the number.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    #[inline]
    pub fn wait_until(&self, number: u64, deadline: Instant) -> bool {
        self.raw.wait(number, Some(deadline))
    }

    /// As [`wait`](Self::wait), but for at most `duration`. Returns whether the count has reached the number.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    #[inline]
    pub fn wait_for(&self, number: u64, duration: Duration) -> bool {
        self.raw.wait(number, deadline_after(duration))
    }
}

impl Default for Threshold {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threshold").field("count", &self.count()).finish()
    }
}
