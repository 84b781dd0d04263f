//! A lock for a few loads and stores.
//!
//! It costs one read-modify-write: locking it. Unlocking is a plain store, since nobody has registered to be woken. In
//! return, whoever finds it locked waits awake; should that take long, the holder has been preempted, and the waiter gives
//! up the processor, at last for so long that a holder of lower priority runs as well.
//!
//! It may be held over nothing that takes longer than the above: no system call, no code of users, no suspension.
//!
//! # Safety
//!
//! Whoever has set `locked` from false to true has the value, until it stores false. Checked by the model `short_lock`.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use super::atomic::{AtomicBool, Ordering};
use super::const_unless_model;
use super::mutant::ordering;
use super::{Overwrite, UnsafeCell};

/// A value behind a lock that is held for a moment.
#[derive(Debug)]
pub(crate) struct ShortLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value goes from holder to holder, one at a time.
unsafe impl<T: Send> Send for ShortLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for ShortLock<T> {}

impl<T> ShortLock<T> {
    const_unless_model! {
        pub(crate) fn new(value: T) -> Self {
            Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> ShortGuard<'_, T> {
        // Acquire: pairs with the Release of the guard's drop. Not a compare-exchange: who finds it locked changes
        // nothing.
        if self.locked.swap(true, ordering!(Acquire, "short_lock_not_acquired" => Relaxed)) {
            self.wait();
        }
        ShortGuard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        let mut tries = 0;
        // Acquire: as above. (A model might load an old value for ever.)
        while cfg!(not(all(test, loom))) && self.locked.load(Ordering::Relaxed)
            || self.locked.swap(true, Ordering::Acquire)
        {
            pause(tries);
            tries += 1;
        }
    }
}

#[cfg(not(all(test, loom)))]
fn pause(tries: u32) {
    use std::time::Duration;
    use std::{hint, thread};

    match tries {
        0..100 => hint::spin_loop(),
        100..200 => thread::yield_now(),
        _ => thread::sleep(Duration::from_micros(50)),
    }
}

#[cfg(all(test, loom))]
fn pause(_: u32) {
    loom::thread::yield_now();
}

/// The value of a [`ShortLock`], until this is dropped.
#[derive(Debug)]
pub(crate) struct ShortGuard<'a, T> {
    lock: &'a ShortLock<T>,
}

impl<T> Deref for ShortGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard's owner has locked it.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for ShortGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's owner has locked it, and the guard is borrowed exclusively.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for ShortGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the Acquire of `lock`.
        self.lock.locked.overwrite_as(false, ordering!(Release, "short_lock_not_released" => Relaxed));
    }
}
