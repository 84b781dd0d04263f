//! What a context, its remotes and its coroutines share, and how it ends.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process;
use std::ptr;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use super::Local;
use super::bh::{self, Queue, Scheduled};
use super::builder::{self, MonitorChoice};
use super::fdmon::{Monitor, MonitorKind, Side};
use super::linux_aio::LinuxAio;
use super::notify::{Notify, Reason, Sleep};
use super::parameters::Parameters;
use super::polling::Sources;
use super::registry::Registry;
use super::request::{PlacedBypass, Spare};
use super::slab::Slab;
use super::stats::{Polls, Stats};
use super::timers::Timers;
use super::waiter::Waiter;
use super::{handler, timer};
use crate::coroutine::{
    Home, HomeCell, HomeGuard, Interest, KeptWatch, RunQueue, Since, Watch, Woken, WokenList, enter_home, in_coroutine,
    is_current_home, unwind_all,
};
use crate::primitive::Mutex;
use crate::primitive::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sys::eventfd::EventFd;
use crate::sys::futex;

/// What the context, its remotes and its coroutines share.
pub(crate) struct Shared {
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
    /// As they were last set; the loop has a copy.
    parameters: Mutex<Parameters>,
    /// The process that made it.
    process: u32,
    ended: AtomicBool,
    /// The loop's own; `None` when the context has ended.
    pub(super) local: HomeCell<Option<Loop>>,
}

/// What only the loop's thread touches.
pub(super) struct Loop {
    /// Coroutines that are to run.
    pub(super) ready: WokenList,
    pub(super) bottom_halves: Queue,
    /// Those who wait for what has happened, and haven't been told.
    pub(super) fired: Vec<Waiter>,
    /// Callbacks that are to run.
    pub(super) due: VecDeque<Due>,
    pub(super) monitor: Monitor,
    pub(super) linux_aio: LinuxAio,
    pub(super) timers: Timers,
    pub(super) handlers: Slab<Arc<handler::Node>>,
    /// Requests without coroutines.
    pub(super) bypasses: Slab<PlacedBypass>,
    /// Those of them whose calls are done, and which are to go on.
    pub(super) done: VecDeque<PlacedBypass>,
    /// The memory of one that has ended.
    pub(super) spare: Spare,
    pub(super) parameters: Parameters,
    pub(super) sources: Sources,
    pub(super) polls: Polls,
    /// Turns in a row that looked at no descriptor.
    pub(super) busy_turns: u32,
    /// How often it has slept without its monitor.
    pub(super) rests: u64,
    /// Requests that were carried out at once since somebody last made room for the others; a large one counts as several.
    pub(super) inline_requests: u32,
    /// How many of them may be.
    pub(super) most_inline: u32,
    /// How often somebody has made room since that was said.
    pub(super) made_room: u32,
    /// See [`Stats::block_calls`].
    pub(super) block_calls: u64,
}

/// Requests that may be carried out at once in a row, before the others have their turn.
pub(super) const MAX_INLINE: u32 = 16;

/// And by all coroutines together in a turn, or one by each. So none waits for long, and yields cost a percent.
pub(super) const MAX_INLINE_BY_ALL: u32 = 256;

/// A callback that is to run.
pub(super) enum Due {
    Handler(Arc<handler::Node>, Side),
    Polled(Arc<handler::Node>),
    Timer(Arc<timer::Node>),
}

impl Loop {
    /// Notes that a request was carried out at once that moved so many bytes. Returns whether the others should have their
    /// turn.
    #[inline]
    pub(super) fn is_due_for_others(&mut self, moved: u64) -> bool {
        /// To copy so much takes about as long as the rest of a request.
        const UNIT: u64 = 16 << 10;

        self.inline_requests = self.inline_requests.saturating_add((1 + moved / UNIT) as u32);
        let is_due = self.inline_requests >= self.most_inline;
        if is_due {
            self.inline_requests = 0;
            self.made_room += 1;
        }
        is_due
    }

    /// Divides up how many requests may be carried out at once in a turn, by how many coroutines wanted more in the last.
    pub(super) fn share_inline_requests(&mut self) {
        if self.made_room != 0 {
            self.most_inline = (MAX_INLINE_BY_ALL / mem::take(&mut self.made_room)).clamp(1, MAX_INLINE);
        }
    }
}

impl Shared {
    /// The shared state of a context of the calling thread, with this monitor or the best one.
    pub(super) fn new(monitor: Option<MonitorKind>, parameters: Parameters) -> io::Result<Self> {
        let notifier = Arc::new(EventFd::new()?);
        let (monitor, choice) = builder::choose(monitor, &notifier)?;
        let local = Loop {
            ready: WokenList::new(),
            bottom_halves: Queue::new(),
            fired: Vec::new(),
            due: VecDeque::new(),
            monitor,
            linux_aio: LinuxAio::default(),
            timers: Timers::new(),
            handlers: Slab::new(),
            bypasses: Slab::new(),
            done: VecDeque::new(),
            spare: Spare::default(),
            parameters,
            sources: Sources::default(),
            polls: Polls::default(),
            busy_turns: 0,
            rests: 0,
            inline_requests: 0,
            most_inline: MAX_INLINE,
            made_room: 0,
            block_calls: 0,
        };
        Ok(Self {
            pushed: RunQueue::new(),
            scheduled: Scheduled::new(),
            notify: Notify::new(),
            notifier,
            signals: AtomicU64::new(0),
            choice,
            parameters: Mutex::new(parameters),
            process: process::id(),
            ended: AtomicBool::new(false),
            local: HomeCell::new(Some(local)),
        })
    }

    /// Whether the context has ended. A hint, unless called on its thread.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// # Errors
    ///
    /// [`NotConnected`](io::ErrorKind::NotConnected) if the context has ended.
    #[inline]
    pub(super) fn refuse_if_ended(&self) -> io::Result<()> {
        match self.has_ended() {
            true => Err(ended()),
            false => Ok(()),
        }
    }

    /// Calls `f` with what the loop owns, if the context hasn't ended. User code, a waker's drop included, has no place
    /// in `f`.
    #[inline]
    pub(super) fn with_local<R>(&self, f: impl FnOnce(&mut Loop) -> R) -> Option<R> {
        self.local.with(|local| local.as_mut().map(f))
    }

    /// Calls `f` if this context is the calling thread's current home; returns whether it is. No user code has a place in
    /// `f`.
    pub(super) fn with_current(context: &Weak<Self>, f: impl FnOnce(&Self)) -> bool {
        is_current_home(|home| {
            let is_own = ptr::addr_eq(Arc::as_ptr(home), context.as_ptr());
            let home: &dyn Any = &**home;
            let own = is_own.then(|| home.downcast_ref()).flatten();
            own.map(f).is_some()
        })
    }

    /// Queues a bottom half whose `QUEUED` flag the caller has set.
    pub(super) fn push_bottom_half(&self, node: Arc<bh::Node>) {
        if self.is_current() {
            let mut node = Some(node);
            self.with_local(|local| node.take().map(|node| local.bottom_halves.push(node, &self.scheduled)));
            // If the context has ended, it is dropped here, where user code may run.
            return drop(node);
        }
        self.scheduled.push(node);
        self.published();
        if self.has_ended() {
            self.scheduled.clear();
        }
    }

    /// Wakes the loop, if it sleeps, after work was published for it. Afterwards `has_ended` is exact: if it is false,
    /// the loop, or its end, sees what was published.
    pub(super) fn published(&self) {
        // A loop that is running on this very thread will look by itself.
        if !self.is_current() {
            self.tell(Reason::Work);
        }
    }

    fn tell(&self, reason: Reason) {
        if let Some(sleep) = self.notify.tell(reason) {
            // Relaxed: a figure. First, so that a loop that has been woken finds itself counted.
            self.signals.fetch_add(1, Ordering::Relaxed);
            match sleep {
                Sleep::Watching => self.notifier.signal(),
                Sleep::Resting => futex::wake(self.notify.word()),
            }
        }
    }

    /// Changes parameters; the loop takes them up in its next turn.
    pub(super) fn change_parameters(&self, change: impl FnOnce(&mut Parameters)) {
        change(&mut self.parameters.lock());
        self.tell(Reason::Parameters);
    }

    /// The parameters as they were last set.
    pub(super) fn parameters(&self) -> Parameters {
        *self.parameters.lock()
    }

    /// See [`Local::stats`](super::Local::stats).
    pub(super) fn stats(&self) -> Stats {
        let of_loop = |local: &mut Loop| {
            let calls = local.monitor.calls();
            let registry = local.monitor.registry();
            let (registered_files, registered_buffers) = registry.map(Registry::requests).unwrap_or_default();
            Stats {
                waits: calls.waits + local.rests,
                signals: 0,
                notifier_reads: calls.notifier_reads,
                control_calls: calls.controls,
                linux_aio_submits: local.linux_aio.submits(),
                block_calls: local.block_calls,
                ring_requests: local.monitor.requests(),
                registered_files,
                registered_buffers,
                buffers_refused: registry.and_then(Registry::buffers_refused),
                polls: local.polls.polls,
                poll_hits: local.polls.hits,
                polled: local.polls.polled,
                blocked: local.polls.blocked,
            }
        };
        let signals = self.signals.load(Ordering::Relaxed);
        Stats { signals, ..self.with_local(of_loop).unwrap_or_default() }
    }

    /// Makes this the thread's current home for as long as the guard lives. Cheap if it is that already, as in a turn
    /// of a loop that has entered it once for all its turns.
    pub(super) fn enter(self: &Arc<Self>) -> Option<HomeGuard> {
        let own: *const Self = Arc::as_ptr(self);
        let is_own = |home: &Arc<dyn Home>| ptr::addr_eq(Arc::as_ptr(home), own);
        (!is_current_home(is_own)).then(|| enter_home(self.clone()))
    }

    /// Unwinds and drops what is left, in the order that [`AioContext`](super::AioContext) documents.
    pub(super) fn end(self: &Arc<Self>) {
        let _home = self.enter();
        if self.process != process::id() {
            self.with_local(|local| {
                local.monitor.disown();
                local.linux_aio.disown();
            });
        }
        self.ended.store(true, Ordering::Relaxed);
        // Every push from another thread is followed by `Notify::tell`: it either is seen by the drain below, or sees
        // `ended`.
        self.notify.close();
        loop {
            // Each of these may make new ones: drop guards may wake and spawn.
            let pushed = self.pushed.take_all();
            let ready = self.with_local(|local| mem::take(&mut local.ready)).unwrap_or_default();
            let done = pushed.is_empty() && ready.is_empty();
            drop(pushed);
            drop(ready);
            unwind_all(&**self);
            self.scheduled.clear();
            self.drop_callbacks();
            if done && self.with_local(|local| local.ready.is_empty()).unwrap_or(true) {
                break;
            }
        }
        // Requests of coroutines that are driven by their handles: the kernel has their memory until then.
        let finished = self.with_local(|local| {
            local.linux_aio.finish_all(&mut local.fired)?;
            local.monitor.finish_all(&mut local.fired)
        });
        finished.unwrap_or(Ok(())).unwrap_or_else(|error| abort_with_requests(&error));
        let local = self.local.with(Option::take);
        if let Some(mut local) = local {
            let fired = mem::take(&mut local.fired);
            drop(local);
            fired.into_iter().for_each(Waiter::wake);
        }
    }

    /// Has the request of this number go on, which is done.
    pub(super) fn go_on(self: &Arc<Self>, number: u64) {
        if let Some(bypass) = self.with_local(|local| local.bypasses.remove(number)).flatten() {
            bypass.go_on(&Local::of(self.clone()));
        }
    }

    /// Has the ring forget a file that it knew at this place: now, or in the next turn if this is another thread. No
    /// request to it is under way.
    pub(super) fn forget_file(self: &Arc<Self>, id: u64, place: u32) {
        self.tell_monitor(move |local| local.monitor.forget_file(id, place));
    }

    /// Has the monitor give something up: now, or in the next turn if this is another thread. What it has is another's, and
    /// stays, in a process that was forked from the context's.
    fn tell_monitor(self: &Arc<Self>, give_up: impl FnOnce(&mut Loop) + Send + 'static) {
        if self.process != process::id() {
            return;
        }
        if self.is_current() {
            self.with_local(give_up);
            return;
        }
        let context = Arc::downgrade(self);
        let give_up = move || {
            if let Some(context) = context.upgrade() {
                context.with_local(give_up);
            }
        };
        self.push_bottom_half(bh::Node::once_sent(self, give_up));
    }

    /// Drops the callbacks of requests, handlers and bottom halves, and all that is to be told.
    fn drop_callbacks(self: &Arc<Self>) {
        let bypasses = self.with_local(|local| local.bypasses.drain()).unwrap_or_default();
        let context = Local::of(self.clone());
        bypasses.iter().for_each(|bypass| bypass.finish(&context));
        drop(bypasses);
        drop(self.with_local(|local| mem::take(&mut local.bottom_halves)));
        let handlers = self.with_local(|local| local.handlers.drain()).unwrap_or_default();
        handlers.iter().for_each(|node| node.end(self));
        let parts = self
            .with_local(|local| (mem::take(&mut local.fired), mem::take(&mut local.due), mem::take(&mut local.done)));
        drop(parts);
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
        let fd = fd.as_raw_fd();
        let watch =
            self.with_local(|local| local.monitor.watch(fd, interest.into(), Waiter::Waker(waker), &mut local.fired));
        match watch {
            Some(watch) => watch.map(|number| Kind::Descriptor.watch(number)).map_err(|refused| refused.error),
            None => Err(ended()),
        }
    }

    fn watch_deadline(&self, deadline: Instant, waker: Waker) -> Watch {
        let number = self.with_local(|local| local.timers.set(deadline, Waiter::Waker(waker)));
        Kind::Deadline.watch(number.unwrap_or_default())
    }

    fn unwatch(&self, watch: Watch) -> bool {
        let (kind, number) = Kind::of(watch);
        let withdrawn = self.with_local(|local| match kind {
            Kind::Descriptor => local.monitor.unwatch(number),
            Kind::Kept => local.monitor.unwatch_kept(number),
            Kind::Deadline => local.timers.withdraw(number),
        });
        withdrawn.flatten().is_none()
    }

    fn keep_watching(&self, fd: BorrowedFd<'_>, interest: Interest) -> Option<KeptWatch> {
        let fd = fd.as_raw_fd();
        self.with_local(|local| local.monitor.keep_watching(fd, interest.into())).flatten().map(KeptWatch)
    }

    fn watch_kept(&self, KeptWatch(kept): KeptWatch, since: Since, waker: Waker) -> Option<Watch> {
        let waiter = Waiter::Waker(waker);
        let watch = self.with_local(|local| local.monitor.watch_kept(kept, since, waiter, &mut local.fired));
        Some(Kind::Kept.watch(watch?.ok()?))
    }

    fn let_go(self: Arc<Self>, KeptWatch(kept): KeptWatch) {
        self.tell_monitor(move |local| local.monitor.let_go(kept, &mut local.fired));
    }

    fn turn(self: Arc<Self>) {
        refuse_coroutine("turn");
        self.run_once(true);
    }
}

/// What a [`Watch`] of a context is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Descriptor,
    /// A descriptor that is kept watched.
    Kept,
    Deadline,
}

impl Kind {
    const BITS: u32 = 2;

    fn watch(self, number: u64) -> Watch {
        Watch(number << Self::BITS | self as u64)
    }

    fn of(Watch(key): Watch) -> (Self, u64) {
        let kinds = [Self::Descriptor, Self::Kept, Self::Deadline];
        let kind = kinds.into_iter().find(|&kind| key & ((1 << Self::BITS) - 1) == kind as u64);
        (kind.expect("a watch of this context"), key >> Self::BITS)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("monitor", &self.choice).finish_non_exhaustive()
    }
}

#[cold]
fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the AioContext has ended")
}

/// Ends the process: the kernel may still have memory that is about to go.
#[cold]
pub(super) fn abort_with_requests(error: &io::Error) -> ! {
    eprintln!("requests that are under way can't be waited for: {error}");
    process::abort();
}

/// Panics if the caller is a coroutine.
pub(super) fn refuse_coroutine(function: &str) {
    assert!(!in_coroutine(), "AioContext::{function} was called inside of a coroutine");
}
