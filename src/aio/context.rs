//! The context: owns the monitor, the timers and the queues, and turns.
#![allow(unsafe_code)] // # Safety: one call, in `block_on`, for a coroutine that may borrow.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::panic::{self, AssertUnwindSafe, Location};
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use super::fdmon::Epoll;
use super::home_cell::HomeCell;
use super::notify::Notify;
use super::timers::Timers;
use crate::coroutine::{
    Builder, Home, Interest, RunQueue, Watch, Woken, WokenList, enter_home, in_coroutine, unwind_all,
};
use crate::primitive::atomic::{AtomicBool, Ordering, fence};
use crate::sys::eventfd::EventFd;
use crate::task::{self, JoinHandle};

/// Turns in a row that may look at no descriptor because coroutines are ready to run.
const MAX_BUSY_TURNS: u32 = 16;

/// An event loop, and the home of the coroutines that are spawned on it.
///
/// It belongs to the thread that made it. Others reach it through a [`Remote`].
///
/// # Dropping
///
/// Coroutines that wait for their first turn are dropped, suspended ones are unwound; their join handles return
/// [`Cancelled`](crate::coroutine::Cancelled). Wakes after that do nothing. A coroutine that is driven by its handle and parked here stays
/// with its handle.
pub struct AioContext {
    shared: Arc<Shared>,
    /// Neither `Send` nor `Sync`.
    marker: PhantomData<*mut ()>,
}

impl AioContext {
    /// Makes a context for the calling thread.
    ///
    /// # Errors
    ///
    /// If the kernel refuses an eventfd or an epoll instance (limits of open files: `RLIMIT_NOFILE`, `fs.file-max`).
    pub fn new() -> io::Result<Self> {
        let notifier = EventFd::new()?;
        let monitor = Epoll::new(&notifier)?;
        let local = Local { ready: WokenList::new(), monitor, timers: Timers::default(), busy_turns: 0 };
        let shared = Shared {
            pushed: RunQueue::new(),
            notify: Notify::new(),
            notifier,
            ended: AtomicBool::new(false),
            local: HomeCell::new(Some(local)),
        };
        Ok(Self { shared: Arc::new(shared), marker: PhantomData })
    }

    /// Spawns `f` as a coroutine of this context; it starts at one of the next turns.
    ///
    /// # Errors
    ///
    /// If no stack can be had; the message names `vm.max_map_count` where that is the cause.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        task::spawn_on(&self.home(), Builder::new(), f)
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
        task::spawn_on(&self.home(), builder, f)
    }

    /// Runs `f` as a coroutine of this context, and the loop until it has ended. What `f` borrows need not be `'static`.
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
        // SAFETY: this is the home thread, and `Running` doesn't let us leave before the coroutine has ended.
        let spawned = unsafe { task::spawn_scoped(&self.home(), location, f) };
        let running = Running { context: self, handle: Some(spawned.expect("no stack for a coroutine")) };
        running.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
    }

    /// One turn: waits for events if `blocking` is set and nothing is ready, then runs the coroutines that are ready. Returns
    /// whether something was done; a wake-up alone, without anything to do, is not.
    ///
    /// # Panics
    ///
    /// - Inside of a coroutine.
    /// - If a coroutine that is driven by its handle runs in this turn and panics: with its payload.
    pub fn poll(&self, blocking: bool) -> bool {
        refuse_coroutine("poll");
        self.shared.run_once(blocking)
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
        if self.shared.ended.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the AioContext has ended"));
        }
        let home: Arc<dyn Home> = self.shared.clone();
        task::spawn_on(&home, Builder::new(), f)
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

/// What the context, its remotes and its coroutines share.
struct Shared {
    /// Coroutines that other threads scheduled.
    pushed: RunQueue,
    notify: Notify,
    /// Wakes the loop when it sleeps.
    notifier: EventFd,
    ended: AtomicBool,
    /// The loop's own; `None` when the context has ended.
    local: HomeCell<Option<Local>>,
}

struct Local {
    /// Coroutines that are to run.
    ready: WokenList,
    monitor: Epoll,
    timers: Timers,
    busy_turns: u32,
}

impl Shared {
    /// Calls `f` with what the loop owns, if the context hasn't ended. User code, a waker's drop included, has no place in `f`.
    fn with_local<R>(&self, f: impl FnOnce(&mut Local) -> R) -> Option<R> {
        self.local.with(|local| local.as_mut().map(f))
    }

    /// See [`AioContext::poll`].
    fn run_once(self: &Arc<Self>, blocking: bool) -> bool {
        let _home = enter_home(self.clone());
        let fired = self.wait(blocking);
        let mut progress = !fired.is_empty();
        for waker in fired {
            waker.wake();
        }
        let mut pushed = self.pushed.take_all();
        let ready = self.with_local(|local| {
            local.ready.append(&mut pushed);
            std::mem::take(&mut local.ready)
        });
        // What becomes ready from here on has its turn next time.
        let mut batch = Batch { shared: self, list: ready.unwrap_or_default() };
        for woken in batch.list.by_ref() {
            progress = true;
            woken.run();
        }
        progress
    }

    /// Waits for descriptors, deadlines and other threads, if there is nothing to run; returns the wakers that are due.
    fn wait(&self, blocking: bool) -> Vec<Waker> {
        let mut fired = Vec::new();
        let notified = self.with_local(|local| {
            let busy = !local.ready.is_empty() || !self.pushed.is_empty();
            if busy && local.busy_turns < MAX_BUSY_TURNS {
                local.busy_turns += 1;
                local.timers.expire(&mut fired);
                return Ok(false);
            }
            local.busy_turns = 0;
            let mut timeout = if blocking && !busy { local.timers.timeout() } else { Some(Duration::ZERO) };
            let sleeps = timeout != Some(Duration::ZERO);
            if sleeps {
                self.notify.announce_sleep();
                if !self.pushed.is_empty() {
                    timeout = Some(Duration::ZERO);
                }
            }
            let notified = local.monitor.wait(timeout, &mut fired);
            if sleeps {
                self.notify.awake();
            }
            local.timers.expire(&mut fired);
            notified
        });
        match notified.expect("a context that has ended was polled") {
            Ok(true) => self.notifier.clear(),
            Ok(false) => {}
            Err(error) => panic!("epoll failed: {error}"),
        }
        fired
    }

    fn end(self: &Arc<Self>) {
        let _home = enter_home(self.clone());
        self.ended.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Notify::must_signal`: a push either is seen by the drain below, or sees `ended`.
        fence(Ordering::SeqCst);
        loop {
            // Each of these may make new ones: drop guards may wake and spawn.
            let pushed = self.pushed.take_all();
            let ready = self.with_local(|local| std::mem::take(&mut local.ready)).unwrap_or_default();
            let done = pushed.is_empty() && ready.is_empty();
            drop(pushed);
            drop(ready);
            unwind_all(&**self);
            if done && self.with_local(|local| local.ready.is_empty()).unwrap_or(true) {
                break;
            }
        }
        let local = self.local.with(Option::take);
        drop(local);
    }
}

impl Home for Shared {
    fn schedule(&self, woken: Woken) {
        if self.is_current() {
            let mut woken = Some(woken);
            self.with_local(|local| woken.take().map(|woken| local.ready.push_back(woken)));
            // If the context has ended, the turn is dropped here, where user code may run.
            drop(woken);
            return;
        }
        self.pushed.push(woken);
        if self.notify.must_signal() {
            self.notifier.signal();
        }
        // Relaxed: after the fence in `must_signal`, which pairs with the one in `end`.
        if self.ended.load(Ordering::Relaxed) {
            drop(self.pushed.take_all());
        }
    }

    fn is_current(&self) -> bool {
        self.local.is_current()
    }

    fn watch_fd(&self, fd: BorrowedFd<'_>, interest: Interest, waker: Waker) -> io::Result<Watch> {
        let mut fired = Vec::new();
        let watch = self.with_local(|local| local.monitor.watch(fd, interest, &waker, &mut fired));
        fired.into_iter().for_each(Waker::wake);
        match watch {
            Some(watch) => watch.map(|number| Watch(number << 1)),
            None => Err(io::Error::new(io::ErrorKind::NotConnected, "the AioContext has ended")),
        }
    }

    fn watch_deadline(&self, deadline: Instant, waker: Waker) -> Watch {
        let number = self.with_local(|local| local.timers.set(deadline, waker.clone()));
        Watch(number.unwrap_or_default() << 1 | 1)
    }

    fn unwatch(&self, Watch(key): Watch) -> bool {
        let withdrawn = self.with_local(|local| match key & 1 {
            0 => local.monitor.unwatch(key >> 1),
            _ => local.timers.withdraw(key >> 1),
        });
        withdrawn.flatten().is_none()
    }

    fn turn(self: Arc<Self>) {
        refuse_coroutine("turn");
        self.run_once(true);
    }
}

/// Coroutines whose turn it is. If one of them panics, the others keep their turn.
struct Batch<'a> {
    shared: &'a Shared,
    list: WokenList,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.list.is_empty() {
            self.shared.with_local(|local| {
                self.list.append(&mut local.ready);
                std::mem::swap(&mut self.list, &mut local.ready);
            });
        }
    }
}

/// The coroutine of a `block_on`, which ends before this is gone.
struct Running<'a, T> {
    context: &'a AioContext,
    handle: Option<JoinHandle<T>>,
}

impl<T> Running<'_, T> {
    fn join(mut self) -> thread::Result<T> {
        while !self.handle.as_ref().is_none_or(JoinHandle::is_finished) {
            self.context.poll(true);
        }
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

fn refuse_coroutine(function: &str) {
    assert!(!in_coroutine(), "AioContext::{function} was called inside of a coroutine");
}
