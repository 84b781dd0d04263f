//! The kernel's interfaces as one uses them by hand where nothing else is wanted: what the rest is measured by.

mod blocks;
mod linux_aio;
mod ring;

use std::io;
use std::time::Instant;

pub use linux_aio::RawAio;
pub use ring::RawRing;

/// Requests by the kernel's hand, with a block of memory for each slot.
pub trait RawQueue {
    /// The block of a slot.
    ///
    /// # Panics
    ///
    /// If the slot's request is under way.
    fn block(&mut self, slot: usize) -> &mut [u8];

    /// Queues a read from a file into a slot's block.
    ///
    /// # Panics
    ///
    /// If the slot's request is under way.
    fn read(&mut self, slot: usize, file: usize, offset: u64);

    /// Queues a write of a slot's block to a file.
    ///
    /// # Panics
    ///
    /// If the slot's request is under way.
    fn write(&mut self, slot: usize, file: usize, offset: u64);

    /// Queues a flush of a file's data. There is room for two of each file.
    fn flush(&mut self, file: usize);

    /// How many requests are queued or under way.
    fn in_flight(&self) -> usize;

    /// System calls so far.
    fn calls(&self) -> u64;

    /// Submits what is queued, and waits for a completion, until `deadline` if there is one.
    fn enter(&mut self, deadline: Option<Instant>) -> io::Result<()>;

    /// Takes out a completion, if there is one.
    fn next_completion(&mut self) -> Option<Completion>;
}

/// What has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The transfer of this block: how much was moved, or a negative error number.
    Transfer { slot: usize, result: i32 },
    /// A flush: 0, or a negative error number.
    Flush { result: i32 },
}

/// The token of flushes; those of transfers are the numbers of their blocks.
const FLUSH: u64 = u64::MAX;

/// How many requests there may be at a time: one for each block. Between two flushes of a file so many transfers
/// complete that two of them are queued at most.
fn most_requests(files: usize, depth: usize) -> u32 {
    (depth + 2 * files) as u32
}
