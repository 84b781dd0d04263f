//! A coroutine without a stack: what the models of the state word and of the run queue share.
//!
//! The functions follow `coroutine::{enter, home, suspend, wake}` step by step; the body is one that most code has: it
//! waits, parking in a loop, until its conditions hold.
#![allow(unsafe_code)] // # Safety: blocks live as long as the model; who may touch what is what is checked.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;

use super::race;
use crate::coroutine::state::{Park, State, Turn, Wake};
use crate::lockfree::{Adapter, Chain, Link, PushStack};
use crate::primitive::UnsafeCell;
use crate::primitive::atomic::{AtomicBool, Ordering};

/// A coroutine's control block, its body, and the queue of its home.
pub(super) struct Coroutine {
    pub(super) state: State,
    link: Link<Coroutine>,
    /// Whether it has a home: the home thread writes this before a park, while no queue has the block; whoever
    /// schedules the block reads it; whoever frees the block clears it.
    home: UnsafeCell<bool>,
    /// Whether a loop runs on the home thread, which becomes the coroutine's home when it parks.
    pub(super) in_loop: Cell<bool>,
    /// What the body waits for. Relaxed: only the wake makes it visible.
    conditions: Vec<AtomicBool>,
    queue: PushStack<RunAdapter>,
    /// The home thread's, and then whoever's who frees the block.
    phase: UnsafeCell<Phase>,
    /// An observer, unknown to loom: whether the block stands in the queue.
    queued: Cell<bool>,
    /// An observer as well: how often the block was freed.
    freed: Cell<u32>,
}

/// What the home thread knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Unstarted,
    Requeued,
    Parked,
    Finished,
    Unwound,
}

pub(super) struct RunAdapter;

// SAFETY: the link is a field, and there is one kind of list.
unsafe impl Adapter for RunAdapter {
    type Node = Coroutine;

    fn link(node: &Coroutine) -> &Link<Coroutine> {
        &node.link
    }
}

impl Coroutine {
    /// A coroutine that waits for so many conditions.
    pub(super) fn new(conditions: usize) -> Rc<Self> {
        Rc::new(Self {
            state: State::new(),
            link: Link::new(),
            home: UnsafeCell::new(false),
            in_loop: Cell::new(true),
            conditions: (0..conditions).map(|_| AtomicBool::new(false)).collect(),
            queue: PushStack::new(),
            phase: UnsafeCell::new(Phase::Unstarted),
            queued: Cell::new(false),
            freed: Cell::new(0),
        })
    }

    pub(super) fn phase(&self) -> Phase {
        // SAFETY: the caller owns the coroutine or the block.
        self.phase.with(|phase| unsafe { *phase })
    }

    fn set_phase(&self, phase: Phase) {
        // SAFETY: the caller is the home thread.
        self.phase.with_mut(|place| unsafe { *place = phase });
    }

    pub(super) fn times_freed(&self) -> u32 {
        self.freed.get()
    }
}

/// Other threads' side.
impl Coroutine {
    /// Makes a condition true, and wakes the coroutine.
    pub(super) fn fulfil(&self, condition: usize) {
        self.conditions[condition].store(true, Ordering::Relaxed);
        self.act_on(self.state.wake(0));
    }

    /// Spawns the coroutine on its home.
    pub(super) fn spawn(&self) {
        // SAFETY: the caller owns the coroutine.
        self.home.with_mut(|home| unsafe { *home = true });
        self.state.mark_queued();
        self.push();
    }

    /// Does what the outcome of a wake asks for.
    pub(super) fn act_on(&self, wake: Wake) {
        if wake != Wake::Schedule {
            return;
        }
        // SAFETY: whoever schedules the block may read this.
        if self.home.with(|home| unsafe { *home }) {
            self.push();
        } else {
            self.drop_entry();
        }
    }

    /// Puts the block into its home's queue.
    fn push(&self) {
        assert!(!self.queued.replace(true), "a block stands in the queue twice");
        // SAFETY: it lives as long as the queue, and the caller owns the queue entry.
        unsafe { self.queue.push(NonNull::from(self)) };
    }

    /// Takes the block out of its home's queue.
    fn pop(&self) -> bool {
        let mut taken = self.queue.take_all().into_fifo();
        let found = taken.pop_front().is_some();
        assert!(taken.is_empty(), "a block stands in the queue twice");
        if found {
            assert!(self.queued.replace(false), "a block came out of the queue twice");
        }
        found
    }

    /// Drops what the queue holds, as a home does that has ended.
    pub(super) fn drop_turn(&self) {
        if self.pop() {
            self.drop_entry();
        }
    }

    fn drop_entry(&self) {
        if !self.state.is_scheduled() {
            self.state.park_instead();
        } else if self.state.unschedule() {
            self.free();
        }
    }

    /// Frees the block, as whoever owns it may.
    fn free(&self) {
        assert!(!self.queued.get(), "a block is freed while it stands in the queue");
        assert!(
            matches!(self.phase(), Phase::Finished | Phase::Unwound),
            "a block is freed before its coroutine has ended"
        );
        self.freed.set(self.freed.get() + 1);
        // SAFETY: whoever frees the block owns all of it; the link becomes the pool's.
        unsafe {
            self.home.with_mut(|home| *home = false);
            Chain::<RunAdapter>::new().prepend(NonNull::from(self));
        }
    }
}

/// The home thread's side.
impl Coroutine {
    /// Enters the coroutine by hand, if it hasn't ended.
    pub(super) fn enter(&self) {
        match self.phase() {
            Phase::Unstarted => self.run(),
            Phase::Parked | Phase::Requeued => {
                self.state.enter_parked();
                self.run();
            }
            Phase::Finished | Phase::Unwound => {}
        }
    }

    /// Gives the coroutine its turn, if it is in the queue.
    pub(super) fn take_turn(&self) {
        race::let_others_go_first();
        if !self.pop() {
            return;
        }
        if self.phase() == Phase::Unstarted {
            let cancelled = self.state.is_cancelled();
            self.state.unschedule();
            return if cancelled { self.end(Phase::Unwound) } else { self.run() };
        }
        match self.state.take_turn(matches!(self.phase(), Phase::Parked | Phase::Requeued)) {
            Turn::Run => self.run(),
            Turn::Unwind => self.end(Phase::Unwound),
            Turn::Skip => {}
            Turn::Free => self.free(),
        }
    }

    /// The body.
    fn run(&self) {
        while !self.conditions.iter().all(|condition| condition.load(Ordering::Relaxed)) {
            if !self.find_home() {
                race::let_others_go_first();
                continue;
            }
            match self.state.park() {
                Park::Suspend => return self.set_phase(Phase::Parked),
                Park::Woken => {}
                Park::Cancelled => return self.end(Phase::Unwound),
            }
        }
        self.end(Phase::Finished);
    }

    /// What happens before a park. Returns whether to park.
    fn find_home(&self) -> bool {
        // SAFETY: the home thread may always read this, and write it while no queue has the block.
        unsafe {
            if self.home.with(|home| *home) || !self.in_loop.get() {
                return true;
            }
            if self.state.is_scheduled() {
                return false;
            }
            self.home.with_mut(|home| *home = true);
            true
        }
    }

    /// It is started, and yields: the home puts it into the queue for another turn.
    pub(super) fn start_and_yield(&self) {
        assert!(self.find_home());
        self.set_phase(Phase::Requeued);
        self.push();
    }

    fn end(&self, phase: Phase) {
        self.set_phase(phase);
        if self.state.retire() {
            self.free();
        }
    }
}
