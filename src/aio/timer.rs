//! Timers: callbacks that a loop runs on its own thread when their time has come.
//!
//! A timer's deadline is under a lock, so that any thread may set it; an entry in the loop's queue makes the loop wake up
//! in time. The lock has the last word: an entry whose timer was cancelled, or set to a later time, by another thread
//! runs nothing, and no callback begins after a cancel that was made before that.
//!
//! A nested turn doesn't enter a callback again that is running. If its timer has been armed meanwhile, and is due there,
//! it fires when the callback has returned.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::bh;
use super::shared::Shared;
use super::waiter::Waiter;
use crate::coroutine::HomeCell;
use crate::primitive::Mutex;

/// A callback that an [`AioContext`](super::AioContext) runs at a given time. Made by
/// [`timer`](super::Local::timer).
///
/// It belongs to the context's thread; other threads arm and cancel it through an [`Alarm`].
///
/// It never fires early. Timers, and sleeping coroutines, whose deadlines are equal fire in the order in which they were
/// armed.
///
/// # Dropping
///
/// deletes it: it doesn't fire again. It may be dropped from within its own callback.
pub struct Timer {
    alarm: Alarm,
    /// Neither `Send` nor `Sync`: the callback isn't.
    marker: PhantomData<*mut ()>,
}

impl Timer {
    pub(super) fn new(context: &Arc<Shared>, callback: impl FnMut() + 'static) -> Self {
        let callback: Callback = Box::new(callback);
        let own = context.local.sibling(Own { callback: Some(callback), entry: None, is_postponed: false });
        let state = Mutex::new(State { deadline: None, is_deleted: false, is_syncing: false });
        let node = Node { state, context: Arc::downgrade(context), own };
        Self { alarm: Alarm { node: Arc::new(node) }, marker: PhantomData }
    }

    /// Has it fire once `deadline` has passed, and not at the time that it was armed for before.
    pub fn arm(&self, deadline: Instant) {
        self.alarm.arm(deadline);
    }

    /// As [`arm`](Self::arm), so much from now. A duration that leads past what the clock can count is a very long one.
    pub fn arm_after(&self, duration: Duration) {
        self.alarm.arm_after(duration);
    }

    /// As [`arm`](Self::arm), unless it is armed for an earlier time.
    pub fn arm_no_later(&self, deadline: Instant) {
        self.alarm.arm_no_later(deadline);
    }

    /// Takes back what it is armed for. Returns whether it was armed.
    pub fn cancel(&self) -> bool {
        self.alarm.cancel()
    }

    /// Whether it is armed and hasn't fired.
    pub fn is_armed(&self) -> bool {
        self.alarm.is_armed()
    }

    /// What other threads arm it by.
    pub fn alarm(&self) -> Alarm {
        self.alarm.clone()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let node = &self.alarm.node;
        node.change(|state| {
            state.is_deleted = true;
            state.deadline = None;
        });
        // While it runs, the callback is with the loop, which drops it.
        drop(node.own.with(|own| own.callback.take()));
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("is_armed", &self.is_armed()).finish_non_exhaustive()
    }
}

/// Arms and cancels a [`Timer`] from any thread. Once the timer has been deleted, or its context has ended, it does
/// nothing.
#[derive(Clone)]
pub struct Alarm {
    node: Arc<Node>,
}

impl Alarm {
    /// As [`Timer::arm`].
    pub fn arm(&self, deadline: Instant) {
        self.node.change(|state| state.deadline = Some(deadline));
    }

    /// As [`Timer::arm_after`].
    pub fn arm_after(&self, duration: Duration) {
        self.arm(after(duration));
    }

    /// As [`Timer::arm_no_later`].
    pub fn arm_no_later(&self, deadline: Instant) {
        self.node
            .change(|state| state.deadline = Some(state.deadline.map_or(deadline, |earlier| earlier.min(deadline))));
    }

    /// As [`Timer::cancel`]. When it returns, no run begins any more; one that has begun may be going on, unless this is
    /// the context's thread.
    pub fn cancel(&self) -> bool {
        self.node.change(|state| state.deadline.take()).is_some()
    }

    /// As [`Timer::is_armed`].
    pub fn is_armed(&self) -> bool {
        self.node.state.lock().deadline.is_some()
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("is_armed", &self.is_armed()).finish_non_exhaustive()
    }
}

/// So much from now; durations that don't fit saturate at a century.
fn after(duration: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(duration).unwrap_or_else(|| now + CENTURY)
}

/// A timer, as the loop and whoever holds it see it.
pub(super) struct Node {
    state: Mutex<State>,
    context: Weak<Shared>,
    own: HomeCell<Own>,
}

/// What any thread may change.
#[derive(Debug)]
struct State {
    /// What it is armed for.
    deadline: Option<Instant>,
    is_deleted: bool,
    /// Whether a bottom half is on its way that brings the queue up to date.
    is_syncing: bool,
}

/// What only the loop's thread touches.
struct Own {
    /// `None` while it runs, and after the end.
    callback: Option<Callback>,
    /// The number of its last entry in the loop's queue.
    entry: Option<u64>,
    /// Whether its time has come while the callback ran.
    is_postponed: bool,
}

type Callback = Box<dyn FnMut()>;

impl Node {
    /// Changes what it is armed for, and has the loop know.
    fn change<R>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> R) -> R {
        let context = self.context.upgrade().filter(|context| !context.has_ended());
        let mut state = self.state.lock();
        let before = state.deadline;
        let result = change(&mut state);
        if state.is_deleted || context.is_none() {
            state.deadline = None;
        }
        let Some(context) = context else { return result };
        if context.local.is_current() {
            let deadline = state.deadline;
            drop(state);
            self.enqueue(&context, deadline);
        } else if state.deadline != before && state.deadline.is_some() && !state.is_syncing {
            // A deadline that was taken back needs no haste: its entry runs nothing.
            state.is_syncing = true;
            drop(state);
            let node = self.clone();
            context.push_bottom_half(bh::Node::once_sent(&context, move || node.sync()));
        }
        result
    }

    /// Brings the loop's queue up to date after changes by other threads.
    fn sync(self: &Arc<Self>) {
        let Some(context) = self.context.upgrade() else { return };
        let mut state = self.state.lock();
        state.is_syncing = false;
        let deadline = state.deadline;
        drop(state);
        self.enqueue(&context, deadline);
    }

    /// Has the loop's queue say when this fires.
    fn enqueue(self: &Arc<Self>, context: &Shared, deadline: Option<Instant>) {
        self.own.with(|own| {
            // Only counts of this node are dropped in here.
            context.with_local(|local| {
                if let Some(entry) = own.entry.take() {
                    local.timers.withdraw(entry);
                }
                own.entry = deadline.map(|deadline| local.timers.set(deadline, Waiter::Timer(self.clone())));
            });
        });
    }

    /// An entry's time has come. Runs the callback, unless the timer was cancelled or set to a later time since.
    pub(super) fn run(self: &Arc<Self>, context: &Shared) {
        let is_running = self.own.with(|own| {
            own.is_postponed = own.callback.is_none();
            own.is_postponed
        });
        if is_running {
            return;
        }
        let now = Instant::now();
        // Disarmed before it runs, so that the callback may arm it anew.
        if self.state.lock().deadline.take_if(|deadline| *deadline <= now).is_none() {
            return;
        }
        // It may have been set anew, to an earlier time than now, and have another entry.
        self.own.with(|own| own.entry.take().map(|entry| context.with_local(|local| local.timers.withdraw(entry))));
        let callback = self.own.with(|own| own.callback.take());
        let mut running = Running { node: self, context, callback };
        if let Some(callback) = &mut running.callback {
            callback();
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("state", &self.state).finish_non_exhaustive()
    }
}

/// A callback that runs; put back afterwards, also after a panic, unless the timer was deleted meanwhile.
struct Running<'a> {
    node: &'a Arc<Node>,
    context: &'a Shared,
    callback: Option<Callback>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let State { deadline, is_deleted, .. } = *self.node.state.lock();
        if is_deleted {
            return;
        }
        let is_postponed = self.node.own.with(|own| {
            own.callback = self.callback.take();
            mem::take(&mut own.is_postponed)
        });
        if is_postponed {
            self.node.enqueue(self.context, deadline);
        }
    }
}
