//! The control block of a coroutine.
//!
//! Blocks live in the [table](super::table), are never unmapped, and pass from tenant to tenant through the pool
//! together with a stack. Who may touch a block:
//!
//! 1. `state` is for everyone, by the rules of [`super::state`].
//! 2. The owner of a coroutine that hasn't started, on whatever thread, may touch every field: at first its creator (or
//!    the list of newborns of the creator's thread), then whoever it was sent to.
//! 3. After the start all other fields belong to the home thread, but for rule 4.
//! 4. Whoever owns the queue entry (got [`Wake::Schedule`](super::state::Wake) from `state`) may use `links.next`, and
//!    may read `home`: the home thread doesn't write it while `PARKED` or `SCHEDULED` is set, and then it is counted.
//! 5. A block in the pool belongs to the pool.
//!
//! # Safety
//!
//! The rules above are kept by the files of this folder; a `&Block` alone gives no right to any field but `state`.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::home::Home;
use super::label::Label;
use super::root;
use super::stack::Class;
use super::state::State;
use super::switch::Fiber;
use crate::lockfree::{Adapter, Fifo, Link};
use crate::pool::{PoolLinks, Pooled};
use crate::primitive::atomic::AtomicU32;

/// What a coroutine is doing, as its home thread knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In the pool, or in the last queue of a coroutine that has ended.
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
    /// Its body returned.
    Returned,
    /// Its body panicked, and left the payload in the thread's record.
    Panicked,
    /// It refused to be unwound, and will never be resumed.
    Abandoned,
}

/// What a coroutine has beyond the plain one that yields and returns: whoever finds this empty after a switch has
/// nothing to look after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extras(u16);

impl Extras {
    pub(super) const NONE: Self = Self(0);
    /// Its home drives it; otherwise the owner of its handle does.
    pub(super) const SPAWNED: Self = Self(1 << 0);
    /// `home` is set, and counted.
    pub(super) const HOME: Self = Self(1 << 1);
    /// It has a name.
    pub(super) const NAME: Self = Self(1 << 2);
    /// `woken` isn't empty.
    pub(super) const WOKEN: Self = Self(1 << 3);
    /// It is to unwind: each of its suspensions raises.
    pub(super) const UNWIND: Self = Self(1 << 4);
    /// It was entered while its thread was unwinding from a panic outside of it.
    pub(super) const ENTERED_UNWINDING: Self = Self(1 << 5);
    /// `on_abandon` is set.
    pub(super) const ABANDON_HOOK: Self = Self(1 << 6);
    /// No handle owns it: when it ends, its block is freed at once.
    pub(super) const DETACHED: Self = Self(1 << 7);
    /// It can't go on: the payload of a panic is to be picked up, or its stack is to be given up.
    pub(super) const BROKEN: Self = Self(1 << 8);
    /// It stands in the `woken` list of a coroutine of its own thread, or in the list that its loop took over from
    /// there.
    pub(super) const QUEUED_HERE: Self = Self(1 << 9);
    /// It stands in its thread's list of newborns.
    pub(super) const NEWBORN: Self = Self(1 << 10);
    /// `home` is set, but belongs to another; see [`super::newborn`].
    pub(super) const BORROWED_HOME: Self = Self(1 << 11);
    /// It waits for a newborn that runs inside of it.
    pub(super) const JOINING: Self = Self(1 << 12);
    /// It stands in its thread's list of live coroutines.
    pub(super) const LIVE: Self = Self(1 << 13);
    /// It polls a future, and hasn't parked since that began; see [`Polls`](super::suspend::Polls).
    pub(super) const POLLS: Self = Self(1 << 14);
    /// Whoever ends it waits for that: it is to unwind without suspending again.
    pub(super) const END_NOW: Self = Self(1 << 15);

    pub(super) const fn with(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    pub(super) const fn without(self, less: Self) -> Self {
        Self(self.0 & !less.0)
    }

    pub(super) const fn has(self, some: Self) -> bool {
        self.0 & some.0 != 0
    }
}

/// Runs, or drops unrun, the closure in a block's storage. Run, it is the entry function of the block's fiber, at whose
/// end it leaves the stack. It doesn't unwind: the payload of a panic is left in the thread's record.
pub(crate) type Entry = unsafe extern "C" fn(&'static Block, Action);

/// What an [`Entry`] is to do with the closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Action {
    Run,
    Drop,
}

/// Words of closure that fit in the block; a larger one is boxed.
const INLINE_WORDS: usize = 4;

type Storage = [MaybeUninit<usize>; INLINE_WORDS];

/// A coroutine's control block. What the life of a plain coroutine touches comes first, in two cache lines.
#[repr(C, align(64))]
pub(crate) struct Block {
    pub(super) fiber: Fiber,
    pub(super) state: State,
    pub(super) phase: Cell<Phase>,
    pub(super) class: Cell<Class>,
    pub(super) extras: Cell<Extras>,
    /// The thread that it belongs to: set when a spawned coroutine starts, and when any parks.
    pub(super) thread: AtomicU32,
    pub(super) links: PoolLinks<Block>,
    entry: Cell<Entry>,
    storage: UnsafeCell<Storage>,
    pub(super) label: UnsafeCell<Label>,
    /// Coroutines that this one woke since it was resumed.
    pub(super) woken: UnsafeCell<Fifo<RunAdapter>>,
    pub(super) home: UnsafeCell<Option<Arc<dyn Home>>>,
    /// Called if the coroutine is abandoned. It lives on the coroutine's stack.
    pub(super) on_abandon: Cell<Option<NonNull<dyn Fn()>>>,
    /// This block's place in the table.
    pub(super) slot: Cell<u32>,
    /// Its place in the thread's list of live coroutines.
    pub(super) live_index: Cell<u32>,
    /// How often an unwind was raised in this coroutine; see [`super::unwind`].
    pub(super) raised: Cell<u8>,
}

// SAFETY: fields other than the atomic `state` are touched only by whoever owns them at that moment, by the rules
// above.
unsafe impl Sync for Block {}

#[cfg(jump_switch)]
const _: () = assert!(
    mem::size_of::<Block>() == 192 && mem::offset_of!(Block, storage) == 64 && mem::offset_of!(Block, woken) == 112,
    "a control block is three cache lines, of which a plain coroutine touches two"
);

impl fmt::Debug for Block {
    /// Names the block only: its fields may be another thread's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block {:p}", self)
    }
}

impl Block {
    pub(super) fn new(slot: u32) -> Self {
        Self {
            fiber: Fiber::empty(),
            state: State::new(),
            phase: Cell::new(Phase::Free),
            class: Cell::new(Class::DEFAULT),
            extras: Cell::new(Extras::NONE),
            thread: AtomicU32::new(0),
            links: PoolLinks::new(),
            entry: Cell::new(no_body),
            storage: UnsafeCell::new([MaybeUninit::uninit(); INLINE_WORDS]),
            label: UnsafeCell::new(Label::none()),
            woken: UnsafeCell::new(Fifo::new()),
            home: UnsafeCell::new(None),
            on_abandon: Cell::new(None),
            slot: Cell::new(slot),
            live_index: Cell::new(0),
            raised: Cell::new(0),
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
        // SAFETY: the storage is ours, empty, and large and aligned enough: a box is one word.
        unsafe {
            if fits_inline::<F>() {
                write_words(self.storage.get(), f);
                self.entry.set(run_inline::<F>);
            } else {
                write_words(self.storage.get(), Box::new(f));
                self.entry.set(run_boxed::<F>);
            }
        }
    }

    /// What was stored.
    #[inline(always)]
    pub(super) fn entry(&self) -> Entry {
        self.entry.get()
    }

    /// Adds to the extras.
    #[inline]
    pub(super) fn add_extra(&self, extra: Extras) {
        self.set_extras(self.extras.get().with(extra));
    }

    /// Takes from the extras.
    #[inline]
    pub(super) fn remove_extra(&self, extra: Extras) {
        self.set_extras(self.extras.get().without(extra));
    }

    /// Writes the extras whole, where the compiler would write the byte that changes: the next one to read both bytes
    /// would wait until that has left the store buffer.
    #[inline]
    fn set_extras(&self, extras: Extras) {
        // SAFETY: the cell's own place, and nobody has a reference to what is in a cell.
        unsafe { self.extras.as_ptr().write_volatile(extras) };
    }

    /// Whether the coroutine has this extra.
    #[inline(always)]
    pub(super) fn has(&self, extra: Extras) -> bool {
        self.extras.get().has(extra)
    }

    /// Drops what the extras say is there, before the block goes back to the pool.
    ///
    /// # Safety
    ///
    /// The caller owns the block, whose coroutine has ended.
    #[cold]
    pub(super) unsafe fn clear_extras(&self) {
        let borrowed = self.has(Extras::BORROWED_HOME);
        self.extras.set(Extras::NONE);
        self.raised.set(0);
        // SAFETY: ours (contract).
        unsafe {
            let home = mem::take(&mut *self.home.get());
            if borrowed {
                mem::forget(home);
            }
            *self.label.get() = Label::none();
        }
    }

    /// Gives the coroutine a home.
    ///
    /// # Safety
    ///
    /// The caller owns the block, which has no home, and no other thread has a queue entry of it.
    pub(super) unsafe fn set_home(&self, home: Arc<dyn Home>) {
        // SAFETY: ours, and read by nobody else (contract).
        unsafe { *self.home.get() = Some(home) };
        self.add_extra(Extras::HOME);
    }

    /// Gives the coroutine the home of another, without counting that.
    ///
    /// # Safety
    ///
    /// - As for [`set_home`](Self::set_home).
    /// - `lender` is the calling thread's, and its home lives until this coroutine ends or has its own.
    #[inline]
    pub(super) unsafe fn borrow_home(&self, lender: &Self) {
        // SAFETY: both are ours (contract). The copy isn't dropped, as the extra tells `clear_extras`.
        unsafe { ptr::copy_nonoverlapping(lender.home.get(), self.home.get(), 1) };
        self.add_extra(Extras::BORROWED_HOME);
    }

    /// Counts the home, if it is borrowed.
    ///
    /// # Safety
    ///
    /// The caller owns the block.
    pub(super) unsafe fn own_home(&self) {
        if self.has(Extras::BORROWED_HOME) {
            // SAFETY: ours (contract). From here on the copy in the block is the one that is counted.
            mem::forget(unsafe { (*self.home.get()).clone() });
            self.set_extras(self.extras.get().without(Extras::BORROWED_HOME).with(Extras::HOME));
        }
    }

    /// Whether `home` is its home.
    ///
    /// # Safety
    ///
    /// The block is the calling thread's.
    #[inline]
    pub(super) unsafe fn is_driven_by(&self, home: &dyn Home) -> bool {
        // SAFETY: contract.
        let own = unsafe { (*self.home.get()).as_deref() };
        own.is_some_and(|own| ptr::addr_eq(own, home))
    }

    /// Marks the coroutine as one that will never be resumed.
    ///
    /// # Safety
    ///
    /// The caller owns the block, and its coroutine has started and not ended.
    pub(super) unsafe fn abandon(&self) {
        self.phase.set(Phase::Abandoned);
        self.add_extra(Extras::BROKEN);
        if self.has(Extras::ABANDON_HOOK)
            && let Some(hook) = self.on_abandon.take()
        {
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

/// The entry of a block that has never had a body.
unsafe extern "C" fn no_body(_: &'static Block, _: Action) {
    unreachable!("a coroutine without a body was started");
}

const fn fits_inline<F>() -> bool {
    mem::size_of::<F>() <= mem::size_of::<Storage>() && mem::align_of::<F>() <= mem::align_of::<Storage>()
}

/// Writes a value, a whole word at a time.
///
/// It is read back within nanoseconds, while the writes are still in the CPU's store buffer, and a read that needs two
/// of them, or a part of memory beside one, waits until they have left it. So both sides use the same units: volatile,
/// for the compiler would combine them.
///
/// # Safety
///
/// `T` fits into the storage, to which the caller may write.
#[inline(always)]
unsafe fn write_words<T>(storage: *mut Storage, value: T) {
    let mut words = [MaybeUninit::uninit(); INLINE_WORDS];
    // SAFETY: `T` fits (contract), and only words of the two arrays are copied.
    unsafe {
        words.as_mut_ptr().cast::<T>().write(value);
        for (i, word) in words.iter().enumerate().take(words_of::<T>()) {
            storage.cast::<MaybeUninit<usize>>().add(i).write_volatile(*word);
        }
    }
}

/// Reads a value that [`write_words`] wrote.
///
/// # Safety
///
/// The storage holds a `T`, and is the caller's, who takes the value out.
#[inline(always)]
unsafe fn read_words<T>(storage: *const Storage) -> T {
    let mut words = [MaybeUninit::uninit(); INLINE_WORDS];
    // SAFETY: as in `write_words`.
    unsafe {
        for (i, word) in words.iter_mut().enumerate().take(words_of::<T>()) {
            *word = storage.cast::<MaybeUninit<usize>>().add(i).read_volatile();
        }
        words.as_ptr().cast::<T>().read()
    }
}

const fn words_of<T>() -> usize {
    mem::size_of::<T>().div_ceil(mem::size_of::<usize>())
}

/// # Safety
///
/// - The block's storage holds an `F`, which is taken out.
/// - To run it: called by `Fiber::start`.
unsafe extern "C" fn run_inline<F: FnOnce()>(block: &'static Block, action: Action) {
    // SAFETY: contract.
    let f = unsafe { read_words::<F>(block.storage.get()) };
    match action {
        Action::Run => root::run(block, f),
        Action::Drop => root::discard(f),
    }
}

/// # Safety
///
/// - The block's storage holds a `Box<F>`, which is taken out.
/// - To run it: called by `Fiber::start`.
unsafe extern "C" fn run_boxed<F: FnOnce()>(block: &'static Block, action: Action) {
    // SAFETY: contract.
    let f = unsafe { read_words::<Box<F>>(block.storage.get()) };
    match action {
        Action::Run => root::run(block, f),
        Action::Drop => root::discard(f),
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
