//! Mutual exclusion.
#![allow(unsafe_code)] // # Safety: whoever has locked the raw mutex may use the data.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::{Duration, Instant};

use super::deadline_after;
use super::raw::holder::Site;
use super::raw::mutex::RawMutex;

/// A mutex for coroutines of any context and for plain threads. It may be held while the holder is suspended.
///
/// Those who wait get it in the order in which they came: an unlock makes it the next one's at once, and wakes that one.
/// A coroutine that is woken runs when the one that unlocked suspends, or in its own loop; never from within the unlock.
/// One that sleeps on another thread is only woken, and may be overtaken until it runs (see [the module](super#order)).
///
/// See [the module](super) for what all locks here have in common: cancellation, time limits, panics, deadlocks.
///
/// ```
/// use aioco::{AioContext, sync::Mutex, yield_now};
/// use std::sync::Arc;
///
/// let context = AioContext::new()?;
/// let table = Arc::new(Mutex::new(Vec::new()));
/// let writers: Vec<_> = (0..3)
///     .map(|n| {
///         let table = table.clone();
///         context.spawn(move || {
///             let mut table = table.lock();
///             table.push(n);
///             yield_now(); // the others run, and wait for the table
///             table.push(n);
///         })
///     })
///     .collect::<Result<_, _>>()?;
/// writers.into_iter().for_each(|writer| writer.join().unwrap());
/// assert_eq!(*table.lock(), [0, 0, 1, 1, 2, 2]);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Mutex<T: ?Sized> {
    raw: RawMutex,
    data: UnsafeCell<T>,
}

// SAFETY: the data moves with the mutex, and from holder to holder.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above; there is one holder at a time.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// A mutex that is free.
    pub const fn new(value: T) -> Self {
        Self { raw: RawMutex::new(), data: UnsafeCell::new(value) }
    }

    /// The data.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex, waiting for it if need be.
    ///
    /// # Panics
    ///
    /// - If the caller holds it already, with both places; or is a plain thread that would wait for a coroutine of its
    ///   own loop.
    /// - As [`park`](crate::park::park()), if it has to wait.
    #[inline(always)]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.raw.lock(None, Location::caller());
        self.guard()
    }

    /// Locks the mutex if it is free.
    #[inline(always)]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.raw.try_lock(Location::caller()).then(|| self.guard())
    }

    /// As [`lock`](Self::lock), waiting at most until `deadline`.
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn try_lock_until(&self, deadline: Instant) -> Option<MutexGuard<'_, T>> {
        self.raw.lock(Some(deadline), Location::caller()).then(|| self.guard())
    }

    /// As [`lock`](Self::lock), waiting for at most `duration`.
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    #[inline]
    #[track_caller]
    pub fn try_lock_for(&self, duration: Duration) -> Option<MutexGuard<'_, T>> {
        self.raw.lock(deadline_after(duration), Location::caller()).then(|| self.guard())
    }

    /// The data, without locking: nobody else has the mutex.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    /// Whether somebody holds it at this moment.
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// Where it was locked.
    pub(super) fn site(&self) -> Option<Site> {
        self.raw.site()
    }

    /// Locks it, as if at that place.
    #[track_caller]
    pub(super) fn lock_at(&self, site: Option<Site>) -> MutexGuard<'_, T> {
        self.raw.lock(None, site.unwrap_or(Location::caller()));
        self.guard()
    }

    /// The caller has locked it.
    #[inline(always)]
    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, marker: PhantomData }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("Mutex");
        match self.try_lock() {
            Some(guard) => all.field("data", &&*guard),
            None => all.field("data", &format_args!("<locked>")).field("raw", &self.raw),
        };
        all.finish()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// Access to the data of a [`Mutex`], which is unlocked when this is dropped.
///
/// It stays on its thread, since its coroutine does:
///
/// ```compile_fail,E0277
/// let mutex = aioco::sync::Mutex::new(());
/// let guard = mutex.lock();
/// std::thread::scope(|s| s.spawn(move || drop(guard)).join().unwrap());
/// ```
#[must_use = "the mutex is unlocked when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// Not `Send`.
    marker: PhantomData<*mut ()>,
}

// SAFETY: a shared guard gives out shared references to the data.
unsafe impl<T: ?Sized + Sync> Sync for MutexGuard<'_, T> {}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// The mutex that it locks.
    pub fn mutex(guard: &Self) -> &'a Mutex<T> {
        guard.mutex
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard's owner has locked the mutex.
        unsafe { &*self.mutex.data.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's owner has locked the mutex, and the guard is borrowed exclusively.
        unsafe { &mut *self.mutex.data.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.mutex.raw.unlock();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
