//! The mutex: a gate with room for one.
//!
//! Waiters of the unlocker's thread are made owners, waiters of others are called; a waiter doesn't change sides. So
//! there are models of each kind.
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
    called_ones_exclude_one_another catches
        called_one_does_not_look, called_one_leaves_the_queue_open, call_not_released, come_not_acquired;
    a_called_one_gives_up catches withdrawn_call_stays;
    a_called_one_is_unwound catches withdrawn_call_stays;
    one_that_is_passed_gives_up preempted 1 less catches withdrawn_call_not_acquired;
}

/// Who the threads of a model are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lockers {
    OfOneThread,
    OfManyThreads,
}
use Lockers::{OfManyThreads, OfOneThread};

struct Counter {
    mutex: RawMutex,
    /// Protected by the mutex.
    count: UnsafeCell<u32>,
}

impl Counter {
    fn new(lockers: Lockers) -> Rc<Self> {
        park::set_on_one_thread(lockers == OfOneThread);
        Rc::new(Self { mutex: RawMutex::new(), count: UnsafeCell::new(0) })
    }

    fn lock(&self, deadline: Option<Instant>) -> bool {
        self.mutex.lock(deadline, Location::caller())
    }

    /// Locks, counts, unlocks; returns whether it has.
    fn count(&self, deadline: Option<Instant>) -> bool {
        self.count_if(self.lock(deadline))
    }

    /// The same without waiting.
    fn try_count(&self) -> bool {
        self.count_if(self.mutex.try_lock(Location::caller()))
    }

    fn count_if(&self, locked: bool) -> bool {
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
fn all_get_through(lockers: Lockers) {
    let counter = Counter::new(lockers);
    let count = |counter: &Counter| assert!(counter.count(None));

    race::three(&counter, count, count, count);

    counter.assert_free_after(3);
}

fn lockers_exclude_one_another() {
    all_get_through(OfOneThread);
}

fn called_ones_exclude_one_another() {
    all_get_through(OfManyThreads);
}

/// One whose deadline passes, or that is unwound, either has the mutex or doesn't, and the others get through.
fn one_leaves(lockers: Lockers, leaver: fn(&Counter) -> bool) {
    let counter = Counter::new(lockers);
    let count = |counter: &Counter| assert!(counter.count(None));

    let (.., counted) = race::three(&counter, count, count, leaver);

    counter.assert_free_after(2 + u32::from(counted));
}

fn count_in_time(counter: &Counter) -> bool {
    counter.count(park::passed())
}

fn count_unwound(counter: &Counter) -> bool {
    park::cancelled(|| counter.count(None))
}

fn a_waiter_gives_up() {
    one_leaves(OfOneThread, count_in_time);
}

fn a_waiter_is_unwound() {
    one_leaves(OfOneThread, count_unwound);
}

fn a_called_one_gives_up() {
    one_leaves(OfManyThreads, count_in_time);
}

fn a_called_one_is_unwound() {
    one_leaves(OfManyThreads, count_unwound);
}

/// What was done past one that has been called, and gives up, is visible to the next one.
fn one_that_is_passed_gives_up() {
    let counter = Counter::new(OfManyThreads);
    assert!(counter.lock(None));

    let (_, passed, counted) = race::three(
        &counter,
        |counter| assert!(counter.count(None)),
        |counter| {
            counter.mutex.unlock();
            counter.try_count()
        },
        count_in_time,
    );

    counter.assert_free_after(1 + u32::from(passed) + u32::from(counted));
}
