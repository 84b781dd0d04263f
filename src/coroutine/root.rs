//! The outermost frame of a coroutine's body: what catches its panics, and hands their payloads to the thread's record.
#![allow(unsafe_code)] // # Safety: runs on the block's own stack, started by its home thread, which owns the block.

use std::panic::{self, AssertUnwindSafe};

use super::block::{Block, Extras, Phase};
use super::switch::Fiber;
use super::thread::this_thread;

/// Runs a body to its end, and leaves its stack.
#[inline(always)]
pub(super) fn run(block: &'static Block, body: impl FnOnce()) {
    match panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(()) => block.phase.set(Phase::Returned),
        Err(payload) => {
            this_thread().payload.set(Some(payload));
            block.phase.set(Phase::Panicked);
            block.add_extra(Extras::BROKEN);
        }
    }
    // SAFETY: this is the block's own stack, and the body has left nothing on it.
    unsafe { Fiber::finish(block) };
}

/// Drops a body that is not to run.
pub(super) fn discard(body: impl FnOnce()) {
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| drop(body))) {
        this_thread().payload.set(Some(payload));
    }
}
