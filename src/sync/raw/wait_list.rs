//! The engine under everything in `sync`: a list of waiters, which live on their own stacks.
//!
//! # Where a waiter's node lives
//!
//! In the frame of the function that waits ([`wait`](super::wait::wait) and its callers), so a wait allocates nothing.
//! That is sound because the frame can't go away while the list has the node:
//!
//! 1. A frame is left by a return or by an unwind. The functions that wait return only when the node is out of the
//!    list, and a drop guard takes it out when they are unwound: by a cancel, or by whatever else panics out of the
//!    park.
//! 2. A stack whose frames are not left is never reused and never unmapped: that of a coroutine whose handle was
//!    forgotten, that refused to be unwound, or that was dropped where nothing unwinds (`panic = "abort"`). Its node
//!    stays valid, and in the list. (A turn that such a waiter is given is lost, as is all else that it holds.)
//! 3. A plain thread that is ended without an unwind (`pthread_exit` in C code) over Rust frames is undefined behaviour
//!    for every borrow that they hold, with or without us.
//!
//! Async code has no such frame: there the node lives in a pinned future, as [`pending`](super::pending) tells.
//!
//! A list for nodes that may be withdrawn from its middle needs a lock; ours is held for a few loads and stores, never
//! over a park, a wake or other code of users.
//!
//! # Who may touch what
//!
//! 1. `links` belong to whoever holds the lock of the list.
//! 2. `waker` is the waiter's until it joins the list, and then belongs to whoever holds the lock.
//! 3. `turn` is written once, under the lock, when the waiter is taken off the list to have its turn; the waiter reads
//!    it without the lock. This is the last that anybody else does to the node: the waiter may be gone right after.
//!    Hence the waker is taken out before, and woken later, without the lock.
//! 4. Under the lock, a waiter that has joined is in the list, or in one that was [taken off whole](give_all), if and
//!    only if `turn` is [`WAITS`].
//!
//! # Ordering
//!
//! What was written before a turn was given is visible to the waiter that finds it (Release and Acquire of `turn`).
//! Checked by the models of `loom-tests/` on locks.
//!
//! # Safety
//!
//! This file may assume that its callers hold the list's lock, and that a waiter that has joined stays where it is until
//! it is out (contracts below). It promises rules 3 and 4.
#![allow(unsafe_code)]

use std::fmt;
use std::mem;
use std::ops::DerefMut;
use std::ptr::NonNull;
use std::task::Waker;

use crate::park;
use crate::primitive::UnsafeCell;
use crate::primitive::atomic::{AtomicU8, Ordering};
use crate::primitive::mutant::ordering;

/// How a waiter came to its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is its own: if the waiter can't use it, it hands it on.
    Own,
    /// All had one at once.
    Shared,
}

/// It has no turn yet.
const WAITS: u8 = 0;
const OWN: u8 = 1;
const SHARED: u8 = 2;
/// It was withdrawn, and won't have one.
const LEFT: u8 = 3;

/// Somebody who waits.
pub(crate) struct Waiter<P> {
    links: UnsafeCell<Links<P>>,
    waker: UnsafeCell<Option<Waker>>,
    turn: AtomicU8,
    /// What it waits for.
    pub(super) payload: P,
}

struct Links<P> {
    prev: Option<NonNull<Waiter<P>>>,
    next: Option<NonNull<Waiter<P>>>,
}

impl<P> Waiter<P> {
    /// The caller, who is about to wait.
    pub(super) fn new(payload: P) -> Self {
        Self::with(Some(park::waker()), payload)
    }

    /// A node that nobody waits with: the hub of a list that was taken off whole, or one whose
    /// [waker](Self::set_waker) is yet to come.
    pub(super) fn without_waker(payload: P) -> Self {
        Self::with(None, payload)
    }

    fn with(waker: Option<Waker>, payload: P) -> Self {
        Self {
            links: UnsafeCell::new(Links { prev: None, next: None }),
            waker: UnsafeCell::new(waker),
            turn: AtomicU8::new(WAITS),
            payload,
        }
    }

    /// Has `waker` woken when the waiter has its turn.
    ///
    /// # Safety
    ///
    /// It hasn't joined.
    pub(super) unsafe fn set_waker(&self, waker: Waker) {
        // SAFETY: rule 2.
        let old = self.waker.with_mut(|place| unsafe { (*place).replace(waker) });
        drop(old);
    }

    /// Its turn, if it has come.
    #[inline]
    pub(super) fn turn(&self) -> Option<Turn> {
        // Acquire: pairs with the Release of `give`.
        match self.turn.load(ordering!(Acquire, "turn_not_acquired_by_waiter" => Relaxed)) {
            OWN => Some(Turn::Own),
            SHARED => Some(Turn::Shared),
            _ => None,
        }
    }

    fn next(&self) -> Option<NonNull<Self>> {
        // SAFETY: the caller holds the lock of the list.
        self.links.with(|links| unsafe { (*links).next })
    }

    fn prev(&self) -> Option<NonNull<Self>> {
        // SAFETY: the caller holds the lock of the list.
        self.links.with(|links| unsafe { (*links).prev })
    }

    fn set_next(&self, next: Option<NonNull<Self>>) {
        // SAFETY: the caller holds the lock of the list.
        self.links.with_mut(|links| unsafe { (*links).next = next });
    }

    fn set_prev(&self, prev: Option<NonNull<Self>>) {
        // SAFETY: the caller holds the lock of the list.
        self.links.with_mut(|links| unsafe { (*links).prev = prev });
    }
}

impl<P> fmt::Debug for Waiter<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("turn", &self.turn()).finish_non_exhaustive()
    }
}

/// The waiters of one lock, in the order in which they are to have their turns. It lives in a
/// [`primitive::ShortLock`](crate::primitive::ShortLock), which is "the lock" here.
pub(crate) struct WaitList<P> {
    first: Option<NonNull<Waiter<P>>>,
    last: Option<NonNull<Waiter<P>>>,
}

// SAFETY: the nodes that it leads to are other threads' as it is, and are touched by the rules above; what they wait
// for goes to whoever holds the lock.
unsafe impl<P: Send> Send for WaitList<P> {}

impl<P> WaitList<P> {
    pub(super) const fn new() -> Self {
        Self { first: None, last: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The first waiter.
    pub(super) fn front(&self) -> Option<&Waiter<P>> {
        // SAFETY: nodes in the list are valid, and stay so while `self`, and with it the lock, is borrowed.
        self.first.map(|first| unsafe { first.as_ref() })
    }

    /// Whether the waiter is the first.
    pub(super) fn is_front(&self, waiter: &Waiter<P>) -> bool {
        self.first == Some(NonNull::from(waiter))
    }

    /// Whether the waiter is the last.
    pub(super) fn is_last(&self, waiter: &Waiter<P>) -> bool {
        self.last == Some(NonNull::from(waiter))
    }

    /// What wakes the first waiter, which stays in the list.
    pub(super) fn front_waker(&self) -> Option<Waker> {
        // SAFETY: the caller holds the lock of the list, where wakers are that list's.
        self.front().and_then(|first| first.waker.with(|waker| unsafe { (*waker).clone() }))
    }

    /// Adds a waiter at the end.
    ///
    /// # Safety
    ///
    /// The waiter stays where it is, and isn't dropped, until it has its turn or has been [removed](Self::remove).
    pub(super) unsafe fn push_back(&mut self, waiter: &Waiter<P>) {
        self.insert_after(self.last, waiter);
    }

    /// Adds a waiter at the front.
    ///
    /// # Safety
    ///
    /// As for [`push_back`](Self::push_back).
    pub(super) unsafe fn push_front(&mut self, waiter: &Waiter<P>) {
        self.insert_after(None, waiter);
    }

    /// Adds a waiter behind the last one that `goes_before` it: looks from the end, at those that it overtakes.
    ///
    /// # Safety
    ///
    /// As for [`push_back`](Self::push_back).
    pub(super) unsafe fn insert_sorted(&mut self, waiter: &Waiter<P>, goes_before: impl Fn(&P) -> bool) {
        let mut place = self.last;
        // SAFETY: nodes in the list are valid.
        while let Some(other) = place.map(|other| unsafe { other.as_ref() })
            && !goes_before(&other.payload)
        {
            place = other.prev();
        }
        self.insert_after(place, waiter);
    }

    fn insert_after(&mut self, place: Option<NonNull<Waiter<P>>>, waiter: &Waiter<P>) {
        let node = NonNull::from(waiter);
        let next = match place {
            // SAFETY: nodes in the list are valid.
            Some(place) => unsafe { place.as_ref() }.next(),
            None => self.first,
        };
        waiter.set_prev(place);
        waiter.set_next(next);
        self.join(place, Some(node));
        self.join(Some(node), next);
    }

    /// Makes two nodes neighbours; `None` is the end of the list on that side.
    fn join(&mut self, left: Option<NonNull<Waiter<P>>>, right: Option<NonNull<Waiter<P>>>) {
        // SAFETY: nodes in the list, and the one that joins it, are valid.
        unsafe {
            match left {
                Some(left) => left.as_ref().set_next(right),
                None => self.first = right,
            }
            match right {
                Some(right) => right.as_ref().set_prev(left),
                None => self.last = left,
            }
        }
    }

    /// Withdraws a waiter that has joined. Returns whether it was there; otherwise it has had its turn, or has left.
    pub(super) fn remove(&mut self, waiter: &Waiter<P>) -> bool {
        // Rule 4. Relaxed: it was written under the lock.
        let waits = waiter.turn.load(Ordering::Relaxed) == WAITS;
        if waits {
            // In a list that was taken off whole, both neighbours exist, and so this list's ends are left alone.
            self.join(waiter.prev(), waiter.next());
            waiter.turn.store(LEFT, Ordering::Relaxed);
        }
        waits
    }

    /// Has a waiter that has joined woken by `waker`. Returns the waker before, for the caller to drop without the
    /// lock, or else `waker`: the waiter has had its turn, or has left.
    pub(super) fn replace_waker(&mut self, waiter: &Waiter<P>, waker: Waker) -> Result<Waker, Waker> {
        // Rule 4. Relaxed: it was written under the lock.
        if waiter.turn.load(Ordering::Relaxed) != WAITS {
            return Err(waker);
        }
        // SAFETY: rule 2.
        let old = waiter.waker.with_mut(|place| unsafe { (*place).replace(waker) });
        Ok(old.expect("a waiter has a waker until its turn"))
    }

    /// Takes the first waiter off the list and gives it its turn. The caller wakes it, without the lock.
    pub(super) fn give_front(&mut self, turn: Turn) -> Option<Waker> {
        let first = self.first?;
        // SAFETY: it is in the list, hence valid and without a turn.
        Some(unsafe { self.give(first, turn) })
    }

    /// # Safety
    ///
    /// The waiter is in this list, or in one that was taken off whole.
    unsafe fn give(&mut self, waiter: NonNull<Waiter<P>>, turn: Turn) -> Waker {
        // SAFETY: nodes in the list are valid until the store below, after which this one isn't touched.
        unsafe {
            let node = waiter.as_ptr();
            self.join((*node).prev(), (*node).next());
            let waker = (*node).waker.with_mut(|waker| (*waker).take()).expect("a waiter has a waker until its turn");
            let turn = match turn {
                Turn::Own => OWN,
                Turn::Shared => SHARED,
            };
            // Release: pairs with the Acquire of `turn`.
            (*node).turn.store(turn, ordering!(Release, "turn_not_released_to_waiter" => Relaxed));
            waker
        }
    }
}

/// Gives all waiters their turns, and wakes them in order: those that are in the list now, however many, and none that
/// joins while this goes on. `lock` locks the list.
///
/// The list is taken off whole, in constant time, and then emptied by one waiter at a time, so that the lock is never
/// held for long. A waiter that leaves meanwhile needs to know only its neighbours.
pub(super) fn give_all<G: DerefMut<Target = WaitList<()>>>(lock: impl Fn() -> G) {
    let hub = Waiter::without_waker(());
    let hub_node = NonNull::from(&hub);
    if lock().take_all(&hub) {
        wake_each(|| {
            let mut list = lock();
            let next = hub.next().filter(|&next| next != hub_node)?;
            // SAFETY: it is in the list that was taken off.
            Some(unsafe { list.give(next, Turn::Shared) })
        });
    }
}

impl<P> WaitList<P> {
    /// Moves all nodes into a ring around `hub`, in order. Returns whether there are any; if so, the hub stays where it
    /// is until the ring is empty.
    fn take_all(&mut self, hub: &Waiter<P>) -> bool {
        let (Some(first), Some(last)) = (self.first.take(), self.last.take()) else { return false };
        let node = NonNull::from(hub);
        self.join(Some(node), Some(first));
        self.join(Some(last), Some(node));
        true
    }
}

/// Wakes those whose turns `give` gives, until it finds nobody; also if a waker panics.
pub(super) fn wake_each(give: impl FnMut() -> Option<Waker>) {
    struct Rest<F: FnMut() -> Option<Waker>>(F);

    impl<F: FnMut() -> Option<Waker>> Drop for Rest<F> {
        fn drop(&mut self) {
            while let Some(waker) = (self.0)() {
                waker.wake();
            }
        }
    }

    let mut rest = Rest(give);
    while let Some(waker) = (rest.0)() {
        waker.wake();
    }
    mem::forget(rest);
}
