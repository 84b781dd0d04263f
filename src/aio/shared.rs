//! What a context, its remotes and its coroutines share, and how it ends.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::bh::{Node, Queue, Scheduled};
use super::builder::{self, MonitorChoice};
use super::fdmon::{Monitor, MonitorKind};
use super::home_cell::HomeCell;
use super::notify::Notify;
use super::stats::Stats;
use super::timers::Timers;
use crate::coroutine::{
    Home, HomeGuard, Interest, RunQueue, Watch, Woken, WokenList, enter_home, in_coroutine, is_current_home, unwind_all,
};
use crate::primitive::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sys::eventfd::EventFd;

/// What the context, its remotes and its coroutines share.
pub(super) struct Shared {
    /// Coroutines that other threads scheduled.
    pub(super) pushed: RunQueue,
    /// Bottom halves that were scheduled.
    pub(super) scheduled: Scheduled,
    pub(super) notify: Notify,
    /// Wakes the loop when it sleeps.
    pub(super) notifier: Arc<EventFd>,
    /// How often it has been signalled.
    signals: AtomicU64,
    /// Which monitor there is, and why.
    pub(super) choice: MonitorChoice,
    ended: AtomicBool,
    /// The loop's own; `None` when the context has ended.
    pub(super) local: HomeCell<Option<Local>>,
}

pub(super) struct Local {
    /// Coroutines that are to run.
    pub(super) ready: WokenList,
    pub(super) bottom_halves: Queue,
    pub(super) monitor: Monitor,
    pub(super) timers: Timers,
    /// Turns in a row that looked at no descriptor.
    pub(super) busy_turns: u32,
}

impl Shared {
    /// The shared state of a context of the calling thread, with this monitor or the best one.
    pub(super) fn new(monitor: Option<MonitorKind>) -> io::Result<Self> {
        let notifier = Arc::new(EventFd::new()?);
        let (monitor, choice) = builder::choose(monitor, &notifier)?;
        let local = Local {
            ready: WokenList::new(),
            bottom_halves: Queue::new(),
            monitor,
            timers: Timers::default(),
            busy_turns: 0,
        };
        Ok(Self {
            pushed: RunQueue::new(),
            scheduled: Scheduled::new(),
            notify: Notify::new(),
            notifier,
            signals: AtomicU64::new(0),
            choice,
            ended: AtomicBool::new(false),
            local: HomeCell::new(Some(local)),
        })
    }

    /// Whether the context has ended. A hint, unless called on its thread.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Calls `f` with what the loop owns, if the context hasn't ended. User code, a waker's drop included, has no place
    /// in `f`.
    pub(super) fn with_local<R>(&self, f: impl FnOnce(&mut Local) -> R) -> Option<R> {
        self.local.with(|local| local.as_mut().map(f))
    }

    /// Queues a bottom half whose `QUEUED` flag the caller has set.
    pub(super) fn push_bottom_half(&self, node: Arc<Node>) {
        self.scheduled.push(node);
        self.published();
        if self.has_ended() {
            self.scheduled.clear();
        }
    }

    /// Wakes the loop, if it sleeps, after something was published for it. Afterwards `has_ended` is exact: if it is
    /// false, the loop, or its end, sees what was published.
    fn published(&self) {
        // A loop that is running on this very thread will look by itself.
        if !self.is_current() && self.notify.must_signal() {
            // Relaxed: a figure. First, so that a loop that has been woken finds itself counted.
            self.signals.fetch_add(1, Ordering::Relaxed);
            self.notifier.signal();
        }
    }

    /// See [`AioContext::stats`](super::AioContext::stats).
    pub(super) fn stats(&self) -> Stats {
        let calls = self.with_local(|local| local.monitor.calls()).unwrap_or_default();
        Stats {
            waits: calls.waits,
            signals: self.signals.load(Ordering::Relaxed),
            notifier_reads: calls.notifier_reads,
            control_calls: calls.controls,
        }
    }

    /// Makes this the thread's current home for as long as the guard lives. Cheap if it is that already, as in a turn
    /// of a loop that has entered it once for all its turns.
    pub(super) fn enter(self: &Arc<Self>) -> Option<HomeGuard> {
        let own: *const Self = Arc::as_ptr(self);
        let is_own = |home: &Arc<dyn Home>| ptr::addr_eq(Arc::as_ptr(home), own);
        (!is_current_home(is_own)).then(|| enter_home(self.clone()))
    }

    /// Unwinds and drops what is left.
    pub(super) fn end(self: &Arc<Self>) {
        let _home = self.enter();
        self.ended.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Notify::must_signal`, which every push from another thread is followed by: a push
        // either is seen by the drain below, or sees `ended`.
        fence(Ordering::SeqCst);
        loop {
            // Each of these may make new ones: drop guards may wake and spawn.
            let pushed = self.pushed.take_all();
            let ready = self.with_local(|local| std::mem::take(&mut local.ready)).unwrap_or_default();
            let done = pushed.is_empty() && ready.is_empty();
            drop(pushed);
            drop(ready);
            unwind_all(&**self);
            self.scheduled.clear();
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
        self.published();
        if self.has_ended() {
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

/// Panics if the caller is a coroutine.
pub(super) fn refuse_coroutine(function: &str) {
    assert!(!in_coroutine(), "AioContext::{function} was called inside of a coroutine");
}
