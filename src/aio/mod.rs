//! The event loop.
//!
//! An [`AioContext`] is one thread's loop. One turn:
//!
//! 1. wait for descriptors, deadlines and other threads, unless there is something to run; before it sleeps, a loop may
//!    [poll](Polling) for a while;
//! 2. run the [bottom halves](BottomHalf) that were scheduled;
//! 3. run the callbacks of [descriptors](FdHandler) that are ready, then those of [timers](Timer) that are due;
//! 4. run the coroutines that are ready, each until it suspends.
//!
//! What becomes ready during a turn has its turn in the next one, so nobody keeps the others from running by yielding or
//! by scheduling itself; and every so many turns the loop looks at descriptors even if it never gets idle. A callback
//! may run a nested turn, which first runs what the outer one hasn't run yet, and leaves alone what is running.
//!
//! | call | from |
//! |---|---|
//! | [`spawn`](Local::spawn), [`spawn_local`](Local::spawn_local), [`bottom_half`](Local::bottom_half), [`schedule_once`](Local::schedule_once), [`timer`](Local::timer), [`add_fd`](Local::add_fd), [`transaction`](Local::transaction) | the context's thread; coroutines and callbacks that have no context at hand ask for the [`current`] one |
//! | [`poll`](Local::poll), [`run_until`](Local::run_until), [`block_on`](Local::block_on) | the context's thread, outside of coroutines; nested from callbacks |
//! | [`Remote`], [`Trigger`], [`Alarm`], [`FdHandler`], wakers, [`JoinHandle`](crate::JoinHandle) | any thread |
//! | [`sleep`], [`timeout`], [`fd`](crate::fd), [`park`](crate::park) | coroutines; plain threads block, and have no time limits |
//!
//! An [`IoThread`] is a thread with a context that it runs until it is dropped.
//!
//! Waking a context that is running, or polling, costs no system call on either side; waking one that sleeps costs one: a
//! write to its eventfd, which without io_uring it has to read; or, if it waits for no descriptor and no deadline, a
//! futex(2). [`stats`](Local::stats) counts them.
//!
//! # Monitors
//!
//! A context learns from a monitor which descriptors are ready. All monitors behave the same and differ in cost:
//!
//! - [`IoUring`](MonitorKind::IoUring): what a turn has for the kernel goes with the turn's one system call, and a turn
//!   that has nothing for it and finds nothing takes none. What a [`Parked`](crate::fd::Parked) or an
//!   [`EventFd`](crate::fd::EventFd) is made of is watched once and for all. Timeouts are kept to some 15 µs; the others have the
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
//! (`kernel.io_uring_disabled`, the seccomp filters of containers). [`monitor`](Local::monitor) says which it took, and
//! why. [`ContextBuilder::monitor`] asks for one. A context for which there is no descriptor left is an error, not a
//! worse one.

mod bh;
pub(crate) mod bh_state;
mod builder;
mod context;
mod fd_handler;
mod fdmon;
mod handler;
mod io_thread;
mod linux_aio;
mod local;
pub(crate) mod notify;
mod parameters;
mod polling;
pub(crate) mod registry;
mod remote;
pub(crate) mod request;
mod request_state;
mod shared;
mod slab;
mod sleep;
mod spin;
mod stats;
mod timer;
mod timers;
mod transaction;
mod turn;
mod waiter;

pub use bh::{BottomHalf, Trigger};
pub use builder::{ContextBuilder, MonitorChoice};
pub use context::AioContext;
pub use fd_handler::FdHandler;
pub use fdmon::MonitorKind;
pub use handler::FdCallbacks;
pub use io_thread::IoThread;
pub(crate) use local::count_block_call;
pub use local::{Local, current};
pub use parameters::{Coalescing, Polling};
pub use polling::PollSource;
pub use remote::Remote;
pub use sleep::{Elapsed, sleep, sleep_until, timeout};
pub use stats::Stats;
pub use timer::{Alarm, Timer};
pub use transaction::{Transaction, TransactionError};
