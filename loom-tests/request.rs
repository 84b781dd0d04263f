//! Requests: a result that hands memory back, and a tally of several.
#![allow(unsafe_code)] // # Safety: the contract of `RequestState`, and memory that a request names; that it is enough is checked.

use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use super::race;
use crate::aio::request_state::{RequestState, Tally};
use crate::park;
use crate::primitive::UnsafeCell;
use crate::primitive::atomic::{AtomicBool, Ordering};

models! {
    what_is_done_is_its_owners catches result_not_released, result_not_acquired, taken_after_the_result;
    a_bypass_is_dropped_as_soon_as_it_is_done catches
        result_not_released, result_not_acquired, taken_after_the_result;
    no_completion_of_several_is_missed catches want_without_look;
}

/// A request, and what its call names.
struct Reading<T> {
    state: RequestState<T>,
    is_submitted: AtomicBool,
    buffer: UnsafeCell<i64>,
}

impl<T: Default> Reading<T> {
    fn new() -> Self {
        Self { state: RequestState::new(), is_submitted: AtomicBool::new(false), buffer: UnsafeCell::new(0) }
    }

    fn submit(&self, on_done: T) {
        // SAFETY: it is the owner's.
        unsafe { self.state.begin(on_done) };
        // Release: pairs with the Acquire of `carry_out`; so do the queues that lead to the kernel and to workers.
        self.is_submitted.store(true, Ordering::Release);
    }

    /// Reads this, in the kernel's or a worker's place; returns what is to be done then.
    fn carry_out(&self, result: i64) -> T {
        while !self.is_submitted.load(Ordering::Acquire) {
            race::let_others_go_first();
        }
        // SAFETY: it is submitted, here and below.
        self.buffer.with_mut(|buffer| unsafe { *buffer = result });
        // Before the result is stored, after which it may be submitted again.
        self.is_submitted.store(false, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { RequestState::complete(ptr::from_ref(&self.state), result) }
    }

    /// What has been read, and its place.
    fn take(&self, result: i64) {
        // SAFETY: there is a result, so it is the owner's.
        self.buffer.with_mut(|buffer| unsafe { assert_eq!(ptr::replace(buffer, 0), result) });
    }
}

/// The owner, who parks until there is a result, finds what was read, and has everything to itself: it begins anew at once.
fn what_is_done_is_its_owners() {
    let reading = Rc::new(Reading::<Option<Waker>>::new());
    let wait = |reading: &Reading<Option<Waker>>| {
        loop {
            if let Some(result) = reading.state.result() {
                return reading.take(result);
            }
            park::park();
        }
    };

    race::two(
        &reading,
        move |reading| {
            for _ in 0..2 {
                reading.submit(Some(park::waker()));
                wait(reading);
            }
        },
        |reading| {
            for result in [3, -5] {
                reading.carry_out(result).expect("there is a waker").wake();
            }
        },
    );
}

/// A context that ends asks for the result of each bypass until it is there, and drops the bypass then, though the one who
/// carried it out hasn't told anybody yet.
fn a_bypass_is_dropped_as_soon_as_it_is_done() {
    let reading = Rc::new(Reading::<Option<Waker>>::new());

    race::two(
        &reading,
        |reading| {
            reading.submit(Some(park::waker()));
            let result = loop {
                if let Some(result) = reading.state.result() {
                    break result;
                }
                race::let_others_go_first();
            };
            reading.take(result);
            // SAFETY: it is the owner's again.
            unsafe { reading.state.begin(None) };
        },
        |reading| drop(reading.carry_out(7).expect("there is a waker")),
    );
}

/// A wait for two of two is woken, whenever they complete, and once.
fn no_completion_of_several_is_missed() {
    let tally = Rc::new(Arc::new(Tally::default()));
    let count = |tally: &Arc<Tally>| tally.count().inspect(Waker::wake_by_ref).is_some();

    let (first, second, ()) = race::three(&tally, count, count, |tally| {
        while !tally.want(2, park::waker()) {
            park::park();
        }
        assert_eq!(tally.done(), 2);
    });
    assert!(!(first && second), "woken twice");
}
