//! The read-write lock: a gate with room for one writer or any number of readers.
#![allow(unsafe_code)] // # Safety: data is touched with the lock held, or after a wait; that it is enough is checked.

use std::panic::Location;
use std::rc::Rc;

use loom::sync::{Condvar, Mutex};

use super::race;
use crate::park;
use crate::primitive::UnsafeCell;
use crate::sync::raw::rwlock::{RawRwLock, Ticket};

models! {
    writers_exclude_readers catches
        try_enter_not_acquired, leave_not_released, overtake_the_queue;
    readers_are_let_in_together catches let_in_only_one;
    a_writer_that_gives_up_is_in_nobodys_way catches withdrawn_waiter_lets_nobody_in;
    a_reader_becomes_the_writer catches exchange_lets_nobody_in;
    the_last_reader_becomes_the_writer catches exchange_not_acquired;
    a_writer_becomes_a_reader catches exchange_not_released;
}

struct Data {
    lock: RawRwLock,
    /// Protected by the lock.
    value: UnsafeCell<u32>,
    /// How many readers are in, and who waits for more.
    inside: Mutex<u32>,
    more: Condvar,
}

impl Data {
    fn new() -> Rc<Self> {
        Rc::new(Self { lock: RawRwLock::new(), value: UnsafeCell::new(0), inside: Mutex::new(0), more: Condvar::new() })
    }

    fn get(&self) -> u32 {
        // SAFETY: the lock is held; loom checks.
        self.value.with(|value| unsafe { *value })
    }

    fn add(&self, more: u32) {
        // SAFETY: the lock is held for writing; loom checks.
        self.value.with_mut(|value| unsafe { *value += more });
    }

    fn take_for_reading(&self) -> Ticket {
        self.lock.read(None, Location::caller()).expect("there is no deadline")
    }

    fn read(&self) -> u32 {
        let ticket = self.take_for_reading();
        let value = self.get();
        self.lock.unlock_read(ticket);
        value
    }

    fn write(&self) {
        self.lock.write(None, Location::caller());
        self.add(1);
        self.lock.unlock_write();
    }

    fn assert_free_after(&self, writes: u32) {
        assert!(self.lock.try_write(Location::caller()), "the lock stays taken");
        assert_eq!(self.get(), writes);
    }
}

/// Readers see whole writes, and all get through.
fn writers_exclude_readers() {
    let data = Data::new();

    race::three(&data, Data::write, Data::write, |data| {
        let first = data.read();
        assert!(data.read() >= first);
    });

    data.assert_free_after(2);
}

/// Two readers that wait for a writer are both in after it, also if each waits there for the other.
fn readers_are_let_in_together() {
    let data = Data::new();
    data.lock.write(None, Location::caller());
    let meet = |data: &Data| {
        let ticket = data.take_for_reading();
        let mut inside = data.inside.lock().unwrap();
        *inside += 1;
        data.more.notify_one();
        while *inside < 2 {
            inside = data.more.wait(inside).unwrap();
        }
        drop(inside);
        data.lock.unlock_read(ticket);
    };

    race::three(&data, meet, meet, |data| {
        data.add(1);
        data.lock.unlock_write();
    });

    data.assert_free_after(1);
}

/// Readers behind a writer that gives up don't have to wait any more, though another reader is in.
fn a_writer_that_gives_up_is_in_nobodys_way() {
    let data = Data::new();
    let ticket = data.take_for_reading();

    let (written, _) = race::two(
        &data,
        |data| {
            let written = data.lock.write(park::passed(), Location::caller());
            if written {
                data.add(1);
                data.lock.unlock_write();
            }
            written
        },
        move |data| {
            // The reader that is in leaves only when this one has been in.
            data.read();
            data.lock.unlock_read(ticket);
        },
    );

    data.assert_free_after(u32::from(written));
}

/// A reader and a writer want to write. Both get through, in either order.
fn a_reader_becomes_the_writer() {
    let data = Data::new();

    race::two(&data, Data::write, |data| {
        let ticket = data.take_for_reading();
        let before = data.get();
        data.lock.upgrade(ticket, None, Location::caller());
        assert!(data.get() >= before);
        data.add(1);
        data.lock.unlock_write();
    });

    data.assert_free_after(2);
}

/// A reader that becomes the writer when the other one has left changes what that one has read.
fn the_last_reader_becomes_the_writer() {
    let data = Data::new();

    race::two(
        &data,
        |data| {
            data.read();
        },
        |data| {
            let ticket = data.take_for_reading();
            if data.lock.try_upgrade(ticket, Location::caller()) {
                data.add(1);
                data.lock.unlock_write();
            } else {
                data.lock.unlock_read(ticket);
            }
        },
    );

    assert!(!data.lock.is_locked());
}

/// A writer that becomes a reader lets a reader in, and keeps the other writer out until it leaves.
fn a_writer_becomes_a_reader() {
    let data = Data::new();

    race::three(
        &data,
        |data| {
            data.lock.write(None, Location::caller());
            data.add(1);
            let own = data.get();
            let ticket = data.lock.downgrade(Location::caller());
            assert_eq!(data.get(), own);
            data.lock.unlock_read(ticket);
        },
        Data::write,
        |data| {
            data.read();
        },
    );

    data.assert_free_after(2);
}
