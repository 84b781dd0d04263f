//! Linux AIO: what is queued is submitted in one call, and completions are taken out of the kernel's ring in user
//! memory, or waited for by a call if there are none.
//!
//! # Safety
//!
//! The kernel reads and writes blocks between the submission of a request and its completion. A block is lent while a
//! request is under way with it, and a context that is dropped first waits for all of them. The files are borrowed for
//! as long. Requests are copied by the kernel while they are submitted. A context's id is the address of its ring, which
//! is there until the context is destroyed; the kernel alone writes its tail, and we alone its head.
//!
//! References: io_setup(2), io_submit(2), io_getevents(2), io_destroy(2); `struct aio_ring` in `fs/aio.c` of the Linux
//! source.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::blocks::Blocks;
use super::{Completion, FLUSH, RawQueue, most_requests};

// `IOCB_CMD_*`.
const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC_DATA: u16 = 3;

/// A context of Linux AIO, with a block of memory for each request that it may carry out at a time.
pub struct RawAio<'files> {
    id: libc::c_ulong,
    files: Vec<BorrowedFd<'files>>,
    blocks: Blocks,
    /// What the kernel hasn't got.
    queue: Vec<libc::iocb>,
    /// Completions that a call has brought.
    seen: VecDeque<Event>,
    /// Room for what a call brings.
    events: Vec<Event>,
    in_flight: usize,
    calls: u64,
}

/// `struct io_event`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Event {
    token: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// The head of `struct aio_ring`; events follow.
#[repr(C)]
struct Ring {
    id: u32,
    len: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compatible_features: u32,
    incompatible_features: u32,
    header_len: u32,
}

impl<'files> RawAio<'files> {
    /// A context for `depth` requests of `block_size` bytes at a time. `file` is a number in `files` from here on.
    pub fn new(files: &[BorrowedFd<'files>], depth: usize, block_size: usize) -> io::Result<RawAio<'files>> {
        let most = most_requests(files.len(), depth);
        let mut id = 0;
        // SAFETY: the id is stored where there is zero.
        check(unsafe { libc::syscall(libc::SYS_io_setup, most, &raw mut id) })?;
        Ok(RawAio {
            id,
            files: files.to_vec(),
            blocks: Blocks::new(depth, block_size),
            queue: Vec::with_capacity(most as usize),
            seen: VecDeque::new(),
            events: vec![Event::default(); most as usize],
            in_flight: 0,
            calls: 0,
        })
    }

    fn transfer(&mut self, command: u16, slot: usize, file: usize, offset: u64) {
        let (block, len) = self.blocks.lend(slot);
        let mut request = self.request(command, slot as u64, file);
        request.aio_buf = block.expose_provenance() as u64;
        request.aio_nbytes = len.into();
        request.aio_offset = offset as i64;
        self.push(request);
    }

    fn request(&self, command: u16, token: u64, file: usize) -> libc::iocb {
        // SAFETY: zeroes are what all of its fields may be.
        let mut request: libc::iocb = unsafe { mem::zeroed() };
        request.aio_data = token;
        request.aio_lio_opcode = command;
        request.aio_fildes = self.files[file].as_raw_fd() as u32;
        request
    }

    fn push(&mut self, request: libc::iocb) {
        self.queue.push(request);
        self.in_flight += 1;
    }

    /// Submits what is queued, as far as the kernel takes it.
    fn submit(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            let mut pointers: Vec<*mut libc::iocb> = self.queue.iter_mut().map(ptr::from_mut).collect();
            self.calls += 1;
            // SAFETY: as many pointers to requests, each of which names a block that is lent now, or no memory.
            let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.id, pointers.len(), pointers.as_mut_ptr()) };
            match check(taken) {
                Ok(taken) => drop(self.queue.drain(..taken)),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // It takes more when something is done.
                    Some(libc::EAGAIN) if self.in_flight > self.queue.len() => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Takes a completion out of the kernel's ring.
    fn next_of_ring(&mut self) -> Option<Event> {
        /// What the kernel calls the layout that is known here.
        const MAGIC: u32 = 0xa10a_10a1;

        // SAFETY: see the head; all but head and tail doesn't change.
        let ring: &Ring = unsafe { &*ptr::with_exposed_provenance(self.id as usize) };
        if ring.magic != MAGIC || ring.incompatible_features != 0 || ring.header_len as usize != size_of::<Ring>() {
            return None;
        }
        let head = ring.head.load(Ordering::Relaxed);
        // Acquire: pairs with the kernel's barrier between an event and the tail behind it.
        if head == ring.tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: so many events follow the head, and this one is complete.
        let event = unsafe { ptr::from_ref(ring).add(1).cast::<Event>().add((head % ring.len) as usize).read() };
        // Release: pairs with the kernel's read of the head, before it uses the place again.
        ring.head.store((head + 1) % ring.len, Ordering::Release);
        Some(event)
    }
}

impl RawQueue for RawAio<'_> {
    fn block(&mut self, slot: usize) -> &mut [u8] {
        self.blocks.get(slot)
    }

    fn read(&mut self, slot: usize, file: usize, offset: u64) {
        self.transfer(READ, slot, file, offset);
    }

    fn write(&mut self, slot: usize, file: usize, offset: u64) {
        self.transfer(WRITE, slot, file, offset);
    }

    fn flush(&mut self, file: usize) {
        let request = self.request(SYNC_DATA, FLUSH, file);
        self.push(request);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn calls(&self) -> u64 {
        self.calls
    }

    fn enter(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.submit()?;
        if let Some(event) = self.next_of_ring() {
            self.seen.push_back(event);
            return Ok(());
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| timespec(left.max(Duration::from_nanos(1))));
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        self.calls += 1;
        // SAFETY: there is room for so many events.
        let got = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.id,
                1_i64,
                self.events.len() as i64,
                self.events.as_mut_ptr(),
                timeout,
            )
        };
        match check(got) {
            Ok(got) => self.seen.extend(&self.events[..got]),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn next_completion(&mut self) -> Option<Completion> {
        let Event { token, result, .. } = match self.seen.pop_front() {
            Some(event) => event,
            None => self.next_of_ring()?,
        };
        self.in_flight -= 1;
        let result = result as i32;
        if token == FLUSH {
            return Some(Completion::Flush { result });
        }
        let slot = token as usize;
        self.blocks.take_back(slot);
        Some(Completion::Transfer { slot, result })
    }
}

impl Drop for RawAio<'_> {
    fn drop(&mut self) {
        // After an error the kernel may have some of the blocks for good: so it keeps them.
        while self.in_flight > 0 && self.enter(None).is_ok() {
            while self.next_completion().is_some() {}
        }
        // SAFETY: it is destroyed once.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

/// The result of a system call that has no function of its own.
fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() }
}
