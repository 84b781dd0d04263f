//! A budget of permits.

use std::fmt;
use std::mem;
use std::time::{Duration, Instant};

use super::deadline_after;
use super::raw::semaphore::{MAX_PERMITS, RawSemaphore};

/// A counting semaphore for coroutines of any context and for plain threads: a budget of which each takes as much as it
/// needs, and waits until there is that much.
///
/// First come, first served: one that needs much isn't overtaken by those behind it that need less, so nobody starves.
///
/// See [the module](super) for what all locks here have in common: cancellation, time limits, panics.
///
/// ```
/// use aioco::sync::Semaphore;
///
/// let megabytes = Semaphore::new(64);
/// let small = megabytes.acquire(1);
/// assert!(megabytes.try_acquire(64).is_none());
/// drop(small);
/// let all = megabytes.acquire(64);
/// assert_eq!(megabytes.available(), 0);
/// # drop(all);
/// ```
pub struct Semaphore {
    raw: RawSemaphore,
}

impl Semaphore {
    /// As many permits as a semaphore can have.
    pub const MAX_PERMITS: usize = MAX_PERMITS;

    /// A semaphore with so many permits.
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_PERMITS`](Self::MAX_PERMITS).
    pub const fn new(permits: usize) -> Self {
        Self { raw: RawSemaphore::new(permits) }
    }

    /// Takes permits, waiting for them if need be. More than there will ever be are waited for for ever.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait.
    #[inline]
    pub fn acquire(&self, permits: usize) -> Permits<'_> {
        self.raw.acquire(permits, None);
        self.permits(permits)
    }

    /// Takes permits if there are enough, and nobody waits for some.
    #[inline]
    pub fn try_acquire(&self, permits: usize) -> Option<Permits<'_>> {
        self.raw.try_acquire(permits).then(|| self.permits(permits))
    }

    /// As [`acquire`](Self::acquire), waiting at most until `deadline`.
    ///
    /// # Panics
    ///
    /// As [`acquire`](Self::acquire).
    #[inline]
    pub fn try_acquire_until(&self, permits: usize, deadline: Instant) -> Option<Permits<'_>> {
        self.raw.acquire(permits, Some(deadline)).then(|| self.permits(permits))
    }

    /// As [`acquire`](Self::acquire), waiting for at most `duration`.
    ///
    /// # Panics
    ///
    /// As [`acquire`](Self::acquire).
    #[inline]
    pub fn try_acquire_for(&self, permits: usize, duration: Duration) -> Option<Permits<'_>> {
        self.raw.acquire(permits, deadline_after(duration)).then(|| self.permits(permits))
    }

    /// Adds permits to the budget. (Those that were taken come back by themselves.)
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_PERMITS`](Self::MAX_PERMITS) then.
    #[inline]
    pub fn add_permits(&self, permits: usize) {
        self.raw.release(permits);
    }

    /// How many permits there are at this moment, for whoever comes first.
    pub fn available(&self) -> usize {
        self.raw.available()
    }

    fn permits(&self, count: usize) -> Permits<'_> {
        Permits { semaphore: self, count }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("available", &self.available()).finish()
    }
}

/// Permits that were taken from a [`Semaphore`]. They go back when this is dropped, on whatever thread.
#[must_use = "the permits go back when this is dropped"]
#[derive(Debug)]
pub struct Permits<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Permits<'_> {
    /// How many they are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Separates some of the permits, so that they can go back by themselves. Returns `None` if there aren't as many.
    pub fn split(&mut self, count: usize) -> Option<Self> {
        self.count = self.count.checked_sub(count)?;
        Some(Self { semaphore: self.semaphore, count })
    }

    /// Adds other permits to these.
    ///
    /// # Panics
    ///
    /// If they are another semaphore's.
    pub fn merge(&mut self, other: Self) {
        assert!(std::ptr::eq(self.semaphore, other.semaphore), "permits of two semaphores were merged");
        self.count += other.count;
        mem::forget(other);
    }

    /// Takes the permits from the budget for good.
    pub fn forget(self) {
        mem::forget(self);
    }
}

impl Drop for Permits<'_> {
    #[inline]
    fn drop(&mut self) {
        self.semaphore.raw.release(self.count);
    }
}
