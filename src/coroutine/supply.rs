//! Where control blocks with stacks come from, and where they go: the pool of coroutines.
//!
//! See [`crate::pool`] for how blocks travel; this file makes and destroys them, and is the pool's public face
//! (`aioco::coroutine::pool`).
//!
//! # Safety
//!
//! A block that is taken belongs to the caller; a block that is given back has ended (phase `Free`, storage empty).
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use super::block::{Block, Phase};
use super::stack::{self, CLASSES, Class, Stack};
use super::table;
use super::thread::{self, Thread, this_thread};
use crate::pool::{Batch, Release};
use crate::primitive::atomic::{AtomicU64, Ordering};
use crate::sys::mmap;

/// Coroutines that the release stack of each size class keeps, before any [`reserve`].
const DEFAULT_CAP: usize = 1024;

static RELEASE: [Release<Block>; CLASSES] = [const { Release::new(DEFAULT_CAP) }; CLASSES];
static MADE: AtomicU64 = AtomicU64::new(0);
static TRIMMED: AtomicU64 = AtomicU64::new(0);
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Takes a block with a stack of that class.
#[inline(always)]
pub(super) fn take(thread: &Thread, class: Class) -> io::Result<&'static Block> {
    // SAFETY: the reference to the pool ends with the statement.
    let pooled = unsafe { thread.pool(class) }.take(&RELEASE[class.index()]);
    let block = match pooled {
        // SAFETY: blocks are never unmapped.
        Some(block) => unsafe { block.as_ref() },
        None => make(class)?,
    };
    thread.counts.created.increment();
    Ok(block)
}

#[cold]
fn make(class: Class) -> io::Result<&'static Block> {
    // Idle coroutines of other sizes may hold what this one lacks: address space, and mappings where guards cost some.
    let stack = Stack::take(class).or_else(|_| {
        trim();
        Stack::take(class)
    })?;
    let block = match table::take() {
        Ok(block) => block,
        Err(error) => {
            stack.discard(class);
            return Err(error);
        }
    };
    block.class.set(class);
    // SAFETY: the block is ours, and blocks in the table have no stack.
    unsafe { block.fiber.set_up(stack) };
    MADE.fetch_add(1, Ordering::Relaxed);
    Ok(block)
}

/// Gives back the block of a coroutine that has ended.
///
/// # Safety
///
/// The caller owns the block and gives it up; its storage is empty, and nothing is suspended on its stack.
#[inline(always)]
pub(super) unsafe fn give(thread: &Thread, block: &'static Block) {
    debug_assert_eq!(block.phase.get(), Phase::Free);
    thread.counts.ended.increment();
    let class = block.class.get();
    // SAFETY: the reference to the pool ends with the statement; the block is ours, and never unmapped.
    let excess = unsafe { thread.pool(class).give(NonNull::from(block), &RELEASE[class.index()]) };
    if let Some(batch) = excess {
        destroy(batch);
    }
}

/// Counts a coroutine that can neither run nor be unwound; its block and stack stay as they are for ever.
pub(super) fn leak(thread: &Thread) {
    thread.counts.ended.increment();
    LEAKED.fetch_add(1, Ordering::Relaxed);
}

/// Gives the stacks of a batch back to their slabs, and their pages to the kernel.
#[cold]
fn destroy(mut batch: Batch<Block>) {
    while let Some(block) = batch.pop() {
        // SAFETY: blocks are never unmapped.
        let block: &'static Block = unsafe { block.as_ref() };
        // SAFETY: the batch owned the block, and pooled blocks have a stack that no coroutine uses.
        let stack = unsafe { block.fiber.tear_down(block.class.get()) };
        stack.discard(block.class.get());
        table::put(block);
        TRIMMED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Gives all that the thread pooled to the release stacks.
pub(super) fn donate(thread: &Thread) {
    for class in Class::all() {
        // SAFETY: the reference to the pool ends with the statement; `destroy` doesn't use the pool.
        unsafe { thread.pool(class) }.donate(&RELEASE[class.index()], destroy);
    }
}

/// Gives idle coroutines' memory back to the kernel: those of the calling thread's pool and of the release stacks, of
/// all sizes. The pools of other threads stay as they are.
///
/// Guard pages stay, and so does the address space of a slab (64 MiB for stacks of the default size) of which some
/// stack is in use.
///
/// ```
/// # use aioco::{Coroutine, coroutine::pool};
/// Coroutine::new(|| ())?.enter();
/// pool::trim();
/// assert_eq!(pool::stats().idle, 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn trim() {
    let thread = this_thread();
    for class in Class::all() {
        // SAFETY: the reference to the pool ends with the statement; `destroy` doesn't use the pool.
        unsafe { thread.pool(class) }.drain(destroy);
        RELEASE[class.index()].take_all(destroy);
    }
    stack::trim();
}

/// Raises the number of idle coroutines with default stacks that the pool keeps, by `coroutines`, until the returned
/// guard is dropped.
///
/// For a device with a known queue depth, whose coroutines all end when the queue drains and are all needed when it
/// fills again. Dropping the guard trims what is beyond the cap then.
///
/// ```
/// let queue_depth = 128;
/// let queues = 16;
/// let reservation = aioco::coroutine::pool::reserve(queue_depth * queues);
/// // … the device's life …
/// drop(reservation);
/// ```
pub fn reserve(coroutines: usize) -> Reservation {
    // More than there can be of is as good as all, and the sum of caps stays far from overflowing.
    let coroutines = coroutines.min(table::CAPACITY);
    RELEASE[Class::DEFAULT.index()].raise_cap(coroutines);
    Reservation { coroutines }
}

/// Keeps the pool's cap raised; see [`reserve`].
#[derive(Debug)]
#[must_use = "the cap is lowered when this is dropped"]
pub struct Reservation {
    coroutines: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        RELEASE[Class::DEFAULT.index()].lower_cap(self.coroutines, destroy);
    }
}

/// What the pool has done since the process started, and what it holds now. See [`stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Coroutines that have been created and have not ended.
    pub live: u64,
    /// Coroutines in the pool, of all threads together.
    pub idle: u64,
    /// Coroutines created.
    pub created: u64,
    /// Of those, how many came from the pool.
    pub hits: u64,
    /// Batches that a thread took from the release stack.
    pub refills: u64,
    /// Batches that a thread kept for itself because the release stack was at its cap.
    pub overflows: u64,
    /// Idle coroutines whose memory was given back.
    pub trimmed: u64,
    /// Coroutines that could not be unwound, and whose stacks are lost.
    pub leaked: u64,
    /// Calls of `mmap` that the crate has made.
    pub mappings: u64,
    /// Calls of `munmap`.
    pub unmappings: u64,
}

/// The pool's statistics, summed over all threads.
///
/// Each thread counts for itself; the sums are taken while the threads go on, so figures may be a few coroutines apart
/// from one another. None wraps or goes below zero.
///
/// ```
/// let before = aioco::coroutine::pool::stats();
/// aioco::Coroutine::new(|| ())?.enter();
/// assert_eq!(aioco::coroutine::pool::stats().created, before.created + 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn stats() -> Stats {
    // Ends before creations, so that no coroutine is counted as ended but not as created.
    let ended = thread::sum(|counts| &counts.ended);
    let created = thread::sum(|counts| &counts.created);
    let trimmed = TRIMMED.load(Ordering::Relaxed);
    let leaked = LEAKED.load(Ordering::Relaxed);
    let made = MADE.load(Ordering::Relaxed);
    let live = created.saturating_sub(ended);
    Stats {
        live,
        idle: made.saturating_sub(trimmed + leaked + live),
        created,
        hits: created.saturating_sub(made),
        refills: RELEASE.iter().map(Release::refills).sum(),
        overflows: RELEASE.iter().map(Release::overflows).sum(),
        trimmed,
        leaked,
        mappings: mmap::mapped(),
        unmappings: mmap::unmapped(),
    }
}
