//! Two players on two threads who wake each other in turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use super::WARM_UP;
use crate::measure::{self, Core, Pinned};

/// One of the players.
#[derive(Clone, Copy)]
pub enum Side {
    First,
    Second,
}

/// What the players share. The hits are counted; the odd ones are the first player's.
pub struct Rally {
    rounds: u64,
    hits: AtomicU64,
    wakers: [OnceLock<Waker>; 2],
    /// Where the players meet when both have said how to wake them.
    start: Barrier,
}

impl Rally {
    /// A rally of so many timed round trips.
    pub fn new(times: u64) -> Self {
        let wakers = [const { OnceLock::new() }; 2];
        Self { rounds: WARM_UP + times, hits: AtomicU64::new(0), wakers, start: Barrier::new(2) }
    }

    /// Says how to wake a player, and waits, blocking the thread, until the other has said so too.
    pub fn enter(&self, side: Side, waker: Waker) {
        self.wakers[side as usize].get_or_init(|| waker);
        self.start.wait();
    }

    /// All rounds, of the warm-up first.
    pub fn rounds(&self) -> impl Iterator<Item = Round> {
        (0..self.rounds).map(|number| Round { number })
    }

    /// Whether a hit has been made, so that the one who waits for it can go on.
    pub fn has_seen(&self, hit: u64) -> bool {
        self.hits.load(Ordering::Acquire) >= hit
    }

    /// Makes a hit, and wakes the other player.
    pub fn hit(&self, side: Side, hit: u64) {
        self.hits.store(hit, Ordering::Release);
        let other = 1 - side as usize;
        self.wakers[other].get().expect("both players have entered").wake_by_ref();
    }

    /// Whether the last hit has been made.
    pub fn is_over(&self) -> bool {
        self.has_seen(2 * self.rounds)
    }
}

/// A round trip.
#[derive(Clone, Copy)]
pub struct Round {
    number: u64,
}

impl Round {
    /// The first player's hit.
    pub fn serve(self) -> u64 {
        2 * self.number + 1
    }

    /// The second player's hit.
    pub fn answer(self) -> u64 {
        2 * self.number + 2
    }
}

/// Measures from the end of the warm-up.
#[derive(Default)]
pub struct Clock {
    start: Option<Instant>,
}

impl Clock {
    /// Called before each round; starts the clock when the warm-up is over.
    pub fn tick(&mut self, round: Round) {
        if round.number == WARM_UP {
            self.start = Some(Instant::now());
        }
    }

    /// How long it has been running.
    pub fn elapsed(&self) -> Duration {
        self.start.map_or(Duration::ZERO, |start| start.elapsed())
    }
}

/// Runs the players on two threads and returns what the first measured. If the calling thread is pinned to a core, both
/// run there; otherwise each is pinned to a core of its own, if that is allowed.
pub fn on_two_threads(first: impl FnOnce() -> Duration, second: impl FnOnce() + Send) -> Duration {
    let share_a_core = measure::is_pinned();
    let pin_to = move |core| if share_a_core { None } else { Pinned::to(core).ok() };
    thread::scope(|scope| {
        scope.spawn(move || {
            let _pinned = pin_to(Core::SecondLast);
            second();
        });
        let _pinned = pin_to(Core::Last);
        first()
    })
}
