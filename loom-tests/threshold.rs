//! The threshold: a count that is advanced without a lock, and those who wait for it.
#![allow(unsafe_code)] // # Safety: data is touched with the lock held, or after a wait; that it is enough is checked.

use std::rc::Rc;

use super::race;
use crate::park;
use crate::primitive::UnsafeCell;
use crate::primitive::atomic::{AtomicU64, Ordering};
use crate::sync::raw::threshold::RawThreshold;

models! {
    what_was_done_before_an_advance_is_visible catches advance_not_released, count_not_acquired, join_not_acquired;
    no_advance_is_missed catches join_without_look;
    a_lower_number_is_not_missed catches advance_not_acquired, join_not_released;
    one_gives_up_while_the_other_is_due catches lowest_is_not_raised;
}

struct Completions {
    threshold: RawThreshold,
    /// Written before the first advance, read after the wait.
    result: UnsafeCell<u32>,
    /// Relaxed: an observer.
    reached: AtomicU64,
}

impl Completions {
    fn new() -> Rc<Self> {
        Rc::new(Self { threshold: RawThreshold::new(), result: UnsafeCell::new(0), reached: AtomicU64::new(0) })
    }

    fn wait(&self, number: u64) {
        assert!(self.threshold.wait(number, None));
        assert!(self.threshold.count() >= number);
        self.reached.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whoever has waited sees what came before the advances.
fn what_was_done_before_an_advance_is_visible() {
    let completions = Completions::new();

    race::two(
        &completions,
        |completions| {
            // SAFETY: nobody else looks at it before the advance; loom checks.
            completions.result.with_mut(|result| unsafe { *result = 1 });
            completions.threshold.advance(1);
        },
        |completions| {
            assert!(completions.threshold.wait(1, None));
            // SAFETY: as above.
            assert_eq!(completions.result.with(|result| unsafe { *result }), 1);
        },
    );
}

/// The waiter is woken by the last of two advances, or has no need to wait.
fn no_advance_is_missed() {
    let completions = Completions::new();
    let advance = |completions: &Completions| completions.threshold.advance(1);

    race::three(&completions, advance, advance, |completions| completions.wait(2));
}

/// One that waits for less than the one that waits already is woken before it.
fn a_lower_number_is_not_missed() {
    let completions = Completions::new();

    race::three(
        &completions,
        |completions| completions.wait(2),
        |completions| {
            completions.wait(1);
            completions.threshold.advance(1);
        },
        |completions| completions.threshold.advance(1),
    );
}

/// One gives up while the other is due.
fn one_gives_up_while_the_other_is_due() {
    let completions = Completions::new();

    let (reached, ..) = race::three(
        &completions,
        |completions| completions.threshold.wait(1, park::passed()),
        |completions| completions.wait(2),
        |completions| {
            completions.threshold.advance(1);
            completions.threshold.advance(1);
        },
    );

    assert!(!reached || completions.threshold.count() >= 1);
    assert!(completions.threshold.is_idle(), "nobody waits, and an advance would take the lock");
}
