//! The bottom of every coroutine stack: a loop that runs one body after another.
#![allow(unsafe_code)] // # Safety: runs on the block's own stack, entered by its home thread, which owns the block.

use std::panic::{self, AssertUnwindSafe};

use super::block::{Action, Block, Phase};
use super::thread::this_thread;

/// Runs bodies until there is none: then the fiber is being torn down.
pub(super) fn run(block: &'static Block) {
    loop {
        // SAFETY: the home thread resumed us, so the block is ours to use.
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| unsafe { block.consume(Action::Run) }));
        match outcome {
            Ok(true) => block.phase.set(Phase::Returned),
            Ok(false) => return,
            Err(payload) => {
                this_thread().payload.set(Some(payload));
                block.phase.set(Phase::Panicked);
            }
        }
        // SAFETY: this is the fiber's own stack.
        unsafe { block.fiber.suspend() };
    }
}
