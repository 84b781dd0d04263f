//! Something that happens once.

use std::fmt;
use std::time::{Duration, Instant};

use super::deadline_after;
use super::raw::event::RawEvent;

/// Something that happens once, and that coroutines of any context and plain threads wait for.
///
/// Setting it wakes all who wait; whoever comes later doesn't wait. What was done before it was set is visible to those
/// who have waited.
///
/// ```
/// use aioco::sync::Event;
/// use std::thread;
///
/// let ready = Event::new();
/// thread::scope(|scope| {
///     scope.spawn(|| ready.set());
///     ready.wait();
/// });
/// assert!(ready.is_set());
/// ```
pub struct Event {
    raw: RawEvent,
}

impl Event {
    /// An event that hasn't happened.
    pub const fn new() -> Self {
        Self { raw: RawEvent::new() }
    }

    /// It happens: wakes all who wait. Once it has happened, this does nothing.
    pub fn set(&self) {
        self.raw.set();
    }

    /// Whether it has happened.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.raw.is_set()
    }

    /// Waits until it happens.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait.
    #[inline]
    pub fn wait(&self) {
        self.raw.wait(None);
    }

    /// As [`wait`](Self::wait), but at most until `deadline`. Returns whether it has happened.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    #[inline]
    pub fn wait_until(&self, deadline: Instant) -> bool {
        self.raw.wait(Some(deadline))
    }

    /// As [`wait`](Self::wait), but for at most `duration`. Returns whether it has happened.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    #[inline]
    pub fn wait_for(&self, duration: Duration) -> bool {
        self.raw.wait(deadline_after(duration))
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("is_set", &self.is_set()).finish()
    }
}
