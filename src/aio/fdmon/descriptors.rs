//! Who waits for which descriptor: what the monitors have in common that tell the kernel about descriptors, not about
//! watches.

use std::mem;
use std::os::fd::RawFd;
use std::task::Waker;

use super::watches::{SPENT, Watches};
use crate::coroutine::Interest;

/// Events that concern both directions.
const TROUBLE: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// Watches by descriptor number, and what a back end keeps for each number.
///
/// The table is indexed by number, as the kernel's own is: numbers are small, and looking one up costs no hashing.
#[derive(Debug)]
pub(super) struct Descriptors<T> {
    watches: Watches<Place>,
    table: Vec<Descriptor<T>>,
}

#[derive(Debug)]
struct Descriptor<T> {
    /// By direction: those who wait for it, first come first.
    waiting: [List; 2],
    state: T,
}

/// A list of watches, linked by their numbers.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u64,
    last: u64,
}

const EMPTY: List = List { first: SPENT, last: SPENT };

/// Where a watch is.
#[derive(Debug)]
struct Place {
    fd: RawFd,
    interest: Interest,
    previous: u64,
    next: u64,
}

impl<T: Default> Descriptors<T> {
    pub(super) const fn new() -> Self {
        Self { watches: Watches::new(), table: Vec::new() }
    }

    /// Adds a watch; returns its number. The descriptor's number isn't negative.
    pub(super) fn insert(&mut self, fd: RawFd, interest: Interest, waker: Waker) -> u64 {
        let list = &mut entry(&mut self.table, fd).waiting[interest as usize];
        let number = self.watches.insert(waker, Place { fd, interest, previous: list.last, next: SPENT });
        match self.watches.get_mut(list.last) {
            Some(last) => last.next = number,
            None => list.first = number,
        }
        list.last = number;
        number
    }

    /// Takes out a watch, if it hasn't fired; returns its descriptor and its waker.
    pub(super) fn remove(&mut self, number: u64) -> Option<(RawFd, Waker)> {
        let (waker, place) = self.watches.remove(number)?;
        let list = &mut self.table[place.fd as usize].waiting[place.interest as usize];
        match self.watches.get_mut(place.previous) {
            Some(previous) => previous.next = place.next,
            None => list.first = place.next,
        }
        match self.watches.get_mut(place.next) {
            Some(next) => next.previous = place.previous,
            None => list.last = place.previous,
        }
        Some((place.fd, waker))
    }

    /// The events that somebody waits for.
    pub(super) fn events(&self, fd: RawFd) -> i16 {
        let Some(descriptor) = self.table.get(fd as usize) else { return 0 };
        let of = |interest: Interest| match descriptor.waiting[interest as usize].first {
            SPENT => 0,
            _ => interest.poll_events(),
        };
        of(Interest::Readable) | of(Interest::Writable)
    }

    /// Ends the watches of those whose direction is ready, and passes on their wakers. Trouble is for both directions.
    pub(super) fn fire(&mut self, fd: RawFd, ready: i16, fired: &mut Vec<Waker>) {
        let Some(descriptor) = self.table.get_mut(fd as usize) else { return };
        for interest in [Interest::Readable, Interest::Writable] {
            if ready & (interest.poll_events() | TROUBLE) == 0 {
                continue;
            }
            let mut next = mem::replace(&mut descriptor.waiting[interest as usize], EMPTY).first;
            while let Some((waker, place)) = self.watches.remove(next) {
                fired.push(waker);
                next = place.next;
            }
        }
    }

    /// Ends all watches of a descriptor.
    pub(super) fn fire_all(&mut self, fd: RawFd, fired: &mut Vec<Waker>) {
        self.fire(fd, TROUBLE, fired);
    }

    /// What the back end keeps for a descriptor. Its number isn't negative.
    pub(super) fn state(&mut self, fd: RawFd) -> &mut T {
        &mut entry(&mut self.table, fd).state
    }
}

fn entry<T: Default>(table: &mut Vec<Descriptor<T>>, fd: RawFd) -> &mut Descriptor<T> {
    let index = usize::try_from(fd).expect("descriptor numbers aren't negative");
    if index >= table.len() {
        table.resize_with(index + 1, || Descriptor { waiting: [EMPTY; 2], state: T::default() });
    }
    &mut table[index]
}
