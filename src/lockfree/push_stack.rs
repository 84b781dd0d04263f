//! A lock-free stack that is only ever emptied whole.
//!
//! Any thread pushes one node or a chain; whoever takes, takes everything. There is no pop of a single node, and so the
//! ABA problem of lock-free free lists can't arise: `take_all` is a swap, which doesn't care what the head was, and a
//! push writes its node's link from the very head that its compare-exchange then confirms. If that head has been taken
//! and pushed again in between, it is the head again, and the link is right.
//!
//! A stack may be closed: then its head is no node, nor null, and whoever would push learns it by the same word that the
//! push would have changed. A `take_all` whose swap opens it for a moment closes it again, and has what came meanwhile.
//!
//! # Ordering
//!
//! `push` publishes the node's contents (Release) to the `take_all` or `close` (Acquire) that obtains it. Nodes below the
//! head are covered by the release sequence: every push is a read-modify-write of `head`.
//!
//! # Safety
//!
//! This file may assume that the nodes that are pushed are valid and owned by the pusher (contract of `push`). It
//! promises that each node comes out of exactly one `take_all` or `close`. Checked by the models `push_stack` and `pool`
//! of `loom-tests/`.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::{Adapter, Fifo};
use crate::primitive::atomic::{AtomicPtr, Ordering};
use crate::primitive::mutant::{mutant, ordering};

/// A stack that any thread may push to, and from which one takes all.
#[derive(Debug)]
pub(crate) struct PushStack<A: Adapter> {
    head: AtomicPtr<A::Node>,
}

impl<A: Adapter> PushStack<A> {
    /// The head of a stack that has been closed: no node is there.
    const CLOSED: *mut A::Node = NonNull::dangling().as_ptr();

    // Not const: loom's atomics register themselves when they are made.
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    #[cfg(not(all(test, loom)))]
    pub(crate) const fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Pushes one node; returns whether the stack was empty.
    ///
    /// # Safety
    ///
    /// - `node` is valid until it has been taken out again.
    /// - The caller owns `node`, and gives it up.
    /// - The stack isn't ever closed.
    pub(crate) unsafe fn push(&self, node: NonNull<A::Node>) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: passed on.
            match unsafe { self.push_onto(head, node) } {
                Ok(()) => return head.is_null(),
                Err(now) => head = now,
            }
        }
    }

    /// Pushes one node, unless the stack has been [closed](Self::close); returns whether the stack was empty. `None`: it
    /// is closed, and the node is the caller's still.
    ///
    /// # Safety
    ///
    /// - `node` is valid until it has been taken out again.
    /// - The caller owns `node`, and gives it up unless this returns `None`.
    pub(crate) unsafe fn push_if_open(&self, node: NonNull<A::Node>) -> Option<bool> {
        let mut head = self.head.load(Ordering::Relaxed);
        while head != Self::CLOSED {
            // SAFETY: passed on.
            match unsafe { self.push_onto(head, node) } {
                Ok(()) => return Some(head.is_null()),
                Err(now) => head = now,
            }
        }
        None
    }

    /// Pushes one node if `head` is the head; otherwise returns what is.
    ///
    /// # Safety
    ///
    /// - As for [`push`](Self::push), but that `node` is given up only if this succeeds.
    /// - `head` isn't `CLOSED`.
    unsafe fn push_onto(&self, head: *mut A::Node, node: NonNull<A::Node>) -> Result<(), *mut A::Node> {
        // SAFETY: valid and still ours until the exchange below succeeds (contract).
        unsafe { A::link(node.as_ref()).set(NonNull::new(head)) };
        // Release: pairs with the Acquire of `take_all` and `close`.
        let order = ordering!(Release, "push_not_released" => Relaxed);
        self.head.compare_exchange_weak(head, node.as_ptr(), order, Ordering::Relaxed).map(drop)
    }

    /// Puts a chain back if the stack is empty; otherwise returns the chain.
    ///
    /// This is how a taker that wanted only part of what it took returns the rest without walking it.
    pub(crate) fn put_back(&self, chain: Chain<A>) -> Result<(), Chain<A>> {
        let Some(first) = chain.next else { return Ok(()) };
        // Release: pairs with the Acquire of `take_all`, for links that the caller has written; what the nodes' pushers
        // wrote is covered by the release sequence, as `take_all` is a read-modify-write too.
        let order = ordering!(Release, "put_back_not_released" => Relaxed);
        match self.head.compare_exchange(ptr::null_mut(), first.as_ptr(), order, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(chain),
        }
    }

    /// Takes everything, last pushed first.
    pub(crate) fn take_all(&self) -> Chain<A> {
        // An empty stack is left alone: a swap would take the cache line from the pushers for nothing.
        if self.is_empty() {
            return Chain::new();
        }
        // Acquire: pairs with the Release of `push` and `put_back`.
        let head = self.head.swap(ptr::null_mut(), ordering!(Acquire, "take_not_acquired" => Relaxed));
        if head == Self::CLOSED && !mutant!("take_opens") {
            return self.close();
        }
        Chain { next: NonNull::new(head).filter(|_| head != Self::CLOSED), adapter: PhantomData }
    }

    /// As [`take_all`](Self::take_all); and from here on nothing can be pushed any more.
    pub(crate) fn close(&self) -> Chain<A> {
        // Acquire: pairs with the Release of `push` and `put_back`.
        let head = self.head.swap(Self::CLOSED, ordering!(Acquire, "close_not_acquired" => Relaxed));
        Chain { next: NonNull::new(head).filter(|_| head != Self::CLOSED), adapter: PhantomData }
    }

    /// Whether nothing is there at this moment.
    pub(crate) fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        head.is_null() || head == Self::CLOSED
    }
}

/// What `take_all` took: an owned chain of nodes, last pushed first.
#[derive(Debug)]
pub(crate) struct Chain<A: Adapter> {
    next: Option<NonNull<A::Node>>,
    adapter: PhantomData<A>,
}

impl<A: Adapter> Chain<A> {
    /// No nodes.
    pub(crate) const fn new() -> Self {
        Self { next: None, adapter: PhantomData }
    }

    /// The chain that starts at an owned node.
    ///
    /// # Safety
    ///
    /// `first` leads a chain whose nodes the caller owns.
    pub(crate) unsafe fn from_first(first: NonNull<A::Node>) -> Self {
        Self { next: Some(first), adapter: PhantomData }
    }

    /// The first node, still in the chain.
    pub(crate) fn first(&self) -> Option<NonNull<A::Node>> {
        self.next
    }

    /// Detaches the first node.
    pub(crate) fn pop(&mut self) -> Option<NonNull<A::Node>> {
        let node = self.next?;
        // SAFETY: the chain owns its nodes, and they are valid until taken out (contract of `push`).
        self.next = unsafe { A::link(node.as_ref()).get() };
        Some(node)
    }

    /// Adds an owned node in front.
    ///
    /// # Safety
    ///
    /// As for [`PushStack::push`].
    pub(crate) unsafe fn prepend(&mut self, node: NonNull<A::Node>) {
        // SAFETY: the caller owns the node.
        unsafe { A::link(node.as_ref()).set(self.next) };
        self.next = Some(node);
    }

    /// The nodes in the order in which they were pushed.
    pub(crate) fn into_fifo(mut self) -> Fifo<A> {
        let mut fifo = Fifo::new();
        while let Some(node) = self.pop() {
            // SAFETY: the chain owned the node.
            unsafe { fifo.push_front(node) };
        }
        fifo
    }
}
