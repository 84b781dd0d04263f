//! The raw read-write lock: a [`Gate`] with room for one writer or any number of readers.
//!
//! The queue is first come, first served: a reader that comes while a writer is queued queues behind it, though other
//! readers are in. So neither side starves the other. When readers are let in, so are those right behind them.

use std::fmt;
use std::time::Instant;

use super::gate::{Gate, Rule};
use super::holder::{Holder, Site};
use super::readers::Readers;
pub(crate) use super::readers::Ticket;
use crate::primitive::const_unless_model;

/// What a writer takes, and the word while one is in.
const WRITER: usize = 1;
/// What a reader takes; the word is the sum of theirs.
const READER: usize = 2;

/// One writer, or readers.
pub(crate) struct WriterOrReaders;

impl Rule for WriterOrReaders {
    const CALLS: bool = false;

    fn enter(word: usize, need: usize) -> Option<usize> {
        match need {
            WRITER => (word == 0).then_some(WRITER),
            _ => (word & WRITER == 0).then(|| word + READER),
        }
    }

    fn leave(word: usize, need: usize) -> usize {
        word - need
    }
}

/// A read-write lock without data.
pub(crate) struct RawRwLock {
    gate: Gate<WriterOrReaders>,
    writer: Holder,
    readers: Readers,
}

impl RawRwLock {
    const_unless_model! {
        pub(crate) fn new() -> Self {
            Self { gate: Gate::new(0), writer: Holder::new(), readers: Readers::new() }
        }
    }

    /// Takes it for reading. Returns what it takes to give it back; nothing if the deadline passed first.
    ///
    /// # Panics
    ///
    /// - As [`park`](crate::park::park()).
    /// - If the caller has it for writing; in debug builds also if it has it for reading and would have to wait.
    #[inline]
    pub(crate) fn read(&self, deadline: Option<Instant>, site: Site) -> Option<Ticket> {
        let entered = self.gate.try_enter(READER) || self.enter_slow(READER, deadline, site);
        entered.then(|| self.readers.add(site))
    }

    /// Takes it for reading if nobody has it for writing or waits.
    #[inline]
    pub(crate) fn try_read(&self, site: Site) -> Option<Ticket> {
        self.gate.try_enter(READER).then(|| self.readers.add(site))
    }

    /// Takes it for writing. Returns whether it has; not if the deadline passed first.
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline]
    pub(crate) fn write(&self, deadline: Option<Instant>, site: Site) -> bool {
        let entered = self.gate.enter_from(0, WRITER) || self.enter_slow(WRITER, deadline, site);
        if entered {
            self.writer.set(site);
        }
        entered
    }

    /// Takes it for writing if nobody has it.
    #[inline]
    pub(crate) fn try_write(&self, site: Site) -> bool {
        let entered = self.gate.enter_from(0, WRITER);
        if entered {
            self.writer.set(site);
        }
        entered
    }

    #[cold]
    fn enter_slow(&self, need: usize, deadline: Option<Instant>, site: Site) -> bool {
        self.writer.refuse_deadlock("an rwlock", site);
        self.readers.refuse_deadlock(site);
        self.gate.enter_slow(need, deadline)
    }

    #[inline]
    pub(crate) fn unlock_read(&self, ticket: Ticket) {
        self.readers.remove(ticket);
        self.gate.leave(READER);
    }

    #[inline]
    pub(crate) fn unlock_write(&self) {
        self.writer.clear();
        if !self.gate.leave_from(WRITER, 0) {
            self.gate.leave_slow(WRITER);
        }
    }

    /// Makes a writer a reader, and lets in the readers that are the first in the queue. Doesn't wait.
    pub(crate) fn downgrade(&self, site: Site) -> Ticket {
        self.writer.clear();
        let ticket = self.readers.add(site);
        if !self.gate.try_exchange(WRITER, READER) {
            self.gate.shrink_slow(WRITER, READER);
        }
        ticket
    }

    /// Makes a reader a writer if it is the only reader and nobody waits.
    pub(crate) fn try_upgrade(&self, ticket: Ticket, site: Site) -> bool {
        let upgraded = self.gate.try_exchange(READER, WRITER);
        if upgraded {
            self.readers.remove(ticket);
            self.writer.set(site);
        }
        upgraded
    }

    /// Makes a reader a writer: at once as [`try_upgrade`](Self::try_upgrade), else by leaving and queueing as the last.
    /// Returns whether it is in, for writing; if the deadline passed first it isn't in at all.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()); then it isn't in.
    pub(crate) fn upgrade(&self, ticket: Ticket, deadline: Option<Instant>, site: Site) -> bool {
        self.readers.remove(ticket);
        let upgraded = self.gate.try_exchange(READER, WRITER) || self.gate.exchange_slow(READER, WRITER, deadline);
        if upgraded {
            self.writer.set(site);
        }
        upgraded
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.gate.word() != 0
    }
}

impl fmt::Debug for RawRwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawRwLock").field("gate", &self.gate).field("writer", &self.writer).finish()
    }
}
