//! Adaptive polling: what a loop looks at before it sleeps, and for how long. [`Polling`] has the rules.
//!
//! While a loop polls it hasn't announced that it sleeps, so whoever wakes it makes no system call; and nor does the
//! loop, neither while it looks in vain nor when it finds something.
//!
//! A source that counts on being looked at may spare the other side its signals: that is what [`PollSource::begin`] and
//! [`end`](PollSource::end) are for. An event may come just when signals are being switched on again, and lead to none.
//! So each source is looked at once more after its `end`, before the loop sleeps. (Descriptors need no such care: they
//! are watched all the time.)

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handler;
use super::parameters::Polling;

/// The first window of a source that has had an event.
const FIRST_WINDOW: Duration = Duration::from_micros(4);

/// What a loop can look at without a system call, instead of waiting for a descriptor: a ring in shared memory, say,
/// whose other side signals an eventfd if it is told to. Given to [`FdCallbacks::polled`](super::FdCallbacks::polled).
///
/// All methods are called on the context's thread. None but `ready` may run a turn of the loop.
pub trait PollSource {
    /// Whether there is something to do. Called over and over while the loop polls, so it has to be quick: some
    /// nanoseconds.
    fn poll(&mut self) -> bool;

    /// Does it. Called in the turn of the loop, where otherwise the descriptor's callback would be; not if the descriptor
    /// has been found ready meanwhile, whose callback is called then.
    fn ready(&mut self);

    /// The loop is about to look at this source over and over: it needs no signals through the descriptor for now.
    fn begin(&mut self) {}

    /// The loop is about to sleep: it needs signals through the descriptor again. [`poll`](Self::poll) is called once
    /// more after this.
    fn end(&mut self) {}
}

/// What a loop knows of one thing that it looks at.
#[derive(Debug, Default)]
pub(super) struct Source {
    window: Duration,
    /// When it had an event; `None` if it is left out.
    last_event: Option<Instant>,
}

impl Source {
    /// It had an event, for which the loop had waited so long.
    pub(super) fn had_event(&mut self, polling: Polling, waited: Duration, now: Instant) {
        self.last_event = Some(now);
        if waited <= self.window {
            // It was found in time, or would have been.
        } else if waited > polling.max {
            self.window = self.window.checked_div(polling.shrink).unwrap_or_default();
        } else if self.window < polling.max {
            let longer = self.window.saturating_mul(polling.grow).max(FIRST_WINDOW);
            self.window = longer.min(polling.max);
        }
    }

    /// For how long to look at it.
    pub(super) fn window(&self) -> Duration {
        if self.last_event.is_some() { self.window } else { Duration::ZERO }
    }

    /// Leaves it out if it has had no event for long.
    pub(super) fn leave_if_idle(&mut self, polling: Polling, now: Instant) {
        if self.last_event.is_some_and(|event| now.saturating_duration_since(event) > polling.idle) {
            self.last_event = None;
        }
    }

    /// Whether it is looked at.
    pub(super) fn is_listed(&self) -> bool {
        self.last_event.is_some()
    }
}

/// What a loop knows of a [`PollSource`].
#[derive(Debug, Default)]
pub(super) struct Polled {
    /// Whether there is one.
    exists: bool,
    pub(super) source: Source,
    /// Whether it is in the loop's list.
    pub(super) is_in_list: bool,
    /// Whether it has been told that it is looked at.
    pub(super) has_begun: bool,
    /// Whether it stands in the loop's queue because there is something to do.
    pub(super) is_hit: bool,
}

impl Polled {
    pub(super) fn new(exists: bool) -> Self {
        Self { exists, ..Self::default() }
    }

    pub(super) fn exists(&self) -> bool {
        self.exists
    }
}

/// What a loop looks at before it sleeps.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// Wake-ups by other threads.
    pub(super) wakeups: Source,
    /// Descriptors that user memory tells about.
    pub(super) descriptors: Source,
    /// Handlers with a source that has had an event.
    pub(super) polled: Vec<Arc<handler::Node>>,
}

impl Sources {
    /// Starts anew, for changed parameters.
    pub(super) fn reset(&mut self) {
        self.wakeups = Source::default();
        self.descriptors = Source::default();
        for node in &self.polled {
            node.with_polled(|polled| polled.source = Source::default());
        }
    }

    /// For how long to look: as long as the longest window says. What has been idle is left out.
    pub(super) fn window(&mut self, polling: Polling, now: Instant) -> Duration {
        self.wakeups.leave_if_idle(polling, now);
        self.descriptors.leave_if_idle(polling, now);
        let own = self.wakeups.window().max(self.descriptors.window());
        let window = |node: &Arc<handler::Node>| {
            node.with_polled(|polled| {
                polled.source.leave_if_idle(polling, now);
                polled.source.window()
            })
        };
        self.polled.iter().map(window).fold(own, Duration::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn a_window_grows_to_the_maximum_stays_and_shrinks() {
        let polling = Polling::up_to(32 * MICRO).grow(2).shrink(4);
        let mut source = Source::default();
        let now = Instant::now();
        let mut after = |waited| {
            source.had_event(polling, waited * MICRO, now);
            source.window().as_micros()
        };
        assert_eq!([5, 5, 9, 20, 30].map(&mut after), [4, 8, 16, 32, 32]);
        assert_eq!([32, 0].map(&mut after), [32, 32], "found in time");
        assert_eq!([33, 1000, 7].map(&mut after), [8, 2, 4], "not even the maximum would have been enough");
        let polling = polling.shrink(0);
        source.had_event(polling, 33 * MICRO, now);
        assert_eq!(source.window(), Duration::ZERO);
    }

    #[test]
    fn an_idle_source_is_left_out_until_it_has_an_event() {
        let polling = Polling::up_to(32 * MICRO).leave_after(10 * MICRO);
        let mut source = Source::default();
        let now = Instant::now();
        source.had_event(polling, 5 * MICRO, now);
        source.leave_if_idle(polling, now + 10 * MICRO);
        assert!(source.is_listed() && !source.window().is_zero());
        source.leave_if_idle(polling, now + 11 * MICRO);
        assert!(!source.is_listed() && source.window().is_zero());
        source.had_event(polling, MICRO, now + 20 * MICRO);
        assert!(source.is_listed() && !source.window().is_zero());
    }
}
