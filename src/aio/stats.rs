//! What a context tells about itself.

use std::time::Duration;

/// What a context has done for its loop. See [`Local::stats`](super::Local::stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// System calls in which the loop waited for events, or collected them without waiting.
    pub waits: u64,
    /// Signals sent to the loop while it slept: one system call each.
    pub signals: u64,
    /// System calls by which the loop cleared such signals. With io_uring there are none: the ring clears them.
    pub notifier_reads: u64,
    /// System calls that only told the kernel what to watch. With poll there are none; with io_uring there are few,
    /// because watches go with the next wait.
    pub control_calls: u64,
    /// System calls that handed requests to Linux AIO.
    pub linux_aio_submits: u64,
    /// System calls that carried out requests of [block I/O](crate::block) of their own: in the caller's thread, also in
    /// vain, or in a worker's. Requests that go through the ring are in `waits` and `control_calls`, many with each.
    pub block_calls: u64,
    /// Requests of [block I/O](crate::block) that went through the ring.
    pub ring_requests: u64,
    /// Those of them whose file was [registered](crate::block#registration) with it.
    pub registered_files: u64,
    /// Those of them whose buffer was.
    pub registered_buffers: u64,
    /// Why no more buffers are registered, if the kernel has refused that.
    pub buffers_refused: Option<&'static str>,
    /// How often the loop [polled](super::Polling) before a sleep.
    pub polls: u64,
    /// How often that found something, so that there was no sleep.
    pub poll_hits: u64,
    /// How long the loop has polled.
    pub polled: Duration,
    /// How long the loop has slept. Measured only while adaptive polling is on.
    pub blocked: Duration,
}

/// The part of the figures that is about polling.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Polls {
    pub(super) polls: u64,
    pub(super) hits: u64,
    pub(super) polled: Duration,
    pub(super) blocked: Duration,
}
