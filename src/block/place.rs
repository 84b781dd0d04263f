//! Memory that stays in place while somebody else has a pointer into it.
#![allow(unsafe_code)] // # Safety: as a `Box`; whoever gives a pointer away sees to it that it is gone before the value is touched.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// What a `Box` is, but for the claim that nobody else has a pointer into it: the kernel has, of a request.
#[derive(Debug)]
pub(super) struct Place<T>(NonNull<T>);

impl<T> Place<T> {
    pub(super) fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }
}

impl<T> Deref for Place<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: it is ours, and there until the drop.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Place<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above. Its owner doesn't ask for this while anybody else has a pointer into it.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and is dropped once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
