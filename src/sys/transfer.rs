//! Reads and writes at an offset: preadv2(2) and its kin, returning what the kernel returns, which is a negative error number
//! if they fail.
//!
//! The C library makes points of cancellation out of these calls, which costs a process of several threads 15 to 20 ns each: a
//! twentieth of a read of 4 KiB from the page cache. No thread is cancelled here. So where the crate has instructions of its
//! own anyway, the call is one.
//!
//! # Safety
//!
//! The kernel reads and writes what the arguments name, as each function says. The instruction changes no other register than
//! those that it names, and no other memory than what the kernel writes to.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

/// # Safety
///
/// The buffer is valid for writes of its length.
#[inline(always)]
pub(super) unsafe fn read(fd: RawFd, buffer: *mut u8, len: u32, offset: u64, flags: i32) -> i64 {
    if flags == 0 {
        // SAFETY: contract.
        return unsafe { imp::pread(fd, buffer, len, offset) };
    }
    let vector = libc::iovec { iov_base: buffer.cast(), iov_len: len as usize };
    // SAFETY: contract.
    unsafe { imp::preadv2(fd, &raw const vector, 1, offset, flags) }
}

/// # Safety
///
/// The buffer is valid for reads of its length.
#[inline(always)]
pub(super) unsafe fn write(fd: RawFd, buffer: *const u8, len: u32, offset: u64, flags: i32) -> i64 {
    if flags == 0 {
        // SAFETY: contract.
        return unsafe { imp::pwrite(fd, buffer, len, offset) };
    }
    let vector = libc::iovec { iov_base: buffer.cast_mut().cast(), iov_len: len as usize };
    // SAFETY: contract.
    unsafe { imp::pwritev2(fd, &raw const vector, 1, offset, flags) }
}

/// # Safety
///
/// There are so many vectors, and their buffers are valid for writes of their lengths.
pub(super) unsafe fn read_vectored(fd: RawFd, vectors: *const libc::iovec, count: u32, offset: u64, flags: i32) -> i64 {
    if flags == 0 {
        // SAFETY: contract.
        return unsafe { imp::preadv(fd, vectors, count, offset) };
    }
    // SAFETY: contract.
    unsafe { imp::preadv2(fd, vectors, count, offset, flags) }
}

/// # Safety
///
/// There are so many vectors, and their buffers are valid for reads of their lengths.
pub(super) unsafe fn write_vectored(
    fd: RawFd,
    vectors: *const libc::iovec,
    count: u32,
    offset: u64,
    flags: i32,
) -> i64 {
    if flags == 0 {
        // SAFETY: contract.
        return unsafe { imp::pwritev(fd, vectors, count, offset) };
    }
    // SAFETY: contract.
    unsafe { imp::pwritev2(fd, vectors, count, offset, flags) }
}

#[cfg(jump_switch)]
mod imp {
    use std::arch::asm;
    use std::os::fd::RawFd;

    /// # Safety
    ///
    /// As the call demands it.
    #[inline(always)]
    unsafe fn call<T>(number: libc::c_long, fd: RawFd, memory: *const T, count: u32, offset: u64, flags: i32) -> i64 {
        let result: i64;
        // SAFETY: contract; and the kernel keeps all registers but these. The offset's upper half is for 32-bit machines.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!(
                "syscall",
                inlateout("rax") number => result,
                in("rdi") i64::from(fd),
                in("rsi") memory,
                in("rdx") u64::from(count),
                in("r10") offset,
                in("r8") 0_u64,
                in("r9") i64::from(flags),
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
            #[cfg(target_arch = "aarch64")]
            asm!(
                "svc 0",
                in("x8") number,
                inlateout("x0") i64::from(fd) => result,
                in("x1") memory,
                in("x2") u64::from(count),
                in("x3") offset,
                in("x4") 0_u64,
                in("x5") i64::from(flags),
                options(nostack),
            );
        }
        result
    }

    #[inline(always)]
    pub(super) unsafe fn pread(fd: RawFd, buffer: *mut u8, len: u32, offset: u64) -> i64 {
        // SAFETY: passed on.
        unsafe { call(libc::SYS_pread64, fd, buffer, len, offset, 0) }
    }

    #[inline(always)]
    pub(super) unsafe fn pwrite(fd: RawFd, buffer: *const u8, len: u32, offset: u64) -> i64 {
        // SAFETY: passed on.
        unsafe { call(libc::SYS_pwrite64, fd, buffer, len, offset, 0) }
    }

    #[inline]
    pub(super) unsafe fn preadv(fd: RawFd, vectors: *const libc::iovec, count: u32, offset: u64) -> i64 {
        // SAFETY: passed on.
        unsafe { call(libc::SYS_preadv, fd, vectors, count, offset, 0) }
    }

    #[inline]
    pub(super) unsafe fn pwritev(fd: RawFd, vectors: *const libc::iovec, count: u32, offset: u64) -> i64 {
        // SAFETY: passed on.
        unsafe { call(libc::SYS_pwritev, fd, vectors, count, offset, 0) }
    }

    #[inline(always)]
    pub(super) unsafe fn preadv2(fd: RawFd, vectors: *const libc::iovec, count: u32, offset: u64, flags: i32) -> i64 {
        // SAFETY: passed on.
        known(unsafe { call(libc::SYS_preadv2, fd, vectors, count, offset, flags) })
    }

    #[inline(always)]
    pub(super) unsafe fn pwritev2(fd: RawFd, vectors: *const libc::iovec, count: u32, offset: u64, flags: i32) -> i64 {
        // SAFETY: passed on.
        known(unsafe { call(libc::SYS_pwritev2, fd, vectors, count, offset, flags) })
    }

    /// A kernel that hasn't the call (before Linux 4.6, and emulators) hasn't the flags, as the C library says it.
    #[inline(always)]
    fn known(result: i64) -> i64 {
        if result == -i64::from(libc::ENOSYS) { -i64::from(libc::EOPNOTSUPP) } else { result }
    }
}

#[cfg(not(jump_switch))]
mod imp {
    use std::os::fd::RawFd;

    use super::super::result_or_errno;

    #[inline]
    pub(super) unsafe fn pread(fd: RawFd, buffer: *mut u8, len: u32, offset: u64) -> i64 {
        // SAFETY: passed on.
        result_or_errno(unsafe { libc::pread(fd, buffer.cast(), len as usize, offset as libc::off_t) })
    }

    #[inline]
    pub(super) unsafe fn pwrite(fd: RawFd, buffer: *const u8, len: u32, offset: u64) -> i64 {
        // SAFETY: passed on.
        result_or_errno(unsafe { libc::pwrite(fd, buffer.cast(), len as usize, offset as libc::off_t) })
    }

    #[inline]
    pub(super) unsafe fn preadv(fd: RawFd, vectors: *const libc::iovec, count: u32, offset: u64) -> i64 {
        // SAFETY: passed on.
        result_or_errno(unsafe { libc::preadv(fd, vectors, count as i32, offset as libc::off_t) })
    }

    #[inline]
    pub(super) unsafe fn pwritev(fd: RawFd, vectors: *const libc::iovec, count: u32, offset: u64) -> i64 {
        // SAFETY: passed on.
        result_or_errno(unsafe { libc::pwritev(fd, vectors, count as i32, offset as libc::off_t) })
    }

    #[inline]
    pub(super) unsafe fn preadv2(fd: RawFd, vectors: *const libc::iovec, count: u32, offset: u64, flags: i32) -> i64 {
        // SAFETY: passed on.
        result_or_errno(unsafe { libc::preadv2(fd, vectors, count as i32, offset as libc::off_t, flags) })
    }

    #[inline]
    pub(super) unsafe fn pwritev2(fd: RawFd, vectors: *const libc::iovec, count: u32, offset: u64, flags: i32) -> i64 {
        // SAFETY: passed on.
        result_or_errno(unsafe { libc::pwritev2(fd, vectors, count as i32, offset as libc::off_t, flags) })
    }
}
