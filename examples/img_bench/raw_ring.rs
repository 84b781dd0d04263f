//! A ring as one writes it by hand where nothing else is wanted: registered files and buffers, completions when the thread
//! asks for them. It is what the rest is measured by.
//!
//! # Safety
//!
//! The kernel reads and writes the ring's blocks, which are registered, between the submission of a request and its
//! completion. They belong to the ring, a block is lent out only while no request is under way with it, and a ring that
//! is dropped first waits for all of them. The files are registered, so that the kernel keeps them open.
#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use aioco::block::AlignedBuf;
use io_uring::types::{Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

/// Direct I/O into pages of its own is what disks like best.
const ALIGNMENT: usize = 4096;

/// The kernel takes as many registered buffers.
const MOST_BUFFERS: usize = 1 << 14;

/// A ring, with a block of memory for each request that it may carry out at a time.
pub struct RawRing {
    ring: IoUring,
    blocks: ManuallyDrop<AlignedBuf>,
    block_size: usize,
    /// Distance of blocks in memory.
    stride: usize,
    /// Whether a block is the kernel's.
    busy: Vec<bool>,
    in_flight: usize,
    enters: u64,
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

impl RawRing {
    /// A ring for `depth` requests of `block_size` bytes at a time. `file` is a number in `files` from here on.
    pub fn new(files: &[BorrowedFd<'_>], depth: usize, block_size: usize) -> io::Result<RawRing> {
        if depth > MOST_BUFFERS {
            let reason = format!("{depth} blocks are more than the {MOST_BUFFERS} that a ring can register");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        // One for each block. Between two flushes of a file so many transfers complete that two of them are queued at most.
        let entries = (depth + 2 * files.len()).next_power_of_two() as u32;
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries)?;
        let stride = block_size.next_multiple_of(ALIGNMENT);
        let blocks = ManuallyDrop::new(AlignedBuf::new(stride * depth, ALIGNMENT));
        let mut raw = RawRing { ring, blocks, block_size, stride, busy: vec![false; depth], in_flight: 0, enters: 0 };
        let numbers: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
        raw.ring.submitter().register_files(&numbers)?;
        let vectors: Vec<_> =
            (0..depth).map(|slot| libc::iovec { iov_base: raw.address(slot).cast(), iov_len: block_size }).collect();
        // SAFETY: the memory is the ring's own, and stays until its drop has taken the registration back.
        unsafe { raw.ring.submitter().register_buffers(&vectors) }?;
        Ok(raw)
    }

    fn address(&mut self, slot: usize) -> *mut u8 {
        self.blocks[slot * self.stride..].as_mut_ptr()
    }

    /// The block of a slot.
    ///
    /// # Panics
    ///
    /// If the slot's request is under way.
    pub fn block(&mut self, slot: usize) -> &mut [u8] {
        assert!(!self.busy[slot], "the kernel has this block");
        &mut self.blocks[slot * self.stride..][..self.block_size]
    }

    /// Queues a read from a file into a slot's block.
    ///
    /// # Panics
    ///
    /// If the slot's request is under way.
    pub fn read(&mut self, slot: usize, file: usize, offset: u64) {
        let (len, block) = (self.block_size as u32, self.block(slot).as_mut_ptr());
        let entry = opcode::ReadFixed::new(Fixed(file as u32), block, len, slot as u16).offset(offset).build();
        self.transfer(slot, entry);
    }

    /// Queues a write of a slot's block to a file.
    ///
    /// # Panics
    ///
    /// If the slot's request is under way.
    pub fn write(&mut self, slot: usize, file: usize, offset: u64) {
        let (len, block) = (self.block_size as u32, self.block(slot).as_ptr());
        let entry = opcode::WriteFixed::new(Fixed(file as u32), block, len, slot as u16).offset(offset).build();
        self.transfer(slot, entry);
    }

    fn transfer(&mut self, slot: usize, entry: squeue::Entry) {
        self.busy[slot] = true;
        self.push(entry.user_data(slot as u64));
    }

    /// Queues a flush of a file's data. There is room for two of each file.
    pub fn flush(&mut self, file: usize) {
        let entry = opcode::Fsync::new(Fixed(file as u32)).flags(FsyncFlags::DATASYNC).build();
        self.push(entry.user_data(FLUSH));
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the entry names a registered block, which is busy now, or no memory.
        unsafe { self.ring.submission().push(&entry) }.expect("an entry for each slot and flush");
        self.in_flight += 1;
    }

    /// How many requests are queued or under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// System calls so far.
    pub fn enters(&self) -> u64 {
        self.enters
    }

    /// Submits what is queued, and waits for a completion, until `deadline` if there is one.
    pub fn enter(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.enters += 1;
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

    /// Takes out a completion, if there is one.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let completion = self.ring.completion().next()?;
        self.in_flight -= 1;
        let result = completion.result();
        if completion.user_data() == FLUSH {
            return Some(Completion::Flush { result });
        }
        let slot = completion.user_data() as usize;
        self.busy[slot] = false;
        Some(Completion::Transfer { slot, result })
    }
}

impl Drop for RawRing {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.enter(None).is_err() {
                // The kernel may have the blocks for good: so it keeps them.
                return;
            }
            while self.next_completion().is_some() {}
        }
        // SAFETY: the kernel has none of them any more, and they are dropped once.
        unsafe { ManuallyDrop::drop(&mut self.blocks) };
    }
}
