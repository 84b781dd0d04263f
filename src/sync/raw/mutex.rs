//! The raw mutex: a [`Gate`] with room for one.
//!
//! # Waiting awake
//!
//! Before it queues, a locker that finds the mutex held by somebody on another thread, and the queue empty or only
//! [called](super::gate#calls), waits [awake](super::awake). It doesn't wait so for a holder that is suspended, or that
//! is on its own thread.
//!
//! # Why a sleeper on another thread is only called
//!
//! Because two threads that have come to put each other to sleep would go on to do so, if each made the other one the
//! owner: whoever unlocks finds the other one asleep, and then waits for it to wake up, and goes to sleep over that. Two
//! threads that count under a mutex, on two processors that have other work as well, took with such a hand-over 0.9 to 10
//! times what they take with a parking_lot mutex, from one run to the next, and go to sleep up to 2000 times in 3 ms;
//! with calls 0.7 to 1.3 times, and they hardly ever sleep.

use std::fmt;
use std::time::Instant;

use super::awake::{self, FOR_ONE_THAT_RUNS};
use super::gate::{Gate, Rule};
use super::holder::{Holder, Site};
use crate::primitive::const_unless_model;

const FREE: usize = 0;
const LOCKED: usize = 1;

/// One at a time; `need` is always 1.
pub(crate) struct One;

impl Rule for One {
    const CALLS: bool = true;

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
        let locked = self.gate.enter_from(FREE, LOCKED) || self.gate.try_enter(1);
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
            self.unlock_slow();
        }
    }

    #[cold]
    #[inline(never)]
    fn unlock_slow(&self) {
        self.gate.leave(1);
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
        if self.gate.try_enter(1) {
            return true;
        }
        self.holder.refuse_deadlock("a mutex", site);
        self.wait_awake() || self.gate.enter_slow(1, deadline)
    }

    /// Waits awake if that may pay. Returns whether it has locked it.
    fn wait_awake(&self) -> bool {
        let attempt = || {
            let locked = self.gate.word() == FREE && self.gate.try_enter(1);
            (locked || self.gate.is_closed()).then_some(locked)
        };
        awake::wait_awake(attempt, || self.patience())
    }

    fn patience(&self) -> u32 {
        [self.holder.name(), self.gate.let_in()].into_iter().find_map(awake::patience_for).unwrap_or(FOR_ONE_THAT_RUNS)
    }
}

impl fmt::Debug for RawMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawMutex").field("gate", &self.gate).field("holder", &self.holder).finish()
    }
}
