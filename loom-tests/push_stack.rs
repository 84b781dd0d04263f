//! The stack that any thread pushes to and that is taken whole.
#![allow(unsafe_code)] // # Safety: nodes live as long as the model; each is pushed once.

use std::ptr::NonNull;
use std::rc::Rc;

use super::race;
use crate::lockfree::{Adapter, Link, PushStack};
use crate::primitive::UnsafeCell;

const PUSHERS: usize = 2;
const EACH: usize = 2;

models! {
    two_pushers_and_a_taker catches push_not_released, take_not_acquired;
}

struct Node {
    link: Link<Node>,
    /// Written just before the push.
    contents: UnsafeCell<Option<Contents>>,
}

#[derive(Clone, Copy)]
struct Contents {
    pusher: usize,
    number: usize,
}

struct NodeAdapter;

// SAFETY: the link is a field, and there is one kind of list.
unsafe impl Adapter for NodeAdapter {
    type Node = Node;

    fn link(node: &Node) -> &Link<Node> {
        &node.link
    }
}

struct Shared {
    stack: PushStack<NodeAdapter>,
    nodes: [[Node; EACH]; PUSHERS],
}

impl Shared {
    /// Pushes the nodes of one pusher; returns how often the stack was empty.
    fn push_all(&self, pusher: usize) -> usize {
        let push = |(number, node): (usize, &Node)| {
            // SAFETY: the node is this pusher's until it is pushed.
            node.contents.with_mut(|contents| unsafe { *contents = Some(Contents { pusher, number }) });
            // SAFETY: it lives as long as the stack, and is pushed once.
            unsafe { self.stack.push(NonNull::from(node)) }
        };
        self.nodes[pusher].iter().enumerate().map(push).filter(|&was_empty| was_empty).count()
    }

    /// Takes what is there, in the order in which it was pushed.
    fn take(&self) -> Vec<Contents> {
        let mut chain = self.stack.take_all().into_fifo();
        std::iter::from_fn(move || chain.pop_front())
            // SAFETY: taking a node made it ours.
            .map(|node| unsafe {
                node.as_ref().contents.with(|contents| (*contents).expect("a pushed node is filled"))
            })
            .collect()
    }
}

/// No node is lost or comes out twice; each pusher's nodes come out in its order, contents and all; and there are as
/// many pushes that found the stack empty as there are takes that found it filled, so that waking the taker after just
/// those is enough.
fn two_pushers_and_a_taker() {
    let node = || Node { link: Link::new(), contents: UnsafeCell::new(None) };
    let shared =
        Rc::new(Shared { stack: PushStack::new(), nodes: std::array::from_fn(|_| std::array::from_fn(|_| node())) });
    let (first, second, early) =
        race::three(&shared, |shared| shared.push_all(0), |shared| shared.push_all(1), |shared| shared.take());
    let late = shared.take();

    assert_eq!(first + second, [&early, &late].iter().filter(|taken| !taken.is_empty()).count());
    for pusher in 0..PUSHERS {
        let numbers: Vec<_> = early
            .iter()
            .chain(&late)
            .filter(|contents| contents.pusher == pusher)
            .map(|contents| contents.number)
            .collect();
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>());
    }
}
