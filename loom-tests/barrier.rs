//! The barrier: a count of those who have come, and those who wait for the rest.
#![allow(unsafe_code)] // # Safety: data is touched after a meeting; that it is enough is checked.

use std::rc::Rc;

use super::race;
use crate::park;
use crate::primitive::UnsafeCell;
use crate::sync::raw::barrier::RawBarrier;
use crate::sync::raw::event::RawEvent;

models! {
    they_meet_twice catches last_one_wakes_nobody, look_before_joining;
    a_wake_of_the_first_round_does_not_end_the_second catches any_wake_ends_the_round;
    one_goes_and_comes_again catches one_that_leaves_counts;
    one_is_unwound catches one_that_leaves_counts;
}

struct Meeting {
    barrier: RawBarrier,
    /// Each writes one before it comes, and reads the other one when it goes.
    brought: [UnsafeCell<u32>; 2],
    first_has_gone: RawEvent,
}

impl Meeting {
    fn new() -> Rc<Self> {
        let brought = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Rc::new(Self { barrier: RawBarrier::new(2), brought, first_has_gone: RawEvent::new() })
    }

    fn bring(&self, who: usize) {
        // SAFETY: the other one looks only when both have come; loom checks.
        self.brought[who].with_mut(|brought| unsafe { *brought += 1 });
    }

    fn look(&self, who: usize) -> u32 {
        // SAFETY: the other one writes before it comes, and never again in these models; loom checks.
        self.brought[who].with(|brought| unsafe { *brought })
    }

    fn wait(&self) -> bool {
        self.barrier.wait(None).expect("there is no deadline")
    }

    /// Brings something and meets the other one; returns whether it came last.
    fn meet(&self, who: usize) -> bool {
        self.bring(who);
        let came_last = self.wait();
        assert_eq!(self.look(1 - who), 1, "the other one hasn't come");
        came_last
    }
}

/// One of the two comes last, each time.
fn they_meet_twice() {
    let meeting = Meeting::new();
    let twice = |who| move |meeting: &Meeting| [meeting.meet(who), meeting.wait()];

    let (first, second) = race::two(&meeting, twice(0), twice(1));

    for (first, second) in first.into_iter().zip(second) {
        assert!(first != second, "one of the two comes last");
    }
    assert_eq!(meeting.barrier.arrived(), 0);
}

/// A third one, which comes when the first has gone, may find the second on its way to wake the first.
fn a_wake_of_the_first_round_does_not_end_the_second() {
    let meeting = Meeting::new();

    race::three(
        &meeting,
        |meeting| {
            meeting.meet(0);
            meeting.first_has_gone.set();
        },
        |meeting| {
            meeting.meet(1);
            meeting.wait();
        },
        |meeting| {
            meeting.first_has_gone.wait(None);
            meeting.wait();
        },
    );

    assert_eq!(meeting.barrier.arrived(), 0);
}

/// One whose deadline passes hasn't come, or both have.
fn one_goes_and_comes_again() {
    let meeting = Meeting::new();

    race::two(
        &meeting,
        |meeting| meeting.meet(0),
        |meeting| {
            meeting.bring(1);
            let met = meeting.barrier.wait(park::passed()).is_some();
            if met || meeting.barrier.wait(None).is_some() {
                assert_eq!(meeting.look(0), 1, "the other one hasn't come");
            }
        },
    );

    assert_eq!(meeting.barrier.arrived(), 0);
}

/// The same for one that is unwound.
fn one_is_unwound() {
    let meeting = Meeting::new();

    race::two(
        &meeting,
        |meeting| meeting.meet(0),
        |meeting| {
            meeting.bring(1);
            let met = park::cancelled(|| meeting.barrier.wait(None)).is_some();
            if !met {
                assert!(meeting.barrier.wait(None).is_some());
            }
        },
    );

    assert_eq!(meeting.barrier.arrived(), 0);
}
