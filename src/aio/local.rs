//! A context as its own thread sees it.
#![allow(unsafe_code)] // # Safety: coroutines on our own thread that aren't `Send`; requests, whose contract is passed on.

use std::any::Any;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::bh::{self, BottomHalf};
use super::builder::MonitorChoice;
use super::fd_handler::FdHandler;
use super::handler::FdCallbacks;
use super::parameters::{Coalescing, Polling};
use super::registry::FileKey;
use super::remote::Remote;
use super::request::{Interface, OnDone, PlacedBypass, Request, Spare};
use super::shared::{Shared, abort_with_requests, refuse_coroutine};
use super::stats::Stats;
use super::timer::Timer;
use super::transaction::Transaction;
use crate::coroutine::{self, Builder, Home};
use crate::sys::file::Call;
use crate::task::{self, JoinHandle};

/// An [`AioContext`](super::AioContext) as its own thread sees it: what the context dereferences to, and what
/// [`current`] returns in its coroutines and callbacks.
///
/// # Dropping
///
/// does nothing to the context. A `Local` may outlive it; then there is nothing left to be done with it, as its methods
/// say.
#[derive(Clone)]
pub struct Local {
    shared: Arc<Shared>,
    /// Neither `Send` nor `Sync`.
    marker: PhantomData<*mut ()>,
}

/// The context whose coroutine or callback the caller is, if it is one.
///
/// ```
/// use aioco::{AioContext, aio};
///
/// assert!(aio::current().is_none());
/// let context = AioContext::new()?;
/// let sum = context.block_on(|| {
///     // Deep down, where nobody has the context at hand.
///     let context = aio::current().expect("a coroutine of a context");
///     let parts = [1, 2].map(|part| context.spawn(move || part).expect("a stack"));
///     parts.into_iter().map(|part| part.join().expect("no panic")).sum::<i32>()
/// });
/// assert_eq!(sum, 3);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn current() -> Option<Local> {
    coroutine::home().or_else(coroutine::current_home).and_then(Local::from_home)
}

impl Local {
    pub(super) fn of(shared: Arc<Shared>) -> Self {
        Self { shared, marker: PhantomData }
    }

    /// The context that this home is, if it is one.
    pub(crate) fn from_home(home: Arc<dyn Home>) -> Option<Self> {
        let home: Arc<dyn Any + Send + Sync> = home;
        home.downcast().ok().map(Self::of)
    }

    /// Calls `f` with the context that this home is, if it is one. It isn't counted for that.
    #[inline]
    pub(crate) fn with_home<R>(home: &Arc<dyn Home>, f: impl FnOnce(Option<&Self>) -> R) -> R {
        let any: &dyn Any = &**home;
        if !any.is::<Shared>() {
            return f(None);
        }
        // SAFETY: it is a `Shared` in an `Arc`, which is borrowed for longer than this one lives; that isn't dropped.
        let shared = unsafe { Arc::from_raw(Arc::as_ptr(home).cast()) };
        let local = ManuallyDrop::new(Self::of(shared));
        f(Some(&local))
    }

    /// Ends the context.
    pub(super) fn end(&self) {
        self.shared.end();
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

    /// What this context has done for its loop: system calls, sleeps, polls.
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

    /// Spawns `f` as a coroutine of this context; it starts in one of the next turns, or in a
    /// [join](JoinHandle::join) by the coroutine that spawned it.
    ///
    /// # Errors
    ///
    /// - If no stack can be had; the message names `vm.max_map_count` where that is the cause.
    /// - [`NotConnected`](io::ErrorKind::NotConnected) if the context has ended.
    #[track_caller]
    pub fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        self.spawn_with(Builder::new(), f)
    }

    /// As [`spawn`](Self::spawn), with a name or a stack size.
    ///
    /// # Errors
    ///
    /// As [`spawn`](Self::spawn), and as [`Builder::create`].
    #[track_caller]
    pub fn spawn_with<T: Send + 'static>(
        &self,
        builder: Builder,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        self.shared.refuse_if_ended()?;
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
        self.shared.refuse_if_ended()?;
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

    /// Makes a timer: `callback` runs on this thread, in a turn of this context, when the time has come that it is armed
    /// for.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// let context = aioco::AioContext::new()?;
    /// let timer = context.timer(|| println!("a millisecond has passed"));
    /// let start = Instant::now();
    /// timer.arm_after(Duration::from_millis(1));
    /// context.run_until(|| !timer.is_armed());
    /// assert!(start.elapsed() >= Duration::from_millis(1));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// A callback that panics does so out of [`poll`](Self::poll); others that are due have their turn in the next one.
    pub fn timer(&self, callback: impl FnMut() + 'static) -> Timer {
        Timer::new(&self.shared, callback)
    }

    /// Has callbacks run when a descriptor is ready, until the handler that is returned is dropped. The descriptor is
    /// borrowed for as long.
    ///
    /// ```
    /// use aioco::{AioContext, aio::FdCallbacks};
    /// use std::{cell::Cell, io::{Read, Write}, os::unix::net::UnixStream, rc::Rc};
    ///
    /// let (ours, mut theirs) = UnixStream::pair()?;
    /// let ours = Rc::new(ours);
    /// let received = Rc::new(Cell::new(0));
    /// let context = AioContext::new()?;
    /// let on_readable = {
    ///     let (ours, received) = (ours.clone(), received.clone());
    ///     move || received.set(received.get() + (&*ours).read(&mut [0; 16]).unwrap())
    /// };
    /// let _handler = context.add_fd(&ours, FdCallbacks::new().on_readable(on_readable))?;
    /// theirs.write_all(b"abc")?;
    /// context.run_until(|| received.get() == 3);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// A callback that panics does so out of [`poll`](Self::poll); others that are due have their turn in the next one.
    ///
    /// # Errors
    ///
    /// - What the kernel says about the descriptor, as far as it says it now: io_uring and poll tell callbacks, as if it
    ///   were ready. (A [`Transaction`] always tells.)
    /// - [`NotConnected`](io::ErrorKind::NotConnected) if the context has ended.
    pub fn add_fd<'fd>(&self, fd: &'fd impl AsFd, callbacks: FdCallbacks) -> io::Result<FdHandler<'fd>> {
        let handler = FdHandler::borrowing(&self.shared, fd.as_fd(), callbacks);
        handler.add(&self.shared)?;
        Ok(handler)
    }

    /// As [`add_fd`](Self::add_fd), for a descriptor that the handler owns: it is dropped, on this thread, when the
    /// handler has been removed. It may be shared with the callbacks (`Rc`).
    ///
    /// # Errors
    ///
    /// As [`add_fd`](Self::add_fd); then the descriptor is dropped.
    pub fn add_owned_fd(&self, fd: impl AsFd + 'static, callbacks: FdCallbacks) -> io::Result<FdHandler<'static>> {
        let handler = FdHandler::owning(&self.shared, fd, callbacks);
        handler.add(&self.shared)?;
        Ok(handler)
    }

    /// Begins a transaction, in which many handlers are added and removed at once.
    pub fn transaction<'fd>(&self) -> Transaction<'fd> {
        Transaction::new(&self.shared)
    }

    /// Changes how the loop polls before it sleeps.
    pub fn set_polling(&self, polling: Polling) {
        self.shared.change_parameters(|parameters| parameters.polling = polling);
    }

    /// Changes how many events the loop sleeps for.
    pub fn set_coalescing(&self, coalescing: Coalescing) {
        self.shared.change_parameters(|parameters| parameters.coalescing = coalescing);
    }

    /// Runs `f` as a coroutine of this context, and the loop until it has ended. What `f` borrows need not be
    /// `'static`.
    ///
    /// (It takes a closure. A coroutine waits for a *future* by [`task::block_on`].)
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
        let _home = self.shared.enter();
        task::scoped::run(self.home(), Location::caller(), || _ = self.poll(true), f)
    }

    /// One turn: waits for events if `blocking` is set and there is nothing to run, then runs what there is.
    ///
    /// Returns whether something was done: a bottom half that isn't an idle one was run, a callback of a handler or a
    /// timer, or a coroutine. A wake-up alone, without anything to do, is nothing done; nor is a change of parameters. A
    /// turn that blocks returns without having done anything only for such a reason, or a signal of the system.
    ///
    /// It may be called from within callbacks: such a nested turn first runs what the outer one hasn't run yet, and
    /// leaves alone what is running.
    ///
    /// # Panics
    ///
    /// - Inside of a coroutine.
    /// - If the context has ended.
    /// - If a callback panics, or a coroutine that is driven by its handle: with the payload. What hasn't been run has its
    ///   turn in the next call.
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
        refuse_coroutine("run_until");
        let _home = self.shared.enter();
        while !done() {
            self.shared.run_once(true);
        }
    }

    /// What other threads reach this context by.
    pub fn remote(&self) -> Remote {
        Remote::of(self.shared.clone())
    }

    /// This context as a home.
    pub fn home(&self) -> Arc<dyn Home> {
        self.shared.clone()
    }
}

/// Counts a system call that has carried out a request of the calling coroutine, and moved so many bytes, if its home is a
/// context. Returns whether the others there should have their turn.
#[inline]
pub(crate) fn count_block_call(moved: u64) -> bool {
    coroutine::with_home(|home| {
        let home: &dyn Any = &**home?;
        home.downcast_ref::<Shared>()?.with_local(|local| {
            local.block_calls += 1;
            local.is_due_for_others(moved)
        })
    })
    .unwrap_or_default()
}

/// What block I/O needs of a context.
impl Local {
    /// Whether the context carries out requests itself: it has a ring.
    pub(crate) fn takes_requests(&self) -> bool {
        self.shared.with_local(|local| local.monitor.takes_requests()).unwrap_or_default()
    }

    /// Whether the context can use Linux AIO, which is set up if it wasn't; if it can't, why. (A context that has ended
    /// can.)
    pub(crate) fn prepare_linux_aio(&self) -> Result<(), &'static str> {
        self.shared.with_local(|local| local.linux_aio.prepare(&self.shared.notifier)).unwrap_or(Ok(()))
    }

    /// What is said of a file whose requests go to the ring.
    pub(crate) fn about_file(&self, key: Option<&FileKey>) -> &'static str {
        let about = self.shared.with_local(|local| local.monitor.registry().map(|registry| registry.about_file(key)));
        about.flatten().unwrap_or("the context has a ring")
    }

    /// Has the kernel carry out a request, at the latest when the loop has nothing else to do; to a file that has this
    /// key, by which a ring may know it. Returns whether the context hasn't ended.
    ///
    /// # Safety
    ///
    /// The request is begun, and stays in place until it is done; and so does what the call names, which is valid as
    /// [`Call::run`] demands it.
    ///
    /// # Panics
    ///
    /// If the context doesn't [take requests](Self::takes_requests), or Linux AIO isn't
    /// [prepared](Self::prepare_linux_aio) or has no such requests.
    pub(crate) unsafe fn request(
        &self,
        interface: Interface,
        call: &Call,
        key: Option<&FileKey>,
        request: &Request,
    ) -> bool {
        let queued = self.shared.with_local(|local| match interface {
            // SAFETY: passed on.
            Interface::Ring => unsafe { local.monitor.request(call, key, request.into()) },
            Interface::LinuxAio => {
                // SAFETY: passed on.
                unsafe { local.linux_aio.request(call, request.into()) };
                false
            }
        });
        if queued == Some(true) {
            key.into_iter().for_each(|key| key.is_known_by(&self.shared));
        }
        queued.is_some()
    }

    /// Has a request cancelled that was made here. Returns whether nobody has it any more; otherwise it will be done.
    pub(crate) fn cancel(&self, interface: Interface, request: &Request) -> bool {
        let cancelled = self.shared.with_local(|local| match interface {
            Interface::Ring => local.monitor.cancel(request),
            Interface::LinuxAio => local.linux_aio.take_back(request),
        });
        // A context that has ended has finished its requests.
        cancelled.unwrap_or(false)
    }

    /// Cancels a request that was made here, and blocks until it is done.
    pub(crate) fn finish(&self, interface: Interface, request: &Request) {
        let finished = self.shared.with_local(|local| match interface {
            Interface::Ring => local.monitor.finish(request, &mut local.fired),
            Interface::LinuxAio => local.linux_aio.finish(request, &mut local.fired),
        });
        // A context that has ended has finished its requests.
        finished.unwrap_or(Ok(())).unwrap_or_else(|error| abort_with_requests(&error));
    }

    /// # Errors
    ///
    /// [`NotConnected`](io::ErrorKind::NotConnected) if the context has ended.
    #[inline]
    pub(crate) fn refuse_if_ended(&self) -> io::Result<()> {
        self.shared.refuse_if_ended()
    }

    /// Memory for a bypass, as that of a box, which is the caller's.
    ///
    /// # Errors
    ///
    /// [`NotConnected`](io::ErrorKind::NotConnected) if the context has ended.
    #[inline]
    pub(crate) fn place_for<B>(&self) -> io::Result<NonNull<B>> {
        self.refuse_if_ended()?;
        Ok(self.shared.with_local(|local| local.spare.take()).expect("it hasn't ended"))
    }

    /// Takes memory back.
    ///
    /// # Safety
    ///
    /// It came from [`place_for`](Self::place_for), its value is gone, and nobody else has it.
    #[inline]
    pub(crate) unsafe fn keep_place<B>(&self, place: NonNull<B>) {
        // SAFETY: contract.
        let spare = unsafe { Spare::of(place) };
        self.shared.with_local(|local| local.spare = spare);
    }

    /// Keeps a bypass until its call is done. Returns its number; if the context has ended, it is dropped.
    pub(crate) fn keep_bypass(&self, bypass: PlacedBypass) -> Option<u64> {
        let mut bypass = Some(bypass);
        self.shared.with_local(|local| bypass.take().map(|bypass| local.bypasses.insert(bypass))).flatten()
    }

    /// What is to happen when the call of the bypass of this number is done, by another thread.
    pub(crate) fn on_bypass_done(&self, number: u64) -> OnDone {
        OnDone::Call(number, Arc::downgrade(&self.shared))
    }

    /// Has a bypass go on in the next turn; it has no call that is pending. Counts the system call, if there was one.
    #[inline]
    pub(crate) fn defer_bypass(&self, bypass: PlacedBypass, block_calls: u64) {
        let bypass = ManuallyDrop::new(bypass);
        let is_deferred = self.shared.with_local(|local| {
            local.block_calls += block_calls;
            // SAFETY: it is taken out here or below.
            local.done.push_back(unsafe { ptr::read(&*bypass) });
        });
        if is_deferred.is_none() {
            // Here, where user code may run.
            drop(ManuallyDrop::into_inner(bypass));
        }
    }

    /// Counts a system call that carries out a request of its own.
    pub(crate) fn count_block_call(&self) {
        self.shared.with_local(|local| local.block_calls += 1);
    }

    /// Notes that a request may have been carried out at once. Returns whether the others should have their turn.
    pub(crate) fn is_due_for_others(&self) -> bool {
        self.shared.with_local(|local| local.is_due_for_others(0)).unwrap_or_default()
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}
