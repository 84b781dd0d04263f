//! Intrusive lists: [`PushStack`] (push from any thread, take all) and [`Fifo`] (the owner's queue).
//!
//! Nodes are linked through a [`Link`] that they hold; an [`Adapter`] says which one, so that a type may stand in two
//! lists of different kinds at once.

mod fifo;
mod link;
mod push_stack;

pub(crate) use fifo::Fifo;
pub(crate) use link::{Adapter, Link};
pub(crate) use push_stack::{Chain, PushStack};
