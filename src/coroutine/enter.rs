//! Entering coroutines: one flat loop.
//!
//! [`run`] resumes a coroutine and, when it comes back, the coroutines that it woke, and those that they woke, from the
//! same loop frame: a chain of wakes of any length needs constant stack. The order is QEMU's: what the coroutine that has
//! just run woke goes, in the order of the wakes, before everything that was pending earlier (depth first).
//!
//! # Who resumes what
//!
//! | phase | resumed by |
//! |---|---|
//! | `Unstarted` | the first `enter` of the handle; or its home, if it was spawned |
//! | `Yielded` | `enter` |
//! | `Requeued` | its home, at its turn |
//! | `Parked` | its home or a running coroutine's loop, after a wake; or `enter`, which counts as a wake-up |
//!
//! A block taken from a queue may turn out to have been entered by hand in the meantime; [`take_turn`] decides.
//!
//! # Safety
//!
//! All functions run on the thread that is passed, which is the home thread of the blocks they resume (checked where a block
//! comes from a queue). A reference to a block's label or queue isn't held over a resume.
#![allow(unsafe_code)]

use std::any::Any;
use std::panic;

use super::block::{Action, Block, Phase, RunAdapter};
use super::home::Woken;
use super::state::Turn;
use super::thread::{Thread, this_thread};
use super::{supply, unwind};
use crate::lockfree::Fifo;

/// The `thread` of a block whose coroutine hasn't started.
pub(super) const UNSTARTED: u32 = 0;

/// Resumes `first`, then what it woke; returns when all of them have yielded, parked or ended.
///
/// # Panics
///
/// With the payload of the first coroutine that panicked, after all have run.
///
/// # Safety
///
/// `first` is suspended or unstarted, this is its thread, and it stands in no queue that would run it.
#[inline]
pub(super) unsafe fn run(thread: &Thread, first: &'static Block) {
    let outer = thread.current.get();
    let mut pending = Fifo::<RunAdapter>::new();
    let mut payload = None;
    let mut next = Some(first);
    while let Some(block) = next {
        resume(thread, block, outer);
        // SAFETY: it runs no more, and only this thread touches its queue.
        let woken = unsafe { &mut *block.woken.get() };
        if !woken.is_empty() {
            pending.prepend(woken);
        }
        match block.phase.get() {
            Phase::Returned => end(thread, block),
            Phase::Yielded if block.spawned.get() => requeue(block),
            Phase::Yielded | Phase::Parked => {}
            phase => failed(thread, block, phase, &mut payload),
        }
        next = if pending.is_empty() { None } else { next_turn(thread, &mut pending) };
    }
    if let Some(payload) = payload {
        panic::resume_unwind(payload);
    }
}

#[inline(always)]
fn resume(thread: &Thread, block: &'static Block, outer: Option<&'static Block>) {
    block.phase.set(Phase::Entered);
    if block.entered_unwinding.get() != std::thread::panicking() {
        block.entered_unwinding.set(std::thread::panicking());
    }
    thread.current.set(Some(block));
    // SAFETY: the callers see to it that the block is ours and suspended.
    unsafe { block.fiber.resume() };
    thread.current.set(outer);
}

/// The next pending coroutine whose turn it is.
#[cold]
fn next_turn(thread: &Thread, pending: &mut Fifo<RunAdapter>) -> Option<&'static Block> {
    loop {
        // SAFETY: blocks are never unmapped.
        let block: &'static Block = unsafe { pending.pop_front()?.as_ref() };
        if take_turn(thread, block) {
            return Some(block);
        }
    }
}

/// Ends a coroutine that isn't suspended: frees its block, now or when it comes out of its queue.
#[inline(always)]
fn end(thread: &Thread, block: &'static Block) {
    block.phase.set(Phase::Free);
    if block.spawned.get() {
        forget_live(thread, block);
    }
    if block.state.retire() {
        // SAFETY: the coroutine has ended, and no queue has the block.
        unsafe { free(thread, block) };
    }
}

/// Resets what the next tenant expects, and gives the block to the pool.
///
/// # Safety
///
/// The caller owns the block of a coroutine that has been retired.
#[inline(always)]
unsafe fn free(thread: &Thread, block: &'static Block) {
    // SAFETY: ours (contract).
    unsafe {
        if (*block.home.get()).is_some() {
            *block.home.get() = None;
        }
        if (*block.label.get()).name.is_some() {
            (*block.label.get()).name = None;
        }
        supply::give(thread, block);
    }
}

/// A coroutine that ended by a panic or was abandoned.
#[cold]
fn failed(thread: &Thread, block: &'static Block, phase: Phase, first_payload: &mut Option<Box<dyn Any + Send>>) {
    if phase == Phase::Abandoned {
        if block.spawned.get() {
            forget_live(thread, block);
        }
        block.state.retire();
        supply::leak(thread);
        return;
    }
    debug_assert_eq!(phase, Phase::Panicked);
    let payload = thread.payload.take().expect("a coroutine that panicked left its payload");
    end(thread, block);
    // An unwind that was asked for ends here; of several panics, the first is passed on, as the others have been
    // reported by the panic hook already.
    if !payload.is::<unwind::Cancelled>() && first_payload.is_none() {
        *first_payload = Some(payload);
    }
}

/// A spawned coroutine yielded: its home runs it again, after the others.
#[cold]
fn requeue(block: &'static Block) {
    block.phase.set(Phase::Requeued);
    schedule_on_home(block);
}

/// Hands the block to its home, or drops the turn if there is none.
fn schedule_on_home(block: &'static Block) {
    let woken = Woken::new(block);
    // SAFETY: we own the queue entry (rule 4). The home is cloned so that it lives through the call, whatever the coroutine
    // does as soon as it is scheduled.
    if let Some(home) = unsafe { (*block.home.get()).clone() } {
        home.schedule(woken);
    }
}

/// Schedules a block for which `State::wake` or `cancel` returned `Schedule`.
#[cold]
pub(super) fn schedule(block: &'static Block) {
    let thread = this_thread();
    if thread.id.get() == block.thread.get()
        && let Some(running) = thread.current.get()
    {
        // SAFETY: the running coroutine is this thread's, and we own the entry of `block`, which is never unmapped.
        unsafe { (*running.woken.get()).push_back(block.into()) };
        return;
    }
    schedule_on_home(block);
}

/// Decides what to do with a block that was taken out of a queue on its home thread. Returns whether to resume it.
fn take_turn(thread: &Thread, block: &'static Block) -> bool {
    match block.phase.get() {
        Phase::Requeued => {
            if block.state.is_cancelled() {
                block.unwind.set(true);
            }
            return true;
        }
        Phase::Unstarted if block.state.is_cancelled() => {
            block.state.unschedule();
            discard_unstarted(thread, block);
            return false;
        }
        Phase::Unstarted => {
            block.state.unschedule();
            begin(thread, block);
            return true;
        }
        _ => {}
    }
    match block.state.take_turn(block.phase.get() == Phase::Parked) {
        Turn::Run => true,
        Turn::Unwind => {
            block.unwind.set(true);
            true
        }
        Turn::Skip => false,
        Turn::Free => {
            // SAFETY: the coroutine was retired while queued, and this was the queue.
            unsafe { free(thread, block) };
            false
        }
    }
}

/// Binds an unstarted coroutine to the calling thread.
#[inline(always)]
pub(super) fn begin(thread: &Thread, block: &'static Block) {
    block.thread.set(thread.id.get());
    if block.spawned.get() {
        remember_live(thread, block);
    }
}

#[cold]
fn remember_live(thread: &Thread, block: &'static Block) {
    let mut live = thread.live.borrow_mut();
    block.live_index.set(live.len() as u32);
    live.push(block);
}

#[cold]
fn forget_live(thread: &Thread, block: &'static Block) {
    let mut live = thread.live.borrow_mut();
    let index = block.live_index.get() as usize;
    live.swap_remove(index);
    if let Some(moved) = live.get(index) {
        moved.live_index.set(index as u32);
    }
}

/// Ends a coroutine that was never entered.
#[cold]
pub(super) fn discard_unstarted(thread: &Thread, block: &'static Block) {
    block.phase.set(Phase::Free);
    // SAFETY: the caller owns the unstarted coroutine.
    unsafe { block.consume(Action::Drop) };
    if block.state.retire() {
        // SAFETY: it is retired, and no queue has it.
        unsafe { free(thread, block) };
    }
}

/// Unwinds a suspended coroutine of this thread, and ends it.
#[cold]
pub(super) fn unwind(thread: &Thread, block: &'static Block) {
    if !unwind::POSSIBLE {
        // SAFETY: it is suspended on this thread.
        unsafe { block.abandon() };
        failed(thread, block, Phase::Abandoned, &mut None);
        return;
    }
    if block.phase.get() == Phase::Parked {
        block.state.enter_parked();
    }
    block.unwind.set(true);
    // SAFETY: it is suspended, and its owner says that it is to end here. If a queue has it, the entry is stale from now on.
    unsafe { run(thread, block) };
}

/// [`Woken::run`].
pub(super) fn run_woken(thread: &Thread, block: &'static Block) {
    let home_thread = block.thread.get();
    if home_thread != UNSTARTED && home_thread != thread.id.get() {
        drop(Woken::new(block));
        panic!("a woken coroutine must be run on the thread on which it was started");
    }
    if take_turn(thread, block) {
        // SAFETY: `take_turn` said so.
        unsafe { run(thread, block) };
    }
}

/// [`Woken`]'s drop.
#[cold]
pub(super) fn drop_woken(block: &'static Block) {
    let thread = this_thread();
    let home_thread = block.thread.get();
    if home_thread == UNSTARTED {
        block.state.unschedule();
        discard_unstarted(thread, block);
    } else if home_thread == thread.id.get()
        && (block.phase.get() == Phase::Requeued || block.phase.get() == Phase::Parked && block.spawned.get())
    {
        block.state.unschedule();
        unwind(thread, block);
    } else if block.state.unschedule() {
        // SAFETY: the coroutine was retired while queued, and this was the queue.
        unsafe { free(thread, block) };
    }
}
