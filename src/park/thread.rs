//! The plain-thread twin: std's thread parking, whose token has the contract that we need.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

pub(super) fn waker() -> Waker {
    Arc::new(ThreadWaker(thread::current())).into()
}

pub(super) fn park() {
    thread::park();
}

pub(super) fn park_until(deadline: Instant) {
    thread::park_timeout(deadline.saturating_duration_since(Instant::now()));
}
