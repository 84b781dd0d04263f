//! The event loop.
//!
//! An [`AioContext`] is one thread's loop. One turn: wait for descriptors, deadlines and other threads, unless a
//! coroutine is ready; then run the coroutines that are ready, each until it suspends. What becomes ready during a turn has its
//! turn in the next one, so no coroutine keeps the others from running by yielding.
//!
//! | call | from |
//! |---|---|
//! | [`AioContext::spawn`], [`poll`](AioContext::poll), [`block_on`](AioContext::block_on) | the context's thread; `poll` and `block_on` outside of coroutines |
//! | [`Remote::spawn`], wakers, [`JoinHandle`](crate::JoinHandle) | any thread |
//!
//! Waking a context that is running costs no system call on either side; waking one that sleeps costs one write to its eventfd
//! and one read of it.

mod bh;
pub(crate) mod bh_state;
mod context;
mod fdmon;
mod home_cell;
mod io_thread;
pub(crate) mod notify;
mod shared;
mod sleep;
mod timers;
mod turn;

pub use bh::{BottomHalf, Trigger};
pub use context::{AioContext, Remote};
pub use io_thread::IoThread;
pub use sleep::{Elapsed, sleep, sleep_until, timeout};
