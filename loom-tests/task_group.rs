//! The task group: places, and a parent that waits.
//!
//! The threads stand for coroutines of one thread, which take turns at fewer places than threads do. So what they share
//! besides the group needs no atomics, as in the group itself.

use std::cell::Cell;
use std::rc::Rc;

use super::race;
use crate::park;
use crate::sync::raw::event::RawEvent;
use crate::sync::raw::task_group::RawTaskGroup;

models! {
    the_parent_waits_for_a_child catches parent_does_not_wait, last_child_wakes_nobody, look_before_joining;
    a_place_is_used_again catches ended_child_keeps_its_place;
    a_spawner_is_unwound catches child_without_a_place_counts, unwound_waiter_keeps_its_turn;
}

struct Family {
    group: RawTaskGroup,
    /// The children have been spawned.
    spawned: [RawEvent; 2],
    inside: Cell<u32>,
    ended: Cell<u32>,
}

impl Family {
    fn new() -> Rc<Self> {
        let spawned = [RawEvent::new(), RawEvent::new()];
        Rc::new(Self { group: RawTaskGroup::new(1), spawned, inside: Cell::new(0), ended: Cell::new(0) })
    }

    /// That child is spawned.
    fn spawn(&self, child: usize) {
        assert!(self.group.begin(), "it isn't unwound");
        self.spawned[child].set();
    }

    /// That child runs, once it has been spawned.
    fn run(&self, child: usize) {
        assert!(self.spawned[child].wait(None));
        self.inside.set(self.inside.get() + 1);
        assert_eq!(self.inside.get(), 1, "more than may be are running");
        race::let_others_go_first();
        self.inside.set(self.inside.get() - 1);
        self.ended.set(self.ended.get() + 1);
        self.group.end();
    }

    /// The parent waits for so many.
    fn wait(&self, children: u32) {
        self.group.wait();
        assert_eq!(self.ended.get(), children, "a child outlives its parent");
    }
}

/// The parent is gone only after its child, and goes.
fn the_parent_waits_for_a_child() {
    let family = Family::new();

    race::two(
        &family,
        |family| family.run(0),
        |family| {
            family.spawn(0);
            family.wait(1);
        },
    );
}

/// Children for whom there is only one place run one after the other.
fn a_place_is_used_again() {
    let family = Family::new();

    race::three(
        &family,
        |family| family.run(0),
        |family| family.run(1),
        |family| {
            family.spawn(0);
            family.spawn(1);
            family.wait(2);
        },
    );
}

/// A child that is unwound while it waits for a place for a child of its own leaves neither a child nor a place behind.
fn a_spawner_is_unwound() {
    let family = Family::new();

    race::three(
        &family,
        |family| family.run(0),
        |family| {
            if park::cancelled(|| family.group.begin()) {
                family.ended.set(family.ended.get() + 1);
                family.group.end();
            }
        },
        |family| {
            family.spawn(0);
            family.group.wait();
            assert!(family.ended.get() >= 1);
            family.spawn(1);
        },
    );
}
