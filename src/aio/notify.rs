//! The handshake between a loop that is about to sleep and a thread that has work for it.
//!
//! ```text
//!  notifier                          loop
//!  ────────                          ────
//!  N1 publish the work               L1 sleeping = true
//!  N2 fence(SeqCst)                  L2 fence(SeqCst)
//!  N3 read sleeping ─ true: signal   L3 look for work ─ none: sleep
//! ```
//!
//! Both sides write and then read what the other wrote. Without a full fence on *each* side both reads may miss: the
//! notifier sees a loop that doesn't sleep, the loop sees no work, and sleeps on it. With them, one of N2 and L2 comes
//! first in the total order of fences; if it is N2, L3 sees the work, and if it is L2, N3 sees `sleeping`.
//!
//! Of several notifiers that find the loop sleeping only one signals: the one whose swap took `sleeping`. A loop that
//! is running is never signalled, so waking it costs no system call on either side. A signal may come late, to a loop
//! that has woken up by itself: it then finds no work, which is allowed; the reverse is not.
//!
//! Checked by the model `notify` of `loom-tests/`.

use crate::primitive::Overwrite;
use crate::primitive::atomic::{AtomicBool, Ordering, fence};
use crate::primitive::mutant::mutant;

/// Whether the loop sleeps, or is about to.
#[derive(Debug)]
pub(crate) struct Notify {
    sleeping: AtomicBool,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self { sleeping: AtomicBool::new(false) }
    }

    /// Called by any thread after it has published work. Returns whether the caller must signal the loop.
    #[must_use]
    pub(crate) fn must_signal(&self) -> bool {
        // Pairs with the fence in `announce_sleep`.
        if !mutant!("notify_without_fence") {
            fence(Ordering::SeqCst);
        }
        // Relaxed: the fences order it. The load keeps the cache line shared while the loop is running.
        self.sleeping.load(Ordering::Relaxed) && (mutant!("all_signal") || self.sleeping.swap(false, Ordering::Relaxed))
    }

    /// Called by the loop before it sleeps. `look` looks for work once more; returns whether there is none, so that the
    /// loop may sleep.
    #[must_use]
    pub(crate) fn announce_sleep(&self, look: impl FnOnce() -> bool) -> bool {
        self.sleeping.overwrite(true);
        // Pairs with the fence in `must_signal`.
        if !mutant!("announce_without_fence") {
            fence(Ordering::SeqCst);
        }
        mutant!("sleep_without_look") || !look()
    }

    /// Called by the loop when it is awake; then it takes the work.
    pub(crate) fn awake(&self) {
        self.sleeping.overwrite(false);
    }
}
