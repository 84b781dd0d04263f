//! The mutex: a gate with room for one.
#![allow(unsafe_code)] // # Safety: data is touched with the lock held, or after a wait; that it is enough is checked.

use std::panic::Location;
use std::rc::Rc;
use std::time::Instant;

use super::race;
use crate::park;
use crate::primitive::UnsafeCell;
use crate::sync::raw::mutex::RawMutex;

models! {
    lockers_exclude_one_another catches
        enter_from_not_acquired, leave_from_not_released, enter_slow_not_acquired,
        turn_not_acquired_by_waiter, turn_not_released_to_waiter;
    a_waiter_gives_up catches late_turn_is_lost;
    a_waiter_is_unwound catches unwound_waiter_keeps_its_turn;
}

struct Counter {
    mutex: RawMutex,
    /// Protected by the mutex.
    count: UnsafeCell<u32>,
}

impl Counter {
    fn new() -> Rc<Self> {
        Rc::new(Self { mutex: RawMutex::new(), count: UnsafeCell::new(0) })
    }

    fn lock(&self, deadline: Option<Instant>) -> bool {
        self.mutex.lock(deadline, Location::caller())
    }

    /// Locks, counts, unlocks; returns whether it has.
    fn count(&self, deadline: Option<Instant>) -> bool {
        let locked = self.lock(deadline);
        if locked {
            // SAFETY: the mutex is locked; loom checks.
            self.count.with_mut(|count| unsafe { *count += 1 });
            self.mutex.unlock();
        }
        locked
    }

    fn assert_free_after(&self, times: u32) {
        assert!(self.mutex.try_lock(Location::caller()), "the mutex stays locked");
        // SAFETY: as above.
        assert_eq!(self.count.with(|count| unsafe { *count }), times);
    }
}

/// Three lockers of which none gives up all get through, and see what the ones before did.
fn lockers_exclude_one_another() {
    let counter = Counter::new();
    let count = |counter: &Counter| assert!(counter.count(None));

    race::three(&counter, count, count, count);

    counter.assert_free_after(3);
}

/// One whose deadline passes either has the mutex or doesn't, and the others get through.
fn a_waiter_gives_up() {
    let counter = Counter::new();
    let count = |counter: &Counter| assert!(counter.count(None));

    let (_, _, counted) = race::three(&counter, count, count, |counter| counter.count(park::passed()));

    counter.assert_free_after(2 + u32::from(counted));
}

/// One that is unwound while it waits doesn't keep the mutex that it was given.
fn a_waiter_is_unwound() {
    let counter = Counter::new();
    let count = |counter: &Counter| assert!(counter.count(None));

    let unwound = |counter: &Counter| park::cancelled(|| counter.count(None));
    let (_, _, counted) = race::three(&counter, count, count, unwound);

    counter.assert_free_after(2 + u32::from(counted));
}
