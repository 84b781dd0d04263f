//! The epoll monitor.
//!
//! Each descriptor number that is waited for has one registration with the kernel, armed for as long as somebody waits
//! (`EPOLLONESHOT`): an event disarms it, wakes those whose side is ready, and arms it again for the others. Between
//! waits it stays registered but disarmed, so that the next wait costs one `epoll_ctl`, and a descriptor that is closed
//! meanwhile leaves by itself.
//!
//! **Reused numbers.** The kernel knows a registration by number *and* open file. When a number was closed and
//! reused, arming it fails with `ENOENT`: then the old registration's waiters are woken (their descriptor is gone), and a
//! new one is made with a new generation in its token, so that an event of the old file, which a duplicate may keep alive,
//! reaches nobody.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::task::Waker;
use std::time::Duration;

use crate::coroutine::Interest;
use crate::sys::epoll::{self, Event};
use crate::sys::eventfd::EventFd;

/// The token of the context's own eventfd; no generation gets this far.
const NOTIFIER: u64 = u64::MAX;

/// Events taken from the kernel at once.
const EVENTS: usize = 64;

/// Watches descriptors through epoll.
#[derive(Debug)]
pub(in crate::aio) struct Epoll {
    epoll: epoll::Epoll,
    descriptors: HashMap<RawFd, Descriptor>,
    /// Watches that have not fired, by number, and their descriptor.
    watches: HashMap<u64, RawFd>,
    next: u64,
}

#[derive(Debug, Default)]
struct Descriptor {
    /// Whether the kernel knows it, as far as we know.
    registered: bool,
    /// What it is armed for.
    armed: u32,
    generation: u32,
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    watch: u64,
    events: u32,
    waker: Waker,
}

impl Epoll {
    /// A monitor that also wakes up when `notifier` is signalled.
    pub(in crate::aio) fn new(notifier: &EventFd) -> io::Result<Self> {
        let epoll = epoll::Epoll::new()?;
        epoll.add(notifier.as_fd().as_raw_fd(), libc::EPOLLIN as u32, NOTIFIER)?;
        Ok(Self { epoll, descriptors: HashMap::new(), watches: HashMap::new(), next: 0 })
    }

    /// Watches a descriptor, once. Returns the watch's number; a descriptor that is always ready goes to `fired` at once, and so
    /// do the waiters of a descriptor that turns out to be gone.
    pub(in crate::aio) fn watch(
        &mut self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        waker: &Waker,
        fired: &mut Vec<Waker>,
    ) -> io::Result<u64> {
        let fd = fd.as_raw_fd();
        let watch = self.next;
        let descriptor = self.descriptors.entry(fd).or_default();
        // epoll's events are poll's (epoll_ctl(2)).
        let events = interest.poll_events() as u32;
        let mut armed = descriptor.arm(&self.epoll, fd, descriptor.armed | events);
        if armed.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT)) {
            // The number has been reused: see the head.
            fire(descriptor.waiters.drain(..), &mut self.watches, fired);
            *descriptor = Descriptor { generation: descriptor.generation + 1, ..Descriptor::default() };
            armed = descriptor.arm(&self.epoll, fd, events);
        }
        match armed {
            Ok(()) => {}
            // A regular file: always ready.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                self.next += 1;
                fired.push(waker.clone());
                return Ok(watch);
            }
            Err(error) => return Err(error),
        }
        self.next += 1;
        descriptor.waiters.push(Waiter { watch, events, waker: waker.clone() });
        self.watches.insert(watch, fd);
        Ok(watch)
    }

    /// Ends a watch. Returns its waker, unless it has fired.
    pub(in crate::aio) fn unwatch(&mut self, watch: u64) -> Option<Waker> {
        let fd = self.watches.remove(&watch)?;
        let descriptor = self.descriptors.get_mut(&fd)?;
        let place = descriptor.waiters.iter().position(|waiter| waiter.watch == watch)?;
        let waiter = descriptor.waiters.remove(place);
        // It stays armed for the others; an event that nobody waits for any more disarms it.
        if descriptor.waiters.is_empty() {
            self.epoll.delete(fd);
            (descriptor.registered, descriptor.armed) = (false, 0);
        }
        Some(waiter.waker)
    }

    /// Waits for events, at most `timeout` (`None`: without limit); moves the wakers of what is ready to `fired`. Returns
    /// whether the notifier was signalled.
    pub(in crate::aio) fn wait(&mut self, timeout: Option<Duration>, fired: &mut Vec<Waker>) -> io::Result<bool> {
        let mut events = [Event { events: 0, u64: 0 }; EVENTS];
        let n = self.epoll.wait(&mut events, timeout)?;
        let mut notified = false;
        for event in &events[..n] {
            match event.u64 {
                NOTIFIER => notified = true,
                token => self.dispatch(token, event.events, fired),
            }
        }
        Ok(notified)
    }

    fn dispatch(&mut self, token: u64, ready: u32, fired: &mut Vec<Waker>) {
        let fd = token as u32 as RawFd;
        let Some(descriptor) = self.descriptors.get_mut(&fd) else { return };
        if u64::from(descriptor.generation) != token >> 32 {
            return;
        }
        descriptor.armed = 0;
        let all = ready & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
        let due = descriptor.waiters.extract_if(.., |waiter| all || waiter.events & ready != 0);
        fire(due, &mut self.watches, fired);
        let rest = descriptor.waiters.iter().fold(0, |events, waiter| events | waiter.events);
        if rest != 0 && descriptor.arm(&self.epoll, fd, rest).is_err() {
            // The descriptor was closed while they wait for it. The kernel won't tell them any more, so we do.
            fire(descriptor.waiters.drain(..), &mut self.watches, fired);
        }
    }
}

impl Descriptor {
    /// Makes the kernel report the next of these events. Also when it is armed for them already: the number may stand for another
    /// file by now, and only the kernel knows.
    fn arm(&mut self, epoll: &epoll::Epoll, fd: RawFd, events: u32) -> io::Result<()> {
        let token = u64::from(self.generation) << 32 | u64::from(fd as u32);
        let oneshot = events | libc::EPOLLONESHOT as u32;
        if self.registered {
            epoll.modify(fd, oneshot, token)?;
        } else {
            epoll.add(fd, oneshot, token)?;
        }
        (self.registered, self.armed) = (true, events);
        Ok(())
    }
}

/// Ends the watches of these waiters, and passes on their wakers.
fn fire(waiters: impl Iterator<Item = Waiter>, watches: &mut HashMap<u64, RawFd>, fired: &mut Vec<Waker>) {
    fired.extend(waiters.map(|waiter| {
        watches.remove(&waiter.watch);
        waiter.waker
    }));
}
