//! The state word: all of a coroutine that other threads may touch.
//!
//! ```text
//!  63            32 31        5     4         3         2         1       0
//!  ┌───────────────┬──────────┬─────────┬─────────┬─────────┬───────┬────────┐
//!  │  generation   │    0     │ RETIRED │CANCELLED│SCHEDULED│ WOKEN │ PARKED │
//!  └───────────────┴──────────┴─────────┴─────────┴─────────┴───────┴────────┘
//! ```
//!
//! | bit | set by | means | cleared by |
//! |---|---|---|---|
//! | `PARKED` | the coroutine, in `park` | it is suspended in a park, or about to be; a wake must schedule it | the home thread, when it resumes it |
//! | `WOKEN` | any waker | a wake that no park has consumed | the park, or the resume, that consumes it |
//! | `SCHEDULED` | the waker that found `PARKED` without it, or whoever gives a new one to its home | the control block stands in exactly one queue, and its link is that queue's | whoever takes it out of that queue |
//! | `CANCELLED` | any canceller | each suspension from now on unwinds, but one that waits for the coroutine's own to come back | never in this generation |
//! | `RETIRED` | the home thread, at the end | the coroutine ended while `SCHEDULED`; whoever takes the block out of its queue frees it | that one |
//!
//! | `PARKED` `WOKEN` `SCHEDULED` | situation |
//! |---|---|
//! | 0 0 0 | running, yielded or not started; nobody has woken it |
//! | 0 1 0 | as above, woken: the next park returns at once |
//! | 1 0 0 | parked |
//! | 1 1 1 | parked, woken, queued: will run |
//! | 1 0 1 | entered by hand while queued, and parked again: the queue entry is stale and will be skipped |
//! | 0 _ 1 | entered by hand while queued: stale as well, unless its next park is woken before it is taken out |
//! | 1 1 0 | parked and woken, but its home is gone or it has none: runs when it is entered by hand |
//!
//! # Who may do what
//!
//! 1. Only the home thread calls `park`, `enter_parked`, `take_turn` and `retire`; wakers on any thread call `wake` and
//!    `cancel`; whoever holds the queue entry calls `unschedule`.
//! 2. `SCHEDULED` is only ever set together with finding `PARKED` (or before the start). While a coroutine runs it
//!    isn't `PARKED`, so `SCHEDULED` can't appear; this is why `retire` may write the word with a plain store when it
//!    sees `SCHEDULED` clear: all it can overwrite is a `WOKEN` or `CANCELLED` of the generation that ends with it.
//! 3. A wake of an older generation changes nothing: the generation is part of the word that the waker's
//!    compare-exchange confirms. Should 2³² generations of one block pass while a waker is kept, its wake reaches a
//!    stranger as a spurious wake-up, which every park allows for; nothing depends on the width of the tag.
//!
//! # Ordering
//!
//! What a waker wrote before its wake is visible to the coroutine after the park that consumes it: every wake, also one
//! that coalesces with an earlier one, is a successful read-modify-write (Release), and the park or resume that clears
//! `WOKEN` is one as well (Acquire), hence later in the word's modification order. `PARKED` is set with Release and
//! found with Acquire, so that the waker which schedules the block may read what the home thread wrote to it (its
//! home). `SCHEDULED` is cleared with Release by whoever took the block out of its queue and looks at it no more; the
//! Acquire of the wake that schedules it again, of `is_scheduled`, and of `retire`, which frees it, pairs with that.
//! Checked by the models `state` and `wake_queue` of `loom-tests/`.

use crate::primitive::Overwrite;
use crate::primitive::atomic::{AtomicU64, Ordering};
use crate::primitive::mutant::{mutant, ordering};

const PARKED: u64 = 1 << 0;
const WOKEN: u64 = 1 << 1;
const SCHEDULED: u64 = 1 << 2;
const CANCELLED: u64 = 1 << 3;
const RETIRED: u64 = 1 << 4;
const GENERATION_SHIFT: u32 = 32;
const FLAGS: u64 = (1 << GENERATION_SHIFT) - 1;

/// What a coroutine that wants to park has to do.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Park {
    /// Suspend: `PARKED` is set.
    Suspend,
    /// Go on: a wake was there already, and is consumed.
    Woken,
    /// Unwind.
    Cancelled,
}

/// What a waker has to do.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Wake {
    /// Nothing: that coroutine has ended.
    Stale,
    /// Nothing: it will see the wake.
    Remembered,
    /// Put it in a queue: the caller owns the queue entry now.
    Schedule,
}

/// What to do with a block that was taken out of a queue.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Turn {
    /// Resume it.
    Run,
    /// Resume it with an unwind.
    Unwind,
    /// Nothing: the entry was stale.
    Skip,
    /// It has ended: free the block.
    Free,
}

/// A coroutine's state word.
#[derive(Debug)]
pub(crate) struct State(AtomicU64);

impl State {
    // Not const: loom's atomics register themselves when they are made.
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[cfg(not(all(test, loom)))]
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The generation of the block's present tenant.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u32 {
        // Relaxed: the owner compares it with its own, and only the owner's thread can end that generation.
        generation_of(self.0.load(Ordering::Relaxed))
    }

    /// Whether the present tenant is to be unwound. A hint, unless called by the home thread.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) & CANCELLED != 0
    }

    /// Whether the block stands in a queue, or is on its way there. Called by the home thread while the coroutine runs,
    /// when the answer can only change from yes to no.
    pub(crate) fn is_scheduled(&self) -> bool {
        // Acquire: pairs with the Release of the `unschedule` or `take_turn` that ended the entry, so that what its
        // owner read may be written.
        self.0.load(ordering!(Acquire, "is_scheduled_not_acquired" => Relaxed)) & SCHEDULED != 0
    }

    /// Whether a wake would schedule it. Called by the home thread while it is suspended.
    pub(crate) fn is_parked(&self) -> bool {
        self.0.load(Ordering::Relaxed) & PARKED != 0
    }

    /// Consumes a wake, or announces that the coroutine suspends.
    pub(crate) fn park(&self) -> Park {
        self.park_unless(CANCELLED)
    }

    /// As [`park`](Self::park), but suspends also if it was cancelled.
    pub(crate) fn park_cancelled(&self) -> Park {
        self.park_unless(0)
    }

    fn park_unless(&self, cancelled: u64) -> Park {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (next, verdict) = if word & cancelled != 0 && !mutant!("park_ignores_cancel") {
                (word & !WOKEN, Park::Cancelled)
            } else if word & WOKEN != 0 && !mutant!("park_ignores_wake") {
                (word & !WOKEN, Park::Woken)
            } else {
                (word | PARKED, Park::Suspend)
            };
            // Acquire: pairs with the Release of the wake that is consumed. Release: pairs with the Acquire of the wake
            // that finds `PARKED`.
            let order = ordering!(AcqRel, "park_not_acquired" => Release, "park_not_released" => Acquire);
            match self.0.compare_exchange_weak(word, next, order, Ordering::Relaxed) {
                Ok(_) => return verdict,
                Err(now) => word = now,
            }
        }
    }

    /// Wakes the coroutine of that generation.
    pub(crate) fn wake(&self, generation: u32) -> Wake {
        self.signal(generation, WOKEN)
    }

    /// Wakes the coroutine of that generation, and makes each of its suspensions unwind.
    pub(crate) fn cancel(&self, generation: u32) -> Wake {
        self.signal(generation, WOKEN | CANCELLED)
    }

    fn signal(&self, generation: u32, bits: u64) -> Wake {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if generation_of(word) != generation && !mutant!("wake_any_generation") {
                return Wake::Stale;
            }
            if mutant!("coalesce_without_write") && word & WOKEN != 0 {
                return Wake::Remembered;
            }
            let schedule = word & (PARKED | SCHEDULED) == PARKED || mutant!("schedule_twice") && word & PARKED != 0;
            let next = word | bits | if schedule { SCHEDULED } else { 0 };
            // Release: pairs with the Acquire that consumes the wake. Acquire: pairs with the Release of `park`, for
            // the fields that the scheduler reads.
            let order = ordering!(AcqRel, "wake_not_released" => Acquire, "wake_not_acquired" => Release);
            match self.0.compare_exchange_weak(word, next, order, Ordering::Relaxed) {
                Ok(_) if schedule => return Wake::Schedule,
                Ok(_) => return Wake::Remembered,
                Err(now) => word = now,
            }
        }
    }

    /// Marks a coroutine as queued that isn't parked: it hasn't started, or yielded. The caller owns the block.
    pub(crate) fn mark_queued(&self) {
        // A read-modify-write: a waker may be trying its compare-exchange.
        self.0.fetch_or(SCHEDULED, Ordering::Relaxed);
    }

    /// The coroutine is resumed by hand out of a park: that counts as a wake-up.
    pub(crate) fn enter_parked(&self) {
        // Acquire: pairs with the Release of the wakes that are consumed.
        self.0.fetch_and(!(PARKED | WOKEN), ordering!(Acquire, "enter_not_acquired" => Relaxed));
    }

    /// Takes the block out of its queue, on its home thread. `parked`: whether it is suspended in a park (the home
    /// thread knows).
    pub(crate) fn take_turn(&self, parked: bool) -> Turn {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (next, turn) = if word & RETIRED != 0 {
                (word & !(SCHEDULED | RETIRED), Turn::Free)
            } else if parked && word & WOKEN != 0 {
                let turn = if word & CANCELLED != 0 { Turn::Unwind } else { Turn::Run };
                (word & !(SCHEDULED | PARKED | WOKEN), turn)
            } else {
                (word & !SCHEDULED, Turn::Skip)
            };
            // Acquire: pairs with the Release of the wakes that are consumed. Release: pairs with the Acquire of the
            // wake that schedules the block again, for the link, which the queue's owner has read.
            let order = ordering!(AcqRel, "turn_not_acquired" => Release, "turn_not_released" => Acquire);
            match self.0.compare_exchange_weak(word, next, order, Ordering::Relaxed) {
                Ok(_) => return turn,
                Err(now) => word = now,
            }
        }
    }

    /// Takes the block out of its queue without running it; wakes stay remembered. Returns whether the coroutine has
    /// ended, so that the caller has to free the block.
    pub(crate) fn unschedule(&self) -> bool {
        // Acquire: pairs with the Release of `retire`, for the one who frees the block. Release: as in `take_turn`.
        let order = ordering!(AcqRel, "unschedule_not_acquired" => Release, "unschedule_not_released" => Acquire);
        let word = self.0.fetch_and(!(SCHEDULED | RETIRED), order);
        word & RETIRED != 0
    }

    /// Whoever was to run a coroutine that had yielded drops its turn: from now on it is parked.
    pub(crate) fn park_instead(&self) {
        // Release: pairs with the Acquire of the wake that finds `PARKED`, for the link, as in `take_turn`.
        self.0.fetch_or(PARKED, ordering!(Release, "park_instead_not_released" => Relaxed));
    }

    /// Ends the generation. Returns whether the block may be freed now; otherwise it still stands in a queue, and
    /// whoever takes it out frees it.
    #[inline(always)]
    pub(crate) fn retire(&self) -> bool {
        // Acquire: pairs with the Release of an `unschedule` on another thread, which has read the link and the home of
        // the block that may be freed now.
        let word = self.0.load(ordering!(Acquire, "retire_not_acquired" => Relaxed));
        if word & FLAGS != 0 {
            return self.retire_flagged(word);
        }
        // Rule 2. Relaxed: nothing is published here; the block's next tenant is published by the pool.
        self.0.overwrite(word.wrapping_add(1 << GENERATION_SHIFT));
        true
    }

    #[cold]
    fn retire_flagged(&self, mut word: u64) -> bool {
        loop {
            let next = (word & !FLAGS).wrapping_add(1 << GENERATION_SHIFT);
            if word & SCHEDULED == 0 || mutant!("free_while_scheduled") {
                // As above.
                self.0.overwrite(next);
                return true;
            }
            // Release: pairs with the Acquire of the `unschedule` that frees the block on another thread.
            let zombie = next | SCHEDULED | RETIRED;
            let release = ordering!(Release, "retire_not_released" => Relaxed);
            match self.0.compare_exchange_weak(word, zombie, release, Ordering::Acquire) {
                Ok(_) => return false,
                Err(now) => word = now,
            }
        }
    }
}

#[inline(always)]
fn generation_of(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32
}
