//! Memory for buffers, in chunks that rings can register.
//!
//! The process reserves one range of addresses, of which chunks of [`CHUNK`] bytes become memory as they are needed. So
//! whether a buffer is in a chunk, and in which, is a subtraction and a shift. Blocks are whole pages of a chunk, the
//! lowest ones that are free: few chunks are used much, and those are worth registering. What is too small or too
//! large, or finds no room, is for the heap.
//!
//! # A chunk that a ring has registered
//!
//! is pinned: the kernel keeps references to the pages that the chunk had then, and moves the data of requests to and
//! from those, whatever the addresses mean by the time. So as long as it is pinned, its addresses must mean these
//! pages:
//!
//! - Chunks are never unmapped, and their pages are given back (`MADV_DONTNEED`, after which the addresses mean new
//!   pages) only while no ring has them pinned. Both are decided under the same lock.
//! - The kernel itself neither migrates, merges nor swaps out pinned pages.
//! - After a fork, the pages that a parent writes to are others than those of its child. For pinned pages the kernel
//!   makes the copies at the fork, and gives them to the child; the parent keeps its own (since Linux 5.19, which also
//!   is the first that has tables for this). The child's addresses mean the copies, which nobody has pinned; its own
//!   rings may pin them anew.
//! - Nobody else may change what the addresses of a block mean: whoever owns the block mustn't unmap, remap or discard
//!   it. (That takes unsafe code, and isn't its memory to unmap.)
//!
//! A block that is freed may be lent again while its chunk is pinned: a request of the former owner is over by then,
//! since it had borrowed the block.
//!
//! A child that was forked while another thread was in here finds the lock taken, as with most locks.
//!
//! # Safety
//!
//! A block is lent to one owner at a time, which the bits of its chunk say, under the lock. `pin` and `unpin` are
//! paired by their callers.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::ptr::{self, NonNull};

use crate::primitive::Mutex;
use crate::primitive::atomic::{AtomicUsize, Ordering};
use crate::sys::mmap::{Mapping, commit, reserve_address_space};

/// Bytes of a chunk: what a ring registers as a whole.
pub(crate) const CHUNK: usize = 1 << 20;

/// Blocks are multiples of this.
const PAGE: usize = 4096;

const PAGES: usize = CHUNK / PAGE;

/// How many chunks there are addresses for.
const MAX_CHUNKS: usize = if usize::BITS >= 64 { 4096 } else { 128 };

const SIZE: usize = MAX_CHUNKS * CHUNK;

/// So many chunks keep their pages though nothing in them is lent, and nobody has them pinned.
const MAX_IDLE: usize = 16;

/// Where the range is; before it is reserved, at the end of all addresses, where only the kernel has any.
static BASE: AtomicUsize = AtomicUsize::new(NOWHERE);

const NOWHERE: usize = usize::MAX - SIZE + 1;

static STATE: Mutex<State> = Mutex::new(State { is_refused: false, chunks: Vec::new(), first: 0, idle: 0 });

struct State {
    /// Whether there is no range to be had.
    is_refused: bool,
    /// Those that are memory, from the lowest one on.
    chunks: Vec<Chunk>,
    /// Those before this one are full.
    first: usize,
    /// How many have pages, but are neither lent nor pinned.
    idle: usize,
}

/// What is known of a chunk.
#[derive(Debug, Clone)]
struct Chunk {
    /// A bit for each page that is lent.
    lent: [u64; PAGES / 64],
    lent_pages: usize,
    /// The pages from here on have never been lent since they were zeroes.
    fresh: usize,
    /// In how many rings it is registered.
    pins: u32,
}

impl Chunk {
    const NEW: Self = Self { lent: [0; PAGES / 64], lent_pages: 0, fresh: 0, pins: 0 };

    /// Where so many pages in a row are free, at the lowest place.
    fn find(&self, count: usize) -> Option<usize> {
        let mut start = 0;
        let mut page = 0;
        while page < start + count {
            if start + count > PAGES {
                return None;
            }
            let rest = self.lent[page / 64] >> (page % 64);
            match rest.trailing_zeros() as usize {
                0 => {
                    page += rest.trailing_ones() as usize;
                    start = page;
                }
                // The zeroes that are shifted in aren't the word's.
                free => page += free.min(64 - page % 64),
            }
        }
        Some(start)
    }

    fn set(&mut self, start: usize, count: usize, is_lent: bool) {
        for page in start..start + count {
            let bit = 1 << (page % 64);
            debug_assert_eq!(self.lent[page / 64] & bit != 0, !is_lent);
            self.lent[page / 64] ^= bit;
        }
        match is_lent {
            true => self.lent_pages += count,
            false => self.lent_pages -= count,
        }
    }

    fn is_idle(&self) -> bool {
        self.lent_pages == 0 && self.pins == 0 && self.fresh != 0
    }
}

impl State {
    /// The lowest chunk that has so many free pages in a row, and the first of them.
    fn find(&mut self, count: usize) -> Option<(usize, usize)> {
        while self.chunks.get(self.first).is_some_and(|chunk| chunk.lent_pages == PAGES) {
            self.first += 1;
        }
        let may_have = |(_, chunk): &(usize, &Chunk)| PAGES - chunk.lent_pages >= count;
        let mut chunks = self.chunks.iter().enumerate().skip(self.first).filter(may_have);
        chunks.find_map(|(index, chunk)| Some((index, chunk.find(count)?)))
    }

    /// Makes one more chunk memory.
    fn grow(&mut self) -> Option<()> {
        if self.is_refused || self.chunks.len() == MAX_CHUNKS {
            return None;
        }
        if BASE.load(Ordering::Relaxed) == NOWHERE {
            let Ok(base) = reserve_address_space(SIZE) else {
                self.is_refused = true;
                return None;
            };
            // Relaxed: under the lock, and whoever has an address in the range has got it from here.
            BASE.store(base.as_ptr().expose_provenance(), Ordering::Relaxed);
        }
        // SAFETY: it is part of the range, and the first that nobody uses.
        unsafe { commit(address(self.chunks.len(), 0), CHUNK) }.ok()?;
        self.chunks.push(Chunk::NEW);
        Some(())
    }

    /// Lends so many pages. Returns how many of them may not be zeroes: the first ones.
    fn lend(&mut self, index: usize, start: usize, count: usize) -> usize {
        let chunk = &mut self.chunks[index];
        self.idle -= usize::from(chunk.is_idle());
        chunk.set(start, count, true);
        let used = chunk.fresh.saturating_sub(start).min(count);
        chunk.fresh = chunk.fresh.max(start + count);
        used
    }

    /// Takes pages back. Returns whether the chunk's pages are to be [discarded](Self::discard).
    fn free(&mut self, index: usize, start: usize, count: usize) -> bool {
        self.chunks[index].set(start, count, false);
        self.first = self.first.min(index);
        self.rest(index)
    }

    /// See `free`: if the chunk isn't needed any more, and enough of those are kept for others.
    fn rest(&mut self, index: usize) -> bool {
        let is_idle = self.chunks[index].is_idle();
        let discards = is_idle && self.idle == MAX_IDLE;
        self.idle += usize::from(is_idle && !discards);
        discards
    }

    /// Gives the pages of a chunk back.
    ///
    /// # Safety
    ///
    /// This is the state that is under the lock; nothing in the chunk is lent, and it isn't pinned: see the head.
    unsafe fn discard(&mut self, index: usize) {
        // SAFETY: contract.
        match unsafe { Mapping::discard(address(index, 0), CHUNK) } {
            true => self.chunks[index].fresh = 0,
            // They are locked, and stay.
            false => self.idle += 1,
        }
    }
}

/// Where a page of a chunk is. There is a range.
fn address(index: usize, page: usize) -> NonNull<u8> {
    let address = BASE.load(Ordering::Relaxed) + index * CHUNK + page * PAGE;
    NonNull::new(ptr::with_exposed_provenance_mut(address)).expect("the range isn't at the end of all addresses")
}

/// Lends a block of zeroes, if there is room for one like that.
pub(crate) fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    if layout.size() < PAGE || layout.size() > CHUNK || layout.align() > PAGE {
        return None;
    }
    let count = layout.size().div_ceil(PAGE);
    let mut state = STATE.lock();
    let (index, start) = match state.find(count) {
        Some(place) => place,
        None => {
            state.grow()?;
            (state.chunks.len() - 1, 0)
        }
    };
    let used = state.lend(index, start, count);
    drop(state);
    let block = address(index, start);
    // SAFETY: the block is ours.
    unsafe { block.write_bytes(0, used * PAGE) };
    Some(block)
}

/// Takes a block back.
///
/// # Safety
///
/// It was [lent](allocate), with this layout, and isn't used any more.
pub(crate) unsafe fn free(start: NonNull<u8>, layout: Layout) {
    let offset = start.addr().get() - BASE.load(Ordering::Relaxed);
    let index = offset / CHUNK;
    let mut state = STATE.lock();
    if state.free(index, offset % CHUNK / PAGE, layout.size().div_ceil(PAGE)) {
        // SAFETY: under the lock; `free` has said so.
        unsafe { state.discard(index) };
    }
}

/// The chunk that has these bytes, if one has.
#[inline]
pub(crate) fn chunk_of(start: *const u8, len: usize) -> Option<usize> {
    // Relaxed: whoever has an address in the range has got it from here.
    let offset = start.addr().wrapping_sub(BASE.load(Ordering::Relaxed));
    (offset < SIZE && offset % CHUNK + len <= CHUNK).then_some(offset / CHUNK)
}

/// Keeps the pages of a chunk, in which something is lent, from being given back. Returns where it begins.
pub(crate) fn pin(chunk: usize) -> NonNull<u8> {
    let mut state = STATE.lock();
    debug_assert!(state.chunks[chunk].lent_pages != 0);
    state.chunks[chunk].pins += 1;
    address(chunk, 0)
}

/// Takes one [`pin`] back.
///
/// # Safety
///
/// No ring has the chunk registered by this pin any more.
pub(crate) unsafe fn unpin(chunk: usize) {
    let mut state = STATE.lock();
    state.chunks[chunk].pins -= 1;
    if state.rest(chunk) {
        // SAFETY: under the lock; `rest` has said so.
        unsafe { state.discard(chunk) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_pages_that_are_free_are_lent() {
        let mut chunk = Chunk::NEW;
        assert_eq!(chunk.find(PAGES), Some(0));
        chunk.set(0, 60, true);
        chunk.set(70, 58, true);
        assert_eq!((chunk.find(1), chunk.find(10), chunk.find(11)), (Some(60), Some(60), Some(128)));
        assert_eq!((chunk.find(128), chunk.find(129)), (Some(128), None));
        chunk.set(128, 128, true);
        assert_eq!((chunk.find(10), chunk.find(11)), (Some(60), None));
        chunk.set(60, 10, true);
        assert_eq!((chunk.find(1), chunk.lent_pages), (None, PAGES));
        chunk.set(255, 1, false);
        assert_eq!((chunk.find(1), chunk.find(2)), (Some(255), None));
        chunk.set(63, 2, false);
        assert_eq!((chunk.find(1), chunk.find(2), chunk.find(3)), (Some(63), Some(63), None));
    }

    #[test]
    fn blocks_are_zeroes_again_and_none_is_lent_twice() {
        let layout = |pages: usize| Layout::from_size_align(pages * PAGE, PAGE).expect("a layout");
        let mut blocks: Vec<(NonNull<u8>, Layout, u8)> = Vec::new();
        let mut seed = 1u64;
        for round in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = (seed >> 33) as usize;
            if random % 5 < 2 && !blocks.is_empty() {
                let (start, layout, mark) = blocks.swap_remove(random % blocks.len());
                // SAFETY: it is ours.
                unsafe {
                    assert!(std::slice::from_raw_parts(start.as_ptr(), layout.size()).iter().all(|&b| b == mark));
                    free(start, layout);
                }
            } else if blocks.len() < 100 {
                let layout = layout([1, 1, 2, 7, 64, 100, 256][random % 7]);
                let start = allocate(layout).expect("there is room");
                let mark = round as u8 | 1;
                // SAFETY: it is ours.
                unsafe {
                    assert!(std::slice::from_raw_parts(start.as_ptr(), layout.size()).iter().all(|&b| b == 0));
                    start.write_bytes(mark, layout.size());
                }
                blocks.push((start, layout, mark));
            }
        }
        for (start, layout, _) in blocks {
            // SAFETY: it is ours.
            unsafe { free(start, layout) };
        }
    }

    #[test]
    fn what_is_neither_lent_nor_pinned_is_discarded_but_for_a_few() {
        const COUNT: usize = MAX_IDLE + 10;
        let mut state = State { is_refused: true, chunks: vec![Chunk::NEW; COUNT], first: 0, idle: 0 };
        let lend_all = |state: &mut State, used| {
            for index in 0..COUNT {
                assert_eq!(state.find(PAGES), Some((index, 0)));
                assert_eq!(state.lend(index, 0, PAGES), used);
            }
            assert!(state.find(1).is_none() && state.grow().is_none());
        };
        // Nobody has their memory, which isn't there: they are only marked.
        let discarded = |state: &mut State| {
            let discarded: Vec<_> = (0..COUNT).filter(|&index| state.free(index, 0, PAGES)).collect();
            discarded.iter().for_each(|&index| state.chunks[index].fresh = 0);
            discarded.len()
        };
        lend_all(&mut state, 0);
        state.chunks.iter_mut().for_each(|chunk| chunk.pins = 1);
        assert_eq!((discarded(&mut state), state.idle), (0, 0), "they are pinned");
        lend_all(&mut state, PAGES);
        state.chunks.iter_mut().for_each(|chunk| chunk.pins = 0);
        assert_eq!((discarded(&mut state), state.idle), (10, MAX_IDLE));
        assert_eq!(state.lend(0, 0, 1), 1, "its pages were kept");
        assert_eq!(state.lend(COUNT - 1, 0, 1), 0, "those are fresh ones");
        assert_eq!(state.idle, MAX_IDLE - 1);
    }
}
