//! A cell inside of a shared object that only one thread may open.
//!
//! # Safety
//!
//! The value is touched on the home thread only, which is checked at every access. So it needs to be neither `Send` nor
//! `Sync`. A cell that is dropped on another thread leaks its value, unless that is known to be `Send`.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use crate::coroutine::thread_id;

#[derive(Debug)]
pub(super) struct HomeCell<T> {
    thread: u32,
    /// Whether the value may be dropped on any thread.
    sendable: bool,
    value: ManuallyDrop<RefCell<T>>,
}

// SAFETY: see the head.
unsafe impl<T> Send for HomeCell<T> {}
// SAFETY: see the head.
unsafe impl<T> Sync for HomeCell<T> {}

impl<T> HomeCell<T> {
    /// A cell of the calling thread.
    pub(super) fn new(value: T) -> Self {
        Self { thread: thread_id(), sendable: false, value: ManuallyDrop::new(RefCell::new(value)) }
    }

    /// Another cell of the same thread.
    ///
    /// # Panics
    ///
    /// On another thread.
    pub(super) fn sibling<U>(&self, value: U) -> HomeCell<U> {
        assert!(self.is_current(), "something for an AioContext's thread was made on another");
        HomeCell::new(value)
    }

    /// Another cell of the same thread, made on any, and dropped on any.
    ///
    /// # Safety
    ///
    /// `value` is `Send`, though its type may not say so.
    pub(super) unsafe fn sendable_sibling<U>(&self, value: U) -> HomeCell<U> {
        HomeCell { thread: self.thread, sendable: true, value: ManuallyDrop::new(RefCell::new(value)) }
    }

    /// Whether the caller is the home thread.
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.thread == thread_id()
    }

    /// Calls `f` with the value.
    ///
    /// # Panics
    ///
    /// On another thread, or from within `f`.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        assert!(self.is_current(), "an AioContext was used on a thread that is not its own");
        f(&mut self.value.borrow_mut())
    }
}

impl<T> Drop for HomeCell<T> {
    fn drop(&mut self) {
        if self.sendable || self.is_current() {
            // SAFETY: dropped here only, and the value may be dropped on this thread.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
