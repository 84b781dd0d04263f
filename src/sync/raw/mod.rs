//! The machines under the doors of [`sync`](super): no data, no guards.
//!
//! - [`wait_list`]: the engine, a list of waiters that live on their own stacks; [`wait`]: how a waiter waits and leaves.
//! - [`gate`]: a word that says who is in, and a queue of those who aren't; on it [`mutex`], [`rwlock`] and
//!   [`semaphore`], each a rule of a few lines.
//! - [`wait_queue`], [`threshold`] and [`channel`], on the list itself.
//! - [`holder`] and [`readers`] know who holds what, to report a coroutine that waits for itself.

pub(super) mod channel;
pub(crate) mod gate;
pub(super) mod holder;
pub(super) mod mutex;
mod readers;
pub(super) mod rwlock;
pub(super) mod semaphore;
pub(super) mod threshold;
mod wait;
pub(super) mod wait_list;
pub(super) mod wait_queue;
