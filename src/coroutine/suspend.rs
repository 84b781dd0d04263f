//! What a running coroutine does to itself: yield and park.
#![allow(unsafe_code)] // # Safety: each function acts on the calling coroutine's own block, on its own stack.

use std::task::Waker;

use super::block::{Block, Phase};
use super::state::Park;
use super::thread::this_thread;
use super::wake::Target;
use super::{CoroutineRef, unwind};

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
/// Who decides when that is: the owner of a [`Coroutine`](super::Coroutine) by `enter`; a spawned coroutine's home runs it
/// again after the others that are ready.
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
#[inline]
pub fn yield_now() {
    let Some(block) = this_thread().current.get() else {
        panic!("yield_now called outside of a coroutine");
    };
    unwind::refuse_suspension(block);
    suspend(block, Phase::Yielded);
}

#[inline(always)]
fn suspend(block: &Block, phase: Phase) {
    if block.unwind.get() {
        unwind::raise(block);
    }
    block.phase.set(phase);
    // SAFETY: the block is the calling coroutine's, so this is its fiber's stack.
    unsafe { block.fiber.suspend() };
    if block.unwind.get() {
        unwind::raise(block);
    }
}

/// The waker of the calling coroutine, if there is one.
pub(crate) fn waker() -> Option<Waker> {
    this_thread().current.get().map(|block| Target::of(block).waker())
}

/// Parks the calling coroutine, if there is one: returns after the next wake, or at once if there was one since the
/// last park. May return without one. Returns whether the caller is a coroutine.
pub(crate) fn park() -> bool {
    let thread = this_thread();
    let Some(block) = thread.current.get() else { return false };
    unwind::refuse_suspension(block);
    // SAFETY: the block is the calling coroutine's, which isn't parked yet.
    unsafe {
        if (*block.home.get()).is_none() {
            *block.home.get() = thread.home.borrow().clone();
        }
    }
    match block.state.park() {
        Park::Suspend => suspend(block, Phase::Parked),
        Park::Woken => {}
        Park::Cancelled => {
            block.unwind.set(true);
            unwind::raise(block);
        }
    }
    true
}

/// Has `hook` called if the calling coroutine refuses to be unwound and is abandoned.
///
/// # Safety
///
/// `hook` lives until the coroutine has ended.
pub(crate) unsafe fn on_abandon<'a>(hook: &'a (dyn Fn() + 'a)) {
    if let Some(block) = this_thread().current.get() {
        // SAFETY: only the lifetime changes, and the hook lives as long as it may be called (contract).
        let hook = unsafe { std::mem::transmute::<&'a (dyn Fn() + 'a), &'static (dyn Fn() + 'static)>(hook) };
        block.on_abandon.set(Some(hook.into()));
    }
}
