//! What the two sides of a request share: its result, and what is to be done when that is there.
//!
//! # How it goes round
//!
//! | `result` | who has `on_done`, and the memory that the request names | left when |
//! |---|---|---|
//! | pending, not submitted | the owner | it is submitted, which is what tells whoever carries it out |
//! | pending, submitted | whoever carries it out | the result is stored |
//! | a result | the owner | it begins anew, or is dropped |
//!
//! Storing the result hands both back, so it is the last that whoever carries it out does with the request; what is to be
//! done then has been taken out before. That store is a Release, and the owner's look an Acquire, as what was read into memory
//! comes with it. (`loom-tests/request.rs`)
//!
//! # Safety
//!
//! One side has the cell at a time, as the table says.
#![allow(unsafe_code)]

use std::fmt;
use std::mem;
use std::task::Waker;

use crate::primitive::atomic::{AtomicI64, Ordering};
use crate::primitive::mutant::{mutant, ordering};
use crate::primitive::{Mutex, UnsafeCell};

/// The result of a request that isn't done. No system call returns it.
const PENDING: i64 = i64::MIN;

/// A result, and what is to be done when it is there.
pub(crate) struct RequestState<T> {
    result: AtomicI64,
    on_done: UnsafeCell<T>,
}

// SAFETY: `on_done` has one owner at a time, as the head says.
unsafe impl<T: Send> Send for RequestState<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for RequestState<T> {}

impl<T: Default> RequestState<T> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { result: AtomicI64::new(PENDING), on_done: UnsafeCell::new(T::default()) }
    }

    /// Makes it pending, for the first time or again.
    ///
    /// # Safety
    ///
    /// The caller is the owner, and it isn't submitted, or has a result that the owner has seen.
    pub(crate) unsafe fn begin(&self, on_done: T) {
        self.result.store(PENDING, Ordering::Relaxed);
        // SAFETY: contract.
        self.on_done.with_mut(|place| unsafe { *place = on_done });
    }

    /// The result, if there is one.
    pub(crate) fn result(&self) -> Option<i64> {
        // Acquire: pairs with the Release of `complete`.
        let result = self.result.load(ordering!(Acquire, "result_not_acquired" => Relaxed));
        (result != PENDING).then_some(result)
    }

    /// Stores the result; returns what is to be done. The owner may drop it from then on, even before this returns.
    ///
    /// # Safety
    ///
    /// It is there, submitted and pending, and the caller is the one who carries it out.
    pub(crate) unsafe fn complete(this: *const Self, result: i64) -> T {
        // SAFETY: it is there until its result is stored.
        let Self { result: place, on_done } = unsafe { &*this };
        // SAFETY: what is to be done is ours until then.
        let take = || on_done.with_mut(|on_done| unsafe { mem::take(&mut *on_done) });
        // Release: pairs with the Acquire of `result`.
        let order = ordering!(Release, "result_not_released" => Relaxed);
        if mutant!("taken_after_the_result") {
            place.store(result, order);
            return take();
        }
        let on_done = take();
        place.store(result, order);
        on_done
    }
}

impl<T: Default> fmt::Debug for RequestState<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestState").field("result", &self.result()).finish_non_exhaustive()
    }
}

/// Counts requests that are done, and wakes somebody, once, when there are enough.
#[derive(Debug)]
pub(crate) struct Tally(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    done: usize,
    /// How many somebody waits for, and who.
    wanted: Option<(usize, Waker)>,
}

impl Default for Tally {
    fn default() -> Self {
        Self(Mutex::new(Counts::default()))
    }
}

impl Tally {
    /// How many are done.
    pub(crate) fn done(&self) -> usize {
        self.0.lock().done
    }

    /// Has `waker` woken when `wanted` are done, unless they are already. Returns whether they are.
    pub(crate) fn want(&self, wanted: usize, waker: Waker) -> bool {
        let mut counts = self.0.lock();
        let are_done = counts.done >= wanted && !mutant!("want_without_look");
        counts.wanted = (!are_done).then_some((wanted, waker));
        are_done
    }

    /// Counts one; returns who is to be woken.
    pub(crate) fn count(&self) -> Option<Waker> {
        let mut counts = self.0.lock();
        counts.done += 1;
        let done = counts.done;
        counts.wanted.take_if(|(wanted, _)| *wanted <= done).map(|(_, waker)| waker)
    }
}
