//! The table of control blocks: a slot number leads to a block for as long as the process lives.
//!
//! Blocks are made a chunk at a time and never unmapped, so that a waker may look at the block it names whenever it
//! likes; the generation in the block's state word tells it whether its coroutine is still there.
//!
//! # Safety
//!
//! A chunk is published (Release) after its memory was mapped, and a slot's block is initialised before its number is
//! given to anyone. Whoever takes a slot owns the block until it is put back.
#![allow(unsafe_code)]

use std::io;
use std::ptr::{self, NonNull};

use super::block::Block;
use crate::primitive::Mutex;
use crate::primitive::atomic::{AtomicPtr, Ordering};
use crate::sys::mmap::Mapping;

/// Blocks in a chunk.
const CHUNK: usize = 4096;
/// Chunks at most: 16 million coroutines, or what the slot field of a 32-bit waker allows.
const CHUNKS: usize = if cfg!(target_pointer_width = "64") { 4096 } else { 256 };

/// Coroutines that there can be at a time.
pub(super) const CAPACITY: usize = CHUNK * CHUNKS;

static TABLE: [AtomicPtr<Block>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

static SLOTS: Mutex<Slots> = Mutex::new(Slots { free: Vec::new(), fresh: 0 });

struct Slots {
    /// Blocks without a stack.
    free: Vec<u32>,
    /// Slots from here on were never used.
    fresh: usize,
}

/// The block in a slot that has been in use at some time.
#[inline]
pub(super) fn get(slot: u32) -> &'static Block {
    let slot = slot as usize;
    // Acquire: pairs with the Release in `take`.
    let chunk = TABLE[slot / CHUNK].load(Ordering::Acquire);
    debug_assert!(!chunk.is_null());
    // SAFETY: the slot was given out, so its chunk was published and its block initialised before; both stay for ever.
    unsafe { &*chunk.add(slot % CHUNK) }
}

/// Takes a block that has no stack.
pub(super) fn take() -> io::Result<&'static Block> {
    let mut slots = SLOTS.lock();
    if let Some(slot) = slots.free.pop() {
        return Ok(get(slot));
    }
    let slot = slots.fresh;
    let Some(chunk) = TABLE.get(slot / CHUNK) else {
        let message = format!("more than {CAPACITY} coroutines at a time");
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, message));
    };
    let base = match NonNull::new(chunk.load(Ordering::Relaxed)) {
        Some(base) => base,
        None => {
            let base = Mapping::reserve(CHUNK * size_of::<Block>())?.leak().cast();
            // Release: pairs with the Acquire in `get`.
            chunk.store(base.as_ptr(), Ordering::Release);
            base
        }
    };
    slots.fresh += 1;
    // SAFETY: inside the chunk, page aligned as a whole and so aligned for blocks; nobody has this slot yet.
    unsafe {
        let place = base.add(slot % CHUNK);
        place.write(Block::new(slot as u32));
        Ok(place.as_ref())
    }
}

/// Puts a block back whose stack has been taken from it.
pub(super) fn put(block: &'static Block) {
    SLOTS.lock().free.push(block.slot.get());
}
