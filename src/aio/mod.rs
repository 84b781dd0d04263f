//! The event loop.
//!
//! An [`AioContext`] is one thread's loop. One turn: wait for descriptors, deadlines and other threads, unless there is
//! something to run; run the [bottom halves](BottomHalf) that were scheduled; wake the coroutines whose descriptor or
//! deadline is due; run the coroutines that are ready, each until it suspends. What becomes ready during a turn has its
//! turn in the next one, so nobody keeps the others from running by yielding or by scheduling itself; and every so many
//! turns the loop looks at descriptors even if it never gets idle.
//!
//! | call | from |
//! |---|---|
//! | [`AioContext::spawn`], [`spawn_local`](AioContext::spawn_local), [`bottom_half`](AioContext::bottom_half), [`schedule_once`](AioContext::schedule_once) | the context's thread |
//! | [`AioContext::poll`], [`run_until`](AioContext::run_until), [`block_on`](AioContext::block_on) | the context's thread, outside of coroutines; nested from bottom halves |
//! | [`Remote`], [`Trigger`], wakers, [`JoinHandle`](crate::JoinHandle) | any thread |
//! | [`sleep`], [`timeout`], [`fd`](crate::fd), [`park`](crate::park) | coroutines; plain threads block, and have no time limits |
//!
//! An [`IoThread`] is a thread with a context that it runs until it is dropped.
//!
//! Waking a context that is running costs no system call on either side; waking one that sleeps costs one write to its
//! eventfd, and, without io_uring, one read of it. [`AioContext::stats`] counts them.
//!
//! # Monitors
//!
//! A context learns from a monitor which descriptors are ready. All monitors behave the same and differ in cost:
//!
//! - [`IoUring`](MonitorKind::IoUring): what a turn has for the kernel goes with the turn's one system call, and a turn
//!   that has nothing for it and finds nothing takes none. Timeouts are kept to some 15 µs; the others have the
//!   kernel's timer slack on top, 50 µs by default.
//! - [`Epoll`](MonitorKind::Epoll): a system call for each wait of a coroutine, and one or two for a turn.
//! - [`Poll`](MonitorKind::Poll): none for the wait of a coroutine; but a turn takes longer with each descriptor that
//!   is waited for, by 0.1 to 0.4 µs. It is the fastest for a few dozen, and needs no descriptor of its own.
//!
//! Measured on Linux 6.18, epoll being 1 (`cargo bench --bench monitors` measures the like):
//!
//! | | io_uring | poll |
//! |---|---|---|
//! | wait of a coroutine for a descriptor, there and back | 0.98 | 0.79 |
//! | 64 of them in one turn, each | 0.82 | 0.65 |
//! | a wait that is withdrawn | 0.75 | 0.35 |
//! | wake of a sleeping loop by another thread | 0.93 | 0.89 |
//! | a turn that finds nothing, 10 000 descriptors waited for | 0.16 | 10 000 |
//! | a turn that finds one of them ready | 0.95 | 3000 |
//! | lateness of a deadline | 0.24 | 1 |
//!
//! A context takes the first of these that it can have: io_uring may be missing (before Linux 5.11) or forbidden
//! (`kernel.io_uring_disabled`, the seccomp filters of containers). [`AioContext::monitor`] says which it took, and
//! why. [`ContextBuilder::monitor`] asks for one. A context for which there is no descriptor left is an error, not a
//! worse one.

mod bh;
pub(crate) mod bh_state;
mod builder;
mod context;
mod fdmon;
mod home_cell;
mod io_thread;
pub(crate) mod notify;
mod shared;
mod sleep;
mod stats;
mod timers;
mod turn;

pub use bh::{BottomHalf, Trigger};
pub use builder::{ContextBuilder, MonitorChoice};
pub use context::{AioContext, Remote};
pub use fdmon::MonitorKind;
pub use io_thread::IoThread;
pub use sleep::{Elapsed, sleep, sleep_until, timeout};
pub use stats::Stats;
