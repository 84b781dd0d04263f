//! Stackful coroutines.
//!
//! A coroutine is a body of code with a stack of its own, which can be left in the middle and entered again. It is
//! asymmetric: [`Coroutine::enter`] runs it until it [yields](yield_now), [parks](crate::park) or ends, and control
//! returns to whoever entered it. A coroutine may enter others, to any depth.
//!
//! # Wakes
//!
//! A parked coroutine waits for its [`Waker`](std::task::Waker), which any thread may call. A wake that comes before
//! the park is remembered; wakes coalesce; a park may also return without a wake, so callers loop on their condition.
//! Where a woken coroutine runs:
//!
//! | woken by | runs |
//! |---|---|
//! | a coroutine of the same thread | after that one yields, parks or ends, in the `enter` that ran it: in the order of the wakes, and before what was pending earlier (depth first) |
//! | another thread, or this thread outside of coroutines | in its [home](Home)'s loop, soon, never from within the wake |
//! | anyone, if it has no home | at its next `enter`, where its park returns |
//!
//! # Homes and threads
//!
//! A started coroutine never changes threads: its stack may hold an `Rc`, a `MutexGuard`, or the address of a
//! thread-local. A [spawned](crate::aio::Local::spawn) coroutine's home is the loop it was spawned on; a coroutine that
//! is driven by its handle gets the loop that runs on its thread, if there is one, as its home when it first parks.
//!
//! # Panics and cancellation
//!
//! A panic in a coroutine resurfaces with its payload at `enter`, or at `join` for a spawned one. Ending a suspended
//! coroutine (by dropping its handle, by [`JoinHandle::cancel`](crate::JoinHandle::cancel), by dropping its context)
//! unwinds it: its suspension raises a panic with the payload [`Cancelled`], without calling the panic hook, and drop
//! guards run. A body that catches that payload and suspends again gets it again, a hundred times; then it is left
//! suspended for ever, and its stack is lost (`leaked` in [`pool::stats`]). One that waits for [block I/O](crate::block) has its
//! buffer lent: if it is cancelled, it stays suspended until the buffer is back, and unwinds then; who drops its handle or
//! its context waits for that.
//!
//! A drop guard must not suspend while its coroutine unwinds: the count of panics belongs to the thread, and the other
//! coroutines would seem to be panicking. It is refused by a panic, which in a drop guard aborts the process.
//!
//! With `panic = "abort"`, a suspended coroutine that is dropped is lost with its stack: nothing can unwind it.
//!
//! # The switch
//!
//! On x86-64 and aarch64 Linux the crate switches stacks by a jump that is inlined into whoever enters, which the
//! return predictors of CPUs can follow: keep [`enter`](Coroutine::enter) inlined into your loop, since a function that
//! returns between one entry and the next is mispredicted. Elsewhere corosensei switches. All registers that live code
//! uses survive a switch. User shadow stacks (x86 CET) aren't supported; programs with this crate aren't marked as
//! supporting them, so the loader leaves them off. Nor is `SafeStack`, which would need its second stack switched as
//! well.
//!
//! A debugger shows the frames of a coroutine as far as its outermost one.
//!
//! # Floating point
//!
//! The control words (rounding, masks of exceptions) are shared by all coroutines of a thread, like those of functions.

mod block;
mod enter;
mod handle;
mod home;
mod home_cell;
mod label;
mod newborn;
mod root;
mod runner;
mod stack;
pub(crate) mod state;
mod supply;
mod suspend;
mod switch;
mod table;
mod thread;
mod unwind;
mod wake;

pub use handle::{Builder, Coroutine, CoroutineRef, Unstarted};
pub use home::{
    Home, HomeGuard, Interest, KeptWatch, RunQueue, Since, Watch, Woken, WokenList, current_home, enter_home,
    unwind_all,
};
pub use home_cell::HomeCell;
pub use suspend::{current, in_coroutine, yield_now};
pub use unwind::Cancelled;

pub(crate) use home::is_current_home;
pub(crate) use runner::Runner;
pub(crate) use suspend::{
    Polls, forget_on_abandon, home, on_abandon, park, park_for_own, runs_inside_join, unwind_cancelled, waker,
    with_home,
};
pub(crate) use wake::{Target, wake_at};

/// The pool of coroutines: caps, trimming, statistics.
///
/// A coroutine that ends leaves its stack and control block to the next one, first on the same thread; see the fields
/// of [`Stats`](pool::Stats) for what there is to watch.
pub mod pool {
    pub use super::supply::{Reservation, Stats, reserve, stats, trim};
}
