//! The raw barrier: a count of those who have come, and those who wait for the rest.
//!
//! The count and the number of the round are under a lock. The last one to come begins the next round and then wakes; a
//! waiter looks at the round after it has joined the queue, so it isn't missed (see [`wait_queue`](super::wait_queue)).
//! A wake is for all who are in the queue, among them perhaps those who have come for the next round already: they see
//! that their round isn't over, and wait again.
//!
//! What each did before it came is visible to all when they go, by the lock. One that stops waiting takes its arrival
//! back, unless its round is over: then it has come, whatever made it stop. Checked by the models `barrier` of
//! `loom-tests/`.

use std::mem;
use std::time::Instant;

use super::wait_queue::{End, RawWaitQueue};
use crate::primitive::mutant::mutant;
use crate::primitive::{Mutex, const_unless_model};

/// A place to meet.
pub(crate) struct RawBarrier {
    parties: usize,
    state: Mutex<State>,
    waiters: RawWaitQueue,
}

struct State {
    /// How many have come in this round.
    arrived: usize,
    /// How often all have.
    round: u64,
}

impl RawBarrier {
    const_unless_model! {
        /// For so many, but at least one.
        pub(crate) fn new(parties: usize) -> Self {
            Self { parties, state: Mutex::new(State { arrived: 0, round: 0 }), waiters: RawWaitQueue::new() }
        }
    }

    pub(crate) fn parties(&self) -> usize {
        self.parties
    }

    /// How many have come and wait for the rest.
    pub(crate) fn arrived(&self) -> usize {
        self.state.lock().arrived
    }

    /// Waits until all have come. Returns true to the last one, and nothing if the deadline passed first; then it hasn't
    /// come.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait; then it hasn't come, unless all have.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<bool> {
        let mut state = self.state.lock();
        state.arrived += 1;
        if state.arrived == self.parties {
            state.arrived = 0;
            state.round += 1;
            drop(state);
            if !mutant!("last_one_wakes_nobody") {
                self.waiters.wake_all();
            }
            return Some(true);
        }
        let arrival = Arrival { barrier: self, round: state.round };
        drop(state);
        let mut in_time = true;
        while in_time && !arrival.is_over() {
            in_time = self.waiters.wait(End::Back, deadline, || !arrival.is_over(), |woken| woken) || arrival.is_over();
            if mutant!("any_wake_ends_the_round") {
                break;
            }
        }
        let is_over = arrival.take_back();
        mem::forget(arrival);
        is_over.then_some(false)
    }
}

/// One who has come, and takes it back when this is dropped, unless all have come.
struct Arrival<'a> {
    barrier: &'a RawBarrier,
    round: u64,
}

impl Arrival<'_> {
    fn is_over(&self) -> bool {
        self.barrier.state.lock().round != self.round
    }

    /// Returns whether the round is over; otherwise it counts no more.
    fn take_back(&self) -> bool {
        let mut state = self.barrier.state.lock();
        let is_over = state.round != self.round;
        if !is_over && !mutant!("one_that_leaves_counts") {
            state.arrived -= 1;
        }
        is_over
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        // A model is only unwound when it has failed.
        if cfg!(not(all(test, loom))) {
            self.take_back();
        }
    }
}
