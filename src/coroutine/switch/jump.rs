//! The switch by jump.
//!
//! # The exchange
//!
//! A fiber's control block begins with one word, `other`: the stack pointer of whichever side is not running. Both
//! directions are then the same few instructions, inlined where they are used, with the block's address in the first
//! argument register:
//!
//! ```text
//!   push the frame pointer, the base pointer and the address of label 2
//!   exchange the stack pointer with `other`
//!   pop an address and jump there
//! 2:
//!   pop the base pointer and the frame pointer
//! ```
//!
//! The stack of the side that doesn't run, growing down:
//!
//! ```text
//!  x86-64                              aarch64
//!        ┌──────────────────────┐            ┌──────────────────────┐
//!        │ frames of the caller │            │ frames of the caller │
//!        ├──────────────────────┤            ├──────────────────────┤
//!        │ rbp                  │       + 24 │ (unused)             │
//!        │ rbx                  │       + 16 │ where to go on       │
//!  other▶│ where to go on       │       +  8 │ x29                  │
//!        └──────────────────────┘      other▶│ x19                  │
//!                                            └──────────────────────┘
//! ```
//!
//! `start` differs in where it goes: not to a popped address, but to the entry function, with the stack pointer at the
//! top of the fiber's stack and the address of [`bottom`](arch::bottom) as the return address, as if that had called
//! it. `finish` differs in that it saves nothing.
//!
//! The block's address stays in its register on the way, and both sides take it from there when they go on: whoever
//! comes back needn't wait for a register to be loaded from a stack whose address is itself being loaded.
//!
//! # Registers
//!
//! The exchange declares every register clobbered, callee-saved and vector registers included, so the compiler saves
//! what is live, where it is live, and nothing else. The two registers that it keeps to itself, the frame pointer and
//! the base pointer (rbp, rbx; x29, x19), are saved by hand. Live vector values survive, since they are spilled like
//! any other.
//!
//! **The floating-point control words (MXCSR, x87 CW; FPCR) are not touched**: they belong to the thread, and all its
//! coroutines share them, as functions do. Saving MXCSR would be a trap besides: its sticky exception flags differ
//! after any inexact operation, and loading a different MXCSR costs tens of nanoseconds.
//!
//! The stack pointer is 16-byte aligned where the ABI wants it: a fiber's stack starts so, and the exchange leaves each
//! side's as it found it. The red zone is safe, because an `asm!` block without `nostack` makes the compiler not use
//! it.
//!
//! # Why by jump
//!
//! A CPU predicts where a `ret` goes from a small stack of the calls it has seen. A switch that ends in `ret` to a
//! place which no matching `call` led to costs a misprediction, and shifts the predictions of the returns that follow.
//! An indirect jump is predicted from where it went before, and leaves the stack of calls alone. What is called inside
//! of a coroutine then returns as predicted even if the coroutine was suspended in between, provided that the other
//! side made no return of its own beyond what it called: this is why `enter`, and what it is made of, are inlined into
//! their caller.
//!
//! # What it costs, and what is left
//!
//! `ci/instructions.sh` counts 101 instructions for the life of a coroutine (create, enter, end, drop) and 77 for a
//! pair of switches (enter, yield) on x86-64, loops included. Of the pair, 22 are the two exchanges, the least that a
//! switch by jump needs; 12 read the thread's record three times, with a check that it exists; 10 ask whether the
//! thread is unwinding, on both sides; the rest keeps the phase, the current coroutine and the two flags (to be
//! unwound; something to look after) up to date. The reads are all independent of each other, so what bounds a pair is
//! the chain of stack pointers through `other`: a store that the next load must wait for, twice.
//!
//! # Unwinding
//!
//! A panic never crosses the switch: the [root](root) catches it. A backtrace from inside a coroutine ends at `bottom`,
//! whose unwind information says that there is no caller (`.cfi_undefined` of the return address); the chain of frame
//! pointers ends there too, with a zero.
//!
//! # Shadow stacks
//!
//! With a shadow stack (x86 CET), a `ret` after a switch would find another stack's return address on top and fault.
//! The object file of `bottom` carries no property note that says it supports shadow stacks, and the linker marks a
//! program as compatible only if all its objects do; so the loader leaves them off.
//!
//! # Safety
//!
//! A fiber belongs to the owner of its block. `resume` and `suspend` are called in turn, on the two sides of the
//! switch.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr::{self, NonNull};

use super::super::block::{Block, Entry};
use super::super::stack::{Class, Stack};

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod arch;

/// A stack, or none.
#[repr(C)]
pub(crate) struct Fiber {
    /// The stack pointer of the side that isn't running. The block's address is this word's.
    other: Cell<*mut u8>,
    /// Where the stack starts; see [`Stack`].
    start: Cell<*mut u8>,
}

const _: () = assert!(std::mem::offset_of!(Block, fiber) == 0 && std::mem::offset_of!(Fiber, other) == 0);

impl Fiber {
    /// A fiber without a stack.
    pub(in super::super) const fn empty() -> Self {
        let none = ptr::null_mut();
        Self { other: Cell::new(none), start: Cell::new(none) }
    }

    /// Gives the fiber a stack.
    ///
    /// # Safety
    ///
    /// The caller owns the block, whose fiber is empty.
    pub(in super::super) unsafe fn set_up(&self, stack: Stack) {
        let start = stack.into_start();
        // SAFETY: the stack was ours, and has room.
        unsafe { arch::lay_bottom(start.as_ptr()) };
        self.start.set(start.as_ptr());
    }

    /// Takes the stack away.
    ///
    /// # Safety
    ///
    /// The caller owns the block, and its fiber has a stack, of that class, that no coroutine uses.
    pub(in super::super) unsafe fn tear_down(&self, class: Class) -> Stack {
        let start = NonNull::new(self.start.replace(ptr::null_mut())).expect("a pooled block has a stack");
        // SAFETY: this is the start that `set_up` took.
        unsafe { Stack::from_start(start, class) }
    }

    /// Switches to the top of the fiber's stack and calls `entry` there; returns when it suspends or finishes.
    ///
    /// # Safety
    ///
    /// - The caller owns the block, whose fiber has a stack that no coroutine uses.
    /// - `entry` may be called with the block, and doesn't return but by `finish`.
    #[inline(always)]
    pub(in super::super) unsafe fn start(block: &'static Block, entry: Entry) -> &'static Block {
        // SAFETY: the contract; the address that comes back is the block's.
        unsafe { &*arch::start(block, entry, block.fiber.start.get()) }
    }

    /// Switches to the fiber; returns when it suspends or finishes.
    ///
    /// # Safety
    ///
    /// The caller owns the block, whose fiber suspended on this thread.
    #[inline(always)]
    pub(in super::super) unsafe fn resume(block: &'static Block) -> &'static Block {
        // SAFETY: `other` is the suspended fiber's stack pointer; the address that comes back is the block's.
        unsafe { &*arch::exchange(block) }
    }

    /// Switches back to whoever started or resumed this fiber; returns when it is resumed again.
    ///
    /// # Safety
    ///
    /// Called on the block's own stack.
    #[inline(always)]
    pub(in super::super) unsafe fn suspend(block: &'static Block) -> &'static Block {
        // SAFETY: we are running on the fiber, so `other` is the stack pointer of whoever resumed it, who waits.
        unsafe { &*arch::exchange(block) }
    }

    /// Switches back to whoever started or resumed this fiber, for good.
    ///
    /// # Safety
    ///
    /// Called on the block's own stack, on which nothing is needed any more.
    #[inline(always)]
    pub(in super::super) unsafe fn finish(block: &'static Block) -> ! {
        // SAFETY: as in `suspend`.
        unsafe { arch::leave(block) }
    }
}
