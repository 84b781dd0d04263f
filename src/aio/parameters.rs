//! How a loop waits: adaptive polling, and waits for many events at once.

use std::time::Duration;

/// Adaptive polling: before the loop sleeps it looks for events without a system call, for as long as experience says
/// that it pays.
///
/// What it looks at are its sources: wake-ups by other threads; with io_uring, all descriptors; and the
/// [`PollSource`](super::PollSource)s of descriptors. Each has a window of its own, and the loop polls for as long as
/// the longest of them. After a turn, the window of each source that had an event is adjusted by how long the loop had
/// waited: it stays if that was within the window; it grows, from 4 µs on, if polling longer would have found the event;
/// it shrinks if not even polling for `max` would have. A source that has had no event for some time is left out.
///
/// These are the rules of QEMU's `poll-max-ns`, `poll-grow` and `poll-shrink`.
///
/// With poll and epoll, where a look at a descriptor takes a system call, a loop doesn't poll while somebody waits for
/// a descriptor that has no `PollSource`.
///
/// ```
/// use aioco::{AioContext, aio::Polling};
/// use std::time::Duration;
///
/// let context = AioContext::builder().polling(Polling::up_to(Duration::from_micros(32))).build()?;
/// context.block_on(|| ());
/// println!("{} of {} polls found something", context.stats().poll_hits, context.stats().polls);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polling {
    pub(super) max: Duration,
    pub(super) grow: u32,
    pub(super) shrink: u32,
    pub(super) idle: Duration,
}

impl Polling {
    /// No polling: the loop sleeps at once.
    pub const OFF: Self = Self::up_to(Duration::ZERO);

    /// Polling for at most `max` before each sleep. Zero is [`OFF`](Self::OFF).
    pub const fn up_to(max: Duration) -> Self {
        Self { max, grow: 2, shrink: 0, idle: Duration::from_secs(7) }
    }

    /// By how much a window grows: it is multiplied by this. 2 without this call, and for 0 and 1.
    pub const fn grow(self, factor: u32) -> Self {
        Self { grow: if factor < 2 { 2 } else { factor }, ..self }
    }

    /// By how much a window shrinks: it is divided by this, or becomes zero if this is 0, as it does without this call.
    pub const fn shrink(self, divisor: u32) -> Self {
        Self { shrink: divisor, ..self }
    }

    /// After how long without an event a source is left out. 7 s without this call.
    pub const fn leave_after(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }

    pub(super) const fn is_on(self) -> bool {
        !self.max.is_zero()
    }
}

impl Default for Polling {
    /// [`OFF`](Self::OFF).
    fn default() -> Self {
        Self::OFF
    }
}

/// Waits for many events at once: a loop that sleeps isn't woken for each.
///
/// The loop sleeps until so many events have come, or so much time has passed since it went to sleep; after that, and
/// if nothing has come until then, it is woken by the first one. Deadlines are kept, and no event, a wake-up by another
/// thread included, is held back for longer than that time.
///
/// With io_uring the kernel counts (`min_wait_usec` of io_uring_enter(2), since Linux 6.12); otherwise the loop does,
/// from the first event on.
///
/// ```
/// use aioco::{AioContext, aio::Coalescing};
/// use std::time::Duration;
///
/// let coalescing = Coalescing::new(16, Duration::from_micros(50));
/// let context = AioContext::builder().coalescing(coalescing).build()?;
/// # context.block_on(|| ());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coalescing {
    pub(super) events: u32,
    pub(super) longest: Duration,
}

impl Coalescing {
    /// The first event ends a sleep.
    pub const OFF: Self = Self::new(1, Duration::ZERO);

    /// Sleeps until there are `events`, or `longest` has passed since the sleep began. With fewer than two events, or no
    /// time, this is [`OFF`](Self::OFF).
    pub const fn new(events: u32, longest: Duration) -> Self {
        Self { events, longest }
    }
}

impl Default for Coalescing {
    /// [`OFF`](Self::OFF).
    fn default() -> Self {
        Self::OFF
    }
}

/// All of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parameters {
    pub(super) polling: Polling,
    pub(super) coalescing: Coalescing,
}
