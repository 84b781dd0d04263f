//! Newborns: coroutines that a coroutine spawned on its own home, before the home has got them.
//!
//! A spawned coroutine that is joined by the one that spawned it would cost a turn of the loop: the joiner parks, the
//! loop runs the other, which wakes the joiner. So what a running coroutine spawns on its own home is kept in a list of
//! the thread at first, and a join may start it from there, inside of the joiner, as a coroutine enters one that it
//! drives itself. What is left is handed to the home, in order, as soon as the order could be told from that: when a
//! coroutine of the thread suspends or ends, and before another is given to a home here.
//!
//! # When a join starts a newborn
//!
//! | if | for |
//! |---|---|
//! | it is the first of the list | spawned coroutines start in the order in which they were spawned |
//! | the joiner was spawned on the same home | it runs in a turn of that home, which hence is there and runs here |
//! | the joiner isn't to unwind, and its thread isn't unwinding | a join is a suspension: there it unwinds, or is refused |
//! | there were no more than [`MAX_STARTS`] since the last that had to wait | others have their turn |
//!
//! The newborn then runs until it suspends or ends. What it woke runs after the joiner, as if that had woken it: not
//! from within the join, where its panics would be strangers'. A joiner that was cancelled meanwhile, or whose home has
//! ended, unwinds, as one that had parked.
//!
//! # Homes that end
//!
//! A home that ends inside of a coroutine of its thread may leave coroutines running that it drives. They give what
//! they spawn to the home at once, which drops it: from such an end on, the thread has no newborns.
//!
//! # The home of a newborn
//!
//! It is its spawner's, and lent: the count of the `Arc` isn't raised. All coroutines on the way down to the newborn
//! are entered, and so is one of the same home that has a counted one, namely the one that the home itself resumed. The
//! newborn gets a count of its own when it suspends, or is handed over, which comes before that one does.
//!
//! # Safety
//!
//! The list is the thread's (see [`super::thread`]), and no reference into it is held over a call. A newborn's block
//! belongs to whoever takes it from the list; `SCHEDULED` isn't set as long as it is there.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::panicking;

use super::block::{Block, Extras, RunAdapter};
use super::enter;
use super::home::Home;
use super::thread::Thread;
use super::wake::Target;
use super::{suspend, unwind};
use crate::lockfree::Fifo;
use crate::primitive::atomic::Ordering;

/// Newborns in a row that may start without a turn of the loop.
const MAX_STARTS: u32 = 64;

/// A thread's newborns.
#[derive(Debug)]
pub(super) struct Newborns {
    list: UnsafeCell<Fifo<RunAdapter>>,
    /// How many started since the last that had to wait.
    starts: Cell<u32>,
    /// A home has ended inside of a coroutine.
    closed: Cell<bool>,
}

impl Newborns {
    pub(super) const fn new() -> Self {
        Self { list: UnsafeCell::new(Fifo::new()), starts: Cell::new(0), closed: Cell::new(false) }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        // SAFETY: the list is this thread's.
        unsafe { (*self.list.get()).is_empty() }
    }

    #[inline]
    fn first(&self) -> Option<&'static Block> {
        // SAFETY: the list is this thread's, and blocks are never unmapped.
        unsafe { (*self.list.get()).first().map(|block| block.as_ref()) }
    }

    fn push(&self, block: &'static Block) {
        block.add_extra(Extras::NEWBORN);
        // SAFETY: the list is this thread's, and the caller gives the block up, which is never unmapped.
        unsafe { (*self.list.get()).push_back(NonNull::from(block)) };
    }

    fn pop(&self) -> Option<&'static Block> {
        // SAFETY: as in `first`.
        let block: &'static Block = unsafe { (*self.list.get()).pop_front()?.as_ref() };
        block.remove_extra(Extras::NEWBORN);
        Some(block)
    }

    /// Takes out the first for which `which` holds.
    fn remove(&self, which: impl Fn(&Block) -> bool) -> Option<&'static Block> {
        let mut others = Fifo::<RunAdapter>::new();
        let found = loop {
            match self.pop() {
                Some(block) if !which(block) => {
                    block.add_extra(Extras::NEWBORN);
                    // SAFETY: it was the list's, and goes back there.
                    unsafe { others.push_back(NonNull::from(block)) };
                }
                found => break found,
            }
        };
        // SAFETY: the list is this thread's.
        unsafe { (*self.list.get()).prepend(&mut others) };
        found
    }

    /// Forgets all, at the exit of the thread. Returns how many there were.
    pub(super) fn reset(&self) -> usize {
        self.starts.set(0);
        self.closed.set(false);
        std::iter::from_fn(|| self.pop()).count()
    }
}

/// Keeps a coroutine that has just been spawned on `home` as a newborn of the calling coroutine. Returns whether that
/// may be; otherwise the home is to have it, and has those before it.
///
/// # Safety
///
/// The caller owns the block, which has no home, and gives it up if this returns true.
#[inline]
pub(super) unsafe fn keep(thread: &Thread, block: &'static Block, home: &Arc<dyn Home>) -> bool {
    let newborns = &thread.newborns;
    if let Some(spawner) = thread.current.get()
        && spawner.has(Extras::SPAWNED)
        && !newborns.closed.get()
        // SAFETY: the running coroutine is this thread's.
        && unsafe { spawner.is_driven_by(&**home) }
    {
        // SAFETY: the block is the caller's, and see the head for how long the home lives.
        unsafe { block.borrow_home(spawner) };
        newborns.push(block);
        return true;
    }
    hand_over(thread);
    false
}

/// Gives the thread's newborns to their homes.
#[inline]
pub(super) fn hand_over(thread: &Thread) {
    if !thread.newborns.is_empty() {
        hand_over_all(thread);
    }
}

#[cold]
fn hand_over_all(thread: &Thread) {
    while let Some(block) = thread.newborns.pop() {
        // SAFETY: it was the list's, and is ours.
        unsafe { block.own_home() };
        block.state.mark_queued();
        enter::schedule_on_home(thread, block);
    }
}

/// Starts a newborn that the calling coroutine is about to wait for, if that may be (see the head). If it ends, or
/// suspends, this returns.
///
/// # Panics
///
/// With the payload [`Cancelled`](super::Cancelled), to unwind the calling coroutine, if it is to end.
#[inline]
pub(super) fn start(thread: &'static Thread, target: Target) {
    let Some(joiner) = thread.current.get() else { return };
    let Some(first) = thread.newborns.first() else { return };
    if Target::of(first) == target && may_start(thread, joiner, first) {
        start_first(thread, joiner);
    }
}

fn may_start(thread: &Thread, joiner: &Block, first: &Block) -> bool {
    // SAFETY: both are this thread's, and a newborn has a home.
    let of_one_home = unsafe { (*first.home.get()).as_deref().is_some_and(|home| joiner.is_driven_by(home)) };
    if !of_one_home || is_to_unwind(joiner) || panicking() {
        return false;
    }
    let starts = &thread.newborns.starts;
    starts.set((starts.get() + 1) % (MAX_STARTS + 1));
    starts.get() != 0
}

fn is_to_unwind(block: &Block) -> bool {
    block.has(Extras::UNWIND) || block.state.is_cancelled()
}

fn start_first(thread: &'static Thread, joiner: &'static Block) {
    let Some(block) = thread.newborns.pop() else { return };
    if block.state.is_cancelled() {
        // SAFETY: it was the list's, and is ours.
        return unsafe { enter::discard_unstarted(thread, block) };
    }
    block.thread.store(thread.id.get(), Ordering::Relaxed);
    // As one that had parked, it is to be found if its home ends meanwhile.
    enter::enlist(thread, joiner);
    joiner.add_extra(Extras::JOINING);
    let mut woken = Fifo::new();
    // SAFETY: it is ours, hasn't started, and may start on this thread, its home's.
    unsafe { enter::enter_nested(thread, block, joiner, &mut woken) };
    joiner.remove_extra(Extras::JOINING);
    if !woken.is_empty() {
        // SAFETY: the calling coroutine's own list.
        let earlier = unsafe { &mut *joiner.woken.get() };
        woken.prepend(earlier);
        mem::swap(earlier, &mut woken);
        joiner.add_extra(Extras::WOKEN);
    }
    if is_to_unwind(joiner) {
        suspend::park();
    }
}

/// Takes a coroutine out of the list, if it is there.
pub(super) fn forget(thread: &Thread, block: &Block) {
    if block.has(Extras::NEWBORN) {
        thread.newborns.remove(|newborn| std::ptr::eq(newborn, block));
    }
}

/// A home ends: if that happens inside of a coroutine, drops its newborns, and makes those unwind that wait for one.
pub(super) fn end(thread: &Thread, home: &dyn Home) {
    if thread.current.get().is_none() {
        return;
    }
    thread.newborns.closed.set(true);
    // SAFETY: the newborns and the live coroutines are this thread's.
    let is_homes = |block: &Block| unsafe { block.is_driven_by(home) };
    while let Some(block) = thread.newborns.remove(is_homes) {
        // SAFETY: it was the list's, and is ours.
        unsafe { enter::discard_unstarted(thread, block) };
    }
    if unwind::POSSIBLE {
        let live = thread.live.borrow();
        let joining = live.iter().filter(|block| block.has(Extras::JOINING) && is_homes(block));
        joining.for_each(|block| block.add_extra(Extras::UNWIND));
    }
}
