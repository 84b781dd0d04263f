//! The poll monitor.
//!
//! One array for ppoll(2) is kept from wait to wait: an entry for each descriptor that somebody waits for, none twice,
//! so that it is never longer than the limit of open files that the kernel holds it against. An entry that goes is
//! replaced by the last.
//!
//! A number that was closed while somebody waits for it is reported (`POLLNVAL`), and wakes them. If it was reused,
//! they wait for the new file, together with its own waiters.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::super::waiter::Waiter;
use super::descriptors::Descriptors;
use super::{Calls, Failed, Side};
use crate::sys::eventfd::EventFd;
use crate::sys::poll::{self, Entry};

/// Watches descriptors through ppoll.
#[derive(Debug)]
pub(super) struct Poll {
    descriptors: Descriptors<Index>,
    /// The notifier's entry, then one for each descriptor that is waited for.
    entries: Vec<Entry>,
    notifier: Arc<EventFd>,
}

/// A descriptor's entry; 0, where the notifier is, stands for none.
type Index = usize;

impl Poll {
    /// A monitor that also wakes up when `notifier` is signalled.
    pub(super) fn new(notifier: Arc<EventFd>) -> Self {
        let entries = vec![Entry { fd: notifier.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        Self { descriptors: Descriptors::new(), entries, notifier }
    }

    pub(super) fn watch(&mut self, fd: RawFd, side: Side, waiter: Waiter) -> u64 {
        let number = self.descriptors.insert(fd, side, waiter);
        self.update(fd);
        number
    }

    pub(super) fn unwatch(&mut self, watch: u64) -> Option<Waiter> {
        let (fd, waiter) = self.descriptors.remove(watch)?;
        self.update(fd);
        Some(waiter)
    }

    /// How many watches there are.
    pub(super) fn watches(&self) -> usize {
        self.descriptors.watches()
    }

    /// The watches whose descriptors can't be watched.
    pub(super) fn failed(&mut self, calls: &mut Calls) -> io::Result<Vec<Failed>> {
        calls.controls += 1;
        poll::wait_many(&mut self.entries, Some(Duration::ZERO))?;
        let bad = self.entries.iter().filter(|entry| entry.revents & libc::POLLNVAL != 0);
        let failed = |watch| Failed { watch, errno: libc::EBADF };
        Ok(bad.flat_map(|entry| self.descriptors.on(entry.fd)).map(failed).collect())
    }

    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        fired: &mut Vec<Waiter>,
        calls: &mut Calls,
    ) -> io::Result<bool> {
        calls.waits += 1;
        let mut n = poll::wait_many(&mut self.entries, timeout)?;
        // From the end: an entry that goes is replaced by one that has been looked at.
        for index in (1..self.entries.len()).rev() {
            if n == 0 {
                return Ok(false);
            }
            let Entry { fd, revents, .. } = self.entries[index];
            if revents != 0 {
                n -= 1;
                self.descriptors.fire(fd, revents, fired);
                self.update(fd);
            }
        }
        let notified = n != 0;
        if notified {
            calls.notifier_reads += 1;
            self.notifier.clear();
        }
        Ok(notified)
    }

    /// Makes the array say what is waited for on this descriptor.
    fn update(&mut self, fd: RawFd) {
        let events = self.descriptors.events(fd);
        let index = *self.descriptors.state(fd);
        match (events, index) {
            (None, 0) => {}
            (None, index) => {
                self.entries.swap_remove(index);
                *self.descriptors.state(fd) = 0;
                if let Some(&Entry { fd: moved, .. }) = self.entries.get(index) {
                    *self.descriptors.state(moved) = index;
                }
            }
            (Some(events), 0) => {
                *self.descriptors.state(fd) = self.entries.len();
                self.entries.push(Entry { fd, events, revents: 0 });
            }
            (Some(events), index) => self.entries[index].events = events,
        }
    }
}
