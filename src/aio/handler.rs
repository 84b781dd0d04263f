//! Handlers of descriptors: callbacks that a loop runs on its own thread when a descriptor is ready.
//!
//! # How a side goes round
//!
//! Each side of a handler (input, output, trouble) is in one of these states:
//!
//! | state | means | left when |
//! |---|---|---|
//! | `Idle` | nobody watches | it is enabled: the monitor watches, `Watched` |
//! | `Watched` | the monitor watches, once | it fires: `Due`; it is disabled: `Idle` |
//! | `Due` | it stands in the loop's queue, once | its turn comes: `Running`, or, if it was disabled, `Idle` |
//! | `Running` | its callback runs | that returns or panics: `Idle`, and `Watched` at once if it is still enabled |
//!
//! A watch is for one event, and is set anew after the callback has run; so handlers are level-triggered, and a callback
//! is never entered twice: while it runs, a nested turn doesn't know it. With io_uring watches cost no system call of
//! their own, with poll none at all.
//!
//! # Other threads
//!
//! What is wanted of a handler is in its flags, which any thread may change; what is the case is touched on the loop's
//! thread only. [`Node::sync`] makes the second what the first says: called at once on the loop's thread, and by a
//! bottom half for a change from elsewhere. Before a callback is run the flags are asked, so that no callback begins
//! after a removal that was made before that.

use std::any::Any;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use super::bh;
use super::fdmon::{Refused, Side};
use super::polling::{PollSource, Polled};
use super::shared::Shared;
use super::waiter::Waiter;
use crate::coroutine::HomeCell;
use crate::primitive::atomic::{AtomicU32, Ordering};

/// The handler has been removed. The lower bits are the enabled sides.
const REMOVED: u32 = 1 << 3;

/// What a handler calls, and when. See [`Local::add_fd`](super::Local::add_fd).
///
/// Callbacks run on the context's thread, in its turns, after the bottom halves; in the order in which their events were
/// seen. An event that a callback doesn't deal with (it doesn't read what is there) calls it again in the next turn.
#[derive(Default)]
#[must_use = "callbacks do nothing until a context has them"]
pub struct FdCallbacks {
    sides: [Option<Callback>; 3],
    source: Option<Box<dyn PollSource>>,
}

type Callback = Box<dyn FnMut()>;

impl FdCallbacks {
    /// No callbacks yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `callback` when the descriptor can be read from: there is input, a connection to accept, end of file, an
    /// error or a hang-up.
    pub fn on_readable(self, callback: impl FnMut() + 'static) -> Self {
        self.on(Side::Input, callback)
    }

    /// Calls `callback` when the descriptor can be written to: there is room, a connection has been established or
    /// refused, an error or a hang-up.
    pub fn on_writable(self, callback: impl FnMut() + 'static) -> Self {
        self.on(Side::Output, callback)
    }

    /// Calls `callback`, once, when the descriptor shows an error or a hang-up: also if neither side of it is enabled.
    pub fn on_error(self, callback: impl FnMut() + 'static) -> Self {
        self.on(Side::Trouble, callback)
    }

    /// Has the loop look at `source` while it [polls](super::Polling) before it sleeps.
    pub fn polled(mut self, source: impl PollSource + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    fn on(mut self, side: Side, callback: impl FnMut() + 'static) -> Self {
        self.sides[side as usize] = Some(Box::new(callback));
        self
    }
}

impl fmt::Debug for FdCallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FdCallbacks").finish_non_exhaustive()
    }
}

/// A handler, as the loop and whoever holds it see it.
pub(super) struct Node {
    /// The descriptor, which `Own::keep` owns, or whoever made the handler.
    fd: RawFd,
    flags: AtomicU32,
    context: Weak<Shared>,
    own: HomeCell<Own>,
}

/// What only the loop's thread touches.
struct Own {
    sides: [SideState; 3],
    source: Option<Box<dyn PollSource>>,
    polled: Polled,
    /// Keeps an owned descriptor open.
    keep: Option<Box<dyn Any>>,
    /// Its place among the loop's handlers, if it has one.
    number: Option<u64>,
}

struct SideState {
    /// `None` while it runs, and if there is none.
    callback: Option<Callback>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Watched(u64),
    Due,
    Running,
}

impl Node {
    /// A handler that nobody watches for yet, made on the context's thread.
    pub(super) fn new(
        context: &Arc<Shared>,
        fd: RawFd,
        keep: Option<Box<dyn Any>>,
        callbacks: FdCallbacks,
    ) -> Arc<Self> {
        let bit = |side: Side| u32::from(callbacks.sides[side as usize].is_some()) << side as u32;
        let flags = Side::ALL.into_iter().map(bit).sum();
        let side = |callback| SideState { callback, state: State::Idle };
        let polled = Polled::new(callbacks.source.is_some());
        let own = Own { sides: callbacks.sides.map(side), source: callbacks.source, polled, keep, number: None };
        let own = context.local.sibling(own);
        Arc::new(Self { fd, flags: AtomicU32::new(flags), context: Arc::downgrade(context), own })
    }

    /// Adds it to the loop's handlers, and has the monitor watch for it.
    ///
    /// # Errors
    ///
    /// What the kernel says about the descriptor; then it isn't watched.
    pub(super) fn add(self: &Arc<Self>, context: &Shared) -> io::Result<()> {
        let number = context.with_local(|local| local.handlers.insert(self.clone()));
        self.own.with(|own| own.number = number);
        self.sync_sides(context).inspect_err(|_| self.remove())
    }

    /// The watches that the monitor has for it.
    pub(super) fn watches(&self) -> impl Iterator<Item = u64> {
        let states = self.own.with(|own| own.sides.each_ref().map(|side| side.state));
        states.into_iter().filter_map(|state| match state {
            State::Watched(watch) => Some(watch),
            _ => None,
        })
    }

    pub(super) fn enable(self: &Arc<Self>, side: Side) {
        // Relaxed: a change from another thread is published with the bottom half that acts on it.
        self.flags.fetch_or(1 << side as u32, Ordering::Relaxed);
        self.changed();
    }

    pub(super) fn disable(self: &Arc<Self>, side: Side) {
        self.flags.fetch_and(!(1 << side as u32), Ordering::Relaxed);
        self.changed();
    }

    /// No callback begins from here on, unless one is beginning on another thread.
    pub(super) fn remove(self: &Arc<Self>) {
        self.flags.fetch_or(REMOVED, Ordering::Relaxed);
        self.changed();
    }

    pub(super) fn is_removed(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & REMOVED != 0
    }

    fn is_enabled(&self, side: Side) -> bool {
        self.flags.load(Ordering::Relaxed) & (REMOVED | 1 << side as u32) == 1 << side as u32
    }

    /// Has the loop act on changed flags.
    fn changed(self: &Arc<Self>) {
        let Some(context) = self.context.upgrade() else { return };
        if context.local.is_current() {
            self.sync(&context);
        } else {
            let node = self.clone();
            let sync = bh::Node::once_sent(&context, move || {
                if let Some(context) = node.context.upgrade() {
                    node.sync(&context);
                }
            });
            context.push_bottom_half(sync);
        }
    }

    /// Makes the state what the flags say.
    fn sync(self: &Arc<Self>, context: &Shared) {
        // An error here is that of a descriptor that was closed while it was watched: nobody hears of it any more.
        let _ = self.sync_sides(context);
        if self.is_removed() {
            self.clear(context);
        }
    }

    fn sync_sides(self: &Arc<Self>, context: &Shared) -> io::Result<()> {
        Side::ALL.into_iter().try_for_each(|side| self.sync_side(context, side))
    }

    fn sync_side(self: &Arc<Self>, context: &Shared, side: Side) -> io::Result<()> {
        self.own.with(|own| {
            let SideState { callback, state } = &mut own.sides[side as usize];
            let watched = match (*state, self.is_enabled(side)) {
                (State::Idle, true) if callback.is_some() => {
                    let waiter = Waiter::Handler(self.clone(), side);
                    context.with_local(|local| local.monitor.watch(self.fd, side, waiter, &mut local.fired))
                }
                (State::Watched(watch), false) => {
                    *state = State::Idle;
                    // Only a count of this node is dropped.
                    context.with_local(|local| local.monitor.unwatch(watch));
                    None
                }
                _ => None,
            };
            match watched {
                Some(Ok(watch)) => *state = State::Watched(watch),
                Some(Err(Refused { error, .. })) => return Err(error),
                None => {}
            }
            Ok(())
        })
    }

    /// Drops what a handler that has been removed holds, but for a callback that runs, which is dropped when it returns.
    fn clear(&self, context: &Shared) {
        let (sides, source, keep, number) = self.own.with(|own| {
            let callbacks = own.sides.each_mut().map(|side| side.callback.take());
            (callbacks, own.source.take(), own.keep.take(), own.number.take())
        });
        let place = number.and_then(|number| context.with_local(|local| local.handlers.remove(number)).flatten());
        drop((sides, source, keep, place));
    }

    /// The loop ends. The monitor's watches go with it.
    pub(super) fn end(&self, context: &Shared) {
        self.flags.fetch_or(REMOVED, Ordering::Relaxed);
        self.own.with(|own| own.sides.each_mut().map(|side| side.state = State::Idle));
        self.clear(context);
    }

    /// A watch of the monitor has fired: the callback is due.
    pub(super) fn fired(&self, side: Side) {
        self.own.with(|own| {
            own.sides[side as usize].state = State::Due;
            // The event is told by the callback; the source needn't tell it again.
            own.polled.is_hit = false;
        });
    }

    /// Runs the callback of a side whose turn has come.
    pub(super) fn run(self: Arc<Self>, side: Side, context: &Shared) {
        let callback = self.own.with(|own| {
            let SideState { callback, state } = &mut own.sides[side as usize];
            let callback = self.is_enabled(side).then(|| callback.take()).flatten();
            *state = if callback.is_some() { State::Running } else { State::Idle };
            callback
        });
        if side == Side::Trouble {
            // A hang-up lasts: once is enough.
            self.flags.fetch_and(!(1 << side as u32), Ordering::Relaxed);
        }
        let Some(callback) = callback else { return };
        let mut running = Running { node: &self, context, side, callback: Some(callback) };
        if let Some(callback) = &mut running.callback {
            callback();
        }
    }

    /// Has the source do what it has to do, unless the callback has done it.
    pub(super) fn run_source(&self) {
        if self.with_polled(|polled| mem::take(&mut polled.is_hit)) {
            self.with_source(|source| source.ready());
        }
    }

    /// Whether there is a source, be it one that is running.
    pub(super) fn has_source(&self) -> bool {
        self.own.with(|own| own.polled.exists())
    }

    /// Calls `f` with the source, if there is one that isn't running.
    pub(super) fn with_source<R>(&self, f: impl FnOnce(&mut dyn PollSource) -> R) -> Option<R> {
        let source = self.own.with(|own| own.source.take())?;
        let mut calling = Calling { node: self, source: Some(source) };
        calling.source.as_mut().map(|source| f(&mut **source))
    }

    /// Calls `f` with what the loop knows of the source. No user code has a place in it.
    pub(super) fn with_polled<R>(&self, f: impl FnOnce(&mut Polled) -> R) -> R {
        self.own.with(|own| f(&mut own.polled))
    }

    /// How many of its watches the monitor has.
    pub(super) fn watch_count(&self) -> usize {
        self.watches().count()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// A callback that runs; put back and watched for afterwards, also after a panic, unless the handler was removed.
struct Running<'a> {
    node: &'a Arc<Node>,
    context: &'a Shared,
    side: Side,
    callback: Option<Callback>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let callback = self.callback.take().filter(|_| !self.node.is_removed());
        self.node.own.with(|own| {
            own.sides[self.side as usize] = SideState { callback, state: State::Idle };
        });
        let _ = self.node.sync_side(self.context, self.side);
    }
}

/// A source that is being called; put back afterwards, also after a panic, unless the handler was removed.
struct Calling<'a> {
    node: &'a Node,
    source: Option<Box<dyn PollSource>>,
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        let source = self.source.take().filter(|_| !self.node.is_removed());
        self.node.own.with(|own| own.source = source);
    }
}
