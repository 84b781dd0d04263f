//! The machines under the doors of [`sync`](super): no data, no guards.
//!
//! - [`wait_list`]: the engine, a list of waiters that live on their own stacks; [`wait`]: how a waiter waits and leaves.
//! - [`gate`]: a word that says who is in, and a queue of those who aren't; on it [`mutex`], [`rwlock`] and
//!   [`semaphore`], each a rule of a few lines.
//! - [`wait_queue`], [`threshold`] and [`channel`], on the list itself; [`event`], [`barrier`] and [`task_group`], on the
//!   wait queue; [`pending`]: how async code waits for a channel.
//! - [`awake`]: when waiting without suspending may pay.
//! - [`holder`] and [`readers`] know who holds what, to report a coroutine that waits for itself.

mod awake;
pub(crate) mod barrier;
pub(crate) mod channel;
pub(crate) mod event;
pub(crate) mod gate;
pub(crate) mod holder;
pub(crate) mod mutex;
pub(crate) mod pending;
mod readers;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod task_group;
pub(crate) mod threshold;
mod wait;
pub(crate) mod wait_list;
pub(crate) mod wait_queue;
