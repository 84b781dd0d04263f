//! The semaphore: a gate with room for as many as there are permits.
#![allow(unsafe_code)] // # Safety: data is touched with permits taken; that it is enough is checked.

use std::rc::Rc;

use super::race;
use crate::park;
use crate::primitive::UnsafeCell;
use crate::primitive::atomic::{AtomicUsize, Ordering};
use crate::sync::raw::semaphore::RawSemaphore;

models! {
    permits_are_neither_lost_nor_made catches overtake_the_queue;
    what_was_done_comes_with_the_permits catches give_not_released, try_enter_not_acquired;
    what_was_done_comes_past_one_that_gives_up catches withdraw_not_released;
    a_large_request_is_not_overtaken catches overtake_the_queue;
    a_request_is_withdrawn catches withdrawn_waiter_lets_nobody_in, unwound_waiter_keeps_its_turn;
}

struct Budget {
    semaphore: RawSemaphore,
    /// How many are taken. Relaxed: an observer.
    taken: AtomicUsize,
    /// Written before permits are given back, read by those who take them.
    data: UnsafeCell<u32>,
}

const TOTAL: usize = 2;

impl Budget {
    fn new() -> Rc<Self> {
        Rc::new(Self { semaphore: RawSemaphore::new(TOTAL), taken: AtomicUsize::new(0), data: UnsafeCell::new(0) })
    }

    fn use_some(&self, permits: usize) {
        assert!(self.semaphore.acquire(permits, None));
        self.give_back(permits);
    }

    fn give_back(&self, permits: usize) {
        assert!(self.taken.fetch_add(permits, Ordering::Relaxed) + permits <= TOTAL);
        self.taken.fetch_sub(permits, Ordering::Relaxed);
        self.semaphore.release(permits);
    }
}

/// Whatever is taken comes back, and nobody waits for what is there.
fn permits_are_neither_lost_nor_made() {
    let budget = Budget::new();

    race::three(&budget, |budget| budget.use_some(1), |budget| budget.use_some(2), |budget| budget.use_some(1));

    assert_eq!(budget.semaphore.available(), TOTAL);
}

impl Budget {
    fn write(&self) {
        // SAFETY: all permits are taken; loom checks.
        self.data.with_mut(|data| unsafe { *data += 1 });
    }

    fn read(&self) -> u32 {
        // SAFETY: a permit is taken; loom checks.
        self.data.with(|data| unsafe { *data })
    }
}

/// Those who share what is given back see what was done before, the one that is let in and the one that finds the rest.
fn what_was_done_comes_with_the_permits() {
    let budget = Budget::new();
    assert!(budget.semaphore.acquire(2, None));
    let take_one = |budget: &Budget| {
        budget.semaphore.acquire(1, None);
        assert_eq!(budget.read(), 1);
    };

    race::three(&budget, take_one, take_one, |budget| {
        budget.write();
        budget.semaphore.release(2);
    });

    assert_eq!(budget.semaphore.available(), 0);
}

/// The same though the queue was there only for one that wanted more, and gives up.
fn what_was_done_comes_past_one_that_gives_up() {
    let budget = Budget::new();
    assert!(budget.semaphore.acquire(2, None));

    race::three(
        &budget,
        |budget| {
            budget.write();
            budget.semaphore.release(1);
        },
        |budget| assert!(!budget.semaphore.acquire(2, park::passed())),
        |budget| {
            race::let_others_go_first();
            if budget.semaphore.try_acquire(1) {
                assert_eq!(budget.read(), 1);
            }
        },
    );
}

/// One that waits for all has them before the next one that wants some.
fn a_large_request_is_not_overtaken() {
    let budget = Budget::new();
    assert!(budget.semaphore.acquire(1, None));

    race::two(
        &budget,
        |budget| budget.use_some(TOTAL),
        |budget| {
            race::let_others_go_first();
            // There is a permit, but whoever waits comes first.
            if budget.semaphore.try_acquire(1) {
                budget.semaphore.release(1);
            }
            budget.semaphore.release(1);
        },
    );

    assert_eq!(budget.semaphore.available(), TOTAL);
}

/// One that waits for all gives up, or is unwound: the others don't have to wait any more, and what it was given is
/// there again.
fn a_request_is_withdrawn() {
    let budget = Budget::new();
    assert!(budget.semaphore.acquire(1, None));

    race::three(
        &budget,
        |budget| {
            if budget.semaphore.acquire(TOTAL, park::passed()) {
                budget.give_back(TOTAL);
            }
        },
        |budget| {
            if park::cancelled(|| budget.semaphore.acquire(TOTAL, None)) {
                budget.give_back(TOTAL);
            }
        },
        |budget| {
            // The permit that is taken comes back only when this one has been in.
            budget.use_some(1);
            budget.semaphore.release(1);
        },
    );

    assert_eq!(budget.semaphore.available(), TOTAL);
}
