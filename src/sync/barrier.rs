//! A place to meet.

use std::fmt;
use std::mem;
use std::time::Instant;

use super::raw::wait_queue::{End, RawWaitQueue};
use crate::primitive::Mutex;

/// A place where a number of coroutines and threads wait for one another; and then again, as often as they like.
///
/// One that stops waiting, by its deadline or because it is cancelled, hasn't come: the others go on to wait.
///
/// ```
/// use aioco::sync::Barrier;
/// use std::thread;
///
/// let start = Barrier::new(3);
/// let leaders: u32 = thread::scope(|scope| {
///     let parties: Vec<_> = (0..3).map(|_| scope.spawn(|| u32::from(start.wait()))).collect();
///     parties.into_iter().map(|party| party.join().unwrap()).sum()
/// });
/// assert_eq!(leaders, 1);
/// ```
pub struct Barrier {
    parties: usize,
    state: Mutex<State>,
    waiters: RawWaitQueue,
}

struct State {
    /// How many have come.
    arrived: usize,
    /// How often all have.
    round: u64,
}

impl Barrier {
    /// A barrier for so many.
    ///
    /// # Panics
    ///
    /// If that is 0.
    pub const fn new(parties: usize) -> Self {
        assert!(parties > 0, "a barrier for nobody");
        Self { parties, state: Mutex::new(State { arrived: 0, round: 0 }), waiters: RawWaitQueue::new() }
    }

    /// Waits until all have come. Returns true to the last one only.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait.
    pub fn wait(&self) -> bool {
        self.wait_at_most(None).unwrap_or_default()
    }

    /// As [`wait`](Self::wait), but at most until `deadline`; then it hasn't come, and this returns `None`.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_until(&self, deadline: Instant) -> Option<bool> {
        self.wait_at_most(Some(deadline))
    }

    fn wait_at_most(&self, deadline: Option<Instant>) -> Option<bool> {
        let mut state = self.state.lock();
        state.arrived += 1;
        if state.arrived == self.parties {
            state.arrived = 0;
            state.round += 1;
            drop(state);
            self.waiters.wake_all();
            return Some(true);
        }
        let arrival = Arrival { barrier: self, round: state.round };
        drop(state);
        // A wake for the round before may reach one who has come for the next already.
        let mut in_time = true;
        while in_time && !arrival.has_passed() {
            in_time = self.waiters.wait(End::Back, deadline, || !arrival.has_passed(), |woken| woken);
            in_time |= arrival.has_passed();
        }
        let has_passed = arrival.leave();
        mem::forget(arrival);
        has_passed.then_some(false)
    }
}

/// One who has come, and leaves again if the others don't come in time.
struct Arrival<'a> {
    barrier: &'a Barrier,
    round: u64,
}

impl Arrival<'_> {
    fn has_passed(&self) -> bool {
        self.barrier.state.lock().round != self.round
    }

    /// Returns whether all have come; otherwise it counts no more.
    fn leave(&self) -> bool {
        let mut state = self.barrier.state.lock();
        let has_passed = state.round != self.round;
        if !has_passed {
            state.arrived -= 1;
        }
        has_passed
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrived = self.state.lock().arrived;
        f.debug_struct("Barrier").field("parties", &self.parties).field("arrived", &arrived).finish()
    }
}
