//! Shared or exclusive access.
#![allow(unsafe_code)] // # Safety: whoever has taken the raw lock may use the data, as it has taken it.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::{Duration, Instant};

use super::deadline_after;
use super::raw::holder::Site;
use super::raw::rwlock::{RawRwLock, Ticket};

/// A read-write lock for coroutines of any context and for plain threads. It may be held while the holder is suspended.
///
/// Those who wait get it in the order in which they came, readers that follow one another together. A reader that comes
/// while a writer waits waits as well, so neither side starves the other. Hence a reader must not take the lock once more
/// while it has it: if a writer has come in between, each would wait for the other. (Debug builds report it.)
///
/// A writer can become a reader without leaving ([`downgrade`](RwLockWriteGuard::downgrade)), and a reader a writer
/// ([`upgrade`](RwLockReadGuard::upgrade)).
///
/// See [the module](super) for what all locks here have in common: cancellation, time limits, panics, deadlocks.
///
/// ```
/// use aioco::sync::RwLock;
///
/// let lock = RwLock::new(1);
/// {
///     let (one, other) = (lock.read(), lock.read());
///     assert_eq!(*one + *other, 2);
///     assert!(lock.try_write().is_none());
/// }
/// *lock.write() += 1;
/// assert_eq!(*lock.read(), 2);
/// ```
pub struct RwLock<T: ?Sized> {
    raw: RawRwLock,
    data: UnsafeCell<T>,
}

// SAFETY: the data moves with the lock, and from writer to writer.
unsafe impl<T: ?Sized + Send> Send for RwLock<T> {}
// SAFETY: as above; and readers share it.
unsafe impl<T: ?Sized + Send + Sync> Sync for RwLock<T> {}

impl<T> RwLock<T> {
    /// A lock that is free.
    pub const fn new(value: T) -> Self {
        Self { raw: RawRwLock::new(), data: UnsafeCell::new(value) }
    }

    /// The data.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Takes the lock for reading, waiting for it if need be.
    ///
    /// # Panics
    ///
    /// - If the caller has it for writing, with both places; or is a plain thread that would wait for a coroutine of its
    ///   own loop. In debug builds also if it has it for reading and would have to wait.
    /// - As [`park`](crate::park::park()), if it has to wait.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.read_at_most(None, Location::caller()).expect("there is no deadline")
    }

    /// Takes the lock for reading if nobody has it for writing and nobody waits.
    #[inline]
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.raw.try_read(Location::caller()).map(|ticket| self.read_guard(ticket))
    }

    /// As [`read`](Self::read), waiting at most until `deadline`.
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[track_caller]
    pub fn try_read_until(&self, deadline: Instant) -> Option<RwLockReadGuard<'_, T>> {
        self.read_at_most(Some(deadline), Location::caller())
    }

    /// As [`read`](Self::read), waiting for at most `duration`.
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[track_caller]
    pub fn try_read_for(&self, duration: Duration) -> Option<RwLockReadGuard<'_, T>> {
        self.read_at_most(deadline_after(duration), Location::caller())
    }

    /// Takes the lock for writing, waiting for it if need be.
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.raw.write(None, Location::caller());
        self.write_guard()
    }

    /// Takes the lock for writing if nobody has it.
    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.raw.try_write(Location::caller()).then(|| self.write_guard())
    }

    /// As [`write`](Self::write), waiting at most until `deadline`.
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[track_caller]
    pub fn try_write_until(&self, deadline: Instant) -> Option<RwLockWriteGuard<'_, T>> {
        self.raw.write(Some(deadline), Location::caller()).then(|| self.write_guard())
    }

    /// As [`write`](Self::write), waiting for at most `duration`.
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[track_caller]
    pub fn try_write_for(&self, duration: Duration) -> Option<RwLockWriteGuard<'_, T>> {
        self.raw.write(deadline_after(duration), Location::caller()).then(|| self.write_guard())
    }

    /// The data, without locking: nobody else has the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    /// Whether somebody has it at this moment.
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    #[inline]
    fn read_at_most(&self, deadline: Option<Instant>, site: Site) -> Option<RwLockReadGuard<'_, T>> {
        self.raw.read(deadline, site).map(|ticket| self.read_guard(ticket))
    }

    fn read_guard(&self, ticket: Ticket) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard { lock: self, ticket, marker: PhantomData }
    }

    fn write_guard(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { lock: self, marker: PhantomData }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("RwLock");
        match self.try_read() {
            Some(guard) => all.field("data", &&*guard),
            None => all.field("data", &format_args!("<locked>")).field("raw", &self.raw),
        };
        all.finish()
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// Shared access to the data of an [`RwLock`], which is given back when this is dropped.
///
/// ```compile_fail,E0277
/// let lock = aioco::sync::RwLock::new(());
/// let guard = lock.read();
/// std::thread::scope(|s| s.spawn(move || drop(guard)).join().unwrap());
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    ticket: Ticket,
    /// Not `Send`.
    marker: PhantomData<*mut ()>,
}

// SAFETY: a shared guard gives out shared references to the data.
unsafe impl<T: ?Sized + Sync> Sync for RwLockReadGuard<'_, T> {}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    /// The lock that was taken.
    pub fn lock(guard: &Self) -> &'a RwLock<T> {
        guard.lock
    }

    /// Becomes the writer: at once if this is the only reader and nobody waits; else it gives the lock back and waits
    /// for it as the last.
    ///
    /// So **other writers may have been there in between**, and what was read before has to be looked at again. In
    /// return, two readers that want to become writers don't wait for each other.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait.
    #[track_caller]
    pub fn upgrade(guard: Self) -> RwLockWriteGuard<'a, T> {
        let (lock, ticket) = guard.into_parts();
        lock.raw.upgrade(ticket, None, Location::caller());
        lock.write_guard()
    }

    /// As [`upgrade`](Self::upgrade), waiting at most until `deadline`. After that the lock isn't held at all.
    ///
    /// # Panics
    ///
    /// As [`upgrade`](Self::upgrade).
    #[track_caller]
    pub fn upgrade_until(guard: Self, deadline: Instant) -> Option<RwLockWriteGuard<'a, T>> {
        let (lock, ticket) = guard.into_parts();
        lock.raw.upgrade(ticket, Some(deadline), Location::caller()).then(|| lock.write_guard())
    }

    /// Becomes the writer if this is the only reader and nobody waits: then nobody was there in between.
    ///
    /// # Errors
    ///
    /// The guard itself, if there are other readers, or waiters.
    #[track_caller]
    pub fn try_upgrade(guard: Self) -> Result<RwLockWriteGuard<'a, T>, Self> {
        if !guard.lock.raw.try_upgrade(guard.ticket, Location::caller()) {
            return Err(guard);
        }
        let (lock, _) = guard.into_parts();
        Ok(lock.write_guard())
    }

    /// Without giving it back.
    fn into_parts(self) -> (&'a RwLock<T>, Ticket) {
        let parts = (self.lock, self.ticket);
        mem::forget(self);
        parts
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard's owner has taken the lock.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> Drop for RwLockReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.unlock_read(self.ticket);
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Exclusive access to the data of an [`RwLock`], which is given back when this is dropped.
///
/// ```compile_fail,E0277
/// let lock = aioco::sync::RwLock::new(());
/// let guard = lock.write();
/// std::thread::scope(|s| s.spawn(move || drop(guard)).join().unwrap());
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: &'a RwLock<T>,
    /// Not `Send`.
    marker: PhantomData<*mut ()>,
}

// SAFETY: a shared guard gives out shared references to the data.
unsafe impl<T: ?Sized + Sync> Sync for RwLockWriteGuard<'_, T> {}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// The lock that was taken.
    pub fn lock(guard: &Self) -> &'a RwLock<T> {
        guard.lock
    }

    /// Becomes a reader, and lets in the readers that are the first of those who wait. Never waits, and no other writer
    /// comes in between.
    #[track_caller]
    pub fn downgrade(guard: Self) -> RwLockReadGuard<'a, T> {
        let lock = guard.lock;
        mem::forget(guard);
        let ticket = lock.raw.downgrade(Location::caller());
        lock.read_guard(ticket)
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard's owner has taken the lock.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's owner has taken the lock for writing, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T: ?Sized> Drop for RwLockWriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.unlock_write();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
