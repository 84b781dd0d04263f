//! Requests to files: as system calls that block, and as entries of a ring.
//!
//! References: preadv2(2), pwritev2(2), fdatasync(2), fallocate(2), fcntl(2), fstatfs(2), statx(2).
#![allow(unsafe_code)] // # Safety: a call that names memory is run, and made an entry, by unsafe functions only; the rest fill local buffers.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::slice;

#[cfg(test)]
use super::fault;
use super::{result_or_errno, transfer};

/// The most bytes that Linux moves in one call, rounded down: see read(2).
pub(crate) const MAX_BYTES: usize = 0x7fff_f000 & !0xffff;

/// The most vectors in one call (`UIO_MAXIOV`).
pub(crate) const MAX_VECTORS: usize = 1024;

/// Fail with `EAGAIN` instead of waiting.
pub(crate) const NO_WAIT: i32 = libc::RWF_NOWAIT;

/// A write that is done when the data is stable.
pub(crate) const DATA_SYNC: i32 = libc::RWF_DSYNC;

/// A request to a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) fd: RawFd,
    pub(crate) what: What,
    /// Where in the file, in bytes.
    pub(crate) offset: u64,
    /// Flags of preadv2(2) and pwritev2(2).
    pub(crate) flags: i32,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    Read {
        buffer: *mut u8,
        len: u32,
    },
    Write {
        buffer: *const u8,
        len: u32,
    },
    ReadVectored {
        vectors: *const libc::iovec,
        count: u32,
    },
    WriteVectored {
        vectors: *const libc::iovec,
        count: u32,
    },
    /// Makes what has been written stable; only the data, and what it takes to find it, or everything.
    Sync {
        data_only: bool,
    },
    /// fallocate(2).
    Allocate {
        mode: i32,
        len: u64,
    },
}

// SAFETY: carrying the addresses is for any thread; using them takes `run`.
unsafe impl Send for Call {}

impl Call {
    /// Makes the call, blocking. Returns what the kernel returned, or a negative error number.
    ///
    /// # Safety
    ///
    /// What it names is valid: buffers for their length, and vectors and the buffers that they name; those that are read
    /// into for writes by the kernel.
    #[inline(always)]
    pub(crate) unsafe fn run(self) -> i64 {
        let call = self;
        #[cfg(test)]
        let call = match fault::on_call(call) {
            Ok(call) => call,
            Err(result) => return result,
        };
        let Self { fd, what, offset, flags } = call;
        // SAFETY: contract; and the kernel checks the rest.
        unsafe {
            match what {
                What::Read { buffer, len } => transfer::read(fd, buffer, len, offset, flags),
                What::Write { buffer, len } => transfer::write(fd, buffer, len, offset, flags),
                What::ReadVectored { vectors, count } => transfer::read_vectored(fd, vectors, count, offset, flags),
                What::WriteVectored { vectors, count } => transfer::write_vectored(fd, vectors, count, offset, flags),
                What::Sync { data_only: true } => result_or_errno(libc::fdatasync(fd) as isize),
                What::Sync { data_only: false } => result_or_errno(libc::fsync(fd) as isize),
                What::Allocate { mode, len } => {
                    result_or_errno(libc::fallocate(fd, mode, offset as libc::off_t, len as libc::off_t) as isize)
                }
            }
        }
    }
}

impl Call {
    /// Where in the file a write ends; `None` if it is no write.
    ///
    /// # Safety
    ///
    /// The vectors are valid, if it names any.
    pub(crate) unsafe fn end_of_write(&self) -> Option<u64> {
        let len = match self.what {
            What::Write { len, .. } => len.into(),
            What::WriteVectored { vectors, count } => {
                // SAFETY: contract.
                let vectors = unsafe { slice::from_raw_parts(vectors, count as usize) };
                vectors.iter().map(|vector| vector.iov_len as u64).sum()
            }
            _ => return None,
        };
        Some(self.offset.saturating_add(len))
    }
}

/// How long a regular file is; what isn't one doesn't grow.
pub(crate) fn size(fd: RawFd) -> io::Result<u64> {
    let stat = stat(fd)?;
    Ok(if stat.st_mode & libc::S_IFMT == libc::S_IFREG { stat.st_size as u64 } else { u64::MAX })
}

fn stat(fd: RawFd) -> io::Result<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the buffer is valid; it is filled if the call succeeds.
    unsafe {
        super::check(libc::fstat(fd, stat.as_mut_ptr()))?;
        Ok(stat.assume_init())
    }
}

/// Makes a descriptor non-blocking, or blocking. Returns whether it was blocking.
pub(crate) fn set_non_blocking(fd: BorrowedFd<'_>, non_blocking: bool) -> io::Result<bool> {
    let number = fd.as_raw_fd();
    // SAFETY: no memory arguments, here and below.
    let flags = super::check(unsafe { libc::fcntl(number, libc::F_GETFL) })?;
    let wanted = if non_blocking { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    if wanted != flags {
        // SAFETY: as above.
        super::check(unsafe { libc::fcntl(number, libc::F_SETFL, wanted) })?;
    }
    Ok(flags & libc::O_NONBLOCK == 0)
}

/// What a file is, as far as it matters for how to reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Opened with `O_DIRECT`.
    pub(crate) is_direct: bool,
    /// A regular file whose file system is memory: tmpfs or ramfs.
    pub(crate) is_memory: bool,
    /// A regular file or a block device: it has offsets, and reading it doesn't wait for a peer.
    pub(crate) is_storage: bool,
    /// What direct I/O has to be aligned to: memory, and offsets and lengths. 1 if it isn't direct.
    pub(crate) memory_alignment: u32,
    pub(crate) offset_alignment: u32,
}

/// Looks at a file.
pub(crate) fn facts(fd: BorrowedFd<'_>) -> io::Result<Facts> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let number = fd.as_raw_fd();
    // SAFETY: no memory arguments.
    let flags = super::check(unsafe { libc::fcntl(number, libc::F_GETFL) })?;
    let stat = stat(number)?;
    let is_regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    let is_storage = is_regular || stat.st_mode & libc::S_IFMT == libc::S_IFBLK;
    let mut file_system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the buffer is valid; it is filled if the call succeeds.
    #[allow(clippy::unnecessary_cast, reason = "its type differs between targets")]
    let kind = unsafe {
        super::check(libc::fstatfs(number, file_system.as_mut_ptr()))?;
        file_system.assume_init().f_type as i64
    };
    let is_direct = flags & libc::O_DIRECT != 0;
    let (memory_alignment, offset_alignment) = if is_direct { direct_alignment(number) } else { (1, 1) };
    let is_memory = is_regular && (kind == TMPFS_MAGIC || kind == RAMFS_MAGIC);
    Ok(Facts { is_direct, is_memory, is_storage, memory_alignment, offset_alignment })
}

/// What direct I/O has to be aligned to. Before Linux 6.1, and where the file system doesn't say: 512.
fn direct_alignment(fd: RawFd) -> (u32, u32) {
    const STATX_DIOALIGN: u32 = 0x2000;
    let mut statx = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty string, the buffer is valid and, being zeroed, initialized.
    let statx = unsafe {
        libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_DIOALIGN, statx.as_mut_ptr());
        statx.assume_init()
    };
    if statx.stx_mask & STATX_DIOALIGN != 0 && statx.stx_dio_offset_align != 0 {
        (statx.stx_dio_mem_align.max(1), statx.stx_dio_offset_align)
    } else {
        (512, 512)
    }
}
