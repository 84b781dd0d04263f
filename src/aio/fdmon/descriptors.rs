//! Who waits for which descriptor: what the monitors have in common that tell the kernel about descriptors, not about
//! watches.

use std::mem;
use std::os::fd::RawFd;

use super::super::slab::{SPENT, Slab};
use super::super::waiter::Waiter;
use super::Side;

/// Events that concern all sides.
const TROUBLE: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

/// Watches by descriptor number, and what a back end keeps for each number.
///
/// The table is indexed by number, as the kernel's own is: numbers are small, and looking one up costs no hashing.
#[derive(Debug)]
pub(super) struct Descriptors<T> {
    watches: Slab<(Waiter, Place)>,
    table: Vec<Descriptor<T>>,
}

#[derive(Debug)]
struct Descriptor<T> {
    /// By side: those who wait for it, first come first.
    waiting: [List; 3],
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
    side: Side,
    previous: u64,
    next: u64,
}

impl<T: Default> Descriptors<T> {
    pub(super) const fn new() -> Self {
        Self { watches: Slab::new(), table: Vec::new() }
    }

    /// Adds a watch; returns its number. The descriptor's number isn't negative.
    pub(super) fn insert(&mut self, fd: RawFd, side: Side, waiter: Waiter) -> u64 {
        let list = &mut entry(&mut self.table, fd).waiting[side as usize];
        let number = self.watches.insert((waiter, Place { fd, side, previous: list.last, next: SPENT }));
        match self.watches.get_mut(list.last) {
            Some((_, last)) => last.next = number,
            None => list.first = number,
        }
        list.last = number;
        number
    }

    /// Takes out a watch, if it hasn't fired; returns its descriptor and who waited.
    pub(super) fn remove(&mut self, number: u64) -> Option<(RawFd, Waiter)> {
        let (waiter, place) = self.watches.remove(number)?;
        let list = &mut self.table[place.fd as usize].waiting[place.side as usize];
        match self.watches.get_mut(place.previous) {
            Some((_, previous)) => previous.next = place.next,
            None => list.first = place.next,
        }
        match self.watches.get_mut(place.next) {
            Some((_, next)) => next.previous = place.previous,
            None => list.last = place.previous,
        }
        Some((place.fd, waiter))
    }

    /// How many watches there are.
    pub(super) fn watches(&self) -> usize {
        self.watches.len()
    }

    /// The watches on a descriptor.
    pub(super) fn on(&mut self, fd: RawFd) -> Vec<u64> {
        let mut found = Vec::new();
        for side in Side::ALL {
            let mut next = self.table[fd as usize].waiting[side as usize].first;
            while let Some((_, place)) = self.watches.get_mut(next) {
                found.push(next);
                next = place.next;
            }
        }
        found
    }

    /// The events that somebody waits for, if anybody does; those of trouble are always told.
    pub(super) fn events(&self, fd: RawFd) -> Option<i16> {
        let descriptor = self.table.get(fd as usize)?;
        let waited_for = Side::ALL.into_iter().filter(|&side| descriptor.waiting[side as usize].first != SPENT);
        waited_for.map(Side::events).reduce(|events, more| events | more)
    }

    /// Ends the watches of those whose side is ready, and passes them on. Trouble is for all sides.
    pub(super) fn fire(&mut self, fd: RawFd, ready: i16, fired: &mut Vec<Waiter>) {
        let Some(descriptor) = self.table.get_mut(fd as usize) else { return };
        for side in Side::ALL {
            if ready & (side.events() | TROUBLE) == 0 {
                continue;
            }
            let mut next = mem::replace(&mut descriptor.waiting[side as usize], EMPTY).first;
            while let Some((waiter, place)) = self.watches.remove(next) {
                fired.push(waiter);
                next = place.next;
            }
        }
    }

    /// Ends all watches of a descriptor.
    pub(super) fn fire_all(&mut self, fd: RawFd, fired: &mut Vec<Waiter>) {
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
        table.resize_with(index + 1, || Descriptor { waiting: [EMPTY; 3], state: T::default() });
    }
    &mut table[index]
}
