//! The model's twin of the room `park`: each thread of a model has a token, behind a mutex.
#![allow(unsafe_code)] // # Safety: a contract that is kept for the real one's sake.
#![allow(clippy::disallowed_types, reason = "loom's are of the model's threads; std's, of the test")]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Instant;

use loom::sync::{Condvar, Mutex};

/// Whether the threads of the model that runs stand for coroutines of one thread.
mod slot {
    use super::Cell;

    std::thread_local! {
        pub(super) static ON_ONE_THREAD: Cell<bool> = const { Cell::new(false) };
    }
}
use slot::ON_ONE_THREAD;

/// Numbers the threads: the address of one that has ended might be another one's.
static NEXT: AtomicU64 = AtomicU64::new(1);

struct Parker {
    number: u64,
    token: Mutex<bool>,
    given: Condvar,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        *self.token.lock().unwrap() = true;
        self.given.notify_one();
    }
}

loom::thread_local! {
    static PARKER: Arc<Parker> = Arc::new(Parker { number: NEXT.fetch_add(1, Ordering::Relaxed), token: Mutex::new(false), given: Condvar::new() });
    static CANCELLED: Cell<bool> = Cell::new(false);
}

pub(crate) fn waker() -> Waker {
    PARKER.with(Arc::clone).into()
}

/// If nobody ever wakes it, this is a deadlock, which loom reports.
pub(crate) fn park() {
    let parker = PARKER.with(Arc::clone);
    let mut token = parker.token.lock().unwrap();
    while !*token {
        token = parker.given.wait(token).unwrap();
    }
    *token = false;
}

/// The deadlines of models have passed.
pub(crate) fn park_until(_: Instant) {
    unreachable!("a model waits for a deadline");
}

/// Runs `f`, in which each park is the last of a coroutine that was cancelled: whoever waits leaves as if it was unwound,
/// and says that it has waited in vain.
pub(crate) fn cancelled<T>(f: impl FnOnce() -> T) -> T {
    CANCELLED.with(|cancelled| cancelled.set(true));
    let result = f();
    CANCELLED.with(|cancelled| cancelled.set(false));
    result
}

pub(crate) fn is_cancelled() -> bool {
    CANCELLED.with(Cell::get)
}

/// A deadline that has passed.
pub(crate) fn passed() -> Option<Instant> {
    Some(Instant::now())
}

/// Says whether the threads of the model stand for coroutines of one thread.
pub(crate) fn set_on_one_thread(yes: bool) {
    ON_ONE_THREAD.set(yes);
}

pub(crate) fn in_coroutine() -> bool {
    true
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Runner(u64);

impl Runner {
    pub(crate) fn current() -> Self {
        Self(PARKER.with(|parker| parker.number))
    }

    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    pub(crate) unsafe fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    pub(crate) fn is_elsewhere(self) -> bool {
        self != Self::current() && !ON_ONE_THREAD.get()
    }

    pub(crate) fn is_parked(self) -> bool {
        false
    }

    pub(crate) fn is_driven_here(self) -> bool {
        false
    }

    pub(crate) fn describe_current() -> String {
        String::from("a thread of a model")
    }
}
