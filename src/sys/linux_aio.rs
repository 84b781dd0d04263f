//! Linux AIO: requests that are handed to the kernel many at a time, and a ring in user memory that their completions
//! are read from without a system call.
//!
//! # Safety
//!
//! What the kernel asks for, and promises, which the blocks below refer to by number:
//!
//! 1. `io_setup` stores an id where it is told to, where there has to be zero before.
//! 2. `io_submit` reads an array of pointers and the entries behind them, and writes to these, before it returns. It
//!    takes references of its own to the files; it has read the vectors, but not the buffers.
//! 3. Buffers have to stay, and to be left alone, from `io_submit` until the completion has been seen.
//! 4. `io_getevents` fills no more events than it is told to.
//! 5. `io_destroy` returns when the kernel has let go of all buffers; the ring is unmapped then.
//! 6. The id is the address of the ring. The kernel alone moves its tail, and writes the events in front of that; the
//!    process takes events by moving the head, one thread at a time.
//!
//! Buffers are the concern of whoever [submits](Context::submit) entries; all else is local or owned here.
//!
//! References: io_setup(2), io_submit(2), io_getevents(2), io_destroy(2); the layout of the ring is `struct aio_ring`
//! in `fs/aio.c` of the Linux source.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use super::eventfd::EventFd;
#[cfg(test)]
use super::fault;
use super::file::{Call, What};
use crate::primitive::atomic::{AtomicU32, Ordering};

/// Completions in one call, where it takes a call.
const EVENTS: usize = 64;

/// `IOCB_FLAG_RESFD`: an eventfd is signalled on completion.
const SIGNALS: u32 = 1;

/// `struct iocb`: a request.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Entry {
    token: u64,
    #[cfg(target_endian = "big")]
    rw_flags: i32,
    /// The kernel's.
    key: u32,
    #[cfg(target_endian = "little")]
    rw_flags: i32,
    command: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: u64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Event {
    token: u64,
    entry: u64,
    result: i64,
    result2: i64,
}

/// The head of `struct aio_ring`; events follow.
#[repr(C)]
struct Header {
    id: u32,
    len: u32,
    head: u32,
    tail: u32,
    magic: u32,
    compatible_features: u32,
    incompatible_features: u32,
    header_len: u32,
}

const _: () = assert!(size_of::<Entry>() == 64 && size_of::<Event>() == 32 && size_of::<Header>() == 32);

/// Whether Linux AIO has requests like this.
pub(crate) fn can(what: &What) -> bool {
    command(what).is_some()
}

/// `IOCB_CMD_*`.
fn command(what: &What) -> Option<u16> {
    match what {
        What::Read { .. } => Some(0),
        What::Write { .. } => Some(1),
        What::Sync { data_only: false } => Some(2),
        What::Sync { data_only: true } => Some(3),
        What::ReadVectored { .. } => Some(7),
        What::WriteVectored { .. } => Some(8),
        What::Allocate { .. } => None,
    }
}

impl Entry {
    /// A request, and the token that comes back with its completion, of which `eventfd` is told.
    ///
    /// # Panics
    ///
    /// If there are no such requests: see [`can`].
    pub(crate) fn new(call: &Call, token: u64, eventfd: &EventFd) -> Self {
        #[cfg(test)]
        let call = &fault::on_request(*call, token);
        let (buffer, len) = match call.what {
            What::Read { buffer, len } => (buffer.expose_provenance(), len),
            What::Write { buffer, len } => (buffer.expose_provenance(), len),
            What::ReadVectored { vectors, count } | What::WriteVectored { vectors, count } => {
                (vectors.expose_provenance(), count)
            }
            What::Sync { .. } | What::Allocate { .. } => (0, 0),
        };
        Self {
            token,
            key: 0,
            rw_flags: call.flags,
            command: command(&call.what).expect("a request that Linux AIO has"),
            priority: 0,
            file: call.fd as u32,
            buffer: buffer as u64,
            len: len.into(),
            offset: call.offset,
            reserved: 0,
            flags: SIGNALS,
            eventfd: eventfd.as_fd().as_raw_fd() as u32,
        }
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }
}

/// An AIO context of the kernel's.
#[derive(Debug)]
pub(crate) struct Context {
    // Ends before the id, whose end unmaps it.
    ring: Option<Ring>,
    id: Id,
    /// Scratch of `submit`.
    pointers: Vec<*mut Entry>,
}

impl Context {
    /// Makes a context with room for at least so many requests, which count against `fs.aio-max-nr`.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if that is exhausted; and what the kernel, or a filter, says of one of the calls that it takes.
    pub(crate) fn new(requests: u32) -> io::Result<Self> {
        let id = Id::new(requests)?;
        let mut context = Self { ring: Ring::of(&id), id, pointers: Vec::new() };
        // A filter may forbid these alone.
        // SAFETY: no entries are submitted.
        unsafe { context.submit(&mut [])? };
        context.get(0, 0, |_, _| ())?;
        Ok(context)
    }

    /// Hands entries to the kernel, in one call; returns how many it has taken, from the first on.
    ///
    /// # Errors
    ///
    /// An error is about the first entry, and none was taken; `EAGAIN`: it takes no more for now.
    ///
    /// # Safety
    ///
    /// What an entry's call names is valid as [`Call::run`] demands it, and used for nothing else that conflicts, until
    /// the completion with its token has been taken out, or the context has been dropped. (Vectors themselves only
    /// until this returns.)
    pub(crate) unsafe fn submit(&mut self, entries: &mut [Entry]) -> io::Result<usize> {
        #[cfg(test)]
        let entries = match entries.is_empty() {
            true => entries,
            false => fault::on_submit(entries)?,
        };
        self.pointers.clear();
        self.pointers.extend(entries.iter_mut().map(ptr::from_mut));
        // SAFETY: 2, as many pointers to entries as it is told, both exclusively borrowed; 3, the contract.
        let taken =
            unsafe { libc::syscall(libc::SYS_io_submit, self.id.0, self.pointers.len(), self.pointers.as_mut_ptr()) };
        check(taken)
    }

    /// Takes out the completions that are there: token and result, where a negative one is an error's number. Takes no
    /// system call, unless the ring [is hidden](Self::is_hidden).
    pub(crate) fn completions(&mut self, mut each: impl FnMut(u64, i64)) -> io::Result<()> {
        let Some(ring) = &mut self.ring else {
            while self.get(0, EVENTS, &mut each)? == EVENTS {}
            return Ok(());
        };
        while let Some(event) = ring.next() {
            tell(event, &mut each);
        }
        Ok(())
    }

    /// Waits for a completion, and takes out some.
    pub(crate) fn wait(&mut self, each: impl FnMut(u64, i64)) -> io::Result<()> {
        self.get(1, EVENTS, each).map(drop)
    }

    /// Whether a look at user memory shows a completion.
    pub(crate) fn has_completions(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| !ring.is_empty())
    }

    /// Whether user memory shows no completions: the kernel's ring isn't of the kind that is known here.
    pub(crate) fn is_hidden(&self) -> bool {
        self.ring.is_none()
    }

    fn get(&mut self, least: usize, most: usize, mut each: impl FnMut(u64, i64)) -> io::Result<usize> {
        let mut events = [Event::default(); EVENTS];
        let most = most.min(EVENTS);
        let no_timeout = ptr::null_mut::<libc::timespec>();
        let events_at = events.as_mut_ptr();
        let got = super::retry(|| {
            // SAFETY: 4, there is room for so many.
            check(unsafe { libc::syscall(libc::SYS_io_getevents, self.id.0, least, most, events_at, no_timeout) })
        })?;
        events[..got].iter().for_each(|&event| tell(event, &mut each));
        Ok(got)
    }
}

fn tell(event: Event, each: &mut impl FnMut(u64, i64)) {
    #[cfg(test)]
    let event = Event { result: fault::result(event.token, event.result), ..event };
    each(event.token, event.result);
}

/// The result of a system call that has no function of its own.
fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A context's id; it ends with it.
#[derive(Debug)]
struct Id(libc::c_ulong);

impl Id {
    fn new(requests: u32) -> io::Result<Self> {
        #[cfg(test)]
        fault::on_setup()?;
        let mut id = 0;
        // SAFETY: 1.
        check(unsafe { libc::syscall(libc::SYS_io_setup, requests, &raw mut id) })?;
        Ok(Self(id))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: 5, it is destroyed once. (In a process that was forked from the one whose it is, the call fails.)
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// The ring of a context, which outlives it.
#[derive(Debug)]
struct Ring {
    header: NonNull<Header>,
    /// As many as `len`.
    events: NonNull<Event>,
    len: u32,
}

impl Ring {
    /// The ring of this context, if it is of the known kind. It is dropped no later than the context.
    fn of(id: &Id) -> Option<Self> {
        const MAGIC: u32 = 0xa10a_10a1;
        const COMPATIBLE: u32 = 1;
        let header = NonNull::new(ptr::with_exposed_provenance_mut::<Header>(id.0 as usize))?;
        // SAFETY: 6, there is a header, whose fields but for `head` and `tail` were written before `io_setup` returned.
        let (magic, compatible, incompatible, header_len, len) = unsafe {
            let header = header.as_ptr();
            (
                (*header).magic,
                (*header).compatible_features,
                (*header).incompatible_features,
                (*header).header_len as usize,
                (*header).len,
            )
        };
        let is_known = magic == MAGIC
            && compatible & COMPATIBLE != 0
            && incompatible == 0
            && header_len == mem::size_of::<Header>()
            && len != 0;
        // SAFETY: `len` events follow the header.
        is_known.then(|| Self { header, events: unsafe { header.add(1) }.cast(), len })
    }

    fn head_and_tail(&self) -> (&AtomicU32, &AtomicU32) {
        let header = self.header.as_ptr();
        // SAFETY: 6, both are there as long as we are, and changed while we are by atomic means only.
        unsafe { (AtomicU32::from_ptr(&raw mut (*header).head), AtomicU32::from_ptr(&raw mut (*header).tail)) }
    }

    fn is_empty(&self) -> bool {
        let (head, tail) = self.head_and_tail();
        head.load(Ordering::Relaxed) == tail.load(Ordering::Relaxed)
    }

    /// Takes out the next event.
    fn next(&mut self) -> Option<Event> {
        let (head, tail) = self.head_and_tail();
        // We alone move the head. No value that is found there leads out of the ring.
        let at = head.load(Ordering::Relaxed) % self.len;
        // Acquire: pairs with the kernel's write barrier between an event and the tail behind it; also for what was
        // read into the buffer.
        if at == tail.load(Ordering::Acquire) % self.len {
            return None;
        }
        // SAFETY: `at` is less than `len`; 6, the kernel doesn't write to what is between head and tail.
        let event = unsafe { self.events.add(at as usize).read() };
        // Release: pairs with the kernel's read of the head, before it uses the place again.
        head.store((at + 1) % self.len, Ordering::Release);
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two reads at a time.
    #[test]
    fn completions_are_taken_in_order_however_often_the_ring_goes_round() {
        let file = std::fs::File::open("/proc/self/exe").expect("this binary");
        let eventfd = EventFd::new().expect("an eventfd");
        let mut context = match Context::new(1) {
            Ok(context) => context,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        assert!(!context.is_hidden(), "the ring of this kernel isn't known");
        let mut buffer = [0_u8; 4];
        let mut seen = Vec::new();
        while seen.len() < 2000 {
            let token = seen.len() as u64;
            let what = What::Read { buffer: buffer.as_mut_ptr(), len: 4 };
            let call = Call { fd: file.as_raw_fd(), what, offset: 0, flags: 0 };
            let mut entries = [Entry::new(&call, token, &eventfd), Entry::new(&call, token + 1, &eventfd)];
            // SAFETY: the buffer stays, and both requests write the same to it; they are waited for.
            let taken = unsafe { context.submit(&mut entries) }.expect("there is room");
            assert_eq!(taken, 2);
            let end = seen.len() + 2;
            while seen.len() < end {
                // In turn by the kernel and by ourselves.
                if token.is_multiple_of(4) {
                    context.wait(|token, result| seen.push((token, result))).expect("a wait");
                } else {
                    context.completions(|token, result| seen.push((token, result))).expect("no call");
                }
            }
            assert!(!context.has_completions());
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq((0..2000).map(|token| (token, 4))));
        assert_eq!(&buffer, b"\x7fELF");
    }

    #[test]
    fn what_is_under_way_is_over_when_the_context_has_been_dropped() {
        let file = std::fs::File::open("/proc/self/exe").expect("this binary");
        let eventfd = EventFd::new().expect("an eventfd");
        let Ok(mut context) = Context::new(64) else { return println!("SKIPPED: no Linux AIO") };
        let mut buffers = vec![[0_u8; 4096]; 64];
        let mut entries: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| {
                let what = What::Read { buffer: buffer.as_mut_ptr(), len: 4096 };
                Entry::new(&Call { fd: file.as_raw_fd(), what, offset: 0, flags: 0 }, 0, &eventfd)
            })
            .collect();
        // SAFETY: the buffers outlive the context.
        assert_eq!(unsafe { context.submit(&mut entries) }.expect("there is room"), 64);
        drop(context);
        assert!(buffers.iter().all(|buffer| buffer.starts_with(b"\x7fELF")));
    }
}
