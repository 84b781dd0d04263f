//! Deadlines, in order; equal ones in the order in which they were set.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Wakers to be woken at given times.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeMap<(Instant, u64), Waker>,
    deadlines: HashMap<u64, Instant>,
    next: u64,
}

impl Timers {
    /// Sets a timer; returns its number.
    pub(super) fn set(&mut self, deadline: Instant, waker: Waker) -> u64 {
        let number = self.next;
        self.next += 1;
        self.queue.insert((deadline, number), waker);
        self.deadlines.insert(number, deadline);
        number
    }

    /// Withdraws a timer. Returns its waker, unless it has fired.
    pub(super) fn withdraw(&mut self, number: u64) -> Option<Waker> {
        let deadline = self.deadlines.remove(&number)?;
        self.queue.remove(&(deadline, number))
    }

    /// How long to wait for the next one; zero if it is due.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let (&(deadline, _), _) = self.queue.first_key_value()?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Moves the wakers of all that are due to `fired`.
    pub(super) fn expire(&mut self, fired: &mut Vec<Waker>) {
        if self.queue.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(entry) = self.queue.first_entry()
            && entry.key().0 <= now
        {
            let ((_, number), waker) = entry.remove_entry();
            self.deadlines.remove(&number);
            fired.push(waker);
        }
    }
}
