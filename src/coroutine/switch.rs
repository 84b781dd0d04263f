//! The stack switch: a [`Fiber`] is a stack on which a loop runs coroutine bodies one after another.
//!
//! Between two coroutines the loop stays suspended on its stack, so that starting the next one is an ordinary switch
//! and nothing has to be set up. The root of the loop is [`super::root`].
//!
//! This is the only file that names corosensei, which knows how to switch stacks on every CPU that Rust runs on. Its
//! unwinding feature is off: panics are caught by the root, and a suspended body is unwound by raising a panic in it
//! ([`super::unwind`]), never by corosensei.
//!
//! # Safety
//!
//! A fiber belongs to the owner of its block. `resume` and `suspend` are called in turn, on the two sides of the switch.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::ptr;

use corosensei::Yielder;
use corosensei::stack::{Stack as RawStack, StackPointer};

use super::block::Block;
use super::root;
use super::stack::Stack;

type Raw = corosensei::Coroutine<(), (), (), Stack>;

/// A stack with a suspended loop on it, or none.
pub(crate) struct Fiber {
    raw: UnsafeCell<Option<Raw>>,
    /// Lives at the base of the stack.
    yielder: Cell<*const Yielder<(), ()>>,
}

impl Fiber {
    /// A fiber without a stack.
    pub(super) const fn empty() -> Self {
        Self { raw: UnsafeCell::new(None), yielder: Cell::new(ptr::null()) }
    }

    /// Gives the fiber a stack. `block` is the block that it is a part of.
    ///
    /// # Safety
    ///
    /// The caller owns the block, whose fiber is empty.
    pub(super) unsafe fn set_up(block: &'static Block, stack: Stack) {
        let raw = Raw::with_stack(stack, move |yielder, ()| {
            block.fiber.yielder.set(yielder);
            root::run(block);
        });
        // SAFETY: the block is ours.
        unsafe { *block.fiber.raw.get() = Some(raw) };
    }

    /// Takes the stack away.
    ///
    /// # Safety
    ///
    /// The caller owns the block, whose storage is empty, and whose fiber has a stack that no coroutine uses.
    pub(super) unsafe fn tear_down(&self) -> Stack {
        // SAFETY: the block is ours.
        let raw = unsafe { (*self.raw.get()).take() };
        let mut raw = raw.expect("a pooled block has a stack");
        // With no closure to run the loop ends; a loop that never ran has nothing on its stack.
        if raw.started() {
            raw.resume(());
        } else {
            // SAFETY: the body, which owns only a reference, was never run.
            unsafe { raw.force_reset() };
        }
        raw.into_stack()
    }

    /// Switches to the fiber; returns when it suspends.
    ///
    /// # Safety
    ///
    /// - The caller owns the block, whose fiber has a stack and is suspended.
    /// - If a body is suspended on it, this is the thread that started it.
    #[inline(always)]
    pub(super) unsafe fn resume(&self) {
        // SAFETY: the fiber is suspended, so nobody else has a reference to `raw`; a fiber in use has a stack.
        let raw = unsafe { (*self.raw.get()).as_mut().unwrap_unchecked() };
        raw.resume(());
    }

    /// Switches back to whoever resumed this fiber; returns when it is resumed again.
    ///
    /// # Safety
    ///
    /// Called on this fiber's stack.
    #[inline(always)]
    pub(super) unsafe fn suspend(&self) {
        // SAFETY: the yielder was stored when the loop started, and lives as long as the stack is in use.
        unsafe { (*self.yielder.get()).suspend(()) };
    }
}

// SAFETY: start and limit bound memory that belongs to the stack, the page below the limit is a guard page, the start is
// 16-byte aligned, and the size is at least `MIN_SIZE` less a page and the colour.
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
