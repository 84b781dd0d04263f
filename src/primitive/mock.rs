//! The model's twin of `std.rs`: loom's atomics and cells.

pub(crate) use loom::cell::UnsafeCell;
pub(crate) use loom::sync::atomic;

use atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::MutexGuard;

/// The lock of a moment, by loom's mutex: what it is made of has a model of its own.
pub(crate) type ShortLock<T> = Mutex<T>;

/// parking_lot's mutex, by loom's.
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("a panic ends the model")
    }
}

/// A store to an atomic that other threads change by read-modify-writes.
///
/// Here it is a read-modify-write too, whose result is ignored. No thread can tell the two apart by the values that it
/// reads; but if one thread stores over a value that another's read-modify-write finds, loom doesn't see that the
/// latter must have come first, and would show its result as the newer one: an execution that no machine has.
pub(crate) trait Overwrite<T> {
    fn overwrite(&self, value: T);

    /// The same with an ordering of a store.
    fn overwrite_as(&self, value: T, order: Ordering);
}

impl Overwrite<bool> for AtomicBool {
    fn overwrite(&self, value: bool) {
        self.overwrite_as(value, Ordering::Relaxed);
    }

    fn overwrite_as(&self, value: bool, order: Ordering) {
        self.swap(value, order);
    }
}

impl Overwrite<u64> for AtomicU64 {
    fn overwrite(&self, value: u64) {
        self.overwrite_as(value, Ordering::Relaxed);
    }

    fn overwrite_as(&self, value: u64, order: Ordering) {
        self.swap(value, order);
    }
}
