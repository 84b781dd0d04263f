//! The raw mutex: a [`Gate`] with room for one.
//!
//! # Waiting awake
//!
//! Before it queues, a locker that finds the mutex held by somebody on another thread, and nobody queued, waits
//! [awake](super::awake). This is no barging: nobody is overtaken that has queued. It doesn't wait so for a holder that is
//! suspended, or that is on its own thread.
//!
//! Somebody to whom the mutex was handed over, and who has yet to wake up, is waited for a little longer than that takes.
//! Otherwise two threads that have come to hand it to and fro, each asleep when its turn comes, would go on to do so.

use std::fmt;
use std::time::Instant;

use super::awake;
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
        let attempt = || match self.gate.word() {
            FREE => self.gate.enter_from(FREE, LOCKED).then_some(true),
            LOCKED => None,
            // Somebody has queued.
            _ => Some(false),
        };
        cfg!(not(all(test, loom))) && awake::wait_awake(attempt, || self.patience())
    }

    fn patience(&self) -> u32 {
        match (self.holder.runner(), self.gate.let_in()) {
            (Some(_), _) => awake::patience_for(self.holder.name()),
            (None, Some(sleeper)) if sleeper.is_elsewhere() => awake::FOR_A_SLEEPER,
            (None, Some(_)) => 0,
            // It has been locked at this very moment.
            (None, None) => awake::FOR_ONE_THAT_RUNS,
        }
    }
}

impl fmt::Debug for RawMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawMutex").field("gate", &self.gate).field("holder", &self.holder).finish()
    }
}
