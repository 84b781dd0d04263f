//! The link of an intrusive list.
//!
//! # Safety
//!
//! A link is touched only by the owner of its node (contract of `get` and `set`); ownership passes between threads
//! through the Release and Acquire of the list that carries the node.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::primitive::UnsafeCell;

/// A node's pointer to the next one. It belongs to whoever owns the node: to the list while the node is in one.
#[derive(Debug)]
pub(crate) struct Link<T>(UnsafeCell<Option<NonNull<T>>>);

impl<T> Link<T> {
    // Not const: loom's cell registers itself when it is made.
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    #[cfg(not(all(test, loom)))]
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline(always)]
    pub(super) unsafe fn get(&self) -> Option<NonNull<T>> {
        // SAFETY: the caller owns the node, and with it the link.
        self.0.with(|next| unsafe { *next })
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline(always)]
    pub(super) unsafe fn set(&self, next: Option<NonNull<T>>) {
        // SAFETY: the caller owns the node, and with it the link.
        self.0.with_mut(|link| unsafe { *link = next });
    }
}

/// Names the link through which a list connects nodes of type `Node`.
///
/// # Safety
///
/// `link` returns the same link for the same node at every call, and no two kinds of list that may hold a node at once
/// name the same link.
pub(crate) unsafe trait Adapter {
    /// What the list holds.
    type Node;

    /// The link inside the node.
    fn link(node: &Self::Node) -> &Link<Self::Node>;
}
