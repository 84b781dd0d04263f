//! What a context tells about itself.

/// System calls that a context has made for its loop. See [`AioContext::stats`](super::AioContext::stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls in which the loop waited for events, or collected them without waiting.
    pub waits: u64,
    /// Signals sent to the loop while it slept: one write each.
    pub signals: u64,
    /// Calls by which the loop cleared such signals. With io_uring there are none: the ring clears them.
    pub notifier_reads: u64,
    /// Calls that only told the kernel what to watch. With poll there are none; with io_uring there are few, because
    /// watches go with the next wait.
    pub control_calls: u64,
}
