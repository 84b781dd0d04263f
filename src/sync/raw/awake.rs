//! Waiting awake: for a little while, before a waiter queues and suspends.
//!
//! Two threads that need one another every few nanoseconds then don't put each other to sleep, which takes microseconds.
//! It pays only if the one that is waited for is running meanwhile, on another thread: patience is asked for again and
//! again, and may end.

use std::hint;

use super::holder::Name;

/// How long to wait for one that runs, in instructions to pause. (Some 20 ns each, or 50, on x86-64.)
pub(super) const FOR_ONE_THAT_RUNS: u32 = 100;
/// How long to wait for one that is waking up: longer than that takes.
pub(super) const FOR_A_SLEEPER: u32 = 1500;
/// How many pauses at a time, at most; then it looks.
const LONGEST_PAUSE: u32 = 16;

/// Tries until there is a result, or patience is exhausted.
pub(super) fn wait_awake(attempt: impl Fn() -> Option<bool>, patience: impl Fn() -> u32) -> bool {
    let mut spent = 0;
    let mut pause = 1;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        if spent >= patience() {
            return false;
        }
        (0..pause).for_each(|_| hint::spin_loop());
        spent += pause;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

/// How long to wait for whoever has that name.
pub(super) fn patience_for(name: &Name) -> u32 {
    match name.get() {
        Some(other) if other.is_elsewhere() && !other.is_parked() => FOR_ONE_THAT_RUNS,
        _ => 0,
    }
}
