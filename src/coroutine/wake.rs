//! Wakers: a slot number and a generation in one word.
//!
//! A [`Waker`] of a coroutine owns nothing: clone and drop are free, and any async library can hold one for as long as
//! it likes. It names a slot of the [table](super::table), whose blocks are never unmapped, and the generation of the
//! coroutine that it is for; once that coroutine has ended, waking it does nothing.
#![allow(unsafe_code)] // # Safety: the vtable's functions accept any data word whose slot has been in use.

use std::ptr;
use std::task::{RawWaker, RawWakerVTable, Waker};

use super::block::Block;
use super::home::{Home, Woken};
use super::state::Wake;
use super::thread::this_thread;
use super::{enter, newborn, table};
use crate::primitive::atomic::Ordering;

/// Names a coroutine, from anywhere, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    slot: u32,
    generation: u32,
}

impl Target {
    /// The present tenant of the block, which the caller owns.
    #[inline]
    pub(crate) fn of(block: &Block) -> Self {
        Self { slot: block.slot.get(), generation: block.state.generation() }
    }

    /// Wakes the coroutine.
    pub(crate) fn wake(self) {
        let block = table::get(self.slot);
        if block.state.wake(self.generation_in(block)) == Wake::Schedule {
            enter::schedule(block);
        }
    }

    /// Wakes the coroutine, and makes it unwind.
    pub(crate) fn cancel(self) {
        let block = table::get(self.slot);
        if block.state.cancel(self.generation_in(block)) == Wake::Schedule {
            enter::schedule(block);
        }
    }

    /// Ends a coroutine of this thread at once, if it hasn't ended: unwinds it where it is suspended, or drops it
    /// unrun. Aborts if it is running.
    ///
    /// # Panics
    ///
    /// If it is another thread's.
    pub(crate) fn end_now(self) {
        let block = table::get(self.slot);
        if block.state.generation() == self.generation_in(block) {
            let thread = this_thread();
            assert_eq!(
                block.thread.load(Ordering::Relaxed),
                thread.id.get(),
                "a coroutine was ended on another thread"
            );
            enter::end_now(thread, block);
        }
    }

    /// Starts the coroutine inside of the calling one, which is about to wait for it, if it is its thread's next to start
    /// and the [rules](newborn) allow it.
    ///
    /// # Panics
    ///
    /// With the payload [`Cancelled`](super::Cancelled), to unwind the calling coroutine, if it is to end.
    #[inline]
    pub(crate) fn start_newborn(self) {
        newborn::start(this_thread(), self);
    }

    pub(crate) fn waker(self) -> Waker {
        // SAFETY: the functions keep the contract of a waker: they are thread-safe, and own nothing.
        unsafe { Waker::from_raw(raw(self)) }
    }

    /// The generation to compare with the block's: where a pointer has 32 bits, only the low bits of ours are known.
    fn generation_in(self, block: &Block) -> u32 {
        let present = block.state.generation();
        if GENERATION_BITS == 32 {
            self.generation
        } else {
            let mask = (1u32 << GENERATION_BITS) - 1;
            if present & mask == self.generation & mask { present } else { present.wrapping_sub(1) }
        }
    }
}

/// Low bits of the data word that hold the slot; the rest is generation.
const SLOT_BITS: u32 = if cfg!(target_pointer_width = "64") { 32 } else { 20 };
const GENERATION_BITS: u32 = usize::BITS - SLOT_BITS;

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, drop_nothing);

fn raw(target: Target) -> RawWaker {
    let word = target.slot as usize | (target.generation as usize) << SLOT_BITS;
    RawWaker::new(ptr::without_provenance(word), &VTABLE)
}

fn target(data: *const ()) -> Target {
    let word = data.addr();
    let slot = word & ((1 << SLOT_BITS) - 1);
    Target { slot: slot as u32, generation: (word >> SLOT_BITS) as u32 }
}

/// Wakes whoever a waker is for, outside of coroutines. If that is a coroutine that `home` is to run, the caller, which
/// is its loop, gets it, and takes it as in [`Home::schedule`].
pub(crate) fn wake_at(waker: Waker, home: &dyn Home) -> Option<Woken> {
    if !ptr::eq(waker.vtable(), &VTABLE) {
        waker.wake();
        return None;
    }
    let target = target(waker.data());
    let block = table::get(target.slot);
    match block.state.wake(target.generation_in(block)) {
        Wake::Schedule => enter::schedule_at(block, home),
        _ => None,
    }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    RawWaker::new(data, &VTABLE)
}

unsafe fn wake(data: *const ()) {
    target(data).wake();
}

unsafe fn drop_nothing(_: *const ()) {}
