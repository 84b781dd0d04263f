//! The raw mutex: a [`Gate`] with room for one.
//!
//! # Waiting awake
//!
//! Before it queues, a locker that finds the mutex held by somebody on another thread, and nobody queued, waits awake for
//! a little while: two threads that hold it for nanoseconds then don't put each other to sleep, which takes microseconds.
//! This is no barging: nobody is overtaken that has queued. It doesn't wait so for a holder that is suspended, or that is
//! on its own thread.
//!
//! Somebody to whom the mutex was handed over, and who has yet to wake up, is waited for a little longer than that takes.
//! Otherwise two threads that have come to hand it to and fro, each asleep when its turn comes, would go on to do so.

use std::fmt;
use std::hint;
use std::time::Instant;

use super::gate::{Gate, Rule};
use super::holder::{Holder, Site};
use crate::primitive::const_unless_model;

const FREE: usize = 0;
const LOCKED: usize = 1;

/// One at a time; `need` is always 1.
pub(crate) struct One;

impl Rule for One {
    fn enter(word: usize, _: usize) -> Option<usize> {
        (word == FREE).then_some(LOCKED)
    }

    fn leave(_: usize, _: usize) -> usize {
        FREE
    }
}

/// A mutex without data.
pub(crate) struct RawMutex {
    gate: Gate<One>,
    holder: Holder,
}

/// How long to wait awake, in instructions to pause: for a holder that runs, and for one that is waking up. (Some 20 ns
/// each, or 50, on x86-64.)
const FOR_A_HOLDER: u32 = 100;
const FOR_A_SLEEPER: u32 = 1500;
/// How many at a time, at most; then it looks.
const PAUSE: u32 = 16;

impl RawMutex {
    const_unless_model! {
        pub(crate) fn new() -> Self {
            Self { gate: Gate::new(FREE), holder: Holder::new() }
        }
    }

    /// Locks it. Returns whether it has; not if the deadline passed first.
    ///
    /// # Panics
    ///
    /// - As [`park`](crate::park::park()).
    /// - If the caller holds it already.
    #[inline(always)]
    pub(crate) fn lock(&self, deadline: Option<Instant>, site: Site) -> bool {
        let locked = self.gate.enter_from(FREE, LOCKED) || self.lock_slow(deadline, site);
        if locked {
            self.holder.set(site);
        }
        locked
    }

    /// Locks it if it is free.
    #[inline(always)]
    pub(crate) fn try_lock(&self, site: Site) -> bool {
        let locked = self.gate.enter_from(FREE, LOCKED);
        if locked {
            self.holder.set(site);
        }
        locked
    }

    /// Unlocks it, or rather: it is the next one's.
    #[inline(always)]
    pub(crate) fn unlock(&self) {
        self.holder.clear();
        if !self.gate.leave_from(LOCKED, FREE) {
            self.gate.leave_slow(1);
        }
    }

    /// Where the holder locked it.
    pub(crate) fn site(&self) -> Option<Site> {
        self.holder.site()
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.gate.word() != FREE
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self, deadline: Option<Instant>, site: Site) -> bool {
        self.holder.refuse_deadlock("a mutex", site);
        self.wait_awake() || self.gate.enter_slow(1, deadline)
    }

    /// Waits awake if that may pay. Returns whether it has locked it.
    fn wait_awake(&self) -> bool {
        let mut spent = 0;
        let mut pause = 1;
        loop {
            match self.gate.word() {
                FREE if self.gate.enter_from(FREE, LOCKED) => return true,
                FREE => {}
                LOCKED if spent < self.patience() => {
                    (0..pause).for_each(|_| hint::spin_loop());
                    spent += pause;
                    pause = PAUSE.min(2 * pause);
                }
                // Or somebody has queued.
                _ => return false,
            }
        }
    }

    fn patience(&self) -> u32 {
        match (self.holder.runner(), self.gate.let_in()) {
            _ if cfg!(all(test, loom)) => 0,
            (Some(holder), _) if holder.is_elsewhere() && !holder.is_parked() => FOR_A_HOLDER,
            (None, Some(sleeper)) if sleeper.is_elsewhere() => FOR_A_SLEEPER,
            (None, None) => FOR_A_HOLDER,
            _ => 0,
        }
    }
}

impl fmt::Debug for RawMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawMutex").field("gate", &self.gate).field("holder", &self.holder).finish()
    }
}
