//! A filter that lets so many requests a second through.
//!
//! Each request is given a time at which it may go: the last one's, and an interval more. Times up to [`BURST`]
//! intervals ahead of the clock count as now, so a few requests at once needn't wait for each other. (That is the
//! generic cell rate algorithm.) Times are given in the order in which requests come, so nobody is overtaken for long.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use aioco::park;

use crate::driver::{BlockDriver, Shortcut};

/// How many requests may go at once after a pause.
const BURST: u32 = 8;

pub struct Throttle {
    below: Rc<dyn BlockDriver>,
    per_second: u32,
    interval: Duration,
    /// The time that the next request is given, if it isn't past.
    next: Cell<Instant>,
    is_hurrying: Cell<bool>,
    /// Those that wait, by the time that they have been given.
    waiting: RefCell<BTreeMap<Instant, Waker>>,
}

impl Throttle {
    pub fn new(below: Rc<dyn BlockDriver>, per_second: u32) -> Self {
        Self {
            below,
            per_second,
            interval: Duration::from_secs(1) / per_second,
            next: Cell::new(Instant::now()),
            is_hurrying: Cell::new(false),
            waiting: RefCell::default(),
        }
    }

    /// When a request may go that is given this time.
    fn goes_at(&self, time: Instant) -> Instant {
        time.checked_sub(self.interval * (BURST - 1)).unwrap_or(time)
    }

    /// Gives out a time, if a request may go at once.
    fn try_pass(&self) -> bool {
        let now = Instant::now();
        let time = self.next.get().max(now);
        let passes = self.is_hurrying.get() || self.goes_at(time) <= now;
        if passes {
            self.next.set(time + self.interval);
        }
        passes
    }

    /// Parks the coroutine until its request may go.
    fn pass(&self) {
        let time = self.next.get().max(Instant::now());
        self.next.set(time + self.interval);
        let deadline = self.goes_at(time);
        // It may return early, or be woken by `hurry`: the condition counts.
        while !self.is_hurrying.get() && Instant::now() < deadline {
            self.waiting.borrow_mut().insert(time, park::waker());
            park::park_until(deadline);
            self.waiting.borrow_mut().remove(&time);
        }
    }
}

impl BlockDriver for Throttle {
    fn describe(&self) -> String {
        format!("throttle to {} requests/s", self.per_second)
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn below(&self) -> Option<&Rc<dyn BlockDriver>> {
        Some(&self.below)
    }

    /// As long as the rate isn't reached, nobody waits here.
    fn shortcut(&self, offset: u64, len: usize) -> Option<Shortcut> {
        let shortcut = self.below.shortcut(offset, len)?;
        self.try_pass().then_some(shortcut)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.pass();
        self.below.read(buffer, offset)
    }

    fn write(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.pass();
        self.below.write(buffer, offset)
    }

    fn hurry(&self) {
        self.is_hurrying.set(true);
        for waker in self.waiting.borrow().values() {
            waker.wake_by_ref();
        }
    }

    fn close(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::Fake;

    #[test]
    fn a_burst_passes_and_then_nothing() {
        let throttle = Throttle::new(Rc::new(Fake::default()), 1);
        let passed = (0..2 * BURST).take_while(|_| throttle.shortcut(0, 0).is_some() || throttle.try_pass()).count();
        assert_eq!(passed, BURST as usize);
    }

    #[test]
    fn nobody_waits_when_it_hurries() {
        let throttle = Throttle::new(Rc::new(Fake::default()), 1);
        while throttle.try_pass() {}
        throttle.hurry();
        assert!(throttle.try_pass());
        throttle.pass();
    }
}
