//! A cell inside of a shared object that only one thread may open.
//!
//! # Safety
//!
//! The value is touched on the home thread only, which is checked at every access. So it needs to be neither `Send` nor
//! `Sync`. A cell that is dropped on another thread leaks its value, unless that is known to be `Send`.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;

use super::thread::thread_id;

/// What a [home](super::Home) keeps for its own thread: a cell that only the thread may open that made it.
///
/// A home is shared with other threads, which schedule coroutines on it, while the loop that it serves and all that
/// belongs to it (a handle that counts by `Rc`, a table of watches) are its thread's. What is in such a cell need be
/// neither `Send` nor `Sync`, and takes no lock.
///
/// ```
/// use aioco::coroutine::HomeCell;
/// use std::rc::Rc;
/// use std::thread;
///
/// let cell = HomeCell::new(Rc::new(1));
/// assert_eq!(cell.with(|value| **value), 1);
/// thread::scope(|scope| {
///     scope.spawn(|| assert!(!cell.is_current()));
/// });
/// ```
///
/// Dropped on its thread, it drops its value; on another one, the value is leaked. So a home that ends takes out what
/// mustn't be, as an `Option`'s content.
pub struct HomeCell<T> {
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
    pub fn new(value: T) -> Self {
        Self { thread: thread_id(), sendable: false, value: ManuallyDrop::new(RefCell::new(value)) }
    }

    /// Another cell of the same thread.
    ///
    /// # Panics
    ///
    /// On another thread.
    pub(crate) fn sibling<U>(&self, value: U) -> HomeCell<U> {
        assert!(self.is_current(), "something for an AioContext's thread was made on another");
        HomeCell::new(value)
    }

    /// Another cell of the same thread, made on any, and dropped on any.
    ///
    /// # Safety
    ///
    /// `value` is `Send`, though its type may not say so.
    pub(crate) unsafe fn sendable_sibling<U>(&self, value: U) -> HomeCell<U> {
        HomeCell { thread: self.thread, sendable: true, value: ManuallyDrop::new(RefCell::new(value)) }
    }

    /// Whether the caller is on the thread of the cell: what [`Home::is_current`](super::Home::is_current) asks.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.thread == thread_id()
    }

    /// Calls `f` with the value.
    ///
    /// # Panics
    ///
    /// On another thread, or from within `f`: wake nobody there, and call nobody who may come back.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        assert!(self.is_current(), "a home was used on a thread that is not its own");
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

impl<T> fmt::Debug for HomeCell<T> {
    /// Without the value, which isn't for any thread to see.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HomeCell").field("is_current", &self.is_current()).finish_non_exhaustive()
    }
}
