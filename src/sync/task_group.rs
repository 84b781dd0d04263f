//! Coroutines that end before their parent goes on.
#![allow(unsafe_code)] // # Safety: coroutines that borrow, in a scope that is left only when they have ended.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::{self, Location};
use std::sync::Arc;

use super::Semaphore;
use super::raw::task_group::RawTaskGroup;
use crate::coroutine::{self, Home};
use crate::task::{self, JoinHandle};

/// Runs `f` with a group in which it may spawn coroutines that borrow, at most `limit` of them at a time; waits for all
/// of them, and returns what `f` returned, or the first error of any.
///
/// They run on the caller's home, beside the caller. One that fails doesn't stop the others:
/// [`has_failed`](TaskGroup::has_failed) tells those who want to know.
///
/// ```
/// use aioco::{AioContext, sync::task_group, yield_now};
/// use std::cell::Cell;
///
/// let context = AioContext::new()?;
/// let copied = Cell::new(0);
/// let result = context.block_on(|| {
///     task_group(4, |group| {
///         for cluster in 0..16 {
///             let copied = &copied;
///             group.spawn(move || {
///                 yield_now(); // reads and writes, say
///                 if cluster == 7 {
///                     return Err(std::io::Error::other("cluster 7 is bad"));
///                 }
///                 copied.set(copied.get() + 1);
///                 Ok(())
///             })?;
///         }
///         Ok(())
///     })
/// });
/// assert_eq!(result.unwrap_err().to_string(), "cluster 7 is bad");
/// assert_eq!(copied.get(), 15);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// What lives in `f` itself is gone before they are:
///
/// ```compile_fail,E0373
/// # use aioco::sync::task_group;
/// task_group(1, |group| {
///     let local = 1;
///     group.spawn(|| {
///         println!("{local}");
///         Ok::<(), std::io::Error>(())
///     })
/// });
/// ```
///
/// # Errors
///
/// The first error, in time, of those that the coroutines and `f` returned.
///
/// # Panics
///
/// - Outside of a coroutine that has a home.
/// - If the limit is 0.
/// - If one of the coroutines panics: with the payload of the first one, when all have ended.
/// - If `f` panics, or the caller is cancelled: then the coroutines are cancelled as well, and have ended, before the panic
///   goes on.
///
/// # Aborts
///
/// If a coroutine refuses to be unwound (see the [module on coroutines](coroutine)), or has the caller unwound: its
/// borrows could not be ended.
pub fn task_group<'env, T, E: 'env>(
    limit: usize,
    f: impl for<'scope> FnOnce(&'scope TaskGroup<'scope, 'env, E>) -> Result<T, E>,
) -> Result<T, E> {
    assert!(limit > 0, "a task group without room for a coroutine");
    let group = TaskGroup {
        home: coroutine::home().expect("task_group called outside of a coroutine that has a home"),
        raw: RawTaskGroup::new(limit.min(Semaphore::MAX_PERMITS)),
        children: RefCell::default(),
        error: RefCell::new(None),
        payload: RefCell::new(None),
        scope: PhantomData,
        env: PhantomData,
    };
    let result = {
        let _end = EndAll(&group);
        let result = f(&group).map_err(|error| group.fail(error));
        group.raw.wait();
        group.reap();
        result
    };
    if let Some(payload) = group.payload.take() {
        panic::resume_unwind(payload);
    }
    match (group.error.take(), result) {
        (Some(error), _) => Err(error),
        (None, Ok(value)) => Ok(value),
        (None, Err(())) => unreachable!("the error of `f` was kept"),
    }
}

/// Where [`task_group`] lets coroutines be spawned.
pub struct TaskGroup<'scope, 'env: 'scope, E> {
    home: Arc<dyn Home>,
    raw: RawTaskGroup,
    children: RefCell<Children>,
    error: RefCell<Option<E>>,
    payload: RefCell<Option<Box<dyn Any + Send>>>,
    /// Invariant, as in [`std::thread::Scope`].
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The coroutines' handles.
#[derive(Default)]
struct Children {
    /// `None` where there is room.
    handles: Vec<Option<JoinHandle<()>>>,
    /// Where there is room.
    vacant: Vec<usize>,
    /// Whose have ended, and are to be looked at.
    ended: Vec<usize>,
}

impl<'scope, 'env, E> TaskGroup<'scope, 'env, E> {
    /// Spawns a coroutine, which starts when the caller suspends, on the same home. Waits first while as many as may be
    /// are running.
    ///
    /// A coroutine of the group may spawn others in it. It should not wait for them: it takes one of the places itself.
    ///
    /// # Errors
    ///
    /// If no stack can be had; `f` is dropped then.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait.
    #[track_caller]
    pub fn spawn(&'scope self, f: impl FnOnce() -> Result<(), E> + 'scope) -> io::Result<()> {
        let location = Location::caller();
        let child = Child::begin(&self.raw);
        self.reap();
        let place = self.children.borrow_mut().reserve();
        let parts = (f, End { group: self, place, child });
        let body = move || {
            // Captured whole: if the body is dropped unrun, the closure goes first, then it has ended.
            let parts = parts;
            let (f, _end) = parts;
            if let Err(error) = f() {
                self.fail(error);
            }
        };
        // SAFETY: `f` lives as long as the scope, which `EndAll` and the wait before it don't let end before the handle
        // is finished. The frame of the scope is left in no other way: a stack whose frames aren't left is never reused.
        let handle = unsafe { task::spawn_scoped(self.home.clone(), location, body) }?;
        self.children.borrow_mut().handles[place] = Some(handle);
        Ok(())
    }

    /// Whether there has been an error or a panic already, so that it may not be worth while to go on.
    pub fn has_failed(&self) -> bool {
        self.error.borrow().is_some() || self.payload.borrow().is_some()
    }

    fn fail(&self, error: E) {
        let later = if self.error.borrow().is_none() { self.error.replace(Some(error)) } else { Some(error) };
        // Where user code may run.
        drop(later);
    }

    /// Takes the results of those that have ended.
    fn reap(&self) {
        loop {
            let Some(handle) = self.children.borrow_mut().take_ended() else { return };
            let result = handle.map(|handle| handle.take_or_wait().expect("one that has ended is finished"));
            if let Some(Err(payload)) = result
                && self.payload.borrow().is_none()
            {
                self.payload.replace(Some(payload));
            }
        }
    }
}

impl Children {
    fn reserve(&mut self) -> usize {
        self.vacant.pop().unwrap_or_else(|| {
            self.handles.push(None);
            self.handles.len() - 1
        })
    }

    /// Takes one that has ended out; the handle is missing if it couldn't be spawned.
    fn take_ended(&mut self) -> Option<Option<JoinHandle<()>>> {
        let place = self.ended.pop()?;
        self.vacant.push(place);
        Some(self.handles[place].take())
    }

    /// Takes out one that hasn't ended.
    fn take_any(&mut self) -> Option<JoinHandle<()>> {
        self.handles.iter_mut().find_map(Option::take)
    }
}

/// A child that counts, until this is dropped.
struct Child<'scope>(&'scope RawTaskGroup);

impl<'scope> Child<'scope> {
    /// Waits for a place.
    fn begin(group: &'scope RawTaskGroup) -> Self {
        group.begin();
        Self(group)
    }
}

impl Drop for Child<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A coroutine's side: tells the group that it has ended.
struct End<'scope, 'env, E> {
    group: &'scope TaskGroup<'scope, 'env, E>,
    place: usize,
    #[allow(dead_code, reason = "ends when this is dropped")]
    child: Child<'scope>,
}

impl<E> Drop for End<'_, '_, E> {
    /// What follows until the handle is finished doesn't suspend, so the group, which is on the same thread, finds it
    /// finished.
    fn drop(&mut self) {
        self.group.children.borrow_mut().ended.push(self.place);
    }
}

/// Ends the coroutines that haven't ended when the scope is left by an unwind.
struct EndAll<'a, 'scope, 'env, E>(&'a TaskGroup<'scope, 'env, E>);

impl<E> Drop for EndAll<'_, '_, '_, E> {
    fn drop(&mut self) {
        loop {
            let Some(handle) = self.0.children.borrow_mut().take_any() else { return };
            handle.end_now();
        }
    }
}

impl<E> fmt::Debug for TaskGroup<'_, '_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskGroup").field("running", &self.raw.running()).finish_non_exhaustive()
    }
}
