//! A place to meet.

use std::fmt;
use std::time::{Duration, Instant};

use super::deadline_after;
use super::raw::barrier::RawBarrier;

/// A place where a number of coroutines and threads wait for one another; and then again, as often as they like.
///
/// One that stops waiting, by its deadline or because it is cancelled, hasn't come: the others go on to wait.
///
/// ```
/// use aioco::sync::Barrier;
/// use std::thread;
///
/// let start = Barrier::new(3);
/// let leaders: u32 = thread::scope(|scope| {
///     let parties: Vec<_> = (0..3).map(|_| scope.spawn(|| u32::from(start.wait()))).collect();
///     parties.into_iter().map(|party| party.join().unwrap()).sum()
/// });
/// assert_eq!(leaders, 1);
/// ```
pub struct Barrier {
    raw: RawBarrier,
}

impl Barrier {
    /// A barrier for so many.
    ///
    /// # Panics
    ///
    /// If that is 0.
    pub const fn new(parties: usize) -> Self {
        assert!(parties > 0, "a barrier for nobody");
        Self { raw: RawBarrier::new(parties) }
    }

    /// Waits until all have come. Returns true to the last one only.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait; then it hasn't come.
    pub fn wait(&self) -> bool {
        self.raw.wait(None).unwrap_or_default()
    }

    /// As [`wait`](Self::wait), but at most until `deadline`; then it hasn't come, and this returns `None`.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_until(&self, deadline: Instant) -> Option<bool> {
        self.raw.wait(Some(deadline))
    }

    /// As [`wait`](Self::wait), but for at most `duration`; then it hasn't come, and this returns `None`.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_for(&self, duration: Duration) -> Option<bool> {
        self.raw.wait(deadline_after(duration))
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { raw } = self;
        f.debug_struct("Barrier").field("parties", &raw.parties()).field("arrived", &raw.arrived()).finish()
    }
}
