//! Anonymous mappings, guard pages, and giving pages back.
//!
//! References: mmap(2), madvise(2) (`MADV_GUARD_INSTALL` since Linux 6.13), mprotect(2).
#![allow(unsafe_code)] // # Safety: a `Mapping` owns its address range; the functions act on ranges of one.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use crate::primitive::atomic::{AtomicU64, Ordering};

// From the kernel's interface; not in every version of the C library's headers.
const MADV_GUARD_INSTALL: libc::c_int = 102;

static MAPPED: AtomicU64 = AtomicU64::new(0);
static UNMAPPED: AtomicU64 = AtomicU64::new(0);

/// Calls of `mmap` that succeeded, since the start.
pub(crate) fn mapped() -> u64 {
    MAPPED.load(Ordering::Relaxed)
}

/// Calls of `munmap`, since the start.
pub(crate) fn unmapped() -> u64 {
    UNMAPPED.load(Ordering::Relaxed)
}

/// The size of a page in bytes.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: sysconf has no preconditions.
    *SIZE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize)
}

/// A private anonymous mapping of zeroes, readable and writable, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range of the process; no thread owns it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Reserves `len` bytes of address space. Memory is committed when a page is touched, a small page at a time.
    pub(crate) fn reserve(len: usize) -> io::Result<Self> {
        #[cfg(test)]
        fault::check(fault::Call::Mmap)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing one.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(explain(io::Error::last_os_error()));
        }
        MAPPED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the range is the mapping just made. A kernel without huge pages refuses: nothing to forbid then.
        unsafe { libc::madvise(base, len, libc::MADV_NOHUGEPAGE) };
        let base = NonNull::new(base.cast()).expect("mmap returned null without a fixed address");
        Ok(Self { base, len })
    }

    /// The lowest address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Gives the mapping up for good: it stays mapped until the process ends.
    pub(crate) fn leak(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).base
    }

    /// Makes the range fault on every access from now on: by a guard marker, which costs no mapping; or, where the
    /// kernel has none, and in locked memory, by a protection, which splits a mapping in two.
    pub(crate) fn guard(base: NonNull<u8>, len: usize) -> io::Result<()> {
        #[cfg(test)]
        fault::check(fault::Call::Guard)?;
        if markers_work() && mark(base, len) {
            return Ok(());
        }
        // SAFETY: the range is part of a mapping of the caller's own, who wants it inaccessible.
        let result = unsafe { libc::mprotect(base.as_ptr().cast(), len, libc::PROT_NONE) };
        super::check(result).map_err(explain)?;
        Ok(())
    }

    /// Gives the range's pages back to the kernel; they read as zeroes when they are touched again. Guards stay.
    /// Returns whether the kernel took them: it doesn't while memory is locked (mlock(2)), say, and then they stay as
    /// they are.
    ///
    /// # Safety
    ///
    /// Nothing in the range is needed any more.
    pub(crate) unsafe fn discard(base: NonNull<u8>, len: usize) -> bool {
        // SAFETY: the contents are dead (contract).
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTNEED) == 0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever drops it has given up all references into it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        UNMAPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reserves address space until the process ends. It can't be accessed, and counts as memory nowhere, until a part of
/// it is [made memory](commit).
///
/// # Errors
///
/// What the kernel says; and `ENOMEM` if the process' address space is limited (`RLIMIT_AS`): others need what is left.
pub(crate) fn reserve_address_space(len: usize) -> io::Result<NonNull<u8>> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the buffer is valid.
    super::check(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) })?;
    if limit.rlim_cur != libc::RLIM_INFINITY {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing one.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(base.cast()).expect("mmap returned null without a fixed address"))
}

/// Makes reserved address space readable and writable memory, of zeroes.
///
/// # Safety
///
/// The range is part of what [`reserve_address_space`] has returned, and nobody uses it.
pub(crate) unsafe fn commit(base: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: contract.
    super::check(unsafe { libc::mprotect(base.as_ptr().cast(), len, libc::PROT_READ | libc::PROT_WRITE) }).map(drop)
}

/// Marks the range, which is part of a mapping of the caller's own; its contents are dropped. Returns whether the kernel
/// says that it did.
fn mark(base: NonNull<u8>, len: usize) -> bool {
    // SAFETY: the range is the caller's to lose.
    unsafe { libc::madvise(base.as_ptr().cast(), len, MADV_GUARD_INSTALL) == 0 }
}

/// Whether this system has guard markers. Older kernels don't know the advice; and what emulates a kernel may accept any
/// advice and ignore it, so whether a marked page faults is tried once.
fn markers_work() -> bool {
    static WORK: OnceLock<bool> = OnceLock::new();
    let probe = || -> io::Result<bool> {
        let page = Mapping::reserve(page_size())?;
        if !mark(page.base, page.len) {
            return Ok(false);
        }
        // The kernel reads the page for us, and doesn't die of it.
        Ok(super::eventfd::EventFd::new()?.cannot_read_from(page.base))
    };
    !cfg!(aioco_force_mprotect) && *WORK.get_or_init(|| probe().unwrap_or(false))
}

/// Adds the likely cause to an ENOMEM: a process may have only `vm.max_map_count` mappings.
fn explain(error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(libc::ENOMEM) {
        return error;
    }
    let Some((used, limit)) = mapping_counts() else { return error };
    // The kernel refuses when the count would pass the limit; one call may need two mappings more.
    if used + 2 < limit {
        return io::Error::new(error.kind(), format!("cannot map memory for a coroutine stack: {error}"));
    }
    io::Error::new(
        error.kind(),
        format!(
            "cannot map memory for a coroutine stack: the process has {used} mappings and vm.max_map_count is {limit}: \
             raise it with `sysctl -w vm.max_map_count=N`, or keep fewer coroutines alive"
        ),
    )
}

/// Mappings that this process has, and the limit.
fn mapping_counts() -> Option<(usize, usize)> {
    use std::io::Read;

    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    // A fixed buffer: when mappings have run out, an allocation of any size may fail too.
    let mut maps = std::fs::File::open("/proc/self/maps").ok()?;
    let mut buffer = [0; 4096];
    let mut used = 0;
    loop {
        match maps.read(&mut buffer) {
            Ok(0) => return Some((used, limit)),
            Ok(n) => used += buffer[..n].iter().filter(|&&byte| byte == b'\n').count(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Seam for tests: system calls that fail on demand, in the calling thread.
#[cfg(test)]
pub(crate) mod fault {
    use std::cell::Cell;
    use std::io;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Call {
        Mmap,
        Guard,
    }

    #[allow(clippy::disallowed_types, reason = "test seam; read by no coroutine across a switch")]
    mod armed {
        use super::*;
        std::thread_local! {
            pub(super) static ARMED: Cell<Option<(Call, u32)>> = const { Cell::new(None) };
        }
    }
    use armed::ARMED;

    /// From the `nth` (from 0) such call on, all fail with ENOMEM, until `heal`.
    pub(crate) fn fail_from(call: Call, nth: u32) {
        ARMED.set(Some((call, nth)));
    }

    pub(crate) fn heal() {
        ARMED.set(None);
    }

    pub(super) fn check(call: Call) -> io::Result<()> {
        match ARMED.get() {
            Some((armed, 0)) if armed == call => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
            Some((armed, n)) if armed == call => {
                ARMED.set(Some((armed, n - 1)));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
