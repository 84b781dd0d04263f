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

mod descriptors;
mod epoll;
mod io_uring;
mod poll;
mod watches;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use self::epoll::Epoll;
use self::io_uring::IoUring;
use self::poll::Poll;
use crate::coroutine::Interest;
use crate::sys::eventfd::EventFd;

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

/// Watches descriptors. See the head for what it promises.
#[derive(Debug)]
pub(in crate::aio) struct Monitor {
    backend: Backend,
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
        let notifier = notifier.clone();
        let backend = match kind {
            MonitorKind::Poll => Backend::Poll(Poll::new(notifier)),
            MonitorKind::Epoll => Backend::Epoll(Epoll::new(notifier)?),
            MonitorKind::IoUring => Backend::IoUring(Box::new(IoUring::new(notifier)?)),
        };
        Ok(Self { backend, calls: Calls::default() })
    }

    /// Watches a descriptor, once. Returns the watch's number; a descriptor that is always ready may go to `fired` at
    /// once, and so do the waiters of a descriptor that turns out to be gone.
    pub(in crate::aio) fn watch(
        &mut self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        waker: &Waker,
        fired: &mut Vec<Waker>,
    ) -> io::Result<u64> {
        let fd = fd.as_raw_fd();
        if fd < 0 {
            // AT_FDCWD, say.
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        match &mut self.backend {
            Backend::Poll(poll) => Ok(poll.watch(fd, interest, waker)),
            Backend::Epoll(epoll) => epoll.watch(fd, interest, waker, fired, &mut self.calls),
            Backend::IoUring(ring) => Ok(ring.watch(fd, interest, waker)),
        }
    }

    /// Ends a watch. Returns its waker, unless it has fired.
    pub(in crate::aio) fn unwatch(&mut self, watch: u64) -> Option<Waker> {
        match &mut self.backend {
            Backend::Poll(poll) => poll.unwatch(watch),
            Backend::Epoll(epoll) => epoll.unwatch(watch, &mut self.calls),
            Backend::IoUring(ring) => ring.unwatch(watch),
        }
    }

    /// Waits for events, at most `timeout` (`None`: without limit); moves the wakers of what is ready to `fired`.
    /// Returns whether the notifier was signalled, and has cleared it. A signal ends the wait early, with no events.
    pub(in crate::aio) fn wait(&mut self, timeout: Option<Duration>, fired: &mut Vec<Waker>) -> io::Result<bool> {
        match &mut self.backend {
            Backend::Poll(poll) => poll.wait(timeout, fired, &mut self.calls),
            Backend::Epoll(epoll) => epoll.wait(timeout, fired, &mut self.calls),
            Backend::IoUring(ring) => ring.wait(timeout, fired, &mut self.calls),
        }
    }

    /// Lets go of the files of watches that were withdrawn. Called at the end of a turn.
    pub(in crate::aio) fn flush(&mut self) {
        if let Backend::IoUring(ring) = &mut self.backend {
            ring.flush(&mut self.calls);
        }
    }

    /// The system calls that it has made.
    pub(in crate::aio) fn calls(&self) -> Calls {
        match &self.backend {
            Backend::IoUring(ring) => Calls { controls: self.calls.controls + ring.submits(), ..self.calls },
            _ => self.calls,
        }
    }
}
