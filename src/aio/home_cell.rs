//! A cell inside of a shared object that only one thread may open.
//!
//! # Safety
//!
//! The value is touched on the home thread only, which is checked at every access. It may be dropped elsewhere: what is put
//! into such a cell must be `Send`, or be taken out by the home thread first.
#![allow(unsafe_code)]

use std::cell::RefCell;

use crate::coroutine::thread_id;

#[derive(Debug)]
pub(super) struct HomeCell<T> {
    thread: u32,
    value: RefCell<T>,
}

// SAFETY: see the head; access from other threads panics before it touches the value.
unsafe impl<T: Send> Sync for HomeCell<T> {}

impl<T> HomeCell<T> {
    /// A cell for the calling thread.
    pub(super) fn new(value: T) -> Self {
        Self { thread: thread_id(), value: RefCell::new(value) }
    }

    /// Whether the caller is the home thread.
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
