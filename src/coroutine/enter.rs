//! Entering coroutines: one flat loop.
//!
//! [`run`] resumes a coroutine and, when it comes back, the coroutines that it woke, and those that they woke, all from
//! one loop frame ([`run_on`]): a chain of wakes of any length needs constant stack. The order is QEMU's: what the
//! coroutine that has just run woke goes, in the order of the wakes, before everything that was pending earlier (depth
//! first).
//!
//! # Who resumes what
//!
//! | phase | resumed by |
//! |---|---|
//! | `Unstarted` | the first `enter` of the handle; or its home, if it was spawned, or [who joins it](super::newborn) |
//! | `Yielded` | `enter` |
//! | `Requeued` | its home, at its turn |
//! | `Parked` | its home or a running coroutine's loop, after a wake; or `enter`, which counts as a wake-up |
//!
//! A block taken from a queue may turn out to have been entered by hand in the meantime; [`take_turn`] decides.
//!
//! # Safety
//!
//! All functions run on the thread that is passed, which is the home thread of the blocks they resume (checked where a
//! block comes from a queue). A reference to a block's label or queue isn't held over a resume.
#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::ptr;
use std::sync::Arc;

use super::block::{Action, Block, Extras, Phase, RunAdapter};
use super::home::{CurrentHome, Home, Woken};
use super::state::Turn;
use super::switch::Fiber;
use super::thread::{Thread, this_thread};
use super::{newborn, supply, unwind};
use crate::lockfree::Fifo;
use crate::primitive::atomic::Ordering;

/// The `thread` of a block whose coroutine was spawned, hasn't started, and may start on any thread.
pub(super) const ANY: u32 = 0;

/// Resumes `first`, then what it woke; returns when all of them have yielded, parked or ended.
///
/// Inlined with the switch into whoever enters, so that no return lies between one switch and the next; what a plain
/// coroutine doesn't need is outside, in [`run_on`].
///
/// # Panics
///
/// With the payload of the first coroutine that panicked, after all have run.
///
/// # Safety
///
/// `first` is suspended or unstarted, this is its thread, and it stands in no queue that would run it.
#[inline(always)]
pub(super) unsafe fn run(thread: &'static Thread, first: &'static Block, switch: Switch) -> &'static Block {
    let outer = thread.current.get();
    // SAFETY: passed on.
    let (thread, first) = unsafe { switch_to(thread, first, switch, outer) };
    if first.extras.get() != Extras::NONE {
        run_on(thread, first, outer);
    }
    first
}

/// How to get into a coroutine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    /// It hasn't started.
    Start,
    /// It is suspended.
    Resume,
}

/// Switches to a coroutine and back. Returns the thread and the block once more, in registers: what would be loaded
/// from the stack after the switch had to wait for the stack pointer.
///
/// # Safety
///
/// This is the block's thread, and `switch` says what it needs.
#[inline(always)]
unsafe fn switch_to(
    thread: &'static Thread,
    block: &'static Block,
    switch: Switch,
    outer: Option<&'static Block>,
) -> (&'static Thread, &'static Block) {
    block.phase.set(Phase::Entered);
    if std::thread::panicking() {
        enters_unwinding(block);
    }
    thread.current.set(Some(block));
    // SAFETY: contract.
    let block = unsafe {
        match switch {
            Switch::Start => Fiber::start(block, block.entry()),
            Switch::Resume => Fiber::resume(block),
        }
    };
    let thread = this_thread();
    thread.current.set(outer);
    (thread, block)
}

#[cold]
#[inline(never)]
fn enters_unwinding(block: &Block) {
    block.add_extra(Extras::ENTERED_UNWINDING);
}

/// Looks after a coroutine that has been resumed, and runs what it woke.
#[cold]
#[inline(never)]
fn run_on(thread: &'static Thread, first: &'static Block, outer: Option<&'static Block>) {
    let mut pending = Fifo::new();
    let mut payload = None;
    newborn::hand_over(thread);
    settle(thread, first, &mut pending, &mut payload);
    while let Some((block, switch)) = next_turn(thread, &mut pending) {
        // SAFETY: `take_turn` said so.
        unsafe { switch_to(thread, block, switch, outer) };
        newborn::hand_over(thread);
        settle(thread, block, &mut pending, &mut payload);
    }
    if let Some(payload) = payload {
        panic::resume_unwind(payload);
    }
}

type Pending = Fifo<RunAdapter>;
type Payload = Box<dyn Any + Send>;

/// Starts a [newborn](newborn) inside of the calling coroutine, until it suspends or ends. What it woke is added to
/// `woken`.
///
/// # Safety
///
/// The caller owns the newborn, which may start on this thread; `outer` is the calling coroutine's block.
pub(super) unsafe fn enter_nested(
    thread: &'static Thread,
    newborn: &'static Block,
    outer: &'static Block,
    woken: &mut Pending,
) {
    // SAFETY: contract.
    let (thread, newborn) = unsafe { switch_to(thread, newborn, Switch::Start, Some(outer)) };
    // It was spawned, so its panic is its join handle's.
    settle(thread, newborn, woken, &mut None);
}

/// Does what is due after a switch: puts the coroutines that `block` woke before the others, and ends or requeues it.
fn settle(thread: &Thread, block: &'static Block, pending: &mut Pending, first_payload: &mut Option<Payload>) {
    let extras = block.extras.get();
    block.remove_extra(Extras::WOKEN.with(Extras::ENTERED_UNWINDING));
    if extras.has(Extras::WOKEN) {
        // SAFETY: it runs no more, and only this thread touches its queue.
        pending.prepend(unsafe { &mut *block.woken.get() });
    }
    match block.phase.get() {
        Phase::Yielded if extras.has(Extras::SPAWNED) => {
            enlist(thread, block);
            requeue(thread, block);
        }
        Phase::Parked if extras.has(Extras::SPAWNED) => enlist(thread, block),
        Phase::Yielded | Phase::Parked => {}
        Phase::Returned => end_detached(thread, block),
        Phase::Panicked => {
            block.remove_extra(Extras::BROKEN);
            let payload = thread.payload.take().expect("a coroutine that panicked left its payload");
            end_detached(thread, block);
            // An unwind that was asked for ends here. Of other panics, which the panic hook has reported, the first of
            // a coroutine that its owner drives is passed on; a spawned one's is nobody's but its join handle's.
            let asked_for = extras.has(Extras::UNWIND) && payload.is::<unwind::Cancelled>();
            let passed_on = !extras.has(Extras::SPAWNED) && !asked_for;
            if passed_on && first_payload.is_none() {
                *first_payload = Some(payload);
            } else {
                drop_payload(payload);
            }
        }
        Phase::Abandoned => lose(thread, block),
        phase => unreachable!("a coroutine came back while it was {phase:?}"),
    }
}

/// Drops the payload of a panic that ends here. That may panic in its turn, which the panic hook reports.
fn drop_payload(payload: Payload) {
    if let Err(again) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

/// The next pending coroutine whose turn it is.
fn next_turn(thread: &Thread, pending: &mut Pending) -> Option<(&'static Block, Switch)> {
    loop {
        // SAFETY: blocks are never unmapped.
        let block: &'static Block = unsafe { pending.pop_front()?.as_ref() };
        block.remove_extra(Extras::QUEUED_HERE);
        if let Some(switch) = take_turn(thread, block) {
            return Some((block, switch));
        }
    }
}

/// Ends a coroutine that returned or panicked, unless a handle owns it.
fn end_detached(thread: &Thread, block: &'static Block) {
    if block.has(Extras::LIVE) {
        forget_live(thread, block);
    }
    if block.has(Extras::DETACHED) {
        // SAFETY: nobody else owns it.
        unsafe { end(thread, block) };
    }
}

/// Frees the block of a coroutine that returned or panicked: now, or when it comes out of its queue.
///
/// # Safety
///
/// The caller owns the block and gives it up.
#[inline(always)]
pub(super) unsafe fn end(thread: &Thread, block: &'static Block) {
    block.phase.set(Phase::Free);
    if block.state.retire() {
        // SAFETY: no queue has the block.
        unsafe { free(thread, block) };
    }
}

/// Gives the block to the pool.
///
/// # Safety
///
/// The caller owns the block of a coroutine that has been retired.
#[inline(always)]
unsafe fn free(thread: &Thread, block: &'static Block) {
    if block.extras.get() != Extras::NONE {
        // SAFETY: ours (contract).
        unsafe { block.clear_extras() };
    }
    // SAFETY: ours, and no longer used.
    unsafe { supply::give(thread, block) };
}

/// Frees a block that was retired while it stood in a queue, now that it is out.
///
/// # Safety
///
/// The caller owned the queue entry, which is gone.
#[cold]
unsafe fn free_unqueued(thread: &Thread, block: &'static Block) {
    // An abandoned coroutine's frames are still on its stack. (The phase was written before the block was retired.)
    if block.phase.get() != Phase::Abandoned {
        // SAFETY: it was the last one that had the block.
        unsafe { free(thread, block) };
    }
}

/// Gives up a coroutine that can't be unwound.
#[cold]
fn lose(thread: &Thread, block: &'static Block) {
    if block.has(Extras::LIVE) {
        forget_live(thread, block);
    }
    block.state.retire();
    supply::leak(thread);
}

/// A spawned coroutine yielded: its home runs it again, after the others.
#[cold]
fn requeue(thread: &Thread, block: &'static Block) {
    block.phase.set(Phase::Requeued);
    newborn::hand_over(thread);
    // SAFETY: it is suspended, and this is its thread.
    unsafe { block.own_home() };
    schedule_on_home(thread, block);
}

/// Hands the block to its home, or drops the turn if there is none.
pub(super) fn schedule_on_home(thread: &Thread, block: &'static Block) {
    let woken = Woken::new(block);
    // SAFETY: we own the queue entry (rule 4), until the call.
    let Some(home) = (unsafe { (*block.home.get()).as_ref() }) else { return };
    match CurrentHome::if_is(thread, home) {
        // The usual case, in which no references need to be counted.
        Some(current) => current.schedule(woken),
        // Cloned so that it lives through the call, whatever the coroutine does as soon as it is scheduled.
        None => home.clone().schedule(woken),
    }
}

/// Schedules a block for which `State::wake` or `cancel` returned `Schedule`.
#[cold]
pub(super) fn schedule(block: &'static Block) {
    let thread = this_thread();
    // Relaxed, here and below: whoever owns the queue entry came by it through an Acquire of the state word.
    if thread.id.get() == block.thread.load(Ordering::Relaxed)
        && let Some(running) = thread.current.get()
    {
        // SAFETY: the running coroutine is this thread's, and we own the entry of `block`, which is never unmapped.
        unsafe { (*running.woken.get()).push_back(block.into()) };
        running.add_extra(Extras::WOKEN);
        block.add_extra(Extras::QUEUED_HERE);
        return;
    }
    schedule_on_home(thread, block);
}

/// As [`schedule`], outside of coroutines: if it is for `home` to run the coroutine, the caller gets it. So nothing is
/// counted, nor called through a table.
pub(super) fn schedule_at(block: &'static Block, home: &dyn Home) -> Option<Woken> {
    let thread = this_thread();
    debug_assert!(thread.current.get().is_none());
    // SAFETY: we own the queue entry (rule 4).
    let own = unsafe { (*block.home.get()).as_ref() };
    if own.is_some_and(|own| ptr::addr_eq(Arc::as_ptr(own), home)) {
        return Some(Woken::new(block));
    }
    schedule_on_home(thread, block);
    None
}

/// Decides what to do with a block that was taken out of a queue on its home thread. Returns how to get into it, if it
/// is to run.
fn take_turn(thread: &Thread, block: &'static Block) -> Option<Switch> {
    match block.phase.get() {
        Phase::Requeued if !block.state.is_scheduled() => {
            if block.state.is_cancelled() {
                block.add_extra(Extras::UNWIND);
            }
            return Some(Switch::Resume);
        }
        Phase::Unstarted if block.state.is_cancelled() => {
            block.state.unschedule();
            // SAFETY: it was spawned, so its queue entry is its only owner.
            unsafe { discard_unstarted(thread, block) };
            return None;
        }
        Phase::Unstarted => {
            block.state.unschedule();
            block.thread.store(thread.id.get(), Ordering::Relaxed);
            return Some(Switch::Start);
        }
        _ => {}
    }
    match block.state.take_turn(matches!(block.phase.get(), Phase::Parked | Phase::Requeued)) {
        Turn::Run => Some(Switch::Resume),
        Turn::Unwind => {
            block.add_extra(Extras::UNWIND);
            Some(Switch::Resume)
        }
        Turn::Skip => None,
        Turn::Free => {
            // SAFETY: the entry is gone.
            unsafe { free_unqueued(thread, block) };
            None
        }
    }
}

/// Puts a spawned coroutine into the list of those that the end of their home unwinds, when it first suspends.
#[inline]
pub(super) fn enlist(thread: &Thread, block: &'static Block) {
    if block.has(Extras::LIVE) {
        return;
    }
    block.add_extra(Extras::LIVE);
    let mut live = thread.live.borrow_mut();
    block.live_index.set(live.len() as u32);
    live.push(block);
}

#[cold]
fn forget_live(thread: &Thread, block: &'static Block) {
    block.remove_extra(Extras::LIVE);
    let mut live = thread.live.borrow_mut();
    let index = block.live_index.get() as usize;
    live.swap_remove(index);
    if let Some(moved) = live.get(index) {
        moved.live_index.set(index as u32);
    }
}

/// Ends a coroutine that was never entered.
///
/// # Safety
///
/// The caller owns the block and gives it up.
#[cold]
pub(super) unsafe fn discard_unstarted(thread: &Thread, block: &'static Block) {
    let spawned = block.has(Extras::SPAWNED);
    // SAFETY: the block is ours, and the closure is dropped once.
    unsafe {
        block.entry()(block, Action::Drop);
        end(thread, block);
    }
    // What the closure captured may have panicked when it was dropped; the rule is that of `settle`.
    match thread.payload.take() {
        Some(payload) if spawned => drop_payload(payload),
        Some(payload) => panic::resume_unwind(payload),
        None => {}
    }
}

/// Unwinds a suspended coroutine of this thread, and ends it.
#[cold]
pub(super) fn unwind(thread: &'static Thread, block: &'static Block) {
    if !unwind::POSSIBLE {
        // SAFETY: it is suspended on this thread.
        unsafe { block.abandon() };
        lose(thread, block);
        return;
    }
    if matches!(block.phase.get(), Phase::Parked | Phase::Requeued) {
        block.state.enter_parked();
    }
    block.add_extra(Extras::UNWIND.with(Extras::END_NOW));
    // SAFETY: it is suspended, and its owner says that it is to end here. If a queue has it, the entry is stale from
    // now on.
    unsafe { run(thread, block, Switch::Resume) };
}

/// Ends a spawned coroutine of this thread, whatever it waits for.
///
/// # Aborts
///
/// If it is running: it has the caller ended, which borrows to it. Neither can go first.
pub(super) fn end_now(thread: &'static Thread, block: &'static Block) {
    match block.phase.get() {
        Phase::Unstarted => {
            newborn::forget(thread, block);
            // SAFETY: it was spawned, and whoever takes it out of its queue only frees the block now.
            return unsafe { discard_unstarted(thread, block) };
        }
        // A queue has it, which the state word needs to know, so that the block isn't freed before it is out.
        Phase::Requeued if !block.state.is_scheduled() => block.state.mark_queued(),
        Phase::Entered => {
            // SAFETY: a coroutine of this thread.
            let label = unsafe { block.label() };
            eprintln!("{label} ended the coroutine that it borrows from");
            process::abort();
        }
        _ => {}
    }
    unwind(thread, block);
}

/// [`Woken::run`].
#[inline(always)]
pub(super) fn run_woken(thread: &'static Thread, block: &'static Block) {
    let home_thread = block.thread.load(Ordering::Relaxed);
    if home_thread != ANY && home_thread != thread.id.get() {
        drop(Woken::new(block));
        panic!("a woken coroutine must be run on the thread on which it was started");
    }
    if let Some(switch) = take_turn(thread, block) {
        // SAFETY: `take_turn` said so.
        unsafe { run(thread, block, switch) };
    }
}

/// [`Woken`]'s drop.
#[cold]
pub(super) fn drop_woken(block: &'static Block) {
    let thread = this_thread();
    let home_thread = block.thread.load(Ordering::Relaxed);
    let here = home_thread == thread.id.get();
    if home_thread == ANY || here && block.phase.get() == Phase::Unstarted {
        block.state.unschedule();
        // SAFETY: it was spawned, so its queue entry is its only owner.
        unsafe { discard_unstarted(thread, block) };
    } else if here
        && (block.phase.get() == Phase::Requeued || block.phase.get() == Phase::Parked && block.has(Extras::SPAWNED))
    {
        block.state.unschedule();
        unwind(thread, block);
    } else if !block.state.is_scheduled() {
        // It had yielded, and this was its turn.
        block.state.park_instead();
    } else if block.state.unschedule() {
        // SAFETY: the entry is gone.
        unsafe { free_unqueued(thread, block) };
    }
}
