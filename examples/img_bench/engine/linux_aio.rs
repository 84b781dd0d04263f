//! Linux AIO, made safe: an AIO context together with the memory that its requests use.
//!
//! One [`Context`] has a fixed number of slots, each with one block of memory and at most one request. A slot's block
//! is lent out only while the kernel doesn't own it, and all blocks are freed only after the kernel has given up the
//! last: so nothing that safe code does with a `Context` lets the kernel write where it shouldn't.
//!
//! Completions are read in user space from the ring that the kernel maps into the process, without a system call; if
//! the ring isn't of the kind known here, `io_getevents` is called instead. Either way each completion adds one to an
//! eventfd, for the event loop to wait on.
//!
//! # Safety
//!
//! What the kernel asks for, and what every block below refers to:
//!
//! 1. `io_setup` stores one context id where it is told to, which must hold zero before.
//! 2. `io_submit` reads an array of pointers and the `iocb`s behind them, and writes each `aio_key`, before it returns.
//!    It takes its own references to the files. It keeps none to the `iocb`s.
//! 3. The memory at `aio_buf` must stay, and must not be touched, from `io_submit` until the completion is seen.
//! 4. `io_getevents` fills at most as many events as it is told.
//! 5. `io_destroy` ends the context once, after waiting for what is under way; the ring is unmapped then.
//! 6. The context id is the address of the ring. The kernel alone writes its `tail` and the events before that;
//!    the process may consume events by moving `head`, from one thread at a time.
//!
//! # References
//!
//! - <https://man7.org/linux/man-pages/man2/io_submit.2.html>, and `io_setup`, `io_getevents`, `io_destroy` there
//! - `include/uapi/linux/aio_abi.h` and `struct aio_ring` in `fs/aio.c` of the Linux source

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::buffer::ALIGNMENT;
use super::{Direction, SystemCalls};

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;
const IOCB_FLAG_RESFD: u32 = 1;

const RING_MAGIC: u32 = 0xa10a_10a1;
const RING_COMPAT_FEATURES: u32 = 1;
const RING_INCOMPAT_FEATURES: u32 = 0;

/// Events per call of `io_getevents`.
const EVENTS: usize = 64;

/// `struct iocb`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Iocb {
    data: u64,
    /// `aio_key` and `aio_rw_flags`, whose order depends on the byte order; both zero here.
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

/// The head of `struct aio_ring`; events follow.
#[repr(C)]
struct RingHeader {
    id: u32,
    len: u32,
    head: u32,
    tail: u32,
    magic: u32,
    compat_features: u32,
    incompat_features: u32,
    header_len: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<Event>() == 32 && size_of::<RingHeader>() == 32);

/// A request for one slot's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub slot: usize,
    pub direction: Direction,
    pub offset: u64,
}

/// An AIO context on one file. See the module's documentation.
pub struct Context {
    // Ends before `blocks`: fields are dropped in this order.
    id: ContextId,
    ring: Option<Ring>,
    blocks: Blocks,
    /// For each slot, whether its request is under way and its block the kernel's. Invariant: true from the
    /// `io_submit` that accepts the request until its completion is reaped.
    kernel_owns: Vec<bool>,
    in_flight: usize,
    file: File,
    completions: Arc<File>,
    calls: SystemCalls,
    /// Scratch of `submit`.
    iocbs: Vec<Iocb>,
    /// So many calls of `submit` are still to be refused, without asking the kernel.
    #[cfg(test)]
    pub refusals: usize,
}

impl Context {
    pub fn new(file: File, slots: usize, block_size: usize) -> io::Result<Context> {
        Context::with_events(file, slots, slots, block_size)
    }

    /// A context that the kernel may refuse requests to, if it has less room for `events` than there are slots.
    pub fn with_events(file: File, events: usize, slots: usize, block_size: usize) -> io::Result<Context> {
        let id = ContextId::setup(events)?;
        Ok(Context {
            ring: Ring::of(&id),
            id,
            blocks: Blocks::new(slots, block_size)?,
            kernel_owns: vec![false; slots],
            in_flight: 0,
            file,
            completions: Arc::new(eventfd()?),
            calls: SystemCalls::default(),
            iocbs: Vec::with_capacity(slots),
            #[cfg(test)]
            refusals: 0,
        })
    }

    /// What came of `io_setup`, for people.
    pub fn describe(&self) -> &'static str {
        match self.ring {
            Some(_) => "io_setup worked, and its completion ring is read in user space",
            None => "io_setup worked, but its completion ring is of an unknown kind: io_getevents reads it",
        }
    }

    pub fn slots(&self) -> usize {
        self.kernel_owns.len()
    }

    /// Requests that the kernel has accepted, and whose completion hasn't been reaped.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The eventfd that counts completions; non-blocking.
    pub fn completions(&self) -> &Arc<File> {
        &self.completions
    }

    pub fn calls(&self) -> SystemCalls {
        self.calls
    }

    /// A slot's block.
    ///
    /// # Panics
    ///
    /// If the slot's request is under way.
    pub fn block(&mut self, slot: usize) -> &mut [u8] {
        assert!(!self.kernel_owns[slot], "the block of slot {slot} is the kernel's");
        // SAFETY: the memory is initialised, and lives as long as `self`, which stays borrowed. Nobody else uses it:
        // not the kernel, by the invariant on `kernel_owns`, nor anyone of ours, since each way to it is this one.
        unsafe { slice::from_raw_parts_mut(self.blocks.slot(slot), self.blocks.size) }
    }

    /// Hands requests to the kernel in one system call, and returns how many of them it took, from the first on.
    ///
    /// An error is about the first request; none was taken then.
    ///
    /// # Panics
    ///
    /// If a slot's request is under way already, or appears twice.
    pub fn submit(&mut self, requests: &[Request]) -> io::Result<usize> {
        #[cfg(test)]
        if self.refusals > 0 {
            self.refusals -= 1;
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        self.iocbs.clear();
        for request in requests {
            assert!(!self.kernel_owns[request.slot], "slot {} has a request under way", request.slot);
            self.kernel_owns[request.slot] = true;
            self.iocbs.push(self.iocb(request));
        }
        let mut pointers: Vec<*mut Iocb> = self.iocbs.iter_mut().map(ptr::from_mut).collect();
        self.calls.io_submit += 1;
        // SAFETY: by point of the module's list,
        // 2. `pointers` has as many pointers as it has length, each to an `Iocb` of `self.iocbs`, which lives on and
        //    isn't moved or looked at meanwhile;
        // 3. each `buffer` is a block of its own (no slot appears twice, and none is the kernel's yet: asserted), of
        //    the length given; it is now marked as the kernel's, and `Drop` waits before it is freed.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.id.0, pointers.len(), pointers.as_mut_ptr()) };
        let result = usize::try_from(taken).map_err(|_| io::Error::last_os_error());

        // What the kernel did not take is ours again.
        let taken = *result.as_ref().unwrap_or(&0);
        for request in &requests[taken..] {
            self.kernel_owns[request.slot] = false;
        }
        self.in_flight += taken;
        result
    }

    fn iocb(&self, request: &Request) -> Iocb {
        Iocb {
            data: request.slot as u64,
            key_and_flags: 0,
            opcode: match request.direction {
                Direction::Read => IOCB_CMD_PREAD,
                Direction::Write => IOCB_CMD_PWRITE,
            },
            priority: 0,
            file: self.file.as_raw_fd() as u32,
            buffer: self.blocks.slot(request.slot).expose_provenance() as u64,
            len: self.blocks.size as u64,
            offset: request.offset as i64,
            reserved: 0,
            flags: IOCB_FLAG_RESFD,
            eventfd: self.completions.as_raw_fd() as u32,
        }
    }

    /// Calls `done` with the slot and the outcome of each request that has been completed; doesn't wait.
    pub fn reap(&mut self, mut done: impl FnMut(usize, io::Result<usize>)) -> io::Result<()> {
        if self.ring.is_none() {
            return self.get_events(0, done);
        }
        while let Some(event) = self.ring.as_mut().and_then(Ring::next) {
            self.complete(event, &mut done);
        }
        Ok(())
    }

    /// Like [`reap`](Context::reap), but waits until nothing is in flight.
    pub fn drain(&mut self, mut done: impl FnMut(usize, io::Result<usize>)) -> io::Result<()> {
        while self.in_flight > 0 {
            self.get_events(1, &mut done)?;
        }
        Ok(())
    }

    /// Takes all events there are, and waits until there are `least`.
    fn get_events(&mut self, mut least: usize, mut done: impl FnMut(usize, io::Result<usize>)) -> io::Result<()> {
        loop {
            let mut events = [Event::default(); EVENTS];
            self.calls.io_getevents += 1;
            // SAFETY: by point 4, `events` has room for `EVENTS` events. No timeout is given.
            let got = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.id.0,
                    least,
                    EVENTS,
                    events.as_mut_ptr(),
                    ptr::null_mut::<libc::timespec>(),
                )
            };
            let Ok(got) = usize::try_from(got) else {
                match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    error => return Err(error),
                }
            };
            for &event in &events[..got] {
                self.complete(event, &mut done);
            }
            if got < EVENTS {
                return Ok(());
            }
            least = 0;
        }
    }

    fn complete(&mut self, event: Event, mut done: impl FnMut(usize, io::Result<usize>)) {
        let slot = event.data as usize;
        self.kernel_owns[slot] = false;
        self.in_flight -= 1;
        done(slot, usize::try_from(event.result).map_err(|_| io::Error::from_raw_os_error(-event.result as i32)));
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // The kernel must be done with `blocks` before they go. If waiting here fails, `io_destroy` waits (point 5).
        let _ = self.drain(|_, _| ());
    }
}

/// An AIO context's id; destroys it when dropped.
struct ContextId(libc::c_ulong);

impl ContextId {
    fn setup(events: usize) -> io::Result<ContextId> {
        let mut id = 0;
        let events = libc::c_uint::try_from(events).unwrap_or(libc::c_uint::MAX);
        // SAFETY: by point 1, `id` is a place for the id, and zero.
        match unsafe { libc::syscall(libc::SYS_io_setup, events, &raw mut id) } {
            0 => Ok(ContextId(id)),
            _ => Err(explain_setup(events, io::Error::last_os_error())),
        }
    }
}

impl Drop for ContextId {
    fn drop(&mut self) {
        // SAFETY: by point 5, the id came from `io_setup` and nobody else destroys it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// Says more than `error` does about a failed `io_setup`.
fn explain_setup(events: libc::c_uint, error: io::Error) -> io::Error {
    let explanation = match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINVAL) => {
            let read = |name| fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_else(|_| "unknown".into());
            format!(
                "{events} requests at a time are more than fs.aio-max-nr allows, which is {} with {} in use: {error}",
                read("aio-max-nr").trim(),
                read("aio-nr").trim()
            )
        }
        Some(libc::ENOSYS) => format!("this kernel doesn't have it: {error}"),
        Some(libc::EPERM) => format!("it is forbidden here: {error}"),
        _ => format!("io_setup failed: {error}"),
    };
    io::Error::new(error.kind(), explanation)
}

/// The completion ring of a context.
struct Ring {
    /// Invariant: points to the ring of a context that outlives this, of the validated kind.
    header: NonNull<RingHeader>,
    /// Follow `header`; as many as `len`.
    events: NonNull<Event>,
    len: u32,
}

// SAFETY: the ring is memory of the process, not of a thread, and `next` takes `&mut self`: one thread at a time
// consumes, as point 6 asks.
unsafe impl Send for Ring {}

impl Ring {
    /// The ring of a context, if it is of the known kind.
    ///
    /// The caller drops it no later than the context.
    fn of(id: &ContextId) -> Option<Ring> {
        let header = NonNull::new(ptr::with_exposed_provenance_mut::<RingHeader>(id.0 as usize))?;
        // SAFETY: by point 6 the id is the address of the ring, which is mapped and has a header. These fields are
        // written once, before `io_setup` returns; `head` and `tail` aren't read here.
        let (magic, compat, incompat, header_len, len) = unsafe {
            let header = header.as_ptr();
            (
                (*header).magic,
                (*header).compat_features,
                (*header).incompat_features,
                (*header).header_len as usize,
                (*header).len,
            )
        };
        let known = magic == RING_MAGIC
            && compat & RING_COMPAT_FEATURES == RING_COMPAT_FEATURES
            && incompat == RING_INCOMPAT_FEATURES
            && header_len == size_of::<RingHeader>()
            && len > 0;
        // SAFETY: behind the header of a ring of this kind are `len` events, in the same mapping.
        known.then(|| Ring { header, events: unsafe { header.add(1).cast() }, len })
    }

    /// Takes the next event.
    fn next(&mut self) -> Option<Event> {
        // SAFETY: by the invariant on `header`, both fields are there, and aligned. While the context is in use, the
        // kernel accesses them atomically, and this function is the only one of ours that does.
        let (head, tail) = unsafe {
            let header = self.header.as_ptr();
            (AtomicU32::from_ptr(&raw mut (*header).head), AtomicU32::from_ptr(&raw mut (*header).tail))
        };
        // Only this function moves `head`. Clamped, so that no value of the ring leads out of it.
        let at = head.load(Ordering::Relaxed) % self.len;
        // Pairs with the write barrier in the kernel between an event and the tail beyond it.
        if at == tail.load(Ordering::Acquire) % self.len {
            return None;
        }
        // SAFETY: `at` is below `len`, and by point 6 the kernel doesn't write events between `head` and `tail`.
        let event = unsafe { self.events.add(at as usize).read() };
        // The kernel may reuse the place only after the read above: hence Release.
        head.store((at + 1) % self.len, Ordering::Release);
        Some(event)
    }
}

/// One block of memory per slot, aligned for `O_DIRECT`.
struct Blocks {
    memory: NonNull<u8>,
    layout: Layout,
    /// Bytes per block.
    size: usize,
    /// Bytes from one block to the next.
    stride: usize,
}

// SAFETY: this owns its memory like a `Vec` does, and lends it out only as raw pointers.
unsafe impl Send for Blocks {}

impl Blocks {
    fn new(slots: usize, size: usize) -> io::Result<Blocks> {
        let out_of_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        // A block that isn't a multiple of a sector can't be used with O_DIRECT, but still has one of its own.
        let stride = size.max(1).checked_next_multiple_of(512).ok_or_else(out_of_memory)?;
        let total = stride.checked_mul(slots.max(1)).ok_or_else(out_of_memory)?;
        let layout = Layout::from_size_align(total, ALIGNMENT).map_err(|_| out_of_memory())?;
        // SAFETY: the layout isn't empty.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        Ok(Blocks { memory, layout, size, stride })
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        assert!((slot + 1) * self.stride <= self.layout.size(), "there is no slot {slot}");
        // SAFETY: that block is inside the allocation, as just asserted.
        unsafe { self.memory.add(slot * self.stride) }.as_ptr()
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        // SAFETY: `memory` came from `alloc_zeroed` with this layout. `Context` has seen to it that the kernel is done
        // with it, and no borrow of a block can have outlived the context.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

fn eventfd() -> io::Result<File> {
    // SAFETY: this call takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so nobody else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

#[cfg(test)]
pub mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::pattern::Pattern;

    pub const PATTERN: Pattern = Pattern { seed: 3 };

    /// A file of `len` bytes that holds the pattern.
    pub fn patterned_file(len: usize) -> File {
        let file = tempfile::tempfile().unwrap();
        let mut bytes = vec![0; len];
        PATTERN.fill(0, &mut bytes);
        file.write_all_at(&bytes, 0).unwrap();
        file
    }

    /// `None`, and a word about it, where there is no Linux AIO.
    pub fn context(file: File, events: usize, slots: usize) -> Option<Context> {
        match Context::with_events(file, events, slots, 512) {
            Ok(context) => Some(context),
            Err(error) => {
                // Not eprintln, which the test harness would hide.
                let _ = writeln!(io::stderr(), "SKIPPED: {error}");
                None
            }
        }
    }

    fn read(slot: usize) -> Request {
        Request { slot, direction: Direction::Read, offset: 512 * slot as u64 }
    }

    /// Reads all slots at once, many times, so that the ring wraps; then checks each block.
    fn read_all(context: &mut Context) {
        let requests: Vec<_> = (0..context.slots()).map(read).collect();
        for _ in 0..10 {
            let mut done = 0;
            assert_eq!(context.submit(&requests).unwrap(), requests.len());
            while context.in_flight() > 0 {
                context.reap(|_, result| done += (result.unwrap() == 512) as usize).unwrap();
            }
            assert_eq!(done, requests.len());
            for slot in 0..context.slots() {
                PATTERN.check(512 * slot as u64, context.block(slot)).unwrap();
                context.block(slot).fill(0);
            }
        }
    }

    #[test]
    fn the_ring_and_io_getevents_tell_the_same() {
        let slots = EVENTS + 30;
        let Some(mut context) = context(patterned_file(512 * slots), slots, slots) else { return };
        read_all(&mut context);
        let by_ring = context.calls();
        context.ring = None;
        read_all(&mut context);
        assert!(context.calls().io_getevents > by_ring.io_getevents);
    }

    #[test]
    fn what_the_kernel_refuses_stays_ours() {
        let Some(mut context) = context(patterned_file(4096), 4, 4) else { return };
        let beyond = Request { offset: u64::MAX, ..read(2) };
        assert_eq!(context.submit(&[read(0), read(1), beyond, read(3)]).unwrap(), 2);
        context.block(2).fill(0);
        context.block(3).fill(0);
        assert_eq!(context.submit(&[beyond]).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        context.block(2).fill(0);
        context.drain(|_, result| assert_eq!(result.unwrap(), 512)).unwrap();
        assert_eq!(context.in_flight(), 0);
    }

    #[test]
    #[should_panic = "the kernel's"]
    fn a_block_under_way_is_not_lent_out() {
        let Some(mut context) = context(patterned_file(512), 1, 1) else { panic!("not here, but the kernel's fault") };
        context.submit(&[read(0)]).unwrap();
        context.block(0);
    }

    #[test]
    #[should_panic = "under way"]
    fn a_slot_has_one_request() {
        let Some(mut context) = context(patterned_file(512), 2, 1) else { panic!("not under way here") };
        let _ = context.submit(&[read(0), read(0)]);
    }

    #[test]
    fn a_context_waits_for_its_requests_before_it_goes() {
        let Some(mut context) = context(patterned_file(512 * 64), 64, 64) else { return };
        let completions = Arc::clone(context.completions());
        let taken = context.submit(&(0..64).map(read).collect::<Vec<_>>()).unwrap();
        drop(context);
        let mut count = [0; 8];
        io::Read::read_exact(&mut &*completions, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), taken as u64);
    }

    #[test]
    fn a_depth_over_the_limit_names_it() {
        let Err(error) = Context::new(patterned_file(512), usize::MAX, 512) else { panic!("that many?") };
        assert!(error.kind() == io::ErrorKind::Unsupported || error.to_string().contains("fs.aio-max-nr"), "{error}");
    }
}
