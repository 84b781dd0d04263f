//! The raw task group: places for children, and a count of those that haven't ended.
//!
//! A child is counted by whoever spawns it, once there is a place for it, and counts until it has ended. The last one to
//! end wakes the parent, which looks at the count after it has joined the queue, so it isn't missed (see
//! [`wait_queue`](super::wait_queue)). A spawner that is unwound while it waits for a place hasn't counted anybody.
//!
//! All of a group are coroutines of one thread, so cells will do. Checked by the models `task_group` of `loom-tests/`.

use std::cell::Cell;

use super::semaphore::RawSemaphore;
use super::wait_queue::{End, RawWaitQueue};
use crate::primitive::mutant::mutant;

/// Places, and a count of those who have one.
pub(crate) struct RawTaskGroup {
    places: RawSemaphore,
    /// How many have begun and haven't ended.
    running: Cell<usize>,
    all_ended: RawWaitQueue,
}

impl RawTaskGroup {
    /// With so many places.
    pub(crate) fn new(limit: usize) -> Self {
        Self { places: RawSemaphore::new(limit), running: Cell::new(0), all_ended: RawWaitQueue::new() }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.get()
    }

    /// A child is to be spawned: waits for a place, and counts it. Returns whether it does; always, except in a model
    /// whose spawner is unwound.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait; then the child doesn't count.
    pub(crate) fn begin(&self) -> bool {
        let has_place = self.places.acquire(1, None);
        if has_place || mutant!("child_without_a_place_counts") {
            self.running.set(self.running() + 1);
        }
        has_place
    }

    /// A child has ended.
    pub(crate) fn end(&self) {
        self.running.set(self.running() - 1);
        if self.running() == 0 && !mutant!("last_child_wakes_nobody") {
            self.all_ended.wake_all();
        }
        if !mutant!("ended_child_keeps_its_place") {
            self.places.release(1);
        }
    }

    /// Waits until all have ended.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait.
    pub(crate) fn wait(&self) {
        while self.running() > 0 && !mutant!("parent_does_not_wait") {
            self.all_ended.wait(End::Back, None, || self.running() > 0, |_| ());
        }
    }
}
