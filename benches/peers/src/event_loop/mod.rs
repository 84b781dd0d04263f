//! What the group `loop` times: event loops, as they wait, wake, watch and keep time.
//!
//! [`aioco`] and [`tokio`] have loops with coroutines or tasks on them. [`poller`] has what only waits, from mio down
//! to bare system calls: with nothing to schedule, it shows what the kernel's part of a figure is. [`echo`] has the load of
//! a server, and one that only waits. The rest is what they share.

pub mod aioco;
pub mod echo;
mod event_fd;
mod mio;
pub mod poller;
mod rally;
pub mod raw_epoll;
pub mod raw_ring;
mod tally;
pub mod tokio;

use std::thread;
use std::time::{Duration, Instant};

pub use self::mio::Mio;
pub use self::raw_epoll::RawEpoll;
pub use self::raw_ring::RawRing;

/// How many tasks `spawn_remote` lets the producer be ahead.
pub const WINDOW: u64 = 64;

/// How many descriptors the cases with many of them watch.
pub const MANY: u32 = 10_000;

/// How long the loop of the idle case has nothing to do.
pub const IDLE: Duration = Duration::from_millis(200);

/// How many round trips or tasks the loops with two threads do before the clock starts.
const WARM_UP: u64 = 64;

/// A delay that doesn't end while anybody measures.
const FAR: Duration = Duration::from_secs(3600);

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Runs `work` on a thread of its own, on the same core. The kernel interrupts a thread to clean up a ring that it has
/// dropped, and takes some milliseconds until it does: the next one who is timed shouldn't be that thread.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().expect("it doesn't panic"))
}
