//! The io_uring monitor.
//!
//! Each watch is a one-shot poll on the context's ring. It goes to the kernel with the next wait, and so does its end,
//! so that a turn takes one system call however many coroutines wait anew. A watch's slot, which is in its token, isn't
//! used again before the poll's own completion has come. Descriptors that are watched for good have a poll that goes on:
//! [`kept`](super::kept).
//!
//! **The notifier** is read by the ring: a read of eight bytes is always under way, so that a signal ends the wait and
//! is cleared by the same completion. A kernel that doesn't wait on behalf of a read from a non-blocking descriptor
//! answers `EAGAIN`; then the notifier is polled for and read from like any other.
//!
//! **Tokens.** The upper eight bits are a kind, for all who share the ring; the rest is the kind's own.
//!
//! **Files stay open.** The kernel holds a watched file until the watch has ended *there*. A watch that is withdrawn
//! ends with the next enter: so that a socket that is closed after that is closed for its peer too, a turn that has
//! withdrawn watches ends with [`flush`](IoUring::flush).
//!
//! # Safety
//!
//! The kernel writes to what requests name until they complete: their makers keep that in place, and a context that ends
//! finishes them. And it writes to the buffer of the notifier's read until that completes. The buffer is counted; when the monitor
//! is dropped it cancels the read and takes out its completion, and if that doesn't come, it leaks the buffer. (Closing
//! the ring alone wouldn't do: the kernel ends what is under way some time later.)
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::super::registry::{FileKey, Registry};
use super::super::request::Request;
use super::super::slab::{self, Slab};
use super::super::waiter::Waiter;
use super::kept::{KeptPolls, ToArm};
use super::{Batch, Calls, Failed, Side};
use crate::coroutine::Since;
use crate::primitive::UnsafeCell;
use crate::sys::eventfd::EventFd;
use crate::sys::file::Call;
use crate::sys::ring::{Completion, Ring};

/// A watch; its number follows.
const WATCH: u64 = 0;
/// The end of a watch.
const UNWATCH: u64 = 1;
/// The read from the notifier, or the poll for it.
const NOTIFIER: u64 = 2;
/// The end of that, or of a request.
const CANCEL: u64 = 3;
/// A request; its address follows. (Addresses have 47 bits, 56 at most.)
const REQUEST: u64 = 4;
/// A descriptor that is watched for good; its number follows.
const KEPT: u64 = 5;

/// How often a wait for a request may fail, and what comes between two attempts.
const MAX_FAILURES: u32 = 100;
const PAUSE: Duration = Duration::from_micros(100);

const fn token(kind: u64, number: u64) -> u64 {
    kind << slab::BITS | number
}

/// Watches descriptors through a ring.
#[derive(Debug)]
pub(super) struct IoUring {
    ring: Ring,
    watches: Slab<Waiter>,
    kept: KeptPolls,
    notifier: Arc<EventFd>,
    notifier_state: Notifier,
    /// What the kernel reads the notifier into.
    buffer: Rc<UnsafeCell<u64>>,
    /// Whether watches were withdrawn that the kernel still has.
    has_withdrawn: bool,
    /// Requests that the kernel has, or is to get.
    pending: usize,
    /// Whether there are requests that it is to get.
    has_requests: bool,
    /// Requests that it was asked to carry out.
    requests: u64,
    registry: Registry,
    /// The watches that the kernel has refused since somebody asked for them.
    failed: Vec<Failed>,
}

/// What the kernel does for the notifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notifier {
    Reads,
    Polls,
    Nothing,
}

/// The most important of some completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// There was none.
    Nothing,
    /// Only of what ended without an event.
    Ends,
    /// A watch that fired.
    Ready,
    /// The notifier.
    Signal,
}

impl IoUring {
    /// A monitor that also wakes up when `notifier` is signalled.
    pub(super) fn new(notifier: Arc<EventFd>) -> io::Result<Self> {
        let mut monitor = Self {
            ring: Ring::new()?,
            watches: Slab::new(),
            kept: KeptPolls::new(),
            notifier,
            notifier_state: Notifier::Nothing,
            buffer: Rc::new(UnsafeCell::new(0)),
            has_withdrawn: false,
            failed: Vec::new(),
            pending: 0,
            has_requests: false,
            requests: 0,
            registry: Registry::default(),
        };
        monitor.watch_notifier(Notifier::Reads);
        // Shows whether the ring can be entered: a filter may forbid that alone.
        monitor.ring.enter(0, Some(Duration::ZERO))?;
        Ok(monitor)
    }

    pub(super) fn watch(&mut self, fd: RawFd, side: Side, waiter: Waiter) -> u64 {
        let number = self.watches.insert(waiter);
        self.ring.poll(fd, side.events(), token(WATCH, number));
        number
    }

    pub(super) fn unwatch(&mut self, watch: u64) -> Option<Waiter> {
        let waiter = self.watches.withdraw(watch)?;
        self.ring.end_poll(token(WATCH, watch), token(UNWATCH, watch));
        self.has_withdrawn = true;
        Some(waiter)
    }

    /// Watches a side of a descriptor for good. Returns its number.
    pub(super) fn keep_watching(&mut self, fd: RawFd, side: Side) -> u64 {
        let poll = self.kept.insert(fd, side);
        self.arm(&poll);
        poll.number
    }

    pub(super) fn watch_kept(
        &mut self,
        number: u64,
        since: Since,
        waiter: Waiter,
        fired: &mut Vec<Waiter>,
    ) -> Result<u64, Waiter> {
        let (watch, to_arm) = self.kept.watch(number, since, waiter, fired)?;
        if let Some(poll) = to_arm {
            self.arm(&poll);
        }
        Ok(watch)
    }

    fn arm(&mut self, poll: &ToArm) {
        self.ring.keep_polling(poll.fd, poll.side.events(), token(KEPT, poll.number));
    }

    pub(super) fn unwatch_kept(&mut self, watch: u64) -> Option<Waiter> {
        self.kept.unwatch(watch)
    }

    /// The kernel lets go of the file at once: its peer may wait for it to be closed.
    pub(super) fn let_go(&mut self, number: u64, fired: &mut Vec<Waiter>, calls: &mut Calls) {
        if self.kept.remove(number, fired) {
            self.ring.end_keep_polling(token(KEPT, number), token(UNWATCH, number));
            self.has_withdrawn = true;
            self.flush(calls);
        }
    }

    /// The watches, of those that were asked for since the last wait, whose descriptors can't be watched.
    pub(super) fn failed(&mut self, fired: &mut Vec<Waiter>, calls: &mut Calls) -> io::Result<Vec<Failed>> {
        calls.controls += 1;
        self.failed.clear();
        self.ring.enter(0, Some(Duration::ZERO))?;
        self.collect(fired, calls);
        Ok(mem::take(&mut self.failed))
    }

    /// Has the kernel carry out a request, from the next call on, to a file that may be registered by this: then the
    /// answer is `true`.
    ///
    /// # Safety
    ///
    /// The request is begun, and stays in place until it is done; and so does what the call names, which is valid as
    /// [`Call::run`] demands it.
    pub(super) unsafe fn request(&mut self, call: &Call, key: Option<&FileKey>, request: NonNull<Request>) -> bool {
        self.pending += 1;
        self.has_requests = true;
        self.requests += 1;
        let lookup = self.registry.look_up(&mut self.ring, call, key);
        let token = token(REQUEST, request.as_ptr().expose_provenance() as u64);
        // SAFETY: contract. Whoever drops the monitor sees to it that nothing is pending.
        unsafe { self.ring.request(call, lookup.known, token) };
        lookup.is_new_file
    }

    /// Takes a file out of the ring's table, if it is there. No request to it is under way.
    pub(super) fn forget_file(&mut self, id: u64, place: u32) {
        self.registry.forget_file(&self.ring, id, place);
    }

    /// What the ring has registered.
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// How many requests it was asked to carry out.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether there are requests that the kernel doesn't know of.
    pub(super) fn has_requests(&self) -> bool {
        self.has_requests
    }

    /// Has the kernel cancel a request, from the next call on; it is done soon, or when it can be.
    pub(super) fn cancel(&mut self, request: &Request) {
        let address = ptr::from_ref(request).addr() as u64;
        self.ring.cancel(token(REQUEST, address), token(CANCEL, 0));
        self.has_requests = true;
    }

    /// Cancels a request, and blocks until it is done. Those who wait for what else happens meanwhile are passed on.
    pub(super) fn finish(&mut self, request: &Request, fired: &mut Vec<Waiter>, calls: &mut Calls) -> io::Result<()> {
        self.cancel(request);
        while request.result().is_none() {
            self.wait_for_request(fired, calls)?;
        }
        Ok(())
    }

    /// Cancels all requests, and blocks until they are done.
    pub(super) fn finish_all(&mut self, fired: &mut Vec<Waiter>, calls: &mut Calls) -> io::Result<()> {
        if self.pending != 0 {
            self.ring.cancel_all(token(CANCEL, 0));
        }
        while self.pending != 0 {
            self.wait_for_request(fired, calls)?;
        }
        Ok(())
    }

    /// Waits for completions on behalf of somebody who can't go on without. So what keeps the kernel from it may pass.
    fn wait_for_request(&mut self, fired: &mut Vec<Waiter>, calls: &mut Calls) -> io::Result<()> {
        let mut failures = 0;
        loop {
            calls.waits += 1;
            match self.ring.enter(1, None) {
                Ok(()) => break,
                Err(error) if failures == MAX_FAILURES => return Err(error),
                Err(_) => failures += 1,
            }
            thread::sleep(PAUSE);
        }
        self.collect(fired, calls);
        Ok(())
    }

    /// Tells the kernel what it has to do, if there is anything.
    pub(super) fn submit(&mut self, calls: &mut Calls) -> io::Result<()> {
        if self.ring.has_queued() {
            calls.controls += 1;
            self.has_withdrawn = false;
            self.has_requests = false;
            self.ring.enter(0, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Whether nothing is under way but for the notifier.
    pub(super) fn watches_nothing(&mut self) -> bool {
        self.watches.len() == 0 && self.kept.is_idle() && self.pending == 0 && self.ring.is_quiet()
    }

    /// Whether a wait would end at once. It takes no system call to see that.
    pub(super) fn has_news(&mut self) -> bool {
        !self.ring.is_quiet()
    }

    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        batch: Batch,
        fired: &mut Vec<Waiter>,
        calls: &mut Calls,
    ) -> io::Result<bool> {
        if timeout == Some(Duration::ZERO) && self.ring.is_quiet() {
            return Ok(false);
        }
        let may_sleep = timeout != Some(Duration::ZERO);
        // Where nothing ends the wait but events, nobody asks how late it is.
        let start = timeout.map(|_| Instant::now());
        let mut left = timeout;
        loop {
            calls.waits += 1;
            match may_sleep {
                false => self.ring.enter(0, left)?,
                true if batch.is_one() => self.ring.enter(1, left)?,
                true => self.ring.enter_for(batch.size, batch.longest, left)?,
            }
            self.has_withdrawn = false;
            self.has_requests = false;
            let mut seen = self.collect(fired, calls);
            // The kernel makes some completions (20) in one call. After a sleep, what is left comes with the next wait, which
            // also submits what those who are woken now ask for. A look is for all that there is.
            while (seen < Seen::Ready || !may_sleep) && self.ring.has_more() {
                calls.waits += 1;
                self.ring.enter(0, Some(Duration::ZERO))?;
                match self.collect(fired, calls) {
                    // The kernel may raise its flag for work that it has done meanwhile, and lowers it with the next.
                    Seen::Nothing => break,
                    more => seen = seen.max(more),
                }
            }
            left = timeout.zip(start).map(|(timeout, start)| timeout.saturating_sub(start.elapsed()));
            // The ends of withdrawn watches are no reason to return.
            if seen != Seen::Ends || !may_sleep || left == Some(Duration::ZERO) {
                return Ok(seen == Seen::Signal);
            }
        }
    }

    /// Forgets what the kernel does, which it does for the process that this one was forked from.
    pub(super) fn disown(&mut self) {
        self.notifier_state = Notifier::Nothing;
        self.registry.disown();
        self.ring.disown();
    }

    /// Tells the kernel which watches were withdrawn, so that it lets go of their files.
    pub(super) fn flush(&mut self, calls: &mut Calls) {
        if mem::take(&mut self.has_withdrawn) {
            calls.controls += 1;
            // An error comes again with the next wait, which reports it.
            let _ = self.ring.enter(0, Some(Duration::ZERO));
        }
    }

    /// How often the queue of what the kernel is to do was full before a wait.
    pub(super) fn submits(&self) -> u64 {
        self.ring.submits()
    }

    /// Takes out all completions.
    fn collect(&mut self, fired: &mut Vec<Waiter>, calls: &mut Calls) -> Seen {
        let mut seen = Seen::Nothing;
        let mut signal = None;
        for Completion { token, result, goes_on } in self.ring.completions() {
            let what = match token >> slab::BITS {
                WATCH => match self.watches.remove(token) {
                    // What is always ready is never in trouble.
                    Some(Waiter::Handler(_, Side::Trouble)) if result == -libc::EINVAL => Seen::Ends,
                    // An error is for the waiter, who meets it by itself.
                    Some(waiter) => {
                        if result < 0 {
                            self.failed.push(Failed { watch: token, errno: -result });
                        }
                        fired.push(waiter);
                        Seen::Ready
                    }
                    None => Seen::Ends,
                },
                REQUEST => {
                    self.pending -= 1;
                    let address = (token & slab::MAX) as usize;
                    let request = NonNull::new(ptr::with_exposed_provenance_mut(address)).expect("an address");
                    // SAFETY: the request is pending, and the kernel is done with it.
                    match unsafe { Request::complete(request, result.into()) } {
                        Some(told) => {
                            fired.push(told.into());
                            Seen::Ready
                        }
                        None => Seen::Ends,
                    }
                }
                KEPT => match self.kept.on_event(token & slab::MAX, result, goes_on, fired) {
                    true => Seen::Ready,
                    false => Seen::Ends,
                },
                NOTIFIER => {
                    signal = Some(result);
                    Seen::Ends
                }
                _ => Seen::Ends,
            };
            seen = seen.max(what);
        }
        let Some(result) = signal else { return seen };
        let was = mem::replace(&mut self.notifier_state, Notifier::Nothing);
        if result == -libc::EAGAIN {
            self.watch_notifier(Notifier::Polls);
            return seen;
        }
        if was == Notifier::Polls {
            calls.notifier_reads += 1;
            self.notifier.clear();
        }
        self.watch_notifier(was);
        Seen::Signal
    }

    fn watch_notifier(&mut self, how: Notifier) {
        let fd = self.notifier.as_fd().as_raw_fd();
        match how {
            Notifier::Reads => {
                let buffer = self.buffer.with_mut(<*mut u64>::cast);
                // SAFETY: the buffer has eight bytes, and see the head. Nobody else looks at it.
                unsafe { self.ring.read(fd, buffer, 8, token(NOTIFIER, 0)) };
            }
            Notifier::Polls => self.ring.poll(fd, libc::POLLIN, token(NOTIFIER, 0)),
            Notifier::Nothing => {}
        }
        self.notifier_state = how;
    }
}

impl Drop for IoUring {
    fn drop(&mut self) {
        self.registry.end(&self.ring);
        if self.notifier_state != Notifier::Reads {
            return;
        }
        self.ring.cancel(token(NOTIFIER, 0), token(CANCEL, 0));
        // One turn is enough, unless signals interrupt it or other completions come first.
        for _ in 0..1000 {
            if self.ring.enter(1, Some(Duration::from_millis(1))).is_err() {
                break;
            }
            if self.ring.completions().any(|completion| completion.token == token(NOTIFIER, 0)) {
                return;
            }
        }
        mem::forget(self.buffer.clone());
    }
}
