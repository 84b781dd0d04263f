//! The flags of a bottom half, and the stack that carries it to its loop.
#![allow(unsafe_code)] // # Safety: the bottom half lives as long as the model; who pushes it is what is checked.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;

use super::race;
use crate::aio::bh_state::{BhState, Urgency};
use crate::lockfree::{Adapter, Link, PushStack};
use crate::primitive::atomic::{AtomicBool, Ordering};

models! {
    a_schedule_leads_to_a_run_that_sees_what_came_before_it catches
        bh_coalesces_without_write, bh_is_pushed_twice, bh_schedule_not_released, bh_schedule_not_acquired,
        bh_run_not_acquired, bh_run_not_released;
}

struct BottomHalf {
    link: Link<BottomHalf>,
    state: BhState,
    scheduled: PushStack<BhAdapter>,
    /// What the schedulers wrote. Relaxed: only the schedule makes it visible.
    written: [AtomicBool; 2],
    /// An observer, unknown to loom: whether it stands in the queue.
    queued: Cell<bool>,
}

struct BhAdapter;

// SAFETY: the link is a field, and there is one kind of list.
unsafe impl Adapter for BhAdapter {
    type Node = BottomHalf;

    fn link(node: &BottomHalf) -> &Link<BottomHalf> {
        &node.link
    }
}

impl BottomHalf {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            link: Link::new(),
            state: BhState::new(),
            scheduled: PushStack::new(),
            written: [AtomicBool::new(false), AtomicBool::new(false)],
            queued: Cell::new(false),
        })
    }

    /// Another thread's side.
    fn write_and_schedule(&self, writer: usize) {
        self.written[writer].store(true, Ordering::Relaxed);
        if self.state.schedule() {
            assert!(!self.queued.replace(true), "pushed while it stands in the queue");
            // SAFETY: it lives as long as the model; whoever set `QUEUED` owns the link.
            unsafe { self.scheduled.push(NonNull::from(self)) };
        }
    }

    /// One turn of the loop. Returns what the run saw, if there was one.
    fn turn(&self) -> Option<[bool; 2]> {
        self.scheduled.take_all().pop()?;
        assert!(self.queued.replace(false));
        let urgency = self.state.dequeue();
        assert_eq!(urgency, Urgency::Now);
        Some([0, 1].map(|writer| self.written[writer].load(Ordering::Relaxed)))
    }
}

/// Two threads schedule it while the loop turns: each schedule leads to a run, perhaps a common one, that sees what its
/// thread had written.
fn a_schedule_leads_to_a_run_that_sees_what_came_before_it() {
    let bottom_half = BottomHalf::new();

    let ((), (), early) = race::three(
        &bottom_half,
        |bottom_half| bottom_half.write_and_schedule(0),
        |bottom_half| bottom_half.write_and_schedule(1),
        |bottom_half| [bottom_half.turn(), bottom_half.turn()],
    );

    // A run that is still to come sees everything, as the threads have ended. If there is none, those that were have
    // seen it.
    if bottom_half.turn().is_none() {
        for writer in 0..2 {
            assert!(early.iter().flatten().any(|seen| seen[writer]), "no run saw what {writer} had written");
        }
    }
}
