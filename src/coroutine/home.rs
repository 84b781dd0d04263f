//! What an event loop implements so that coroutines can live on it.
//!
//! A home is one thread's loop. The coroutine side calls [`Home::schedule`] with a coroutine that is to run, from any
//! thread; the loop keeps the [`Woken`] in a [`RunQueue`] (or in a list of its own) and has it run on its own thread.
//! The parking hooks let a coroutine wait for what only a loop can see: a descriptor, a point in time.
//!
//! # Safety
//!
//! - A `Woken` owns its block's queue entry (rule 4 of [`super::block`]).
//! - A home may be called without counting it, and without a borrow of the thread's record, into which the home may
//!   call: see [`CurrentHome`].
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::block::{Block, Phase, RunAdapter};
use super::thread::{Thread, this_thread};
use super::{enter, newborn};
use crate::lockfree::{Fifo, PushStack};

/// Which side of a descriptor a coroutine waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Input, end of file, a connection to accept.
    Readable,
    /// Room for output, a connection established.
    Writable,
}

impl Interest {
    /// The events of poll(2) that answer it; errors and hang-ups are always reported.
    pub(crate) fn poll_events(self) -> i16 {
        match self {
            Self::Readable => libc::POLLIN | libc::POLLRDHUP,
            Self::Writable => libc::POLLOUT,
        }
    }
}

/// Names a watch that a home set up, for [`Home::unwatch`]. What is in it is the home's own business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Watch(pub u64);

/// Names a descriptor that a home [keeps watching](Home::keep_watching).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeptWatch(pub u64);

/// Which events of a descriptor that is [kept watched](Home::watch_kept) are news to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Since {
    /// Those from now on: the caller has just seen that it isn't ready.
    Now,
    /// Also those since somebody was last told: the caller has dealt with that one, and doesn't know of others. A hang-up
    /// or an error is news for ever: it may have come together with what was dealt with.
    LastTold,
}

/// An event loop on which coroutines live.
///
/// A home belongs to one thread. `schedule` and `is_current` are called from any thread; the other methods only from
/// the home's own, where [`is_current`](Self::is_current) holds.
///
/// [`AioContext`](crate::AioContext) is one. Loops of others get one as their [guest](#in-somebody-elses-loop):
/// `examples/foreign_loop` has homes for mio and for calloop, of 150 lines each.
///
/// # Building one
///
/// - What belongs to the loop's thread is in a [`HomeCell`](super::HomeCell), whose `is_current` is the home's.
/// - `schedule` pushes into a [`RunQueue`], and has the loop woken if that was empty; the loop calls [`RunQueue::run`],
///   under [`enter_home`].
/// - Watches have numbers. One that fires is forgotten; so `unwatch` finds those that haven't fired.
/// - epoll, and the loops that are made of it, take a descriptor once, while several coroutines may wait for it. It is
///   simplest to duplicate it for each watch. A duplicate also outlasts the number, which may be closed and used again.
/// - A descriptor that epoll refuses with `EPERM` is a regular file: the waker is woken at once.
/// - `keep_watching`, `watch_kept` and `let_go` may be left out. With a loop that has edges to offer (`EPOLLET`) they save
///   what a watch costs, where somebody waits again and again.
/// - The end, on the loop's thread and under `enter_home`, is [`RunQueue::close`] and [`unwind_all`].
///
/// Whatever parks works on such a home: descriptors, time limits, locks, joins, and block I/O, which worker threads
/// carry out where it has to wait. What a context has besides (timers and handlers with callbacks, bottom halves) is the
/// loop's own business.
///
/// # In somebody else's loop
///
/// The loop goes on with what it was there for; the home is one more of those that it serves.
///
/// - A loop that its owner writes out, as around `mio::Poll`, asks the home how long it may sleep: not at all if the
///   queue isn't empty, otherwise until the first deadline. It hands over the events that are the home's, and has it run
///   its coroutines once a turn.
/// - A loop that calls back what is registered with it, as calloop does, gets one source that `schedule` triggers, on the
///   loop's own thread too (the loop may be about to sleep), and one for each watch. Where the callbacks of these run the
///   queue, what they wake needs no trigger, which is a system call.
/// - The loop's own callbacks aren't coroutines: if they wait, all wait. They tell coroutines something by what returns at
///   once ([`try_send`](crate::sync::Sender::try_send), [`Event::set`](crate::sync::Event::set), a waker), or spawn one;
///   and see by [`is_finished`](crate::JoinHandle::is_finished) whether one has ended, as a join there is refused.
/// - A panic of a coroutine that is driven by its handle passes through [`RunQueue::run`] into the loop. If that is in
///   another language, catch it.
pub trait Home: Any + Send + Sync {
    /// Takes a coroutine that is to run, and makes sure that the loop calls [`Woken::run`] on it soon, on its own
    /// thread and not from within this call.
    ///
    /// What a coroutine of this home spawns here comes when that one suspends or ends, in the order in which it was
    /// spawned; what it has [joined](crate::JoinHandle::join) before may have started without.
    fn schedule(&self, woken: Woken);

    /// Whether the calling thread is this home's.
    fn is_current(&self) -> bool;

    /// Watches a descriptor until it is ready or [`unwatch`](Self::unwatch) is called; then wakes `waker`, once. That may
    /// be before this returns.
    ///
    /// A descriptor may have several watches, also for the same interest. Errors and hang-ups count as readiness. A
    /// descriptor that is always ready (a regular file) is ready.
    ///
    /// # Errors
    ///
    /// What the kernel said about the descriptor.
    fn watch_fd(&self, fd: BorrowedFd<'_>, interest: Interest, waker: Waker) -> io::Result<Watch>;

    /// Begins to watch a descriptor for good, for those who will wait for it again and again: until
    /// [`let_go`](Self::let_go), for which the descriptor stays open and the same. `None`, as by default, if watches are
    /// made one by one here.
    fn keep_watching(&self, _fd: BorrowedFd<'_>, _interest: Interest) -> Option<KeptWatch> {
        None
    }

    /// Wakes `waker`, once, when a descriptor that is kept watched has *become* ready, unless
    /// [`unwatch`](Self::unwatch) is called before that. If it was ready already, and nothing happens to it, nothing is
    /// told; what has happened before counts as `since` says. It may wake for nothing.
    ///
    /// `None` if it isn't watched any more; then the waker is dropped.
    fn watch_kept(&self, _kept: KeptWatch, _since: Since, _waker: Waker) -> Option<Watch> {
        None
    }

    /// Ends a watch that was kept. Called once for each, before the descriptor is closed, from any thread; on another than
    /// its own, the home may have the file open for some time after that.
    fn let_go(self: Arc<Self>, _kept: KeptWatch) {}

    /// Watches the clock until the deadline has passed or [`unwatch`](Self::unwatch) is called; then wakes `waker`,
    /// once.
    fn watch_deadline(&self, deadline: Instant, waker: Waker) -> Watch;

    /// Ends a watch. Returns whether it had fired. Called once for each watch, be it after the end of the home.
    fn unwatch(&self, watch: Watch) -> bool;

    /// Runs the loop once, waiting until there is something to do: how the home's own thread, outside of coroutines,
    /// [waits](crate::JoinHandle::join) for a coroutine.
    ///
    /// A guest can't run its host's loop, and leaves this as it is.
    ///
    /// # Panics
    ///
    /// - Inside of a coroutine.
    /// - If the loop can't be run from here.
    fn turn(self: Arc<Self>) {
        panic!(
            "a coroutine was joined by its home's thread, whose loop a join can't run: join it in another coroutine"
        );
    }
}

/// A coroutine that is to run: it was woken, or spawned, or yielded to let others run.
///
/// Dropping it without running it, as a loop does that ends: a coroutine that hasn't started is dropped; one that its
/// home drives is unwound if this is the home's thread; otherwise it stays suspended, and its next wake schedules it
/// again.
#[must_use = "a woken coroutine must be run"]
pub struct Woken {
    block: &'static Block,
    /// Running it is for the home's thread; carrying it there is for any.
    marker: PhantomData<*mut ()>,
}

// SAFETY: what crosses threads is the queue entry. `run` checks that it is called on the coroutine's thread; a
// coroutine that hasn't started was spawned with a closure that is `Send`.
unsafe impl Send for Woken {}

impl Woken {
    /// The caller owns the block's queue entry and gives it up.
    pub(super) fn new(block: &'static Block) -> Self {
        Self { block, marker: PhantomData }
    }

    /// Runs the coroutine until it yields, parks or ends, and then the coroutines that it woke.
    ///
    /// # Panics
    ///
    /// - If the coroutine was started on another thread.
    /// - If a coroutine that runs here and is driven by its handle panics: with its payload. Spawned coroutines' panics
    ///   go to their join handles.
    pub fn run(self) {
        let block = ManuallyDrop::new(self).block;
        enter::run_woken(this_thread(), block);
    }

    fn into_node(self) -> NonNull<Block> {
        NonNull::from(ManuallyDrop::new(self).block)
    }

    /// # Safety
    ///
    /// `node` came from `into_node`, once.
    unsafe fn from_node(node: NonNull<Block>) -> Self {
        // SAFETY: blocks are never unmapped.
        Self::new(unsafe { node.as_ref() })
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        enter::drop_woken(self.block);
    }
}

impl fmt::Debug for Woken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Woken").field("slot", &self.block.slot.get()).finish()
    }
}

/// A queue of woken coroutines: any thread pushes without a lock, the loop takes all, first come first.
#[derive(Debug)]
pub struct RunQueue {
    pushed: PushStack<RunAdapter>,
}

// SAFETY: the stack is shared through atomics; its nodes are the queue entries of `Woken`s, which are `Send`.
unsafe impl Send for RunQueue {}
// SAFETY: as above.
unsafe impl Sync for RunQueue {}

impl RunQueue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self { pushed: PushStack::new() }
    }

    /// Adds a coroutine at the end. Returns whether the queue was empty, in which case a loop that sleeps needs a
    /// signal.
    ///
    /// If the queue is [closed](Self::close), the coroutine is dropped.
    pub fn push(&self, woken: Woken) -> bool {
        let node = woken.into_node();
        // SAFETY: blocks are never unmapped, and the entry is ours to give.
        match unsafe { self.pushed.push_if_open(node) } {
            Some(was_empty) => was_empty,
            None => {
                // SAFETY: the queue hasn't taken it.
                drop(unsafe { Woken::from_node(node) });
                false
            }
        }
    }

    /// Whether nothing is queued at this moment.
    pub fn is_empty(&self) -> bool {
        self.pushed.is_empty()
    }

    /// Takes all, in the order in which they were pushed.
    pub fn take_all(&self) -> WokenList {
        WokenList { list: self.pushed.take_all().into_fifo() }
    }

    /// Runs those that are queued now, on their home's thread. What is pushed meanwhile waits for the next call: so
    /// coroutines that yield to one another don't keep the loop from all else.
    ///
    /// # Panics
    ///
    /// As [`Woken::run`]. Those that haven't run are [scheduled](Home::schedule) once more.
    pub fn run(&self) {
        let mut unrun = Unrun(self.take_all());
        unrun.0.by_ref().for_each(Woken::run);
    }

    /// Takes all, and has [`push`](Self::push) drop what comes from here on: how a home ends, see [`unwind_all`].
    pub fn close(&self) -> WokenList {
        WokenList { list: self.pushed.close().into_fifo() }
    }
}

/// What a panic keeps from running: its home, which has it run later, gets it once more.
struct Unrun(WokenList);

impl Drop for Unrun {
    fn drop(&mut self) {
        let thread = this_thread();
        self.0.by_ref().for_each(|woken| enter::schedule_on_home(thread, ManuallyDrop::new(woken).block));
    }
}

impl Default for RunQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RunQueue {
    fn drop(&mut self) {
        drop(self.take_all());
    }
}

/// Woken coroutines in the order in which they are to run: an iterator, and a queue that its owner may extend.
#[derive(Debug)]
pub struct WokenList {
    list: Fifo<RunAdapter>,
}

// SAFETY: its nodes are the queue entries of `Woken`s, which are `Send`.
unsafe impl Send for WokenList {}

impl WokenList {
    /// An empty list.
    pub const fn new() -> Self {
        Self { list: Fifo::new() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds one at the end.
    pub fn push_back(&mut self, woken: Woken) {
        // SAFETY: blocks are never unmapped, and the entry is ours to give.
        unsafe { self.list.push_back(woken.into_node()) };
    }

    /// Adds all of `others` at the end, which is then empty.
    pub fn append(&mut self, others: &mut Self) {
        self.list.append(&mut others.list);
    }
}

impl Default for WokenList {
    fn default() -> Self {
        Self::new()
    }
}

impl Iterator for WokenList {
    type Item = Woken;

    fn next(&mut self) -> Option<Woken> {
        // SAFETY: the list owns the entries of its nodes.
        self.list.pop_front().map(|node| unsafe { Woken::from_node(node) })
    }
}

impl Drop for WokenList {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// The home whose loop is running on the calling thread.
pub fn current_home() -> Option<Arc<dyn Home>> {
    this_thread().home.borrow().clone()
}

/// Whether there is a [current home](current_home), and the predicate holds of it.
#[inline]
pub(crate) fn is_current_home(predicate: impl FnOnce(&Arc<dyn Home>) -> bool) -> bool {
    this_thread().home.borrow().as_ref().is_some_and(predicate)
}

/// Makes `home` the calling thread's current home until the guard is dropped: a loop holds one while it runs.
///
/// A coroutine that is driven by its handle gets the current home as its own when it parks for the first time.
///
/// # Panics
///
/// If the home isn't the calling thread's.
pub fn enter_home(home: Arc<dyn Home>) -> HomeGuard {
    assert!(home.is_current(), "a home can only be entered on its own thread");
    let outer = this_thread().home.replace(Some(home));
    HomeGuard { outer, marker: PhantomData }
}

/// Restores the thread's previous home when dropped; see [`enter_home`].
#[must_use = "the home is current until this is dropped"]
pub struct HomeGuard {
    outer: Option<Arc<dyn Home>>,
    marker: PhantomData<*mut ()>,
}

impl fmt::Debug for HomeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HomeGuard").finish_non_exhaustive()
    }
}

impl Drop for HomeGuard {
    fn drop(&mut self) {
        let thread = this_thread();
        let inner = thread.home.replace(self.outer.take());
        if thread.calls.get() != 0 {
            thread.left.borrow_mut().extend(inner);
        }
    }
}

/// The thread's current home, to be called.
///
/// It isn't counted for that. It lives as long as this does: only the drop of a [`HomeGuard`] lets go of a home that was
/// current, and leaves that to us as long as there are any of us.
pub(super) struct CurrentHome<'a> {
    thread: &'a Thread,
    home: NonNull<dyn Home>,
}

impl<'a> CurrentHome<'a> {
    /// The current home, if it is this one.
    #[inline]
    pub(super) fn if_is(thread: &'a Thread, home: &Arc<dyn Home>) -> Option<Self> {
        thread.home.borrow().as_ref().filter(|current| Arc::ptr_eq(current, home))?;
        thread.calls.set(thread.calls.get() + 1);
        Some(Self { thread, home: NonNull::from(&**home) })
    }

    #[inline]
    pub(super) fn schedule(&self, woken: Woken) {
        // SAFETY: it lives, as said above.
        unsafe { self.home.as_ref() }.schedule(woken);
    }
}

impl Drop for CurrentHome<'_> {
    #[inline]
    fn drop(&mut self) {
        let calls = self.thread.calls.get() - 1;
        self.thread.calls.set(calls);
        if calls == 0 && !self.thread.left.borrow().is_empty() {
            let left = self.thread.left.take();
            drop(left);
        }
    }
}

/// Unwinds all parked coroutines that `home` drives: how a home ends, on its thread, after it has dropped the
/// [`Woken`]s that it had queued. Those that come later it drops at once: with a [`RunQueue`], the end of a home is
/// `drop(queue.close())`, and this.
pub fn unwind_all(home: &dyn Home) {
    let thread = this_thread();
    newborn::end(thread, home);
    let is_homes = |block: &&'static Block| {
        // One whose turn somebody has yet to run or to drop is left to them.
        let suspended = match block.phase.get() {
            Phase::Parked => true,
            Phase::Requeued => block.state.is_parked(),
            _ => false,
        };
        // SAFETY: live coroutines are this thread's.
        suspended && unsafe { block.is_driven_by(home) }
    };
    loop {
        let next = thread.live.borrow().iter().copied().find(is_homes);
        match next {
            Some(block) => enter::unwind(thread, block),
            None => return,
        }
    }
}
