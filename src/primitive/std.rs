//! The real thing: std's atomics, and std's `UnsafeCell` in loom's shape.

pub(crate) use super::short_lock::ShortLock;
pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic;

use atomic::{AtomicBool, AtomicU64, Ordering};

/// [`std::cell::UnsafeCell`], accessed through closures as loom's is.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// Calls `f` with a pointer for reading.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer for writing.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A store, Relaxed or as asked for, to an atomic that other threads change by read-modify-writes. (See the model's twin.)
pub(crate) trait Overwrite<T> {
    fn overwrite(&self, value: T);

    fn overwrite_as(&self, value: T, order: Ordering);
}

impl Overwrite<bool> for AtomicBool {
    #[inline(always)]
    fn overwrite(&self, value: bool) {
        self.overwrite_as(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn overwrite_as(&self, value: bool, order: Ordering) {
        self.store(value, order);
    }
}

impl Overwrite<u64> for AtomicU64 {
    #[inline(always)]
    fn overwrite(&self, value: u64) {
        self.overwrite_as(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn overwrite_as(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}
