//! Monitors of descriptors: each watches many, and tells which are ready.
//!
//! # What a monitor promises
//!
//! [`watch`](Monitor::watch) is for one event. The watch fires once, when its direction of the descriptor is ready, was
//! ready already, or shows an error or a hang-up, which concern both directions. Any number of watches may be on one
//! descriptor. What is always ready (a regular file, a directory) fires at once or in the next wait. A watch that was
//! withdrawn never fires, one that has fired can't be withdrawn any more; its number never names another one. A
//! descriptor that nobody watches, whatever it shows, ends no wait.
//!
//! A descriptor stays open for as long as it is watched, which callers keep by borrowing it. If it is closed all the
//! same, nothing spins and nothing fails; its watches fire or stay, and can be withdrawn. A number that is reused is a
//! new descriptor: what happens to the old file, which a duplicate may keep alive, isn't told to those who watch the
//! new one.
//!
//! [`keep_watching`](Monitor::keep_watching) is for a descriptor that will be waited for again and again, by those who know
//! that it isn't ready: it tells of *becoming* ready. Only io_uring does that. (With epoll it would be an entry that is
//! edge-triggered; one-shot watches cost it a system call each.)
//!
//! [`wait`](Monitor::wait) keeps timeouts to the nanosecond, as far as the kernel does, and never returns early but for
//! an event or a signal. The notifier is cleared by the monitor that saw it.
//!
//! # What differs
//!
//! | | poll | epoll | io_uring |
//! |---|---|---|---|
//! | system calls for a watch | none | one, and one to withdraw it | none |
//! | a wait with n descriptors watched, k ready | O(n) | O(k), 64 at most | O(k) |
//! | clearing the notifier | one call | one call | none |
//! | a wait for nothing, with a timeout of zero | one call | one call | none |
//! | watched descriptor closed | fires | stays | stays |
//! | watched descriptor replaced | watches the new file | fires when the new one is watched | watches the old file |
//! | descriptors that it needs | none | one | one |
//! | memory | grows | grows | some 140 KiB of rings more |
#![allow(unsafe_code)] // # Safety: one function, which only passes its contract on.

mod descriptors;
mod epoll;
mod io_uring;
mod kept;
mod poll;

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::epoll::Epoll;
use self::io_uring::IoUring;
use self::poll::Poll;
use super::registry::{FileKey, Registry};
use super::request::Request;
use super::waiter::Waiter;
use crate::coroutine::{Interest, Since};
use crate::sys::eventfd::EventFd;
use crate::sys::file::Call;

/// How a context learns which descriptors are ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MonitorKind {
    /// poll(2): always there; a wait takes longer with each descriptor that is waited for.
    Poll,
    /// epoll(7): a system call for each descriptor that a coroutine waits for.
    Epoll,
    /// io_uring(7), since Linux 5.11: what a turn has for the kernel goes with its one system call. The kernel, a
    /// container or the administrator may forbid it.
    IoUring,
}

/// System calls that a monitor has made.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::aio) struct Calls {
    /// Calls that wait, or would have waited.
    pub(in crate::aio) waits: u64,
    /// Calls that clear the notifier.
    pub(in crate::aio) notifier_reads: u64,
    /// Calls that tell the kernel what to watch, and do nothing else.
    pub(in crate::aio) controls: u64,
}

/// What of a descriptor is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::aio) enum Side {
    /// Input, end of file, a connection to accept.
    Input,
    /// Room for output, a connection established.
    Output,
    /// Errors and hang-ups alone.
    Trouble,
}

impl Side {
    pub(in crate::aio) const ALL: [Self; 3] = [Self::Input, Self::Output, Self::Trouble];

    /// The events of poll(2) that answer it, besides those of trouble, which are always told.
    fn events(self) -> i16 {
        match self {
            Self::Input => Interest::Readable.poll_events(),
            Self::Output => Interest::Writable.poll_events(),
            Self::Trouble => 0,
        }
    }
}

impl From<Interest> for Side {
    fn from(interest: Interest) -> Self {
        match interest {
            Interest::Readable => Self::Input,
            Interest::Writable => Self::Output,
        }
    }
}

/// How many events a wait is for.
#[derive(Debug, Clone, Copy)]
pub(in crate::aio) struct Batch {
    /// So many, or fewer if
    pub(in crate::aio) size: u32,
    /// so much time has passed since the wait began; then for one.
    pub(in crate::aio) longest: Duration,
}

impl Batch {
    /// A wait for one event.
    pub(in crate::aio) const ONE: Self = Self { size: 1, longest: Duration::ZERO };

    fn is_one(self) -> bool {
        self.size <= 1 || self.longest.is_zero()
    }
}

/// A descriptor that can't be watched.
#[derive(Debug)]
pub(in crate::aio) struct Refused {
    pub(in crate::aio) error: io::Error,
    /// Whoever was to be told. A waker's drop may be user code, so it is the caller's.
    #[expect(dead_code, reason = "to be dropped where that is allowed")]
    pub(in crate::aio) waiter: Waiter,
}

/// A watch whose descriptor turned out not to be one that can be watched.
#[derive(Debug)]
pub(in crate::aio) struct Failed {
    pub(in crate::aio) watch: u64,
    pub(in crate::aio) errno: i32,
}

/// Watches descriptors. See the head for what it promises.
#[derive(Debug)]
pub(in crate::aio) struct Monitor {
    backend: Backend,
    notifier: Arc<EventFd>,
    calls: Calls,
}

#[derive(Debug)]
enum Backend {
    Poll(Poll),
    Epoll(Epoll),
    IoUring(Box<IoUring>),
}

impl Monitor {
    /// A monitor of the calling thread that also wakes up when `notifier` is signalled.
    pub(in crate::aio) fn new(kind: MonitorKind, notifier: &Arc<EventFd>) -> io::Result<Self> {
        let backend = match kind {
            MonitorKind::Poll => Backend::Poll(Poll::new(notifier.clone())),
            MonitorKind::Epoll => Backend::Epoll(Epoll::new(notifier.clone())?),
            MonitorKind::IoUring => Backend::IoUring(Box::new(IoUring::new(notifier.clone())?)),
        };
        Ok(Self { backend, notifier: notifier.clone(), calls: Calls::default() })
    }

    /// Watches a side of a descriptor, once. Returns the watch's number; who waits for a descriptor that is always
    /// ready may go to `fired` at once, and so do those who wait for one that turns out to be gone.
    pub(in crate::aio) fn watch(
        &mut self,
        fd: RawFd,
        side: Side,
        waiter: Waiter,
        fired: &mut Vec<Waiter>,
    ) -> Result<u64, Refused> {
        if fd < 0 {
            // AT_FDCWD, say.
            return Err(Refused { error: io::Error::from_raw_os_error(libc::EBADF), waiter });
        }
        match &mut self.backend {
            Backend::Poll(poll) => Ok(poll.watch(fd, side, waiter)),
            Backend::Epoll(epoll) => epoll.watch(fd, side, waiter, fired, &mut self.calls),
            Backend::IoUring(ring) => Ok(ring.watch(fd, side, waiter)),
        }
    }

    /// Ends a watch. Returns who waited, unless it has fired.
    pub(in crate::aio) fn unwatch(&mut self, watch: u64) -> Option<Waiter> {
        match &mut self.backend {
            Backend::Poll(poll) => poll.unwatch(watch),
            Backend::Epoll(epoll) => epoll.unwatch(watch, &mut self.calls),
            Backend::IoUring(ring) => ring.unwatch(watch),
        }
    }

    /// Watches a side of a descriptor for good, until [`let_go`](Self::let_go). Returns its number; `None` if this monitor
    /// doesn't do that.
    pub(in crate::aio) fn keep_watching(&mut self, fd: RawFd, side: Side) -> Option<u64> {
        match &mut self.backend {
            Backend::IoUring(ring) if fd >= 0 => Some(ring.keep_watching(fd, side)),
            _ => None,
        }
    }

    /// Has somebody wait for a descriptor that is kept watched to become ready. Returns the watch's number, or who was to
    /// wait, if it isn't watched any more.
    pub(in crate::aio) fn watch_kept(
        &mut self,
        number: u64,
        since: Since,
        waiter: Waiter,
        fired: &mut Vec<Waiter>,
    ) -> Result<u64, Waiter> {
        match &mut self.backend {
            Backend::IoUring(ring) => ring.watch_kept(number, since, waiter, fired),
            _ => Err(waiter),
        }
    }

    /// Ends a watch of a descriptor that is kept watched. Returns who waited, unless it has fired.
    pub(in crate::aio) fn unwatch_kept(&mut self, watch: u64) -> Option<Waiter> {
        match &mut self.backend {
            Backend::IoUring(ring) => ring.unwatch_kept(watch),
            _ => None,
        }
    }

    /// Ends what [`keep_watching`](Self::keep_watching) began.
    pub(in crate::aio) fn let_go(&mut self, number: u64, fired: &mut Vec<Waiter>) {
        if let Backend::IoUring(ring) = &mut self.backend {
            ring.let_go(number, fired, &mut self.calls);
        }
    }

    /// Sees to it that the kernel knows of all watches; returns those, of the ones that it didn't know yet, whose
    /// descriptors can't be watched after all. They fire, or have fired, as well.
    pub(in crate::aio) fn failed(&mut self, fired: &mut Vec<Waiter>) -> io::Result<Vec<Failed>> {
        match &mut self.backend {
            Backend::Poll(poll) => poll.failed(&mut self.calls),
            Backend::Epoll(_) => Ok(Vec::new()),
            Backend::IoUring(ring) => ring.failed(fired, &mut self.calls),
        }
    }

    /// How many watches there are that a look at user memory doesn't see fire.
    pub(in crate::aio) fn hidden_watches(&self) -> usize {
        match &self.backend {
            Backend::Poll(poll) => poll.watches(),
            Backend::Epoll(epoll) => epoll.watches(),
            Backend::IoUring(_) => 0,
        }
    }

    /// Whether nothing can happen that a wait would tell of, but for signals of the notifier.
    pub(in crate::aio) fn watches_nothing(&mut self) -> bool {
        match &mut self.backend {
            Backend::Poll(poll) => poll.watches() == 0,
            Backend::Epoll(epoll) => epoll.watches() == 0,
            Backend::IoUring(ring) => ring.watches_nothing(),
        }
    }

    /// Tells the kernel what it has to watch, if it doesn't know.
    pub(in crate::aio) fn submit(&mut self) -> io::Result<()> {
        match &mut self.backend {
            Backend::IoUring(ring) => ring.submit(&mut self.calls),
            _ => Ok(()),
        }
    }

    /// Whether a look at user memory shows that a watch has fired.
    pub(in crate::aio) fn has_news(&mut self) -> bool {
        match &mut self.backend {
            Backend::IoUring(ring) => ring.has_news(),
            _ => false,
        }
    }

    /// Waits for a batch of events, at most `timeout` (`None`: without limit); moves those who wait for what is ready to
    /// `fired`. Returns whether the notifier was signalled, and has cleared it. A signal ends the wait early, with no
    /// events.
    pub(in crate::aio) fn wait(
        &mut self,
        timeout: Option<Duration>,
        batch: Batch,
        fired: &mut Vec<Waiter>,
    ) -> io::Result<bool> {
        if batch.is_one() || timeout == Some(Duration::ZERO) {
            return self.wait_once(timeout, Batch::ONE, fired);
        }
        let start = Instant::now();
        let mut notified = self.wait_once(timeout, batch, fired)?;
        let mut count = fired.len() + usize::from(notified);
        while count != 0 && count < batch.size as usize {
            let left = batch.longest.min(timeout.unwrap_or(Duration::MAX)).saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            // The kernel's batch, if it has one, was complete with what isn't an event.
            let rest = Batch { size: batch.size - count as u32, longest: left };
            notified |= self.wait_once(Some(left), rest, fired)?;
            let before = std::mem::replace(&mut count, fired.len() + usize::from(notified));
            if count == before {
                break;
            }
        }
        Ok(notified)
    }

    fn wait_once(&mut self, timeout: Option<Duration>, batch: Batch, fired: &mut Vec<Waiter>) -> io::Result<bool> {
        match &mut self.backend {
            Backend::Poll(poll) => poll.wait(timeout, fired, &mut self.calls),
            Backend::Epoll(epoll) => epoll.wait(timeout, fired, &mut self.calls),
            Backend::IoUring(ring) => ring.wait(timeout, batch, fired, &mut self.calls),
        }
    }

    /// Lets go of the files of watches that were withdrawn. Called at the end of a turn.
    pub(in crate::aio) fn flush(&mut self) {
        if let Backend::IoUring(ring) = &mut self.backend {
            ring.flush(&mut self.calls);
        }
    }

    /// Whether it carries out requests.
    pub(in crate::aio) fn takes_requests(&self) -> bool {
        matches!(self.backend, Backend::IoUring(_))
    }

    /// Has the kernel carry out a request, at the latest with the next wait, to a file that may be registered by this:
    /// then the answer is `true`.
    ///
    /// # Safety
    ///
    /// As [`IoUring::request`].
    ///
    /// # Panics
    ///
    /// If it doesn't take requests.
    pub(in crate::aio) unsafe fn request(
        &mut self,
        call: &Call,
        key: Option<&FileKey>,
        request: NonNull<Request>,
    ) -> bool {
        match &mut self.backend {
            // SAFETY: passed on.
            Backend::IoUring(ring) => unsafe { ring.request(call, key, request) },
            _ => panic!("a request was made of a monitor that takes none"),
        }
    }

    /// Takes a file out of the table of those that are registered, if it is there. No request to it is under way.
    pub(in crate::aio) fn forget_file(&mut self, id: u64, place: u32) {
        if let Backend::IoUring(ring) = &mut self.backend {
            ring.forget_file(id, place);
        }
    }

    /// What is registered, if anything can be.
    pub(in crate::aio) fn registry(&self) -> Option<&Registry> {
        match &self.backend {
            Backend::IoUring(ring) => Some(ring.registry()),
            _ => None,
        }
    }

    /// How many requests it was asked to carry out.
    pub(in crate::aio) fn requests(&self) -> u64 {
        match &self.backend {
            Backend::IoUring(ring) => ring.requests(),
            _ => 0,
        }
    }

    /// Whether there are requests that the kernel doesn't know of.
    pub(in crate::aio) fn has_requests(&self) -> bool {
        matches!(&self.backend, Backend::IoUring(ring) if ring.has_requests())
    }

    /// Has a request cancelled that it was asked to carry out. Returns whether nobody has it any more; otherwise it will be done.
    pub(in crate::aio) fn cancel(&mut self, request: &Request) -> bool {
        match &mut self.backend {
            Backend::IoUring(ring) => {
                ring.cancel(request);
                false
            }
            // It is another process's: see `disown`.
            _ => true,
        }
    }

    /// Cancels a request that it was asked to carry out, and blocks until it is done.
    pub(in crate::aio) fn finish(&mut self, request: &Request, fired: &mut Vec<Waiter>) -> io::Result<()> {
        match &mut self.backend {
            Backend::IoUring(ring) => ring.finish(request, fired, &mut self.calls),
            // It is another process's: see `disown`.
            _ => Ok(()),
        }
    }

    /// Cancels all requests, and blocks until they are done.
    pub(in crate::aio) fn finish_all(&mut self, fired: &mut Vec<Waiter>) -> io::Result<()> {
        match &mut self.backend {
            Backend::IoUring(ring) => ring.finish_all(fired, &mut self.calls),
            _ => Ok(()),
        }
    }

    /// Forgets what the kernel has of it, without telling the kernel: this process was forked from the one whose it is.
    pub(in crate::aio) fn disown(&mut self) {
        if let Backend::IoUring(ring) = &mut self.backend {
            ring.disown();
        }
        self.backend = Backend::Poll(Poll::new(self.notifier.clone()));
    }

    /// The system calls that it has made.
    pub(in crate::aio) fn calls(&self) -> Calls {
        match &self.backend {
            Backend::IoUring(ring) => Calls { controls: self.calls.controls + ring.submits(), ..self.calls },
            _ => self.calls,
        }
    }
}
