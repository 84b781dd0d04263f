//! The event: a flag, and those who wait for it.
#![allow(unsafe_code)] // # Safety: data is touched after a wait; that it is enough is checked.

use std::rc::Rc;

use super::race;
use crate::park;
use crate::primitive::UnsafeCell;
use crate::sync::raw::event::RawEvent;

models! {
    all_are_told catches event_is_set_after_the_wake, look_before_joining;
    what_was_done_before_is_visible catches event_not_released, event_not_acquired;
    a_waiter_gives_up catches event_is_set_after_the_wake;
}

struct Done {
    event: RawEvent,
    /// Written before the event, read after it.
    result: UnsafeCell<u32>,
}

impl Done {
    fn new() -> Rc<Self> {
        Rc::new(Self { event: RawEvent::new(), result: UnsafeCell::new(0) })
    }

    fn set(&self) {
        // SAFETY: nobody else looks at it before the event; loom checks.
        self.result.with_mut(|result| unsafe { *result = 1 });
        self.event.set();
    }

    fn assert_done(&self) {
        // SAFETY: nobody writes it after the event; loom checks.
        assert_eq!(self.result.with(|result| unsafe { *result }), 1);
    }

    fn wait(&self) {
        assert!(self.event.wait(None), "it hasn't happened");
        self.assert_done();
    }
}

/// Nobody sleeps on, and nobody is told too early.
fn all_are_told() {
    let done = Done::new();

    race::three(&done, Done::wait, Done::wait, Done::set);

    assert!(done.event.is_set());
}

/// Also to one that doesn't wait.
fn what_was_done_before_is_visible() {
    let done = Done::new();

    race::two(
        &done,
        |done| {
            race::let_others_go_first();
            if done.event.is_set() {
                done.assert_done();
            }
        },
        Done::set,
    );
}

/// One whose deadline passes is told the truth, and the other one is told all the same.
fn a_waiter_gives_up() {
    let done = Done::new();

    race::three(
        &done,
        |done| {
            if done.event.wait(park::passed()) {
                done.assert_done();
            }
        },
        Done::wait,
        Done::set,
    );
}
