//! A queue of one owner: two pointers, no allocation.
//!
//! # Safety
//!
//! The nodes in the list are valid and belong to it (contract of the `push_*` functions); the list is not shared
//! between threads.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::Adapter;

/// A first-in first-out list of nodes that it owns.
#[derive(Debug)]
pub(crate) struct Fifo<A: Adapter> {
    ends: Option<Ends<A::Node>>,
}

/// The first and the last node; the last one's link is stale.
type Ends<T> = (NonNull<T>, NonNull<T>);

impl<A: Adapter> Fifo<A> {
    pub(crate) const fn new() -> Self {
        Self { ends: None }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_none()
    }

    /// The node at the front, still in the list.
    #[inline]
    pub(crate) fn first(&self) -> Option<NonNull<A::Node>> {
        self.ends.map(|(first, _)| first)
    }

    /// Adds a node at the end.
    ///
    /// # Safety
    ///
    /// - `node` is valid until it has been taken out again.
    /// - The caller owns `node`, and gives it up.
    #[inline]
    pub(crate) unsafe fn push_back(&mut self, node: NonNull<A::Node>) {
        self.ends = match self.ends {
            None => Some((node, node)),
            Some((first, last)) => {
                // SAFETY: the list owns its nodes.
                unsafe { A::link(last.as_ref()).set(Some(node)) };
                Some((first, node))
            }
        };
    }

    /// Adds a node at the front.
    ///
    /// # Safety
    ///
    /// As for [`push_back`](Self::push_back).
    #[inline]
    pub(crate) unsafe fn push_front(&mut self, node: NonNull<A::Node>) {
        self.ends = match self.ends {
            None => Some((node, node)),
            Some((first, last)) => {
                // SAFETY: the caller owns the node.
                unsafe { A::link(node.as_ref()).set(Some(first)) };
                Some((node, last))
            }
        };
    }

    /// Calls `f` with each node, from the front.
    pub(crate) fn for_each(&self, mut f: impl FnMut(&A::Node)) {
        let Some((first, last)) = self.ends else { return };
        let mut node = first;
        loop {
            // SAFETY: the list owns its nodes.
            f(unsafe { node.as_ref() });
            if node == last {
                return;
            }
            // SAFETY: the list owns its nodes, and this is not the last, so its link leads to the next.
            match unsafe { A::link(node.as_ref()).get() } {
                Some(next) => node = next,
                None => return,
            }
        }
    }

    /// Detaches the node at the front.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<NonNull<A::Node>> {
        let (first, last) = self.ends?;
        self.ends = if first == last {
            None
        } else {
            // SAFETY: the list owns its nodes, and `first` is not the last, so its link leads to the next.
            let next = unsafe { A::link(first.as_ref()).get() };
            next.map(|next| (next, last))
        };
        Some(first)
    }

    /// Moves all of `other` before the nodes of this list, order kept.
    #[inline]
    pub(crate) fn prepend(&mut self, other: &mut Self) {
        let Some((first, last)) = other.ends.take() else { return };
        self.ends = match self.ends {
            None => Some((first, last)),
            Some((old_first, old_last)) => {
                // SAFETY: both lists own their nodes.
                unsafe { A::link(last.as_ref()).set(Some(old_first)) };
                Some((first, old_last))
            }
        };
    }

    /// Moves all of `other` behind the nodes of this list, order kept.
    #[inline]
    pub(crate) fn append(&mut self, other: &mut Self) {
        other.prepend(self);
        std::mem::swap(self, other);
    }
}
