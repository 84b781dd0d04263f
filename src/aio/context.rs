//! The context and its remote handle: what users hold.
#![allow(unsafe_code)] // # Safety: coroutines on our own thread that may borrow (`block_on`) or aren't `Send`.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::{self, AssertUnwindSafe, Location};
use std::sync::Arc;
use std::thread;

use super::bh::{self, BottomHalf};
use super::builder::{ContextBuilder, MonitorChoice};
use super::fdmon::MonitorKind;
use super::shared::{Shared, refuse_coroutine};
use super::stats::Stats;
use crate::coroutine::{Builder, Cancelled, Home, in_coroutine};
use crate::task::{self, JoinHandle};

/// An event loop, and the home of the coroutines that are spawned on it.
///
/// It belongs to the thread that made it. Others reach it through a [`Remote`].
///
/// # Dropping
///
/// Coroutines that wait for their first turn are dropped, suspended ones are unwound; their join handles return
/// [`Cancelled`](crate::coroutine::Cancelled). Wakes after that do nothing. A coroutine that is driven by its handle
/// and parked here stays with its handle.
pub struct AioContext {
    shared: Arc<Shared>,
    /// Neither `Send` nor `Sync`.
    marker: PhantomData<*mut ()>,
}

impl AioContext {
    /// Makes a context for the calling thread, with the best monitor that can be had; see [the module](super#monitors).
    ///
    /// # Errors
    ///
    /// If the kernel refuses a descriptor (limits of open files: `RLIMIT_NOFILE`, `fs.file-max`).
    pub fn new() -> io::Result<Self> {
        Self::builder().build()
    }

    /// Makes a context with options.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::new()
    }

    pub(super) fn with(monitor: Option<MonitorKind>) -> io::Result<Self> {
        Ok(Self { shared: Arc::new(Shared::new(monitor)?), marker: PhantomData })
    }

    /// Which monitor this context has, and why.
    ///
    /// ```
    /// let context = aioco::AioContext::new()?;
    /// println!("descriptors are monitored by {}", context.monitor());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn monitor(&self) -> &MonitorChoice {
        &self.shared.choice
    }

    /// The system calls that this context has made for its loop.
    ///
    /// ```
    /// let context = aioco::AioContext::new()?;
    /// context.block_on(|| aioco::yield_now());
    /// assert_eq!(context.stats().signals, 0, "nobody had to wake it");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Spawns `f` as a coroutine of this context; it starts at one of the next turns.
    ///
    /// # Errors
    ///
    /// If no stack can be had; the message names `vm.max_map_count` where that is the cause.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        task::spawn_sendable(self.home(), Builder::new(), Location::caller(), f)
    }

    /// As [`spawn`](Self::spawn), with a name or a stack size.
    ///
    /// # Errors
    ///
    /// As [`Builder::create`].
    #[track_caller]
    pub fn spawn_with<T: Send + 'static>(
        &self,
        builder: Builder,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        task::spawn_sendable(self.home(), builder, Location::caller(), f)
    }

    /// As [`spawn`](Self::spawn), for a closure and a result that needn't be `Send`.
    ///
    /// ```
    /// use std::{cell::Cell, rc::Rc};
    /// let context = aioco::AioContext::new()?;
    /// let shared = Rc::new(Cell::new(1));
    /// let other = shared.clone();
    /// context.spawn_local(move || other.set(2))?.join().unwrap();
    /// assert_eq!(shared.get(), 2);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn).
    #[track_caller]
    pub fn spawn_local<T: 'static>(&self, f: impl FnOnce() -> T + 'static) -> io::Result<JoinHandle<T>> {
        // SAFETY: `f` borrows nothing.
        unsafe { task::spawn_local_on(self.home(), Location::caller(), f) }
    }

    /// Makes a bottom half: `callback` runs on this thread, in a turn of this context, when it has been scheduled.
    ///
    /// ```
    /// use std::{cell::Cell, rc::Rc};
    /// let context = aioco::AioContext::new()?;
    /// let runs = Rc::new(Cell::new(0));
    /// let count = runs.clone();
    /// let bottom_half = context.bottom_half(move || count.set(count.get() + 1));
    /// bottom_half.schedule();
    /// bottom_half.schedule(); // twice before it runs is once
    /// assert!(context.poll(true));
    /// assert_eq!(runs.get(), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// A callback that panics does so out of [`poll`](Self::poll); those behind it have their turn in the next one.
    pub fn bottom_half(&self, callback: impl FnMut() + 'static) -> BottomHalf {
        BottomHalf::new(&self.shared, callback)
    }

    /// Runs `f` once, in the next turn, in its turn among the bottom halves.
    pub fn schedule_once(&self, f: impl FnOnce() + 'static) {
        self.shared.push_bottom_half(bh::Node::once(&self.shared, f));
    }

    /// Runs `f` as a coroutine of this context, and the loop until it has ended. What `f` borrows need not be
    /// `'static`.
    ///
    /// # Panics
    ///
    /// - If `f` panics, with its payload.
    /// - Inside of a coroutine.
    /// - If no stack can be had.
    ///
    /// # Aborts
    ///
    /// If the loop panics while `f` is suspended and `f` refuses to be unwound: its borrows could not be ended.
    #[track_caller]
    pub fn block_on<T>(&self, f: impl FnOnce() -> T) -> T {
        refuse_coroutine("block_on");
        let location = Location::caller();
        // SAFETY: `Running` doesn't let us leave before the coroutine has ended.
        let spawned = unsafe { task::spawn_scoped(self.home(), location, f) };
        let running = Running { context: self, handle: Some(spawned.expect("no stack for a coroutine")) };
        running.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
    }

    /// One turn: waits for events if `blocking` is set and nothing is ready, then runs the coroutines that are ready.
    /// Returns whether something was done; a wake-up alone, without anything to do, is not.
    ///
    /// # Panics
    ///
    /// - Inside of a coroutine.
    /// - If a coroutine that is driven by its handle runs in this turn and panics: with its payload.
    pub fn poll(&self, blocking: bool) -> bool {
        refuse_coroutine("poll");
        self.shared.run_once(blocking)
    }

    /// Turns until `done` says so. It is asked before each turn.
    ///
    /// # Panics
    ///
    /// As [`poll`](Self::poll).
    pub fn run_until(&self, mut done: impl FnMut() -> bool) {
        let _home = self.shared.enter();
        while !done() {
            self.poll(true);
        }
    }

    /// A handle through which other threads spawn coroutines here.
    pub fn remote(&self) -> Remote {
        Remote { shared: self.shared.clone() }
    }

    /// This context as a home.
    pub fn home(&self) -> Arc<dyn Home> {
        self.shared.clone()
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl fmt::Debug for AioContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AioContext").finish_non_exhaustive()
    }
}

/// An [`AioContext`] as other threads see it.
#[derive(Clone)]
pub struct Remote {
    shared: Arc<Shared>,
}

impl Remote {
    /// Spawns `f` as a coroutine of the context, on its thread.
    ///
    /// # Errors
    ///
    /// - If no stack can be had.
    /// - [`NotConnected`](io::ErrorKind::NotConnected) if the context has ended.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        if self.shared.has_ended() {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the AioContext has ended"));
        }
        task::spawn_sendable(self.shared.clone(), Builder::new(), Location::caller(), f)
    }

    /// Runs `f` as a coroutine of the context, and waits for its result: a coroutine parks, a thread blocks, or runs
    /// its loop if it is the context's own. A coroutine of that very thread just calls `f`.
    ///
    /// # Errors
    ///
    /// - As [`spawn`](Self::spawn).
    /// - [`NotConnected`](io::ErrorKind::NotConnected) if the context ended before `f` did.
    ///
    /// # Panics
    ///
    /// If `f` panics, with its payload.
    #[track_caller]
    pub fn call<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        if self.shared.is_current() && in_coroutine() {
            return Ok(f());
        }
        match self.spawn(f)?.join() {
            Ok(value) => Ok(value),
            Err(payload) if payload.is::<Cancelled>() => {
                Err(io::Error::new(io::ErrorKind::NotConnected, "the AioContext ended before the call returned"))
            }
            Err(payload) => panic::resume_unwind(payload),
        }
    }

    /// Runs `f` once, on the context's thread, in its turn among the bottom halves. If the context has ended, or ends
    /// before that, `f` is dropped.
    pub fn schedule_once(&self, f: impl FnOnce() + Send + 'static) {
        self.shared.push_bottom_half(bh::Node::once_sent(&self.shared, f));
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

/// The coroutine of a `block_on`, which ends before this is gone.
struct Running<'a, T> {
    context: &'a AioContext,
    handle: Option<JoinHandle<T>>,
}

impl<T> Running<'_, T> {
    fn join(mut self) -> thread::Result<T> {
        let is_finished = || self.handle.as_ref().is_none_or(JoinHandle::is_finished);
        self.context.run_until(is_finished);
        let handle = self.handle.take().expect("taken only here");
        handle.join()
    }
}

impl<T> Drop for Running<'_, T> {
    fn drop(&mut self) {
        // Only when a turn panicked: the coroutine borrows from our caller, so it has to end now.
        if let Some(handle) = self.handle.take() {
            handle.cancel();
            while !handle.is_finished() {
                // A second panic has been reported by the hook; the first one is on its way up.
                let _ = panic::catch_unwind(AssertUnwindSafe(|| self.context.poll(true)));
            }
        }
    }
}
