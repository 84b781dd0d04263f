//! The stack that any thread pushes to and that is taken whole.
#![allow(unsafe_code)] // # Safety: nodes live as long as the model; each is pushed once.

use std::ptr::NonNull;
use std::rc::Rc;

use super::race;
use crate::lockfree::{Adapter, Chain, Link, PushStack};
use crate::primitive::UnsafeCell;

const PUSHERS: usize = 2;
const EACH: usize = 2;

models! {
    two_pushers_and_a_taker catches push_not_released, take_not_acquired;
    a_stack_that_is_closed catches push_not_released, close_not_acquired, take_opens;
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
    fn new() -> Rc<Self> {
        let node = || Node { link: Link::new(), contents: UnsafeCell::new(None) };
        let nodes = std::array::from_fn(|_| std::array::from_fn(|_| node()));
        Rc::new(Self { stack: PushStack::new(), nodes })
    }

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

    /// Pushes the nodes of one pusher, as long as the stack is open; returns how many it has pushed.
    fn push_while_open(&self, pusher: usize) -> usize {
        let push = |(number, node): (usize, &Node)| {
            // SAFETY: the node is this pusher's until it is pushed.
            node.contents.with_mut(|contents| unsafe { *contents = Some(Contents { pusher, number }) });
            // SAFETY: it lives as long as the stack, and is pushed once.
            unsafe { self.stack.push_if_open(NonNull::from(node)) }
        };
        self.nodes[pusher].iter().enumerate().map(push).take_while(Option::is_some).count()
    }

    /// Takes what is there, in the order in which it was pushed.
    fn take(&self) -> Vec<Contents> {
        contents(self.stack.take_all())
    }
}

/// What is in a chain, in the order in which it was pushed.
fn contents(chain: Chain<NodeAdapter>) -> Vec<Contents> {
    let mut nodes = chain.into_fifo();
    std::iter::from_fn(move || nodes.pop_front())
        // SAFETY: taking a node made it ours.
        .map(|node| unsafe { node.as_ref().contents.with(|contents| (*contents).expect("a pushed node is filled")) })
        .collect()
}

/// No node is lost or comes out twice; each pusher's nodes come out in its order, contents and all; and there are as
/// many pushes that found the stack empty as there are takes that found it filled, so that waking the taker after just
/// those is enough.
fn two_pushers_and_a_taker() {
    let shared = Shared::new();
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

/// What was pushed comes out once, of whoever takes or closes; what wasn't, doesn't; and it stays closed.
fn a_stack_that_is_closed() {
    let shared = Shared::new();
    let (pushed, taken, rest) = race::three(
        &shared,
        |shared| shared.push_while_open(0),
        |shared| shared.take(),
        |shared| contents(shared.stack.close()),
    );

    let mut numbers: Vec<_> = taken.iter().chain(&rest).map(|contents| contents.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..pushed).collect::<Vec<_>>());
    assert_eq!(shared.push_while_open(1), 0);
    assert!(shared.stack.is_empty() && shared.take().is_empty());
}
