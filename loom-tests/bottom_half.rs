//! The flags of a bottom half, and the stack that carries it to its loop.
#![allow(unsafe_code)] // # Safety: the bottom half lives as long as the model; who pushes it is what is checked.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;

use loom::sync::{Condvar, Mutex};

use super::race;
use crate::aio::bh_state::{BhState, Duty, Urgency};
use crate::aio::notify::{Notify, Reason, Sleep};
use crate::lockfree::{Adapter, Link, PushStack};
use crate::primitive::atomic::{AtomicBool, Ordering};

models! {
    a_schedule_leads_to_a_run_that_sees_what_came_before_it catches
        bh_coalesces_without_write, bh_is_pushed_twice, bh_schedule_not_released, bh_schedule_not_acquired,
        bh_run_not_acquired, bh_run_not_released;
    a_schedule_wakes_a_loop_that_sleeps_over_a_cancelled_one catches bh_sleeper_is_not_told;
}

struct BottomHalf {
    link: Link<BottomHalf>,
    state: BhState,
    scheduled: PushStack<BhAdapter>,
    notify: Notify,
    /// The eventfd, and who waits for it.
    signal: Mutex<bool>,
    signalled: Condvar,
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
            notify: Notify::new(),
            signal: Mutex::new(false),
            signalled: Condvar::new(),
            written: [AtomicBool::new(false), AtomicBool::new(false)],
            queued: Cell::new(false),
        })
    }

    /// Another thread's side.
    fn write_and_schedule(&self, writer: usize) {
        self.written[writer].store(true, Ordering::Relaxed);
        self.schedule();
    }

    /// Returns whether the loop is to be told.
    fn schedule(&self) -> bool {
        let duty = self.state.schedule();
        if duty == Duty::Push {
            assert!(!self.queued.replace(true), "pushed while it stands in the queue");
            // SAFETY: it lives as long as the model; whoever set `QUEUED` owns the link.
            unsafe { self.scheduled.push(NonNull::from(self)) };
        }
        duty != Duty::Nothing
    }

    fn schedule_and_tell(&self) {
        if self.schedule() && self.notify.tell(Reason::Work).is_some() {
            *self.signal.lock().unwrap() = true;
            self.signalled.notify_one();
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

    /// A loop that takes what is scheduled into its own queue, runs what is urgent there, and otherwise sleeps; until a run
    /// sees what the first thread has written.
    fn run_until_written(&self) {
        let mut is_seen = false;
        loop {
            self.notify.accept();
            is_seen |= self.scheduled.take_all().pop().is_some();
            if is_seen && self.state.urgency() != Urgency::Never {
                is_seen = false;
                self.queued.set(false);
                let urgency = self.state.dequeue();
                if urgency == Urgency::Now && self.written[0].load(Ordering::Relaxed) {
                    return;
                }
            } else if self.notify.announce_sleep(Sleep::Watching) {
                // If no signal comes, this is a deadlock, which loom reports.
                let mut signal = self.signal.lock().unwrap();
                while !*signal {
                    signal = self.signalled.wait(signal).unwrap();
                }
                *signal = false;
            }
        }
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

/// A loop that went to sleep when all that it had to run had been cancelled is woken when it is scheduled again, though
/// it stands in the queue.
fn a_schedule_wakes_a_loop_that_sleeps_over_a_cancelled_one() {
    let bottom_half = BottomHalf::new();

    race::two(
        &bottom_half,
        |bottom_half| {
            bottom_half.schedule_and_tell();
            bottom_half.state.cancel();
            bottom_half.written[0].store(true, Ordering::Relaxed);
            bottom_half.schedule_and_tell();
        },
        BottomHalf::run_until_written,
    );
}
