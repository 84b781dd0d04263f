//! An io_uring: registered files and buffers, completions when the thread asks for them.
//!
//! # Safety
//!
//! The kernel reads and writes the ring's blocks, which are registered, between the submission of a request and its
//! completion. A block is lent while a request is under way with it, and a ring that is dropped first waits for all of
//! them. The files are registered, so that the kernel keeps them open.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::types::{Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::blocks::Blocks;
use super::{Completion, FLUSH, RawQueue, most_requests};

/// The kernel takes as many registered buffers.
const MOST_BUFFERS: usize = 1 << 14;

/// A ring, with a block of memory for each request that it may carry out at a time.
pub struct RawRing {
    ring: IoUring,
    blocks: Blocks,
    in_flight: usize,
    calls: u64,
}

impl RawRing {
    /// A ring for `depth` requests of `block_size` bytes at a time. `file` is a number in `files` from here on.
    pub fn new(files: &[BorrowedFd<'_>], depth: usize, block_size: usize) -> io::Result<RawRing> {
        if depth > MOST_BUFFERS {
            let reason = format!("{depth} blocks are more than the {MOST_BUFFERS} that a ring can register");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let entries = most_requests(files.len(), depth).next_power_of_two();
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries)?;
        let mut raw = RawRing { ring, blocks: Blocks::new(depth, block_size), in_flight: 0, calls: 0 };
        let numbers: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
        raw.ring.submitter().register_files(&numbers)?;
        // SAFETY: the memory is the ring's own, and dropped after it.
        unsafe { raw.ring.submitter().register_buffers(&raw.blocks.vectors()) }?;
        Ok(raw)
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the entry names a registered block, which is lent now, or no memory.
        unsafe { self.ring.submission().push(&entry) }.expect("an entry for each slot and flush");
        self.in_flight += 1;
    }
}

impl RawQueue for RawRing {
    fn block(&mut self, slot: usize) -> &mut [u8] {
        self.blocks.get(slot)
    }

    fn read(&mut self, slot: usize, file: usize, offset: u64) {
        let (block, len) = self.blocks.lend(slot);
        let entry = opcode::ReadFixed::new(Fixed(file as u32), block, len, slot as u16).offset(offset).build();
        self.push(entry.user_data(slot as u64));
    }

    fn write(&mut self, slot: usize, file: usize, offset: u64) {
        let (block, len) = self.blocks.lend(slot);
        let entry = opcode::WriteFixed::new(Fixed(file as u32), block, len, slot as u16).offset(offset).build();
        self.push(entry.user_data(slot as u64));
    }

    fn flush(&mut self, file: usize) {
        let entry = opcode::Fsync::new(Fixed(file as u32)).flags(FsyncFlags::DATASYNC).build();
        self.push(entry.user_data(FLUSH));
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn calls(&self) -> u64 {
        self.calls
    }

    fn enter(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.calls += 1;
        let entered = match deadline {
            None => self.ring.submit_and_wait(1),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let timespec = Timespec::from(left.max(Duration::from_nanos(1)));
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timespec))
            }
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn next_completion(&mut self) -> Option<Completion> {
        let completion = self.ring.completion().next()?;
        self.in_flight -= 1;
        let result = completion.result();
        if completion.user_data() == FLUSH {
            return Some(Completion::Flush { result });
        }
        let slot = completion.user_data() as usize;
        self.blocks.take_back(slot);
        Some(Completion::Transfer { slot, result })
    }
}

impl Drop for RawRing {
    fn drop(&mut self) {
        // After an error the kernel may have some of the blocks for good: so it keeps them.
        while self.in_flight > 0 && self.enter(None).is_ok() {
            while self.next_completion().is_some() {}
        }
    }
}
