//! Bottom halves: callbacks that a loop runs on its own thread.
//!
//! A bottom half is scheduled from any thread, without a lock, and runs once in the loop's next turn, however often it
//! was scheduled until then. Bottom halves run in the order in which they were scheduled. One that is scheduled while
//! they run has its turn in the next; a nested turn, from within a callback, first runs those that the outer one has
//! not run yet. It doesn't enter one again that is running: that has its turn when it has returned.
//!
//! What the loop's own thread schedules goes straight to the loop's queue, behind what other threads have scheduled
//! before: that takes no atomic exchange but the one of the flags.
//!
//! # Safety
//!
//! The queue owns a reference count of each node in it (`Arc::into_raw`); a node is pushed by whoever set its `QUEUED`
//! flag ([`BhState`]), so its link has one owner. A callback is touched on the context's thread only ([`HomeCell`]).
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::bh_state::{BhState, Duty, Urgency};
use super::shared::Shared;
use crate::coroutine::HomeCell;
use crate::lockfree::{Adapter, Fifo, Link, PushStack};

/// A callback that an [`AioContext`](super::AioContext) runs when it has been scheduled. Made by
/// [`bottom_half`](super::Local::bottom_half).
///
/// It belongs to the context's thread; other threads schedule it through a [`Trigger`].
///
/// # Dropping
///
/// deletes it: it doesn't run again, also if it has been scheduled. It may be dropped from within its own callback.
pub struct BottomHalf {
    trigger: Trigger,
    /// Neither `Send` nor `Sync`: the callback isn't.
    marker: PhantomData<*mut ()>,
}

impl BottomHalf {
    pub(super) fn new(context: &Arc<Shared>, callback: impl FnMut() + 'static) -> Self {
        let callback = context.local.sibling(Some(Callback::Repeated(Box::new(callback))));
        let node = Node::new(context, callback);
        Self { trigger: Trigger { node: Arc::new(node) }, marker: PhantomData }
    }

    /// Has it run in the next turn.
    pub fn schedule(&self) {
        self.trigger.schedule();
    }

    /// Has it run when there is time: with the next turn that has other work, and otherwise within 10 ms. It doesn't
    /// count as progress.
    pub fn schedule_idle(&self) {
        self.trigger.schedule_idle();
    }

    /// Takes back all schedules that have not led to a run.
    pub fn cancel(&self) {
        self.trigger.cancel();
    }

    /// What other threads schedule it by.
    pub fn trigger(&self) -> Trigger {
        self.trigger.clone()
    }
}

impl Drop for BottomHalf {
    fn drop(&mut self) {
        let node = &self.trigger.node;
        node.state.delete();
        // While it runs, the callback is with the loop, which drops it.
        drop(node.callback.with(Option::take));
    }
}

impl fmt::Debug for BottomHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BottomHalf").finish_non_exhaustive()
    }
}

/// Schedules a [`BottomHalf`] from any thread. Once the bottom half has been deleted, or its context has ended, it does
/// nothing.
#[derive(Clone)]
pub struct Trigger {
    node: Arc<Node>,
}

impl Trigger {
    /// Has it run in the next turn. What was written before this call is visible to the callback.
    pub fn schedule(&self) {
        self.act_on(self.node.state.schedule());
    }

    /// Has it run when there is time; see [`BottomHalf::schedule_idle`].
    pub fn schedule_idle(&self) {
        self.act_on(self.node.state.schedule_idle());
    }

    /// Takes back all schedules that have not led to a run. A run may have begun already, unless this is the context's
    /// thread.
    pub fn cancel(&self) {
        self.node.state.cancel();
    }

    fn act_on(&self, duty: Duty) {
        if duty == Duty::Nothing {
            return;
        }
        let act = |context: &Shared| match duty {
            Duty::Push => context.push_bottom_half(self.node.clone()),
            _ => context.published(),
        };
        // A loop that runs here is there: that takes no count of it.
        if !Shared::with_current(&self.node.context, act)
            && let Some(context) = self.node.context.upgrade()
        {
            act(&context);
        }
    }
}

impl fmt::Debug for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trigger").finish_non_exhaustive()
    }
}

/// A bottom half.
pub(super) struct Node {
    link: Link<Node>,
    state: BhState,
    context: Weak<Shared>,
    /// `None` while it runs, and after the end.
    callback: HomeCell<Option<Callback>>,
}

enum Callback {
    Repeated(Box<dyn FnMut()>),
    Once(Box<dyn FnOnce()>),
}

// SAFETY: the link is touched by the owner of the queue entry, the callback on its home thread (`HomeCell`, which also
// keeps it from being dropped elsewhere), the rest is atomic or shared.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

impl Node {
    fn new(context: &Arc<Shared>, callback: HomeCell<Option<Callback>>) -> Self {
        Self { link: Link::new(), state: BhState::new(), context: Arc::downgrade(context), callback }
    }

    /// A node that runs `f` once, already marked as scheduled, made on the context's thread.
    pub(super) fn once(context: &Arc<Shared>, f: impl FnOnce() + 'static) -> Arc<Self> {
        let callback = context.local.sibling(Some(Callback::Once(Box::new(f))));
        Self::scheduled(context, callback)
    }

    /// As [`once`](Self::once), made on any thread.
    pub(super) fn once_sent(context: &Arc<Shared>, f: impl FnOnce() + Send + 'static) -> Arc<Self> {
        // SAFETY: `f` is `Send`.
        let callback = unsafe { context.local.sendable_sibling(Some(Callback::Once(Box::new(f)))) };
        Self::scheduled(context, callback)
    }

    fn scheduled(context: &Arc<Shared>, callback: HomeCell<Option<Callback>>) -> Arc<Self> {
        let node = Self::new(context, callback);
        let duty = node.state.schedule();
        debug_assert_eq!(duty, Duty::Push);
        Arc::new(node)
    }

    /// Runs the callback, if it is to run. Returns whether that counts as progress.
    fn run(self: &Arc<Self>) -> bool {
        let (urgency, callback) = self.callback.with(|callback| {
            if callback.is_none() && !self.state.is_deleted() {
                // It is running, further out.
                self.state.postpone();
                return (Urgency::Never, None);
            }
            match self.state.dequeue() {
                Urgency::Never => (Urgency::Never, None),
                urgency => (urgency, callback.take()),
            }
        });
        match callback {
            Some(Callback::Once(f)) => f(),
            Some(Callback::Repeated(f)) => {
                let mut running = Running { node: self, callback: Some(f) };
                if let Some(f) = &mut running.callback {
                    f();
                }
            }
            None => {}
        }
        urgency == Urgency::Now
    }
}

/// A callback that runs; put back afterwards, also after a panic, unless the bottom half was deleted meanwhile.
struct Running<'a> {
    node: &'a Arc<Node>,
    callback: Option<Box<dyn FnMut()>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.node.state.is_deleted() {
            return;
        }
        let callback = self.callback.take().map(Callback::Repeated);
        self.node.callback.with(|place| *place = callback);
        if self.node.state.take_postponed()
            && let Some(context) = self.node.context.upgrade()
        {
            context.push_bottom_half(self.node.clone());
        }
    }
}

struct BhAdapter;

// SAFETY: the link is a field, and of one kind of list.
unsafe impl Adapter for BhAdapter {
    type Node = Node;

    fn link(node: &Node) -> &Link<Node> {
        &node.link
    }
}

/// Bottom halves that any thread has scheduled and the loop has not seen.
pub(super) struct Scheduled(PushStack<BhAdapter>);

// SAFETY: the stack is shared through atomics; it owns a count of each node, which may be dropped anywhere.
unsafe impl Send for Scheduled {}
// SAFETY: as above.
unsafe impl Sync for Scheduled {}

impl Scheduled {
    pub(super) fn new() -> Self {
        Self(PushStack::new())
    }

    /// Adds a node whose `QUEUED` flag the caller has set.
    pub(super) fn push(&self, node: Arc<Node>) {
        // SAFETY: the count that goes into the queue keeps the node; whoever set `QUEUED` owns the link.
        unsafe { self.0.push(into_node(node)) };
    }

    /// Takes out all, and drops them: for a context that has ended.
    pub(super) fn clear(&self) {
        let mut queue = Queue::new();
        queue.refill(self);
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The loop's own queue.
pub(super) struct Queue {
    /// Those that have their turn now, and haven't run.
    due: Fifo<BhAdapter>,
    /// Those that have been scheduled since, as far as the loop has seen it.
    next: Fifo<BhAdapter>,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { due: Fifo::new(), next: Fifo::new() }
    }

    /// Adds a node whose `QUEUED` flag this thread has set, behind all that have been scheduled before.
    pub(super) fn push(&mut self, node: Arc<Node>, scheduled: &Scheduled) {
        self.next.append(&mut scheduled.0.take_all().into_fifo());
        // SAFETY: the count that goes into the queue keeps the node; whoever set `QUEUED` owns the link.
        unsafe { self.next.push_back(into_node(node)) };
    }

    /// Gives all that have been scheduled since their turn, in their order.
    pub(super) fn refill(&mut self, scheduled: &Scheduled) {
        self.due.append(&mut self.next);
        self.due.append(&mut scheduled.0.take_all().into_fifo());
    }

    /// Whether none has its turn.
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Takes out the first that has its turn.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        // SAFETY: the queue owned the count.
        self.due.pop_front().map(|node| Entry(unsafe { Arc::from_raw(node.as_ptr()) }))
    }

    /// How soon the most urgent of those that have their turn wants to run.
    pub(super) fn urgency(&self) -> Urgency {
        let mut most = Urgency::Never;
        self.due.for_each(|node| most = most.max(node.state.urgency()));
        most
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.due.append(&mut self.next);
        while self.pop().is_some() {}
    }
}

/// A bottom half out of the queue.
pub(super) struct Entry(Arc<Node>);

impl Entry {
    /// Runs it, if it is still to run. Returns whether that counts as progress.
    pub(super) fn run(self) -> bool {
        self.0.run()
    }
}

fn into_node(node: Arc<Node>) -> NonNull<Node> {
    // SAFETY: an Arc's pointer isn't null.
    unsafe { NonNull::new_unchecked(Arc::into_raw(node).cast_mut()) }
}
