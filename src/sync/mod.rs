//! Locks, channels and the like, for coroutines of any context and for plain threads alike.
//!
//! | to | there is |
//! |---|---|
//! | share data | [`Mutex`], [`RwLock`] |
//! | share a budget | [`Semaphore`] |
//! | wait for a condition to change | [`WaitQueue`] |
//! | wait for something that happens once | [`Event`] |
//! | wait for one another | [`Barrier`] |
//! | wait for a number of completions, and be woken once | [`Threshold`] |
//! | pass messages on | [`channel()`] |
//! | do several things at a time, and wait for all of them | [`task_group`] |
//!
//! Whoever waits parks: a coroutine lets the others of its thread run, a plain thread blocks. A lock of this module may be
//! held while its holder is suspended. One of `std` or `parking_lot` should not be: another coroutine of the same thread
//! that locks it blocks the thread, with the holder on it, for ever. Nor should a `RefCell` stay borrowed: who borrows it
//! meanwhile panics. Neither can be detected here; a lock of this module in its place is no mistake.
//!
//! # Order
//!
//! First come, first served, and nobody overtakes: who unlocks makes the lock the next one's, before that one runs. So
//! nobody starves, and a woken waiter has what it waited for. Waking only queues; the woken one runs when the one that
//! woke it suspends, or in its own loop, never on the stack of the other. Any number of waiters that unlock one another
//! take constant stack, and linear time.
//!
//! There is one exception. If the next one for a [`Mutex`] sleeps on another thread than the one that unlocks, it is
//! woken, and until it runs, others may lock the mutex before it: otherwise that would stay locked for as long as a
//! thread takes to wake up. When it runs and finds the mutex locked, it is the next owner. Those behind it keep their
//! order. So nobody starves here either.
//!
//! Who finds a mutex held by somebody that runs on another thread, and nobody queued, waits awake for some microseconds
//! before it queues and suspends; so does who finds a channel empty, or full, whose other side runs on another thread.
//! If that takes long, it yields its processor a few times, since the other one may have been preempted.
//!
//! # Leaving
//!
//! Each wait has three forms: it takes what it takes; it takes until a deadline (`_until`, or `_for` a duration); or
//! there is none (`try_`). In a coroutine that has no home, deadlines are kept only by whoever enters it.
//!
//! A coroutine that is [cancelled](crate::JoinHandle::cancel) while it waits leaves the queue. Was it given its turn just
//! before, it hands it on: the lock to the next one, the wake to another waiter, the message to another receiver. Was it
//! woken together with all others, there is nothing to hand on. One whose deadline passes at the moment of its turn has
//! had its turn. [`aio::timeout`](crate::aio::timeout) cancels, so it does for whole pieces of code what deadlines do for
//! single waits.
//!
//! A coroutine that [refuses to be unwound](crate::coroutine#panics-and-cancellation) keeps its place in the queues, and
//! what it is given there. So does one that is dropped where nothing unwinds (`panic = "abort"`).
//!
//! # Async code
//!
//! sends and receives by [`Sender::send_async`] and [`Receiver::recv_async`], on any executor, and waits in one line
//! with coroutines and threads. A future that is dropped while it waits leaves as a coroutine does that is cancelled.
//!
//! # Panics
//!
//! There is no poison. A guard that is dropped in an unwind, forced or not, gives its lock back like any other; whoever is
//! next may find the data as the one that panicked left it.
//!
//! A drop guard that runs in an unwind may take a lock that is free. Waiting for one is refused, as [all
//! suspending](crate::coroutine#panics-and-cancellation) is then, by a panic that ends the process.
//!
//! # Deadlocks
//!
//! Whoever locks a [`Mutex`] that it has locked itself would wait for ever. It panics instead, with both places. So it is
//! for an [`RwLock`] that it has for writing, and in debug builds for one that it has for reading and would have to wait
//! for. A thread that would wait, outside of coroutines, for a coroutine that its own loop has to run is told likewise.
//!
//! Guards aren't `Send`. They may be given to another coroutine of their thread, as `timeout` does with what its closure
//! returns; the one that locked counts as the holder as long as it lives. A guard that is forgotten
//! ([`std::mem::forget`]) leaves its lock taken, also when its coroutine has ended; since another coroutine might have
//! been given it, that can't be told apart from what is right. The `Debug` form of a lock says where it was taken.

mod barrier;
mod channel;
mod event;
mod messages;
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
pub use messages::{Receiving, Sending};
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
