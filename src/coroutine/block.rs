//! The control block of a coroutine.
//!
//! Blocks live in the [table](super::table), are never unmapped, and pass from tenant to tenant through the pool together
//! with a stack. Who may touch a block:
//!
//! 1. `state` is for everyone, by the rules of [`super::state`].
//! 2. The owner of a coroutine that hasn't started, on whatever thread, may touch every field: at first its creator, then
//!    whoever it was sent to.
//! 3. After the start all other fields belong to the home thread, but for rule 4.
//! 4. Whoever owns the queue entry (got [`Wake::Schedule`](super::state::Wake) from `state`) may use `links.next`, and
//!    may read `home` and `thread`: the home thread doesn't write them while `PARKED` or `SCHEDULED` is set.
//! 5. A block in the pool belongs to the pool.
//!
//! # Safety
//!
//! The rules above are kept by the files of this folder; a `&Block` alone gives no right to any field but `state`.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::mem::{self, MaybeUninit};
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

use super::home::Home;
use super::stack::Class;
use super::state::State;
use super::switch::Fiber;
use crate::lockfree::{Adapter, Fifo, Link};
use crate::pool::{PoolLinks, Pooled};

/// What a coroutine is doing, as its home thread knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In the pool, or ended.
    Free,
    /// Created, not yet entered.
    Unstarted,
    /// Entered and not suspended since: on the CPU, or waiting for a coroutine that it entered.
    Entered,
    /// Suspended by `yield_now`; its owner enters it again.
    Yielded,
    /// Suspended by `yield_now`, and standing in its home's queue for its next turn.
    Requeued,
    /// Suspended by `park`.
    Parked,
    /// Its body returned; it is about to be retired.
    Returned,
    /// Its body panicked; the thread's record has the payload.
    Panicked,
    /// It refused to be unwound, and will never be resumed.
    Abandoned,
}

/// Runs, or drops unrun, the closure in a block's storage.
pub(crate) type Entry = unsafe fn(&Block, Action);

/// What an [`Entry`] is to do with the closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Run,
    Drop,
}

/// Words of closure that fit in the block; a larger one is boxed.
const INLINE_WORDS: usize = 4;

type Storage = MaybeUninit<[usize; INLINE_WORDS]>;

/// A coroutine's control block.
#[repr(align(64))]
pub(crate) struct Block {
    pub(super) state: State,
    pub(super) links: PoolLinks<Block>,
    /// Coroutines that this one woke since it was resumed.
    pub(super) woken: UnsafeCell<Fifo<RunAdapter>>,
    pub(super) phase: Cell<Phase>,
    /// Each suspension from now on unwinds.
    pub(super) unwind: Cell<bool>,
    /// How often an unwind was raised in this coroutine; see [`super::unwind`].
    pub(super) raised: Cell<u8>,
    /// Whether it was entered while its thread was unwinding from a panic outside of it.
    pub(super) entered_unwinding: Cell<bool>,
    /// Whether its home drives it; otherwise the owner of its handle does.
    pub(super) spawned: Cell<bool>,
    pub(super) class: Cell<Class>,
    /// This block's place in the table.
    pub(super) slot: Cell<u32>,
    /// Spawned and started: its place in the thread's list of live coroutines.
    pub(super) live_index: Cell<u32>,
    /// The thread it was started on.
    pub(super) thread: Cell<u32>,
    pub(super) fiber: Fiber,
    /// Called if the coroutine is abandoned. It lives on the coroutine's stack.
    pub(super) on_abandon: Cell<Option<NonNull<dyn Fn()>>>,
    entry: Cell<Option<Entry>>,
    storage: UnsafeCell<Storage>,
    pub(super) home: UnsafeCell<Option<Arc<dyn Home>>>,
    pub(super) label: UnsafeCell<Label>,
}

// SAFETY: fields other than the atomic `state` are touched only by whoever owns them at that moment, by the rules above.
unsafe impl Sync for Block {}

const _: () = assert!(mem::size_of::<Block>() <= 256, "a control block is at most four cache lines");

impl fmt::Debug for Block {
    /// Names the block only: its fields may be another thread's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block {:p}", self)
    }
}

impl Block {
    pub(super) fn new(slot: u32) -> Self {
        Self {
            state: State::new(),
            links: PoolLinks::new(),
            woken: UnsafeCell::new(Fifo::new()),
            phase: Cell::new(Phase::Free),
            unwind: Cell::new(false),
            raised: Cell::new(0),
            entered_unwinding: Cell::new(false),
            spawned: Cell::new(false),
            class: Cell::new(Class::DEFAULT),
            slot: Cell::new(slot),
            live_index: Cell::new(0),
            thread: Cell::new(0),
            fiber: Fiber::empty(),
            on_abandon: Cell::new(None),
            entry: Cell::new(None),
            storage: UnsafeCell::new(MaybeUninit::uninit()),
            home: UnsafeCell::new(None),
            label: UnsafeCell::new(Label::default()),
        }
    }

    /// Stores the closure that the coroutine is to run.
    ///
    /// # Safety
    ///
    /// - The caller owns the block, and its storage is empty.
    /// - `f` is valid until the coroutine has ended.
    #[inline]
    pub(super) unsafe fn store<F: FnOnce()>(&self, f: F) {
        const { assert!(mem::align_of::<Storage>() == mem::align_of::<usize>()) };
        if fits_inline::<F>() {
            // SAFETY: the storage is ours, empty, and large and aligned enough.
            unsafe { self.storage.get().cast::<F>().write(f) };
            self.entry.set(Some(run_inline::<F>));
        } else {
            // SAFETY: as above; a box is one word.
            unsafe { self.storage.get().cast::<Box<F>>().write(Box::new(f)) };
            self.entry.set(Some(run_boxed::<F>));
        }
    }

    /// Runs, or drops unrun, the stored closure. Returns `false` if there is none.
    ///
    /// # Safety
    ///
    /// The caller owns the block.
    #[inline(always)]
    pub(super) unsafe fn consume(&self, action: Action) -> bool {
        let Some(entry) = self.entry.take() else { return false };
        // SAFETY: `entry` was set together with the storage, and is gone now, so this happens once.
        unsafe { entry(self, action) };
        true
    }

    /// Marks the coroutine as one that will never be resumed.
    ///
    /// # Safety
    ///
    /// The caller owns the block, and its coroutine has started and not ended.
    pub(super) unsafe fn abandon(&self) {
        self.phase.set(Phase::Abandoned);
        if let Some(hook) = self.on_abandon.take() {
            // SAFETY: the hook lives as long as the coroutine (contract of `on_abandon`).
            unsafe { hook.as_ref()() };
        }
    }

    /// The coroutine's name and origin.
    ///
    /// # Safety
    ///
    /// The caller owns the block, and doesn't keep the reference beyond the coroutine's end.
    pub(super) unsafe fn label(&self) -> &Label {
        // SAFETY: the label is written before the start only.
        unsafe { &*self.label.get() }
    }
}

const fn fits_inline<F>() -> bool {
    mem::size_of::<F>() <= mem::size_of::<Storage>() && mem::align_of::<F>() <= mem::align_of::<Storage>()
}

/// # Safety
///
/// The block's storage holds an `F`, which is taken out.
unsafe fn run_inline<F: FnOnce()>(block: &Block, action: Action) {
    // SAFETY: contract.
    let f = unsafe { block.storage.get().cast::<F>().read() };
    match action {
        Action::Run => f(),
        Action::Drop => drop(f),
    }
}

/// # Safety
///
/// The block's storage holds a `Box<F>`, which is taken out.
unsafe fn run_boxed<F: FnOnce()>(block: &Block, action: Action) {
    // SAFETY: contract.
    let f = unsafe { block.storage.get().cast::<Box<F>>().read() };
    match action {
        Action::Run => f(),
        Action::Drop => drop(f),
    }
}

/// Links blocks in queues of coroutines that are to run.
#[derive(Debug)]
pub(crate) struct RunAdapter;

// SAFETY: the link is stable. It is shared with the pool's list of free blocks; a block is never in both, since a block
// that stands in a queue isn't freed (`State::retire`).
unsafe impl Adapter for RunAdapter {
    type Node = Block;

    #[inline(always)]
    fn link(node: &Block) -> &Link<Block> {
        &node.links.next
    }
}

// SAFETY: the links are a field.
unsafe impl Pooled for Block {
    #[inline(always)]
    fn links(&self) -> &PoolLinks<Self> {
        &self.links
    }
}

/// How messages name a coroutine: by its name, if it has one, and by where it was created.
#[derive(Debug, Clone, Default)]
pub(crate) struct Label {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) location: Option<&'static Location<'static>>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "coroutine \"{name}\"")?,
            None => f.write_str("unnamed coroutine")?,
        }
        match self.location {
            Some(location) => write!(f, " (created at {location})"),
            None => Ok(()),
        }
    }
}
