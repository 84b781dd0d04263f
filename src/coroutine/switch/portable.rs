//! The portable switch: corosensei, which knows how to switch stacks on every CPU that Rust runs on.
//!
//! This is the only file that names it. Its unwinding feature isn't needed: panics are caught by the
//! [root](super::super::root), and a suspended body is unwound by raising a panic in it ([`super::super::unwind`]),
//! never by corosensei.
//!
//! # Safety
//!
//! A fiber belongs to the owner of its block. `resume` and `suspend` are called in turn, on the two sides of the
//! switch.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::ptr;

use corosensei::Yielder;
use corosensei::stack::{Stack as RawStack, StackPointer};

use super::super::block::{Action, Block, Entry};
use super::super::stack::{Class, Stack};

type Raw = corosensei::Coroutine<(), (), (), Stack>;

/// A stack, free or in use, or none.
pub(crate) struct Fiber {
    state: UnsafeCell<State>,
    /// Of the coroutine in use; lives on its stack.
    yielder: Cell<*const Yielder<(), ()>>,
}

enum State {
    Empty,
    Free(Stack),
    InUse(Raw),
}

impl Fiber {
    /// A fiber without a stack.
    pub(in super::super) const fn empty() -> Self {
        Self { state: UnsafeCell::new(State::Empty), yielder: Cell::new(ptr::null()) }
    }

    /// Gives the fiber a stack.
    ///
    /// # Safety
    ///
    /// The caller owns the block, whose fiber is empty.
    pub(in super::super) unsafe fn set_up(&self, stack: Stack) {
        // SAFETY: the block is ours.
        unsafe { *self.state.get() = State::Free(stack) };
    }

    /// Takes the stack away.
    ///
    /// # Safety
    ///
    /// The caller owns the block, and its fiber has a stack, of that class, that no coroutine uses.
    pub(in super::super) unsafe fn tear_down(&self, _: Class) -> Stack {
        // SAFETY: the block is ours.
        match unsafe { ptr::replace(self.state.get(), State::Empty) } {
            State::Free(stack) => stack,
            State::InUse(_) | State::Empty => unreachable!("a pooled block has a free stack"),
        }
    }

    /// Switches to the top of the fiber's stack and calls `entry` there; returns when it suspends or finishes.
    ///
    /// # Safety
    ///
    /// - The caller owns the block, whose fiber has a stack that no coroutine uses.
    /// - `entry` may be called with the block.
    pub(in super::super) unsafe fn start(block: &'static Block, entry: Entry) -> &'static Block {
        // SAFETY: passed on.
        unsafe {
            let stack = block.fiber.tear_down(block.class.get());
            let raw = Raw::with_stack(stack, move |yielder, ()| {
                block.fiber.yielder.set(yielder);
                entry(block, Action::Run);
            });
            *block.fiber.state.get() = State::InUse(raw);
            Self::resume(block)
        }
    }

    /// Switches to the fiber; returns when it suspends or finishes.
    ///
    /// # Safety
    ///
    /// The caller owns the block, whose fiber suspended on this thread or was just started.
    #[inline(always)]
    pub(in super::super) unsafe fn resume(block: &'static Block) -> &'static Block {
        let state = block.fiber.state.get();
        // SAFETY: the fiber doesn't run, so nobody else has a reference to its state.
        if let State::InUse(raw) = unsafe { &mut *state }
            && matches!(raw.resume(()), corosensei::CoroutineResult::Return(()))
            // SAFETY: it has finished, and its state is still ours.
            && let State::InUse(raw) = unsafe { ptr::replace(state, State::Empty) }
        {
            // SAFETY: as above.
            unsafe { block.fiber.set_up(raw.into_stack()) };
        }
        block
    }

    /// Switches back to whoever started or resumed this fiber; returns when it is resumed again.
    ///
    /// # Safety
    ///
    /// Called on the block's own stack.
    #[inline(always)]
    pub(in super::super) unsafe fn suspend(block: &'static Block) -> &'static Block {
        // SAFETY: the yielder was stored at the start, and lives as long as the stack is in use.
        unsafe { (*block.fiber.yielder.get()).suspend(()) };
        block
    }

    /// Nothing to do: when the entry function returns, the fiber has finished.
    ///
    /// # Safety
    ///
    /// Called on the block's own stack, right before the entry function returns.
    pub(in super::super) unsafe fn finish(_: &'static Block) {}
}

// SAFETY: start and limit bound memory that belongs to the stack, the page below the limit is a guard page, the start
// is 16-byte aligned, and the size is at least `MIN_SIZE` less the colour.
unsafe impl RawStack for Stack {
    #[inline(always)]
    fn base(&self) -> StackPointer {
        self.start().addr()
    }

    #[inline(always)]
    fn limit(&self) -> StackPointer {
        self.limit().addr()
    }
}
