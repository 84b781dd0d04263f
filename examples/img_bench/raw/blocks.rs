//! The memory of a queue: a block for each slot, which is the queue's or the kernel's.
#![allow(unsafe_code)] // # Safety: memory that the kernel may still have isn't freed.

use std::mem::ManuallyDrop;

use aioco::block::AlignedBuf;

/// Direct I/O into pages of its own is what disks like best.
const ALIGNMENT: usize = 4096;

pub struct Blocks {
    memory: ManuallyDrop<AlignedBuf>,
    block_size: usize,
    /// Distance of blocks in memory.
    stride: usize,
    /// Whether a block is the kernel's.
    lent: Vec<bool>,
}

impl Blocks {
    pub fn new(depth: usize, block_size: usize) -> Blocks {
        let stride = block_size.next_multiple_of(ALIGNMENT);
        let memory = ManuallyDrop::new(AlignedBuf::new(stride * depth, ALIGNMENT));
        Blocks { memory, block_size, stride, lent: vec![false; depth] }
    }

    /// All of them, as the kernel wants to know them.
    pub fn vectors(&mut self) -> Vec<libc::iovec> {
        let (block_size, starts) = (self.block_size, self.memory.chunks_mut(self.stride));
        starts.map(|block| libc::iovec { iov_base: block.as_mut_ptr().cast(), iov_len: block_size }).collect()
    }

    /// The block of a slot.
    ///
    /// # Panics
    ///
    /// If it is lent.
    pub fn get(&mut self, slot: usize) -> &mut [u8] {
        assert!(!self.lent[slot], "the kernel has this block");
        &mut self.memory[slot * self.stride..][..self.block_size]
    }

    /// Lends a block to the kernel; returns where it is, and how long.
    ///
    /// # Panics
    ///
    /// If it is lent.
    pub fn lend(&mut self, slot: usize) -> (*mut u8, u32) {
        let start = self.get(slot).as_mut_ptr();
        self.lent[slot] = true;
        (start, self.block_size as u32)
    }

    /// Takes a block back, with which the kernel is done.
    pub fn take_back(&mut self, slot: usize) {
        self.lent[slot] = false;
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        if !self.lent.contains(&true) {
            // SAFETY: it is dropped once.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
