//! A pool of objects that never degrades when one thread takes and another gives back.
//!
//! ```text
//!  take ──▶ hot ──empty──▶ spare ──empty──▶ overflow ──empty──▶ release stack ──empty──▶ (the caller makes a new one)
//!  give ──▶ hot ──full───▶ spare ──full───▶ release stack ──at its cap──▶ overflow ──full──▶ (the caller trims a batch)
//!          └──────── this thread's Local ───────┘             shared Release
//! ```
//!
//! Objects travel in batches of [`BATCH`]. A thread takes one batch from the release stack and puts the others back: a
//! thread that stole everything would leave the next one with nothing. The two lists `hot` and `spare` are the
//! hysteresis: a thread that takes and gives around a boundary exchanges the two, and touches the shared stack only
//! after a whole batch in one direction.
//!
//! This room knows nothing of coroutines: what it pools is anything that carries [`PoolLinks`]. It makes no object and
//! destroys none.
//!
//! # Progress and memory
//!
//! The release stack is lock-free: a push is retried only if another thread pushed, and a taker that finds that another
//! thread pushed while it held the rest takes again. While a taker holds the rest, another taker may find the stack
//! empty; it then makes a new object, at most one batch's worth before the rest is back. The count that the cap
//! is compared with is raised before a push and lowered after a take, so it never falls below what is there, and the
//! cap may be exceeded by at most a batch a thread.
//!
//! # Safety
//!
//! Objects in the pool are valid and belong to it (contract of `push` and `give`); between threads they travel only
//! through the release stack, whose Release and Acquire carry the ownership. Checked by the model `pool` of
//! `loom-tests/`.
#![allow(unsafe_code)]

mod local;
mod release;

pub(crate) use local::Local;
pub(crate) use release::Release;

use std::ptr::NonNull;

use crate::lockfree::{Adapter, Link};
use crate::primitive::UnsafeCell;

/// Objects in a full batch.
pub(crate) const BATCH: u32 = if cfg!(all(test, loom)) { 2 } else { 64 };

/// What a pooled object carries so that the pool can link it.
#[derive(Debug)]
pub(crate) struct PoolLinks<T> {
    /// The next object in the same batch. Free for other use while the object is out of the pool.
    pub(crate) next: Link<T>,
    /// In the first object of a batch: the next batch.
    batch: Link<T>,
    /// In the first object of a batch: how many the batch has.
    len: UnsafeCell<u32>,
}

impl<T> PoolLinks<T> {
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self { next: Link::new(), batch: Link::new(), len: UnsafeCell::new(0) }
    }

    #[cfg(not(all(test, loom)))]
    pub(crate) const fn new() -> Self {
        Self { next: Link::new(), batch: Link::new(), len: UnsafeCell::new(0) }
    }
}

/// An object that can be pooled.
///
/// # Safety
///
/// `links` returns the same links for the same object at every call.
pub(crate) unsafe trait Pooled: Sized {
    /// The object's links.
    fn links(&self) -> &PoolLinks<Self>;
}

/// Links the objects of a batch.
#[derive(Debug)]
pub(crate) struct ItemAdapter<T>(std::marker::PhantomData<T>);

/// Links batches.
#[derive(Debug)]
pub(crate) struct BatchAdapter<T>(std::marker::PhantomData<T>);

// SAFETY: `Pooled::links` is stable, and no other adapter names `next` for an object that is in the pool.
unsafe impl<T: Pooled> Adapter for ItemAdapter<T> {
    type Node = T;

    #[inline(always)]
    fn link(node: &T) -> &Link<T> {
        &node.links().next
    }
}

// SAFETY: as above; only lists of batches name `batch`.
unsafe impl<T: Pooled> Adapter for BatchAdapter<T> {
    type Node = T;

    #[inline(always)]
    fn link(node: &T) -> &Link<T> {
        &node.links().batch
    }
}

/// An owned last-in first-out list of at most [`BATCH`] objects.
#[derive(Debug)]
pub(crate) struct Batch<T: Pooled> {
    items: Chain<T>,
    len: u32,
}

type Chain<T> = crate::lockfree::Chain<ItemAdapter<T>>;

impl<T: Pooled> Batch<T> {
    pub(crate) const fn new() -> Self {
        Self { items: Chain::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<NonNull<T>> {
        let item = self.items.pop()?;
        self.len -= 1;
        Some(item)
    }

    /// # Safety
    ///
    /// - `item` is valid until it has been popped again.
    /// - The caller owns `item`, and gives it up.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, item: NonNull<T>) {
        // SAFETY: passed on.
        unsafe { self.items.prepend(item) };
        self.len += 1;
    }

    /// The batch as one node: its first object, which remembers the length. `None` if it is empty.
    fn into_node(self) -> Option<NonNull<T>> {
        let first = self.items.first()?;
        // SAFETY: the batch owns its objects.
        unsafe { first.as_ref().links().len.with_mut(|len| *len = self.len) };
        Some(first)
    }

    /// # Safety
    ///
    /// `node` came from [`into_node`](Self::into_node) and is owned by the caller.
    unsafe fn from_node(node: NonNull<T>) -> Self {
        // SAFETY: the caller owns the node, which carries the length and leads the chain.
        unsafe { Self { len: node.as_ref().links().len.with(|len| *len), items: Chain::from_first(node) } }
    }
}
