//! The wait queue, with a condition that is changed outside of any lock.

use std::rc::Rc;

use super::race;
use crate::park;
use crate::primitive::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::raw::wait_queue::{End, RawWaitQueue};

models! {
    a_change_is_not_missed catches look_before_joining;
    all_are_woken catches look_before_joining;
    a_wake_is_handed_on catches wake_is_not_handed_on, unwound_waiter_keeps_its_turn;
    one_wake_wakes_one catches wake_two;
}

struct Place {
    queue: RawWaitQueue,
    /// Relaxed: it is the queue that makes it visible.
    condition: AtomicBool,
    /// How many have been woken.
    woken: AtomicUsize,
}

impl Place {
    fn new() -> Rc<Self> {
        Rc::new(Self { queue: RawWaitQueue::new(), condition: AtomicBool::new(false), woken: AtomicUsize::new(0) })
    }

    fn is_true(&self) -> bool {
        self.condition.load(Ordering::Relaxed)
    }

    /// Waits until the condition is true.
    fn wait(&self) {
        while !self.queue.wait(End::Back, None, || !self.is_true(), |woken| !woken || self.is_true()) {}
    }

    fn make_true(&self) {
        self.condition.store(true, Ordering::Relaxed);
    }

    /// Waits for a wake, whatever the condition.
    fn wait_for_wake(&self, end: End) {
        self.queue.wait(end, None, || true, |_| ());
        self.woken.fetch_add(1, Ordering::Relaxed);
    }
}

/// One that looks after it has joined doesn't miss what is changed before a wake.
fn a_change_is_not_missed() {
    let place = Place::new();

    race::two(&place, Place::wait, |place| {
        place.make_true();
        place.queue.wake_one();
    });

    assert!(place.queue.is_empty());
}

/// The same for two, one of which may give up while the list is being emptied.
fn all_are_woken() {
    let place = Place::new();

    race::three(
        &place,
        Place::wait,
        |place| {
            place.queue.wait(End::Front, park::passed(), || true, |_| ());
        },
        |place| {
            place.make_true();
            place.queue.wake_all();
        },
    );

    assert!(place.queue.is_empty());
}

/// The one that is woken is unwound: then the other one is.
fn a_wake_is_handed_on() {
    let place = Place::new();

    race::three(
        &place,
        Place::wait,
        |place| {
            if park::cancelled(|| place.queue.wait(End::Front, None, || true, |woken| woken)) {
                // It wasn't unwound: what it has been told is for the other one.
                place.queue.wake_one();
            }
        },
        |place| {
            place.make_true();
            place.queue.wake_one();
        },
    );

    assert!(place.queue.is_empty());
}

/// Of two that wait, a wake wakes one.
fn one_wake_wakes_one() {
    let place = Place::new();

    race::three(
        &place,
        |place| place.wait_for_wake(End::Back),
        |place| place.wait_for_wake(End::Front),
        |place| {
            while !place.queue.wake_one() {
                race::let_others_go_first();
            }
            assert!(place.woken.load(Ordering::Relaxed) <= 1, "a wake woke two");
            while !place.queue.wake_one() {
                race::let_others_go_first();
            }
        },
    );

    assert_eq!(place.woken.load(Ordering::Relaxed), 2);
}
