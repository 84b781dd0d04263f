//! The flags of a bottom half: what any thread may touch of it.
//!
//! | flag | set by | means | cleared by |
//! |---|---|---|---|
//! | `QUEUED` | whoever schedules it, if it was clear | it stands in the queue, once | the loop, when it takes it out |
//! | `SCHEDULED` | `schedule` | it is to run | the loop; `cancel` |
//! | `IDLE` | `schedule_idle` | it is to run when there is time | the loop; `cancel` |
//! | `DELETED` | its owner | it will not run again | never |
//! | `POSTPONED` | the loop, in a nested turn while it runs | it is pushed anew when it has run; it stays `QUEUED` | the loop |
//!
//! Only whoever sets `QUEUED` pushes, so the link is never used twice. The loop clears the flags *before* it runs the
//! callback: a schedule that comes during the run sets `QUEUED` afresh, and leads to another run.
//!
//! A loop may sleep over a queue in which all have been cancelled, and for a while over one in which all have time. So
//! whoever makes one that stands there more urgent than it was tells the loop. If it was as urgent before, whoever made
//! it so does that, and has done or will do it after the flag was set: the loop doesn't sleep over it for long.
//!
//! # Ordering
//!
//! What was written before `schedule` is visible to the run that it leads to: each schedule, also one that finds
//! `QUEUED` set, is a read-modify-write (Release), and `dequeue` is one as well (Acquire). The other way round, the
//! loop has read the link before `dequeue` (Release), and whoever sets `QUEUED` next (Acquire) writes it. Checked by
//! the model `bottom_half` of `loom-tests/`.

use crate::primitive::atomic::{AtomicU32, Ordering};
use crate::primitive::mutant::{mutant, ordering};

const QUEUED: u32 = 1 << 0;
const SCHEDULED: u32 = 1 << 1;
const IDLE: u32 = 1 << 2;
const DELETED: u32 = 1 << 3;
const POSTPONED: u32 = 1 << 4;

/// How soon a queued bottom half wants to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// Not at all: it was cancelled or deleted.
    Never,
    /// When there is time.
    Idle,
    /// In the next turn.
    Now,
}

/// What whoever schedules a bottom half must do then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Duty {
    /// Nothing: somebody else has scheduled it, and sees to it.
    Nothing,
    /// Tell the loop, which may sleep though it stands in the queue.
    Tell,
    /// Push it, and tell the loop.
    Push,
}

/// The flags of a bottom half.
#[derive(Debug)]
pub(crate) struct BhState(AtomicU32);

impl BhState {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Has it run in the next turn.
    pub(crate) fn schedule(&self) -> Duty {
        self.set(SCHEDULED)
    }

    /// Has it run when there is time.
    pub(crate) fn schedule_idle(&self) -> Duty {
        self.set(IDLE)
    }

    fn set(&self, flag: u32) -> Duty {
        if mutant!("bh_coalesces_without_write") && self.0.load(Ordering::Relaxed) & QUEUED != 0 {
            return Duty::Nothing;
        }
        // Release: pairs with the Acquire in `dequeue`. Acquire: pairs with its Release, for the link, which the loop
        // has read.
        let order = ordering!(AcqRel, "bh_schedule_not_released" => Acquire, "bh_schedule_not_acquired" => Release);
        let before = self.0.fetch_or(QUEUED | flag, order);
        if before & QUEUED == 0 || mutant!("bh_is_pushed_twice") {
            Duty::Push
        } else if before & (flag | SCHEDULED | DELETED) == 0 && !mutant!("bh_sleeper_is_not_told") {
            Duty::Tell
        } else {
            Duty::Nothing
        }
    }

    /// Takes back all schedules that have not led to a run. A run may have begun already, unless this is the loop's
    /// thread.
    pub(crate) fn cancel(&self) {
        self.0.fetch_and(!(SCHEDULED | IDLE), Ordering::Relaxed);
    }

    /// It will not run again.
    pub(crate) fn delete(&self) {
        self.0.fetch_or(DELETED, Ordering::Relaxed);
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & DELETED != 0
    }

    /// Notes, instead of [`dequeue`](Self::dequeue), that the loop has taken it out of the queue while it runs.
    pub(crate) fn postpone(&self) {
        self.0.fetch_or(POSTPONED, Ordering::Relaxed);
    }

    /// Whether it was taken out of the queue while it ran; then the caller must push it.
    #[must_use]
    pub(crate) fn take_postponed(&self) -> bool {
        let is_postponed = self.0.load(Ordering::Relaxed) & POSTPONED != 0;
        if is_postponed {
            self.0.fetch_and(!POSTPONED, Ordering::Relaxed);
        }
        is_postponed
    }

    /// How soon it wants to run, if it were taken out of the queue now.
    pub(crate) fn urgency(&self) -> Urgency {
        urgency(self.0.load(Ordering::Relaxed))
    }

    /// Notes that the loop has taken it out of the queue; returns whether, and how urgently, it is to run.
    pub(crate) fn dequeue(&self) -> Urgency {
        // Acquire: pairs with the Release of the schedules that lead to this run. Release: pairs with the Acquire of
        // the next one.
        let order = ordering!(AcqRel, "bh_run_not_acquired" => Release, "bh_run_not_released" => Acquire);
        urgency(self.0.fetch_and(!(QUEUED | SCHEDULED | IDLE), order))
    }
}

fn urgency(flags: u32) -> Urgency {
    if flags & DELETED != 0 {
        Urgency::Never
    } else if flags & SCHEDULED != 0 {
        Urgency::Now
    } else if flags & IDLE != 0 {
        Urgency::Idle
    } else {
        Urgency::Never
    }
}
