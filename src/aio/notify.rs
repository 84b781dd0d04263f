//! The handshake between a loop that is about to sleep and threads that have something for it.
//!
//! One word says whether the loop sleeps, and what it has been told since it last listened:
//!
//! | word | the loop | whoever tells it something |
//! |---|---|---|
//! | 0 | runs, or polls in user space, and knows everything | adds a reason |
//! | reasons | runs, and will accept them before it sleeps | adds a reason |
//! | `WATCHING` | sleeps with its monitor, or is about to | adds a reason, and signals the monitor's eventfd |
//! | `RESTING` | sleeps on this very word, or is about to: it watches nothing | adds a reason, and wakes whoever sleeps on it |
//! | one of these, and reasons | has been signalled | adds a reason |
//!
//! ```text
//!  another thread                      the loop
//!  ──────────────                      ────────
//!  N1 publish (a push, a parameter)    L1 word: 0 → WATCHING or RESTING; if it isn't 0, go on instead
//!  N2 word |= reason                   L2 sleep; at rest only if the word is RESTING still
//!  N3 it was WATCHING or RESTING       L3 reasons = word, word = 0
//!     alone: signal                    L4 look at what the reasons stand for
//! ```
//!
//! N2, L1 and L3 are read-modify-writes of one word, so they have one order, and each sees the one before. If N2 comes
//! before L1, L1 finds the reason, and the loop doesn't sleep; if it comes after, N2 finds how it sleeps, and signals. There
//! is no store on one side that the other side might not see yet, as there is with two words, which take a full fence on
//! each side. All are acquire and release: L3 sees what was published before each N2 that it accepts, and since it comes
//! before L4, nothing that is published later is accepted early.
//!
//! Of several that find the loop asleep only the first signals. A loop that runs is never signalled: waking it costs no
//! system call on either side. A signal may come late, to a loop that has woken up by itself: it then finds nothing,
//! which is allowed; the reverse is not.
//!
//! Checked by the model `notify` of `loom-tests/`.

use crate::primitive::atomic::{AtomicU32, Ordering};
use crate::primitive::mutant::{mutant, ordering};

/// How a loop sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Sleep {
    /// With its monitor.
    Watching = 1 << 0,
    /// On the word, which costs less on both sides.
    Resting = 1 << 3,
}

/// What a loop is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Reason {
    /// There is something to run.
    Work = 1 << 1,
    /// Its parameters have changed.
    Parameters = 1 << 2,
}

/// What a loop has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reasons(u32);

impl Reasons {
    pub(crate) fn has(self, reason: Reason) -> bool {
        self.0 & reason as u32 != 0
    }
}

/// Whether the loop sleeps, and what it has been told.
#[derive(Debug)]
pub(crate) struct Notify(AtomicU32);

impl Notify {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Called by any thread after it has published what the reason stands for. Returns how the loop sleeps, if the caller
    /// must signal it.
    #[must_use]
    pub(crate) fn tell(&self, reason: Reason) -> Option<Sleep> {
        // Pairs with `announce_sleep`, `accept` and `close`.
        let order = ordering!(AcqRel, "tell_not_released" => Acquire, "tell_not_acquired" => Release);
        let before = self.0.fetch_or(reason as u32, order);
        let all_signal = mutant!("all_signal");
        let sleeps = |sleep: Sleep| before == sleep as u32 || all_signal && before & sleep as u32 != 0;
        [Sleep::Watching, Sleep::Resting].into_iter().find(|&sleep| sleeps(sleep))
    }

    /// Called by the loop before it sleeps. Returns whether it may: it has been told nothing.
    #[must_use]
    pub(crate) fn announce_sleep(&self, sleep: Sleep) -> bool {
        if mutant!("sleep_without_look") {
            self.0.fetch_or(sleep as u32, Ordering::AcqRel);
            return true;
        }
        // Relaxed: if it may sleep there is nothing to see, and otherwise it accepts.
        self.0.compare_exchange(0, sleep as u32, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The word, for a loop that sleeps on it: it does so only if the word says that it [rests](Sleep::Resting), and
    /// nothing else.
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Called by the loop when it is awake, before it looks at what the reasons stand for.
    pub(crate) fn accept(&self) -> Reasons {
        // A loop that knows everything leaves the cache line to the others.
        if self.0.load(Ordering::Relaxed) == 0 {
            return Reasons(0);
        }
        // Acquire: pairs with the Release of `tell`.
        Reasons(self.0.swap(0, ordering!(Acquire, "accept_not_acquired" => Relaxed)))
    }

    /// Whether the loop, which is awake, has been told something. Cheap enough to be asked over and over.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Called by a loop that ends, after it has said so elsewhere and before it looks for the last time. Whoever
    /// publishes something either is seen by that look, or sees, after `tell`, that the loop has ended.
    pub(crate) fn close(&self) {
        // Pairs with `tell`.
        self.0.fetch_or(0, ordering!(AcqRel, "close_not_released" => Acquire, "close_not_acquired" => Release));
    }
}
