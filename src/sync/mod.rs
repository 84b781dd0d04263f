//! Locks for coroutines.

mod barrier;
mod channel;
mod event;
mod mutex;
pub(crate) mod raw;
mod rwlock;
mod semaphore;
mod task_group;
mod threshold;
mod wait_queue;

pub use barrier::Barrier;
pub use channel::{Receiver, RecvError, SendError, Sender, channel};
pub use event::Event;
pub use mutex::{Mutex, MutexGuard};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{Permits, Semaphore};
pub use task_group::{TaskGroup, task_group};
pub use threshold::Threshold;
pub use wait_queue::{Relock, WaitQueue};

use std::time::{Duration, Instant};

/// `None`, that is never, if it is past what the clock can count.
fn deadline_after(duration: Duration) -> Option<Instant> {
    Instant::now().checked_add(duration)
}
