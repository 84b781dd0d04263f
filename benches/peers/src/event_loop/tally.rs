//! How many tasks have ended, and who wants to know.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

use super::{WARM_UP, WINDOW};
use crate::measure::{Core, Pinned};

/// Counts tasks that one thread spawns and another runs. A static, so that the tasks need not count references to it.
pub struct Tally {
    spawned_in_all: AtomicU64,
    ended: AtomicU64,
    watcher: Mutex<Option<Waker>>,
}

impl Tally {
    pub const fn new() -> Self {
        Self { spawned_in_all: AtomicU64::new(0), ended: AtomicU64::new(0), watcher: Mutex::new(None) }
    }

    /// Begins to count a warm-up and so many more tasks. `watcher` is woken after the one and after the other.
    pub fn begin(&self, times: u64, watcher: Waker) {
        self.ended.store(0, Ordering::Relaxed);
        self.spawned_in_all.store(WARM_UP + times, Ordering::Relaxed);
        *self.lock_watcher() = Some(watcher);
    }

    /// What the producer does, on a core of its own: calls `spawn` for each task, at most [`WINDOW`] ahead of those
    /// that have ended.
    pub fn produce(&self, spawn: impl Fn()) {
        let _pinned = Pinned::to(Core::SecondLast);
        for spawned in 0..self.spawned_in_all.load(Ordering::Relaxed) {
            while spawned - self.ended.load(Ordering::Relaxed) >= WINDOW {
                hint::spin_loop();
            }
            spawn();
        }
    }

    /// What a task does.
    pub fn count(&self) {
        let ended = self.ended.fetch_add(1, Ordering::Relaxed) + 1;
        if (ended == WARM_UP || ended == self.spawned_in_all.load(Ordering::Relaxed))
            && let Some(watcher) = &*self.lock_watcher()
        {
            watcher.wake_by_ref();
        }
    }

    /// Whether the warm-up has ended.
    pub fn is_warm(&self) -> bool {
        self.ended.load(Ordering::Relaxed) >= WARM_UP
    }

    /// Whether all tasks have ended.
    pub fn is_complete(&self) -> bool {
        self.ended.load(Ordering::Relaxed) >= self.spawned_in_all.load(Ordering::Relaxed)
    }

    fn lock_watcher(&self) -> MutexGuard<'_, Option<Waker>> {
        self.watcher.lock().expect("nothing panics while it is locked")
    }
}
