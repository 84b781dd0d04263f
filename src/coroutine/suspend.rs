//! What a running coroutine does to itself: yield and park.
#![allow(unsafe_code)] // # Safety: each function acts on the calling coroutine's own block, on its own stack.

use std::sync::Arc;
use std::task::Waker;

use super::block::{Block, Extras, Phase};
use super::home::Home;
use super::state::Park;
use super::switch::Fiber;
use super::thread::{Thread, this_thread};
use super::wake::Target;
use super::{CoroutineRef, unwind};
use crate::primitive::atomic::Ordering;

/// Whether the caller runs in a coroutine.
///
/// ```
/// use aioco::{Coroutine, in_coroutine};
/// assert!(!in_coroutine());
/// Coroutine::new(|| assert!(in_coroutine()))?.enter();
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn in_coroutine() -> bool {
    this_thread().current.get().is_some()
}

/// The coroutine that the caller runs in.
pub fn current() -> Option<CoroutineRef> {
    this_thread().current.get().map(CoroutineRef::of)
}

/// Suspends the calling coroutine and returns control to whoever entered it; returns when it is entered again.
///
/// Who decides when that is: the owner of a [`Coroutine`](super::Coroutine) by `enter`; a spawned coroutine's home runs
/// it again after the others that are ready.
///
/// ```
/// use aioco::{Coroutine, yield_now};
/// let co = Coroutine::new(|| {
///     println!("one");
///     yield_now();
///     println!("three");
/// })?;
/// co.enter();
/// println!("two");
/// co.enter();
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// - Outside of a coroutine.
/// - In a drop guard while the coroutine is unwinding; see the [module's](super) remarks on cancellation.
/// - With the payload [`Cancelled`](super::Cancelled), to unwind the coroutine, if it is to end.
#[inline(always)]
pub fn yield_now() {
    let Some(block) = this_thread().current.get() else {
        panic!("yield_now called outside of a coroutine");
    };
    unwind::refuse_suspension(block);
    suspend(block, Phase::Yielded);
}

#[inline(always)]
fn suspend(block: &'static Block, phase: Phase) {
    if block.has(Extras::UNWIND) {
        unwind::raise(block);
    }
    block.phase.set(phase);
    // SAFETY: the block is the calling coroutine's, so this is its fiber's stack.
    let block = unsafe { Fiber::suspend(block) };
    if block.has(Extras::UNWIND) {
        unwind::raise(block);
    }
}

/// The waker of the calling coroutine, if there is one.
pub(crate) fn waker() -> Option<Waker> {
    this_thread().current.get().map(|block| Target::of(block).waker())
}

/// Parks the calling coroutine, if there is one: returns after the next wake, or at once if there was one since the
/// last park. May return without one. Returns whether the caller is a coroutine.
#[inline(always)]
pub(crate) fn park() -> bool {
    let thread = this_thread();
    let Some(block) = thread.current.get() else { return false };
    unwind::refuse_suspension(block);
    if block.has(Extras::UNWIND.with(Extras::POLLS)) {
        block.remove_extra(Extras::POLLS);
        if block.has(Extras::UNWIND) {
            // Before `PARKED` is set: a coroutine that runs never has it (rule 2 of the state word).
            unwind::raise(block);
        }
    }
    // Relaxed: published by the Release of `State::park`.
    block.thread.store(thread.id.get(), Ordering::Relaxed);
    if !block.has(Extras::HOME) && !find_home(thread, block) {
        return true;
    }
    match block.state.park() {
        Park::Suspend => suspend(block, Phase::Parked),
        Park::Woken => {}
        Park::Cancelled => {
            block.add_extra(Extras::UNWIND);
            unwind::raise(block);
        }
    }
    true
}

/// As [`park`], for a coroutine that waits for something of its own to come back, which a cancellation has to wait for, too. If
/// it is cancelled while it is suspended, this returns, so that the caller asks for it back, and parks again until it is there,
/// saying that it is `cancelled`; then it [unwinds](unwind_cancelled). Returns whether it has been cancelled.
///
/// If it was cancelled before, or is ended by somebody who waits for that (the drop of its handle, the end of its home), it
/// unwinds as out of a park.
pub(crate) fn park_for_own(cancelled: bool) -> bool {
    let thread = this_thread();
    let Some(block) = thread.current.get() else { panic!("only a coroutine is cancelled") };
    unwind::refuse_suspension(block);
    block.remove_extra(Extras::POLLS);
    if block.has(if cancelled { Extras::END_NOW } else { Extras::UNWIND }) {
        unwind::raise(block);
    }
    // Relaxed: published by the Release of `State::park`.
    block.thread.store(thread.id.get(), Ordering::Relaxed);
    if !block.has(Extras::HOME) && !find_home(thread, block) {
        return cancelled;
    }
    match if cancelled { block.state.park_cancelled() } else { block.state.park() } {
        Park::Suspend => {
            block.phase.set(Phase::Parked);
            // SAFETY: the block is the calling coroutine's, so this is its fiber's stack.
            let block = unsafe { Fiber::suspend(block) };
            if block.has(Extras::END_NOW) {
                unwind::raise(block);
            }
            block.has(Extras::UNWIND)
        }
        Park::Woken => cancelled,
        Park::Cancelled => {
            block.add_extra(Extras::UNWIND);
            unwind::raise(block);
        }
    }
}

/// Unwinds the calling coroutine, which has been cancelled.
pub(crate) fn unwind_cancelled() -> ! {
    let Some(block) = this_thread().current.get() else { panic!("only a coroutine is cancelled") };
    unwind::raise(block);
}

/// The calling coroutine polls a future, with its own waker, until this is dropped.
///
/// The future may park in a poll, too; and as wakes coalesce, such a park may have had the wake that was for the
/// future. So whoever polls asks whether there was one, and polls again. Polls may be nested: each finds the parks of
/// those inside of it.
#[derive(Debug)]
pub(crate) struct Polls {
    block: &'static Block,
    /// The coroutine is in a poll further out, too, and hasn't parked since that began.
    is_inside_one: bool,
}

impl Polls {
    /// For the calling coroutine, if there is one.
    pub(crate) fn new() -> Option<Self> {
        let block = this_thread().current.get()?;
        Some(Self { block, is_inside_one: block.has(Extras::POLLS) })
    }

    /// The waker of the coroutine.
    pub(crate) fn waker(&self) -> Waker {
        Target::of(self.block).waker()
    }

    /// A poll begins.
    pub(crate) fn begin(&self) {
        self.block.add_extra(Extras::POLLS);
    }

    /// The poll, which has found nothing, is over: parks, unless the coroutine has parked since it began.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub(crate) fn park(&mut self) {
        self.is_inside_one = false;
        if self.block.has(Extras::POLLS) {
            park();
        }
    }
}

impl Drop for Polls {
    fn drop(&mut self) {
        if !self.is_inside_one {
            self.block.remove_extra(Extras::POLLS);
        }
    }
}

/// Gives a coroutine that is about to park a home of its own, if there is one. Returns whether it may park.
fn find_home(thread: &Thread, block: &Block) -> bool {
    if block.has(Extras::BORROWED_HOME) {
        // SAFETY: the block is the calling coroutine's.
        unsafe { block.own_home() };
    } else if let Some(home) = thread.home.borrow().clone() {
        if block.state.is_scheduled() && !block.has(Extras::QUEUED_HERE) {
            // A waker on another thread that found no home is about to drop its queue entry, and may be reading the
            // home right now (rule 4 of the block); a wake that came meanwhile would be lost with the entry. A park may
            // return without a wake: so does this one, until the entry is gone.
            std::thread::yield_now();
            return false;
        }
        // SAFETY: the block is the calling coroutine's, which isn't parked yet, and no other thread has a queue entry
        // of it.
        unsafe { block.set_home(home) };
    }
    true
}

/// The home of the calling coroutine: its own, or else the one that it would get if it parked now.
pub(crate) fn home() -> Option<Arc<dyn Home>> {
    with_home(|home| home.cloned())
}

/// Calls `f` with what [`home`] returns, which isn't counted for that if the coroutine has a home of its own.
#[inline(always)]
pub(crate) fn with_home<R>(f: impl FnOnce(Option<&Arc<dyn Home>>) -> R) -> R {
    let thread = this_thread();
    let Some(block) = thread.current.get() else { return f(None) };
    if block.has(Extras::HOME.with(Extras::BORROWED_HOME)) {
        // SAFETY: the calling coroutine's own block, whose home is set once, and stays at least until the coroutine ends.
        f(unsafe { (*block.home.get()).as_ref() })
    } else {
        // A home may enter another one while it is used.
        let home = thread.home.borrow().clone();
        f(home.as_ref())
    }
}

/// Whether the calling coroutine was started by the [join](super::newborn) of its handle, which it hasn't returned to
/// since.
#[inline]
pub(crate) fn runs_inside_join() -> bool {
    // It borrows its home from the joiner until it first suspends.
    this_thread().current.get().is_some_and(|block| block.has(Extras::BORROWED_HOME))
}

/// Has `hook` called if the calling coroutine refuses to be unwound and is abandoned.
///
/// # Safety
///
/// `hook` lives until the coroutine has ended, or until [`forget_on_abandon`].
#[inline]
pub(crate) unsafe fn on_abandon<'a>(hook: &'a (dyn Fn() + 'a)) {
    if let Some(block) = this_thread().current.get() {
        // SAFETY: only the lifetime changes, and the hook lives as long as it may be called (contract).
        let hook = unsafe { std::mem::transmute::<&'a (dyn Fn() + 'a), &'static (dyn Fn() + 'static)>(hook) };
        block.on_abandon.set(Some(hook.into()));
        block.add_extra(Extras::ABANDON_HOOK);
    }
}

/// Takes the hook of [`on_abandon`] back.
#[inline]
pub(crate) fn forget_on_abandon() {
    if let Some(block) = this_thread().current.get() {
        block.on_abandon.set(None);
        block.remove_extra(Extras::ABANDON_HOOK);
    }
}
