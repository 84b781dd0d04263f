//! So many requests a second.
//!
//! Each request is given a time at which it may go: the last one's, and an interval more. Times up to [`BURST`]
//! intervals ahead of the clock count as now, so a few requests at once needn't wait for each other. (That is the
//! generic cell rate algorithm.) Times are given in the order in which requests come, so nobody is overtaken for long.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use aioco::park;

/// How many requests may go at once after a pause.
const BURST: u32 = 8;

/// A rate, which the requests of any thread keep to together. Its times are nanoseconds since it was made.
pub struct Rate {
    start: Instant,
    interval: u64,
    /// The time that the next request is given, if it isn't past.
    next: AtomicU64,
    /// Changed with `waiting` locked.
    is_hurrying: AtomicBool,
    /// Those that wait, by the time that they have been given.
    waiting: Mutex<BTreeMap<u64, Waker>>,
}

impl Rate {
    /// A rate of so many requests a second, at least one and at most 1 000 000 000.
    pub fn new(per_second: u32) -> Self {
        Self {
            start: Instant::now(),
            interval: 1_000_000_000 / u64::from(per_second),
            next: AtomicU64::new(0),
            is_hurrying: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// Whether a request may go at once; then it counts as gone.
    pub fn try_pass(&self) -> bool {
        // Who sees it late has to wait, and looks again before that.
        let is_hurrying = self.is_hurrying.load(Ordering::Relaxed);
        let now = self.now();
        let passes = |next: u64| {
            let time = next.max(now);
            (is_hurrying || self.goes_at(time) <= now).then_some(time + self.interval)
        };
        // Relaxed: a number, and nothing that comes with it. Below, too.
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, passes).is_ok()
    }

    /// Parks the coroutine until its request may go.
    pub fn pass(&self) {
        // That overtakes nobody: those who wait have been given the times up to the next one.
        if self.try_pass() {
            return;
        }
        let now = self.now();
        let follow = |next: u64| Some(next.max(now) + self.interval);
        let next = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, follow).expect("there is a next time");
        let time = next.max(now);
        let deadline = self.start + Duration::from_nanos(self.goes_at(time));
        let _place = Place { rate: self, time };
        // It may return early, or be woken by `hurry`: the condition counts.
        while Instant::now() < deadline {
            {
                let mut waiting = self.lock();
                if self.is_hurrying.load(Ordering::Relaxed) {
                    return;
                }
                waiting.insert(time, park::waker());
            }
            park::park_until(deadline);
        }
    }

    /// Lets all go, now and from now on.
    pub fn hurry(&self) {
        let waiting = self.lock();
        self.is_hurrying.store(true, Ordering::Relaxed);
        waiting.values().for_each(Waker::wake_by_ref);
    }

    fn goes_at(&self, time: u64) -> u64 {
        time.saturating_sub(self.interval * u64::from(BURST - 1))
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Waker>> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A place among those that wait, left also by a coroutine that is unwound.
struct Place<'a> {
    rate: &'a Rate,
    time: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.rate.lock().remove(&self.time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_nothing() {
        let rate = Rate::new(1);
        let passed = (0..2 * BURST).take_while(|_| rate.try_pass()).count();
        assert_eq!(passed, BURST as usize);
    }

    #[test]
    fn nobody_waits_when_it_hurries() {
        let rate = Rate::new(1);
        while rate.try_pass() {}
        let context = aioco::AioContext::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while rate.lock().is_empty() {
                    std::thread::yield_now();
                }
                rate.hurry();
            });
            context.block_on(|| (0..100).for_each(|_| rate.pass()));
        });
        assert!(rate.try_pass() && rate.lock().is_empty());
    }
}
