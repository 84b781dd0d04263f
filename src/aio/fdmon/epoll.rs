//! The epoll monitor.
//!
//! Each descriptor number that is waited for has one registration with the kernel, armed for as long as somebody waits
//! (`EPOLLONESHOT`): an event disarms it, wakes those whose side is ready, and arms it again for the others. Between
//! waits it stays registered but disarmed, so that the next wait costs one `epoll_ctl`, and a descriptor that is closed
//! meanwhile leaves by itself.
//!
//! **Reused numbers.** The kernel knows a registration by number *and* open file. When a number was closed and reused,
//! arming it fails with `ENOENT`: then the old registration's waiters are woken (their descriptor is gone), and a new
//! one is made. Each registration has a generation in its token, so that an event of an old file, which a duplicate may
//! keep alive, reaches nobody. That is why a descriptor is armed anew for each waiter, also when it is armed already:
//! only the kernel knows whether the number still stands for the same file.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::super::slab::SPENT;
use super::super::waiter::Waiter;
use super::descriptors::Descriptors;
use super::{Calls, Refused, Side};
use crate::sys::epoll::{self, Event};
use crate::sys::eventfd::EventFd;

/// The token of the context's own eventfd; no descriptor has the number -1.
const NOTIFIER: u64 = u64::MAX;

/// Events taken from the kernel at once.
const EVENTS: usize = 64;

/// Watches descriptors through epoll.
#[derive(Debug)]
pub(super) struct Epoll {
    epoll: epoll::Epoll,
    descriptors: Descriptors<Registration>,
    notifier: Arc<EventFd>,
}

#[derive(Debug, Default)]
struct Registration {
    /// Whether the kernel has it, as far as we know.
    exists: bool,
    generation: u32,
}

impl Epoll {
    /// A monitor that also wakes up when `notifier` is signalled.
    pub(super) fn new(notifier: Arc<EventFd>) -> io::Result<Self> {
        let epoll = epoll::Epoll::new()?;
        epoll.add(notifier.as_fd().as_raw_fd(), libc::EPOLLIN as u32, NOTIFIER)?;
        Ok(Self { epoll, descriptors: Descriptors::new(), notifier })
    }

    pub(super) fn watch(
        &mut self,
        fd: RawFd,
        side: Side,
        waiter: Waiter,
        fired: &mut Vec<Waiter>,
        calls: &mut Calls,
    ) -> Result<u64, Refused> {
        let events = side.events();
        let others = self.descriptors.events(fd).unwrap_or_default();
        let mut armed = self.arm(fd, others | events, calls);
        if armed.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT)) {
            // The number has been reused: see the head.
            self.descriptors.fire_all(fd, fired);
            self.descriptors.state(fd).exists = false;
            armed = self.arm(fd, events, calls);
        }
        match armed {
            Ok(()) => Ok(self.descriptors.insert(fd, side, waiter)),
            // A regular file or a directory: always ready, and never in trouble.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                if side == Side::Trouble {
                    return Ok(SPENT);
                }
                fired.push(waiter);
                Ok(SPENT)
            }
            Err(error) => Err(Refused { error, waiter }),
        }
    }

    pub(super) fn unwatch(&mut self, watch: u64, calls: &mut Calls) -> Option<Waiter> {
        let (fd, waiter) = self.descriptors.remove(watch)?;
        // It stays armed for the others; an event that nobody waits for any more disarms it.
        if self.descriptors.events(fd).is_none() {
            calls.controls += 1;
            self.epoll.delete(fd);
            self.descriptors.state(fd).exists = false;
        }
        Some(waiter)
    }

    /// How many watches there are.
    pub(super) fn watches(&self) -> usize {
        self.descriptors.watches()
    }

    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        fired: &mut Vec<Waiter>,
        calls: &mut Calls,
    ) -> io::Result<bool> {
        let mut events = [Event { events: 0, u64: 0 }; EVENTS];
        calls.waits += 1;
        let n = self.epoll.wait(&mut events, timeout)?;
        let mut notified = false;
        for event in &events[..n] {
            match event.u64 {
                NOTIFIER => notified = true,
                // epoll's events are poll's (epoll_ctl(2)).
                token => self.dispatch(token, event.events as i16, fired, calls),
            }
        }
        if notified {
            calls.notifier_reads += 1;
            self.notifier.clear();
        }
        Ok(notified)
    }

    fn dispatch(&mut self, token: u64, ready: i16, fired: &mut Vec<Waiter>, calls: &mut Calls) {
        let fd = token as u32 as RawFd;
        if u64::from(self.descriptors.state(fd).generation) != token >> 32 {
            return;
        }
        self.descriptors.fire(fd, ready, fired);
        if let Some(rest) = self.descriptors.events(fd)
            && self.arm(fd, rest, calls).is_err()
        {
            // The descriptor was closed while they wait for it. The kernel won't tell them any more, so we do.
            self.descriptors.fire_all(fd, fired);
        }
    }

    /// Makes the kernel report the next of these events.
    fn arm(&mut self, fd: RawFd, events: i16, calls: &mut Calls) -> io::Result<()> {
        let registration = self.descriptors.state(fd);
        let events = events as u32 | libc::EPOLLONESHOT as u32;
        let token = |generation| u64::from(generation) << 32 | u64::from(fd as u32);
        calls.controls += 1;
        if registration.exists {
            return self.epoll.modify(fd, events, token(registration.generation));
        }
        registration.generation = registration.generation.wrapping_add(1);
        let token = token(registration.generation);
        let mut added = self.epoll.add(fd, events, token);
        if added.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EEXIST)) {
            // An earlier file of this number, which a duplicate kept alive and registered, has got its number back.
            calls.controls += 1;
            added = self.epoll.modify(fd, events, token);
        }
        registration.exists = added.is_ok();
        added
    }
}
