//! Forced unwinding: how a suspended coroutine is ended before its time.
//!
//! Whoever ends it (the drop of its handle, `JoinHandle::cancel`, the end of its home) sets `UNWIND` in the block's
//! extras and resumes it; its suspension then raises a panic with the payload [`Cancelled`] instead of returning. The
//! panic hook is not called. Drop guards run; the body's frames go; the root catches the payload.
//!
//! A body that catches the payload and suspends again has it raised again. One that does this [`MAX_RAISED`] times is
//! abandoned: it is suspended for good, its stack is leaked, and `leaked` in the pool's statistics says so. So ending a
//! coroutine always ends.
//!
//! **Suspending while unwinding is refused.** The count of panics in flight belongs to the thread, not to the stack: a
//! coroutine that was suspended in the middle of an unwind would make every other coroutine of the thread "panicking",
//! poison their locks, and turn their next panic into an abort. So `yield_now` and `park` panic when a drop guard calls
//! them during an unwind, and a panic in a drop guard during an unwind aborts the process, after the message. A
//! coroutine that is entered *from* a drop guard may suspend: the unwind below it is not its own. (If it panics itself
//! while that goes on, its own drop guards aren't told apart, and may suspend: std doesn't say how many panics are in
//! flight.)
//!
//! With `panic = "abort"` nothing can be unwound: a suspended coroutine whose handle is dropped is abandoned at once.
#![allow(unsafe_code)] // # Safety: called by a coroutine on its own stack, with its own block.

use std::fmt;
use std::panic;
use std::thread;

use super::block::{Block, Extras};
use super::switch::Fiber;

/// The panic payload of a forced unwind, and what `JoinHandle::join` returns for a coroutine that was cancelled.
///
/// Code that catches panics inside a coroutine should resume one that has this payload
/// (`payload.is::<Cancelled>()`, [`std::panic::resume_unwind`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the coroutine was cancelled")
    }
}

impl std::error::Error for Cancelled {}

/// How often one coroutine may swallow its unwind.
const MAX_RAISED: u8 = 100;

/// Whether a suspended coroutine can be unwound at all.
pub(super) const POSSIBLE: bool = cfg!(panic = "unwind");

/// Unwinds the calling coroutine from here.
#[cold]
pub(super) fn raise(block: &'static Block) -> ! {
    block.raised.set(block.raised.get() + 1);
    if block.raised.get() > MAX_RAISED {
        // SAFETY: the calling coroutine's own block, and its fiber's stack, which is never resumed: the phase is final.
        unsafe {
            block.abandon();
            Fiber::suspend(block);
        }
        unreachable!("an abandoned coroutine was resumed");
    }
    panic::resume_unwind(Box::new(Cancelled))
}

/// Panics if the coroutine is in the middle of an unwind of its own.
#[inline(always)]
pub(super) fn refuse_suspension(block: &Block) {
    if thread::panicking() && !block.has(Extras::ENTERED_UNWINDING) {
        refused(block);
    }
}

#[cold]
#[track_caller]
fn refused(block: &Block) -> ! {
    // SAFETY: the calling coroutine's own block.
    let label = unsafe { block.label() };
    panic!("{label} tried to suspend while it is unwinding: a drop guard must not yield, park or join");
}
