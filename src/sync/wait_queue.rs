//! Waiting for a condition.

use std::cell::Cell;
use std::fmt;
use std::time::Instant;

use super::raw::holder::Site;
use super::raw::wait_queue::{End, RawWaitQueue};
use super::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A queue of coroutines and threads that wait for a condition to change: a condition variable.
///
/// # The rule
///
/// The condition is protected by a lock. Whoever waits looks at it and joins the queue before it gives the lock back: the
/// methods that take a guard do so. Whoever changes it takes the lock, changes it, and wakes, before or after giving the
/// lock back. Then no wake is missed. Where there is no lock, [`wait_condition`](Self::wait_condition) joins first and
/// looks then, which is as good if the condition is made of atomics: whoever changes it, changes it and then wakes.
///
/// A woken waiter takes the lock again, and others may have been faster: it looks again. The methods with a predicate do
/// that, and keep the waiter's place at the front meanwhile.
///
/// There are no wakes out of nothing, and [`wake_one`](Self::wake_one) wakes one. A waiter that is cancelled after that,
/// before it has the lock again, hands the wake on to the next one. One whose deadline passes at that moment counts as
/// woken.
///
/// ```
/// use aioco::{AioContext, sync::{Mutex, WaitQueue}};
/// use std::sync::Arc;
///
/// let context = AioContext::new()?;
/// let shared = Arc::new((Mutex::new(Vec::new()), WaitQueue::new()));
/// let worker = context.spawn({
///     let shared = shared.clone();
///     move || {
///         let (jobs, added) = &*shared;
///         let mut jobs = added.wait_while(jobs.lock(), |jobs| jobs.is_empty());
///         jobs.pop()
///     }
/// })?;
/// context.spawn(move || {
///     let (jobs, added) = &*shared;
///     jobs.lock().push("a job");
///     added.wake_one();
/// })?;
/// assert_eq!(worker.join().unwrap(), Some("a job"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct WaitQueue {
    raw: RawWaitQueue,
}

impl WaitQueue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { raw: RawWaitQueue::new() }
    }

    /// Joins at the back, gives the guard back, waits to be woken, and takes the lock again.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()); then the lock isn't held.
    pub fn wait<G: Relock>(&self, guard: G) -> G {
        self.wait_at(End::Back, guard, None).0
    }

    /// As [`wait`](Self::wait), but joins at the front: for a waiter that was woken and can't go on after all.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_at_front<G: Relock>(&self, guard: G) -> G {
        self.wait_at(End::Front, guard, None).0
    }

    /// As [`wait`](Self::wait), but at most until `deadline`. Returns whether it was woken as well. The lock is taken
    /// again in any case, and waited for as long as it takes.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_until<G: Relock>(&self, guard: G, deadline: Instant) -> (G, bool) {
        self.wait_at(End::Back, guard, Some(deadline))
    }

    /// Waits as long as the predicate is true, which is called with the lock held.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_while<G: Relock>(&self, guard: G, condition: impl FnMut(&mut G) -> bool) -> G {
        self.wait_while_until(guard, condition, None).0
    }

    /// As [`wait_while`](Self::wait_while), but at most until `deadline`, if there is one. Returns whether the predicate
    /// has become false as well.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_while_until<G: Relock>(
        &self,
        mut guard: G,
        mut condition: impl FnMut(&mut G) -> bool,
        deadline: impl Into<Option<Instant>>,
    ) -> (G, bool) {
        let deadline = deadline.into();
        let mut end = End::Back;
        let mut in_time = true;
        while condition(&mut guard) {
            if !in_time {
                return (guard, false);
            }
            (guard, in_time) = self.wait_at(end, guard, deadline);
            end = End::Front;
        }
        (guard, true)
    }

    /// Joins at the back, calls `unlock`, and waits to be woken: for guards that can't be taken again from what they
    /// leave, as those of [`std::sync::Mutex`].
    ///
    /// ```
    /// use aioco::sync::WaitQueue;
    /// use std::{sync::Mutex, thread};
    ///
    /// static DONE: Mutex<bool> = Mutex::new(false);
    /// static CHANGED: WaitQueue = WaitQueue::new();
    /// thread::spawn(|| {
    ///     *DONE.lock().unwrap() = true;
    ///     CHANGED.wake_all();
    /// });
    /// loop {
    ///     let done = DONE.lock().unwrap();
    ///     if *done {
    ///         break;
    ///     }
    ///     CHANGED.wait_after(|| drop(done));
    /// }
    /// ```
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), and as `unlock`.
    pub fn wait_after(&self, unlock: impl FnOnce()) {
        let unlock = || {
            unlock();
            true
        };
        self.raw.wait(End::Back, None, unlock, |_| ());
    }

    /// Waits until the condition is true, without a lock. It is called by the waiter, often enough to see each change
    /// that is followed by a wake.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), and as the condition.
    pub fn wait_condition(&self, condition: impl FnMut() -> bool) {
        self.wait_condition_until(condition, None);
    }

    /// As [`wait_condition`](Self::wait_condition), but at most until `deadline`, if there is one. Returns whether the
    /// condition has become true.
    ///
    /// # Panics
    ///
    /// As [`wait_condition`](Self::wait_condition).
    pub fn wait_condition_until(
        &self,
        mut condition: impl FnMut() -> bool,
        deadline: impl Into<Option<Instant>>,
    ) -> bool {
        let deadline = deadline.into();
        let mut end = End::Back;
        let mut in_time = true;
        while !condition() {
            if !in_time {
                return false;
            }
            let mut is_true = false;
            let look = || {
                is_true = condition();
                !is_true
            };
            in_time = self.raw.wait(end, deadline, look, |woken| woken);
            if is_true {
                return true;
            }
            end = End::Front;
        }
        true
    }

    /// Wakes the first who waits. Returns whether there was one.
    pub fn wake_one(&self) -> bool {
        self.raw.wake_one()
    }

    /// Wakes all who wait at this moment, in order.
    pub fn wake_all(&self) {
        self.raw.wake_all();
    }

    /// Whether nobody waits at this moment.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    fn wait_at<G: Relock>(&self, end: End, guard: G, deadline: Option<Instant>) -> (G, bool) {
        let lock = Cell::new(None);
        let unlock = || {
            lock.set(Some(guard.unlock()));
            true
        };
        self.raw.wait(end, deadline, unlock, |woken| {
            let lock = lock.take().expect("the guard was given back");
            (G::relock(lock), woken)
        })
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue").field("is_empty", &self.is_empty()).finish()
    }
}

/// What a waiter gives back when it has joined a [`WaitQueue`], and takes again when it is woken: a guard of this module,
/// or nothing (`()`). It can be implemented for other guards that know their lock.
pub trait Relock: Sized {
    /// What it takes to have the guard again.
    type Lock;

    /// Gives the guard back.
    fn unlock(self) -> Self::Lock;

    /// Takes it again.
    fn relock(lock: Self::Lock) -> Self;
}

impl Relock for () {
    type Lock = ();

    fn unlock(self) {}

    fn relock((): ()) {}
}

impl<'a, T: ?Sized> Relock for MutexGuard<'a, T> {
    type Lock = (&'a Mutex<T>, Option<Site>);

    fn unlock(self) -> Self::Lock {
        let mutex = MutexGuard::mutex(&self);
        (mutex, mutex.site())
    }

    /// The place where it was locked the first time goes on to count.
    fn relock((mutex, site): Self::Lock) -> Self {
        mutex.lock_at(site)
    }
}

impl<'a, T: ?Sized> Relock for RwLockReadGuard<'a, T> {
    type Lock = &'a RwLock<T>;

    fn unlock(self) -> Self::Lock {
        RwLockReadGuard::lock(&self)
    }

    fn relock(lock: Self::Lock) -> Self {
        lock.read()
    }
}

impl<'a, T: ?Sized> Relock for RwLockWriteGuard<'a, T> {
    type Lock = &'a RwLock<T>;

    fn unlock(self) -> Self::Lock {
        RwLockWriteGuard::lock(&self)
    }

    fn relock(lock: Self::Lock) -> Self {
        lock.write()
    }
}
