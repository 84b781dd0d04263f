//! The raw event: a flag that is set once, and those who wait for it.
//!
//! A waiter looks at the flag after it has joined the queue; the flag is set before those in the queue are woken. So
//! nobody is missed (see [`wait_queue`](super::wait_queue)), and whoever comes later doesn't queue. What was done before
//! the flag was set is visible to whoever finds it set (Release and Acquire of the flag). Checked by the models `event`
//! of `loom-tests/`.

use std::time::Instant;

use super::wait_queue::{End, RawWaitQueue};
use crate::primitive::atomic::AtomicBool;
use crate::primitive::const_unless_model;
use crate::primitive::mutant::{mutant, ordering};

/// Something that happens once.
pub(crate) struct RawEvent {
    is_set: AtomicBool,
    waiters: RawWaitQueue,
}

impl RawEvent {
    const_unless_model! {
        pub(crate) fn new() -> Self {
            Self { is_set: AtomicBool::new(false), waiters: RawWaitQueue::new() }
        }
    }

    /// It happens: wakes all who wait.
    pub(crate) fn set(&self) {
        if mutant!("event_is_set_after_the_wake") {
            self.waiters.wake_all();
        }
        // Release: pairs with the Acquire of `is_set`.
        self.is_set.store(true, ordering!(Release, "event_not_released" => Relaxed));
        if !mutant!("event_is_set_after_the_wake") {
            self.waiters.wake_all();
        }
    }

    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        // Acquire: pairs with the Release of `set`.
        self.is_set.load(ordering!(Acquire, "event_not_acquired" => Relaxed))
    }

    /// Waits until it happens. Returns whether it has; not if the deadline passed first.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait.
    #[inline]
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        self.is_set() || self.waiters.wait(End::Back, deadline, || !self.is_set(), |_| self.is_set())
    }
}
