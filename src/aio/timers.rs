//! Deadlines, in order; equal ones in the order in which they were set.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::slab::Slab;
use super::waiter::Waiter;

/// Those who are to be told at given times.
#[derive(Debug)]
pub(super) struct Timers {
    queue: BTreeMap<Key, (Waiter, u64)>,
    /// By number, where each is in the queue.
    keys: Slab<Key>,
    next: u64,
}

/// A deadline, and how many were set before it.
type Key = (Instant, u64);

impl Timers {
    pub(super) const fn new() -> Self {
        Self { queue: BTreeMap::new(), keys: Slab::new(), next: 0 }
    }

    /// Sets a deadline; returns its number.
    pub(super) fn set(&mut self, deadline: Instant, waiter: Waiter) -> u64 {
        let key = (deadline, self.next);
        self.next += 1;
        let number = self.keys.insert(key);
        self.queue.insert(key, (waiter, number));
        number
    }

    /// Withdraws a deadline. Returns who was to be told, unless it has passed.
    pub(super) fn withdraw(&mut self, number: u64) -> Option<Waiter> {
        let key = self.keys.remove(number)?;
        self.queue.remove(&key).map(|(waiter, _)| waiter)
    }

    /// How long to wait for the next one; zero if it has passed.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let (&(deadline, _), _) = self.queue.first_key_value()?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Moves those whose deadline has passed to `fired`.
    pub(super) fn expire(&mut self, fired: &mut Vec<Waiter>) {
        if self.queue.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(entry) = self.queue.first_entry()
            && entry.key().0 <= now
        {
            let (waiter, number) = entry.remove();
            self.keys.remove(number);
            fired.push(waiter);
        }
    }
}
