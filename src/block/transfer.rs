//! From what a caller asks for to calls, and back: splitting, going on after short transfers, trying again.
#![allow(unsafe_code)] // # Safety: calls name buffers that are borrowed for as long as they run.

use std::error::Error;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::thread;
use std::time::Duration;

use super::engine::{Operation, Policy};
use super::perform::{Tried, done_at_once, perform, perform_elsewhere, try_at_once};
use crate::aio;
use crate::coroutine::in_coroutine;
use crate::sys::file::{Call, Facts, MAX_BYTES, MAX_VECTORS, What};

/// How often a call that the kernel puts off is made again.
const MAX_AGAIN: u32 = 100;

/// Between two of those, the more of them the longer.
const PAUSE: Duration = Duration::from_micros(10);

/// A file, as transfers see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) fd: RawFd,
    pub(super) policy: &'a Policy,
}

impl Target<'_> {
    /// Reads until the buffer is full or the file ends. Returns how much was read.
    #[inline]
    pub(super) fn read(self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        // SAFETY: the buffer is borrowed.
        unsafe { self.move_all(Transfer::read(buffer, offset)) }
    }

    /// Writes the whole buffer.
    #[inline]
    pub(super) fn write(self, buffer: &[u8], offset: u64, flags: i32) -> io::Result<()> {
        // SAFETY: the buffer is borrowed.
        unsafe { self.move_all(Transfer::write(buffer, offset, flags)) }.map(drop)
    }

    /// # Safety
    ///
    /// The buffer of the transfer is borrowed.
    #[inline(always)]
    unsafe fn move_all(self, transfer: Transfer) -> io::Result<usize> {
        self.check(&transfer)?;
        let Some(call) = transfer.next(self) else { return Ok(0) };
        // What is done at once, and as a whole, is most of what there is.
        // SAFETY: contract, here and below.
        match unsafe { try_at_once(self.policy, transfer.operation(), call) } {
            Tried::Done(result) => {
                done_at_once(result);
                if result as usize == transfer.len {
                    return Ok(transfer.len);
                }
                // SAFETY: as above.
                unsafe { self.move_rest(transfer, result) }
            }
            Tried::No => {
                // SAFETY: as above.
                let result = unsafe { perform_elsewhere(self.policy, transfer.operation(), call) };
                if result as usize == transfer.len {
                    return Ok(transfer.len);
                }
                // SAFETY: as above.
                unsafe { self.move_rest(transfer, result) }
            }
        }
    }

    /// Goes on with what its first call has returned.
    ///
    /// # Safety
    ///
    /// The buffer of the transfer is borrowed.
    #[cold]
    unsafe fn move_rest(self, mut transfer: Transfer, first: i64) -> io::Result<usize> {
        let mut result = first;
        loop {
            match transfer.advance(self, result)? {
                Advance::Moved => {}
                Advance::Ended => return Ok(transfer.done),
                Advance::Again => transfer.again.pause(),
            }
            let Some(call) = transfer.next(self) else { return Ok(transfer.done) };
            // SAFETY: contract.
            result = unsafe { perform(self.policy, transfer.operation(), call) };
        }
    }

    /// Whether what a transfer asks for is aligned.
    #[inline]
    pub(super) fn check(self, transfer: &Transfer) -> io::Result<()> {
        let Facts { is_direct, memory_alignment, offset_alignment, .. } = *self.policy.facts();
        let (address, len) = (transfer.buffer.addr() as u64, transfer.len as u64);
        // They are powers of two.
        let masks = (u64::from(memory_alignment) - 1, u64::from(offset_alignment) - 1);
        if !is_direct || (address | len) & masks.0 == 0 && (transfer.offset | len) & masks.1 == 0 {
            return Ok(());
        }
        self.misaligned(transfer)
    }

    #[cold]
    fn misaligned(self, transfer: &Transfer) -> io::Result<()> {
        self.check_alignment([(transfer.buffer.addr(), transfer.len)], transfer.offset)
    }

    /// As [`read`](Self::read), into one buffer after the other. The slices are moved on over what has been read.
    pub(super) fn read_vectored(self, mut slices: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.check_alignment(slices.iter().map(|slice| (slice.as_ptr().addr(), slice.len())), offset)?;
        let mut again = Again::default();
        let mut done = 0;
        // Empty ones in front make no progress.
        IoSliceMut::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let count = slices.len().min(MAX_VECTORS) as u32;
            // An `IoSliceMut` is an `iovec`.
            let what = What::ReadVectored { vectors: slices.as_mut_ptr().cast(), count };
            // SAFETY: the slices are borrowed, and what they name.
            let moved = unsafe { self.call(Operation::Read, what, offset + done as u64, 0) };
            match again.check(moved)? {
                None => again.pause(),
                Some(0) => break,
                Some(moved) => {
                    done += moved;
                    IoSliceMut::advance_slices(&mut slices, moved);
                    if self.is_end(moved) {
                        break;
                    }
                }
            }
        }
        Ok(done)
    }

    /// As [`write`](Self::write), from one buffer after the other. The slices are moved on over what has been written.
    pub(super) fn write_vectored(self, mut slices: &mut [IoSlice<'_>], offset: u64, flags: i32) -> io::Result<()> {
        self.check_alignment(slices.iter().map(|slice| (slice.as_ptr().addr(), slice.len())), offset)?;
        let mut again = Again::default();
        let mut done = 0;
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let count = slices.len().min(MAX_VECTORS) as u32;
            // An `IoSlice` is an `iovec`.
            let what = What::WriteVectored { vectors: slices.as_ptr().cast(), count };
            // SAFETY: the slices are borrowed, and what they name.
            let moved = unsafe { self.call(Operation::Write, what, offset + done as u64, flags) };
            match again.check(moved)? {
                None => again.pause(),
                Some(0) => return Err(io::ErrorKind::WriteZero.into()),
                Some(moved) => {
                    done += moved;
                    IoSlice::advance_slices(&mut slices, moved);
                }
            }
        }
        Ok(())
    }

    /// A request that moves nothing.
    pub(super) fn other(self, what: What, offset: u64) -> io::Result<()> {
        let mut other = Other::new(what, offset);
        while let Some(call) = other.next(self) {
            // SAFETY: it names no memory.
            let result = unsafe { perform(self.policy, Operation::Other, call) };
            if other.advance(self, result)? == Advance::Again {
                other.again.pause();
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As [`Call::run`].
    unsafe fn call(self, operation: Operation, what: What, offset: u64, flags: i32) -> i64 {
        // SAFETY: passed on.
        unsafe { perform(self.policy, operation, Call { fd: self.fd, what, offset, flags }) }
    }

    /// Whether a read that moved so much has met the end of the file: direct I/O can't go on from there.
    #[inline]
    fn is_end(self, moved: usize) -> bool {
        !moved.is_multiple_of(self.policy.facts().offset_alignment as usize)
    }

    /// Whether these buffers, by address and length, and this offset are aligned.
    fn check_alignment(
        self,
        buffers: impl IntoIterator<Item = (usize, usize), IntoIter: Clone>,
        offset: u64,
    ) -> io::Result<()> {
        let Facts { is_direct, memory_alignment, offset_alignment, .. } = *self.policy.facts();
        if !is_direct {
            return Ok(());
        }
        let buffers = buffers.into_iter();
        let len: usize = buffers.clone().map(|(_, len)| len).sum();
        let in_file = [("the offset", offset, offset_alignment), ("the length", len as u64, offset_alignment)];
        // What is empty may be anywhere.
        let in_memory = buffers.filter(|&(_, len)| len != 0).flat_map(|(address, len)| {
            [("the address of a buffer", address as u64), ("the length of a buffer", len as u64)]
        });
        let mut all = in_memory.map(|(what, value)| (what, value, memory_alignment)).chain(in_file);
        match all.find(|&(_, value, alignment)| !value.is_multiple_of(alignment.into())) {
            None => Ok(()),
            Some((what, value, alignment)) => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, Misaligned { what, value, alignment }))
            }
        }
    }
}

/// A transfer between a file and one buffer, and how far it has come.
#[derive(Debug)]
pub(super) struct Transfer {
    buffer: *mut u8,
    len: usize,
    offset: u64,
    /// `None`: it is a read.
    write_flags: Option<i32>,
    done: usize,
    again: Again,
}

/// What a call has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advance {
    /// Something was moved.
    Moved,
    /// There is no more.
    Ended,
    /// It is to be made again.
    Again,
}

impl Transfer {
    #[inline]
    pub(super) fn read(buffer: &mut [u8], offset: u64) -> Self {
        let len = buffer.len();
        Self { buffer: buffer.as_mut_ptr(), len, offset, write_flags: None, done: 0, again: Again::default() }
    }

    #[inline]
    pub(super) fn write(buffer: &[u8], offset: u64, flags: i32) -> Self {
        let len = buffer.len();
        let buffer = buffer.as_ptr().cast_mut();
        Self { buffer, len, offset, write_flags: Some(flags), done: 0, again: Again::default() }
    }

    #[inline]
    pub(super) fn operation(&self) -> Operation {
        if self.write_flags.is_some() { Operation::Write } else { Operation::Read }
    }

    /// How much has been moved.
    #[inline]
    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// The next call, if there is anything left to move.
    #[inline]
    pub(super) fn next(&self, target: Target<'_>) -> Option<Call> {
        let left = self.len - self.done;
        if left == 0 {
            return None;
        }
        let len = left.min(MAX_BYTES) as u32;
        let buffer = self.buffer.wrapping_add(self.done);
        let what = match self.write_flags {
            None => What::Read { buffer, len },
            Some(_) => What::Write { buffer, len },
        };
        let flags = self.write_flags.unwrap_or_default();
        Some(Call { fd: target.fd, what, offset: self.offset + self.done as u64, flags })
    }

    /// Takes note of what a call has returned.
    #[inline]
    pub(super) fn advance(&mut self, target: Target<'_>, result: i64) -> io::Result<Advance> {
        match self.again.check(result)? {
            None => Ok(Advance::Again),
            Some(0) if self.write_flags.is_some() => Err(io::ErrorKind::WriteZero.into()),
            Some(0) => Ok(Advance::Ended),
            Some(moved) => {
                self.done += moved;
                let ended = self.done == self.len || self.write_flags.is_none() && target.is_end(moved);
                Ok(if ended { Advance::Ended } else { Advance::Moved })
            }
        }
    }
}

/// What is to be done to a file, call by call.
pub(super) trait Work {
    fn operation(&self) -> Operation;

    /// Whether it can be asked of this file.
    fn check(&self, target: Target<'_>) -> io::Result<()>;

    /// The next call, if there is anything left to do.
    fn next(&self, target: Target<'_>) -> Option<Call>;

    /// Takes note of what a call has returned.
    fn advance(&mut self, target: Target<'_>, result: i64) -> io::Result<Advance>;

    /// How much has been moved.
    fn done(&self) -> usize;
}

impl Work for Transfer {
    #[inline]
    fn operation(&self) -> Operation {
        Transfer::operation(self)
    }

    #[inline]
    fn check(&self, target: Target<'_>) -> io::Result<()> {
        target.check(self)
    }

    #[inline]
    fn next(&self, target: Target<'_>) -> Option<Call> {
        Transfer::next(self, target)
    }

    #[inline]
    fn advance(&mut self, target: Target<'_>, result: i64) -> io::Result<Advance> {
        Transfer::advance(self, target, result)
    }

    #[inline]
    fn done(&self) -> usize {
        Transfer::done(self)
    }
}

/// What moves nothing, such as a flush.
#[derive(Debug)]
pub(super) struct Other {
    /// `None`: it is done.
    what: Option<What>,
    offset: u64,
    again: Again,
}

impl Other {
    /// `what` names no memory.
    pub(super) fn new(what: What, offset: u64) -> Self {
        let is_empty = matches!(what, What::Allocate { len: 0, .. });
        Self { what: (!is_empty).then_some(what), offset, again: Again::default() }
    }
}

impl Work for Other {
    fn operation(&self) -> Operation {
        Operation::Other
    }

    fn check(&self, _: Target<'_>) -> io::Result<()> {
        Ok(())
    }

    fn next(&self, target: Target<'_>) -> Option<Call> {
        let what = self.what?;
        Some(Call { fd: target.fd, what, offset: self.offset, flags: 0 })
    }

    fn advance(&mut self, target: Target<'_>, result: i64) -> io::Result<Advance> {
        let is_refused = result == -i64::from(libc::EINVAL) && matches!(self.what, Some(What::Sync { .. }));
        if is_refused && target.policy.note_no_linux_aio_for_others() || self.again.check(result)?.is_none() {
            return Ok(Advance::Again);
        }
        self.what = None;
        Ok(Advance::Ended)
    }

    fn done(&self) -> usize {
        0
    }
}

/// What was asked of a file that was opened with `O_DIRECT` isn't aligned as it has to be. Inside of an [`io::Error`] of
/// the kind [`InvalidInput`](io::ErrorKind::InvalidInput).
///
/// ```
/// # fn example(file: &aioco::block::File, offset: u64) -> std::io::Result<()> {
/// use aioco::block::Misaligned;
/// if let Err(error) = file.read_at(&mut [0; 10], offset) {
///     let misaligned = error.get_ref().and_then(|inner| inner.downcast_ref::<Misaligned>());
///     println!("it has to be aligned to {:?}", misaligned.map(Misaligned::alignment));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misaligned {
    what: &'static str,
    value: u64,
    alignment: u32,
}

impl Misaligned {
    /// What it would have to be a multiple of, in bytes.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }
}

impl fmt::Display for Misaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, alignment } = self;
        write!(f, "{what} ({value}) isn't a multiple of {alignment}, which direct I/O needs here")
    }
}

impl Error for Misaligned {}

/// Counts how often a call has been made in vain.
#[derive(Debug, Default)]
struct Again {
    times: u32,
    was_put_off: bool,
}

impl Again {
    /// How much a call has moved; `None` if it is to be made again, after a [pause](Self::pause).
    #[inline]
    fn check(&mut self, result: i64) -> io::Result<Option<usize>> {
        if result >= 0 {
            self.times = 0;
            return Ok(Some(result as usize));
        }
        let errno = -result as i32;
        self.was_put_off = errno == libc::EAGAIN;
        if self.times == MAX_AGAIN || !self.was_put_off && errno != libc::EINTR {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.times += 1;
        Ok(None)
    }

    /// Waits a little, if the kernel was short of something.
    fn pause(&self) {
        if !self.was_put_off {
            return;
        }
        let pause = PAUSE * self.times;
        if in_coroutine() && !thread::panicking() && aio::current().is_some() {
            aio::sleep(pause);
        } else {
            thread::sleep(pause);
        }
    }
}
