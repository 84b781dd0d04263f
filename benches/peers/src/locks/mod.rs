//! What the group `locks` times: locks and channels between the coroutines, or tasks, of one loop and of two.
//!
//! [`aioco`] has this project's locks, and parking_lot's mutex in its coroutines; [`tasks`] has what async Rust has, on
//! tokio's schedulers. The rest is what they share.

pub mod aioco;
pub mod tasks;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::{Core, Pinned};

/// How many coroutines want the same lock.
pub const COROUTINES: u64 = 64;

/// How many of them a semaphore lets in at a time.
pub const PERMITS: usize = 8;

/// For how many messages a channel has room.
pub const CAPACITY: usize = 64;

/// How many senders, and as many receivers, the channel of many has.
pub const PAIRS: u64 = 4;

/// How many completions are outstanding in the threshold case.
pub const OUTSTANDING: u64 = 512;

/// How many of them the waiter waits for at a time.
pub const AT_A_TIME: u64 = 128;

/// How often the loops with two threads go around before the clock starts.
const WARM_UP: u64 = 1000;

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

/// Two players that lock the same thing, together so many times, and the time that this takes after a warm-up.
struct Contest {
    /// How often it has to be locked, the warm-up included.
    goal: u64,
    arrived: AtomicU32,
    /// In nanoseconds since `epoch`.
    start: AtomicU64,
    end: AtomicU64,
    epoch: Instant,
}

impl Contest {
    fn new(times: u64) -> Self {
        Self {
            goal: WARM_UP + times,
            arrived: AtomicU32::new(0),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            epoch: Instant::now(),
        }
    }

    /// One of the two is there.
    fn arrive(&self) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether both are. Nobody blocks its thread for that: a scheduler may have given it the other one as well.
    fn is_on(&self) -> bool {
        self.arrived.load(Ordering::Relaxed) == 2
    }

    /// Counts a time, with the lock held. Returns whether to go on.
    #[inline(always)]
    fn count(&self, counter: &mut u64) -> bool {
        *counter += 1;
        if *counter == WARM_UP {
            self.start.store(self.now(), Ordering::Relaxed);
        } else if *counter == self.goal {
            self.end.store(self.now(), Ordering::Relaxed);
        }
        *counter < self.goal
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.end.load(Ordering::Relaxed) - self.start.load(Ordering::Relaxed))
    }
}

/// Runs a player on each of two threads, on a core each if that is allowed.
fn on_two_threads(player: impl Fn() + Sync) {
    thread::scope(|scope| {
        for core in [Core::Last, Core::SecondLast] {
            scope.spawn({
                let player = &player;
                move || {
                    let _pinned = Pinned::to(core);
                    player();
                }
            });
        }
    });
}
