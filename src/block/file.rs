//! Files and block devices.

use std::fmt;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

use super::engine::{Engine, EngineChoice, Operation, Policy};
use super::transfer::Target;
use crate::aio;
use crate::sys::file::{DATA_SYNC, What, facts};

/// The mode of fallocate(2) that discards.
pub(super) const DISCARD: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// A file or a block device: a [`std::fs::File`], or whatever else has a descriptor, borrowed ones included
/// (`File<BorrowedFd<'_>>`).
///
/// It may be used from any thread, and from many coroutines at once. Offsets and lengths are in bytes.
///
/// Contexts that use it much [register](super#registration) it, and keep it open until they have learned that it was
/// dropped. What its descriptor means mustn't change meanwhile (dup2(2)): they would go on with the old file.
///
/// # Errors
///
/// All operations return what the kernel says. With a file that was opened with `O_DIRECT`, what isn't aligned is
/// [`Misaligned`](super::Misaligned).
///
/// # Panics
///
/// In a coroutine, as [`park`](crate::park::park()), to unwind it if it is to end.
pub struct File<F = fs::File> {
    file: F,
    policy: Policy,
}

impl<F: AsFd> File<F> {
    /// Looks at the file, and decides how to reach it.
    ///
    /// # Errors
    ///
    /// What the kernel says about the descriptor.
    pub fn new(file: F) -> io::Result<Self> {
        let policy = Policy::new(facts(file.as_fd())?);
        Ok(Self { file, policy })
    }

    /// Has all requests carried out by this engine. A caller that can't have it (there is no ring, say) takes another
    /// in its place; see [`engine`](Self::engine).
    pub fn with_engine(mut self, engine: Engine) -> Self {
        self.policy.force(engine);
        self
    }

    /// By what the calling coroutine's next request of this kind will be carried out, and why. (For a caller that isn't
    /// a coroutine, or has no home, it is the call itself, which blocks.)
    ///
    /// ```
    /// use aioco::{AioContext, block};
    /// use std::fs::File;
    ///
    /// let context = AioContext::new()?;
    /// # let path = std::env::current_exe()?;
    /// let file = block::File::new(File::open(path)?)?;
    /// context.block_on(|| println!("reads: {}", file.engine(block::Operation::Read)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn engine(&self, operation: Operation) -> EngineChoice {
        self.policy.choice(operation, aio::current().as_ref())
    }

    /// Reads at `offset` until the buffer is full or the file ends. Returns how much was read: less than asked for only
    /// at the end of the file.
    ///
    /// # Errors
    ///
    /// See [`File`]. If some was read before the error, it is in the buffer.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.target().read(buffer, offset)
    }

    /// Reads at `offset` until the buffer is full.
    ///
    /// # Errors
    ///
    /// See [`File`]; and [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the file ends first.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_at(buffer, offset)? {
            read if read == buffer.len() => Ok(()),
            read => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "the file ends at {}, {} bytes were to be read at {offset}",
                    offset + read as u64,
                    buffer.len()
                ),
            )),
        }
    }

    /// Reads at `offset` into one buffer after the other until all are full or the file ends. Returns how much was
    /// read. The slices are moved on over what has been read; the buffers stay what they are.
    ///
    /// # Errors
    ///
    /// See [`File`].
    pub fn read_vectored_at(&self, slices: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.target().read_vectored(slices, offset)
    }

    /// Writes the whole buffer at `offset`.
    ///
    /// # Errors
    ///
    /// See [`File`]. How much was written before the error isn't known.
    pub fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.target().write(buffer, offset, 0)
    }

    /// Writes the whole buffer at `offset`, and returns when it is stable (force unit access).
    ///
    /// # Errors
    ///
    /// As [`write_all_at`](Self::write_all_at).
    pub fn write_all_at_fua(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.target().write(buffer, offset, DATA_SYNC)
    }

    /// Writes one buffer after the other, at `offset`. The slices are moved on over what has been written.
    ///
    /// # Errors
    ///
    /// As [`write_all_at`](Self::write_all_at).
    pub fn write_all_vectored_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.target().write_vectored(slices, offset, 0)
    }

    /// Makes stable what has been written, and what it takes to find it again (fdatasync(2)).
    ///
    /// # Errors
    ///
    /// See [`File`].
    pub fn flush(&self) -> io::Result<()> {
        self.target().other(What::Sync { data_only: true }, 0)
    }

    /// As [`flush`](Self::flush), with all that is known of the file, such as its times (fsync(2)).
    ///
    /// # Errors
    ///
    /// See [`File`].
    pub fn flush_all(&self) -> io::Result<()> {
        self.target().other(What::Sync { data_only: false }, 0)
    }

    /// Frees the storage of a range, which reads as zeroes afterwards (`FALLOC_FL_PUNCH_HOLE`).
    ///
    /// # Errors
    ///
    /// See [`File`]; `EOPNOTSUPP` if this file can't do it. Nothing may be lost if the caller goes on then: discarding is
    /// advice.
    pub fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.allocate_with(DISCARD, offset, len)
    }

    /// Makes a range read as zeroes, as if they were written; a file that ends before that grows. By
    /// `FALLOC_FL_ZERO_RANGE`, or by writing them, where the file can't do it.
    ///
    /// # Errors
    ///
    /// See [`File`].
    pub fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.allocate_with(libc::FALLOC_FL_ZERO_RANGE, offset, len) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            result => return result,
        }
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let chunk = (end - at).min(ZEROES.0.len() as u64);
            self.write_all_at(&ZEROES.0[..chunk as usize], at)?;
            at += chunk;
        }
        Ok(())
    }

    /// Allocates storage for a range; a file that ends before that grows, by zeroes. What is there stays.
    ///
    /// # Errors
    ///
    /// See [`File`].
    pub fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.allocate_with(0, offset, len)
    }

    fn allocate_with(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        self.target().other(What::Allocate { mode, len }, offset)
    }

    /// What addresses of buffers, and offsets and lengths, have to be multiples of: 1 if the file wasn't opened with
    /// `O_DIRECT`.
    pub fn alignment(&self) -> (u32, u32) {
        (self.policy.facts().memory_alignment, self.policy.facts().offset_alignment)
    }

    /// The file itself.
    pub fn get_ref(&self) -> &F {
        &self.file
    }

    /// The file itself.
    pub fn into_inner(self) -> F {
        self.file
    }

    pub(super) fn target(&self) -> Target<'_> {
        Target { fd: self.file.as_fd().as_raw_fd(), policy: &self.policy }
    }
}

impl<F: fmt::Debug> fmt::Debug for File<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("file", &self.file).field("policy", &self.policy).finish()
    }
}

/// What zeroes are written from; aligned for direct I/O.
#[repr(align(4096))]
struct Zeroes([u8; 256 * 1024]);

static ZEROES: Zeroes = Zeroes([0; 256 * 1024]);
