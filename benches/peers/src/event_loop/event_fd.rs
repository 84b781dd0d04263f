//! The descriptor that the cases watch: it is made readable and unreadable by one system call each.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::LazyLock;

use super::MANY;

/// A non-blocking eventfd.
pub struct EventFd(File);

impl EventFd {
    /// One that isn't readable yet.
    ///
    /// # Panics
    ///
    /// If the kernel refuses it, for which the cases have seen to the limit.
    pub fn new() -> Self {
        // SAFETY: the call has no memory arguments.
        let number = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        assert!(number >= 0, "no eventfd: {}", io::Error::last_os_error());
        // SAFETY: the descriptor is new, so nobody else owns it.
        Self(File::from(unsafe { OwnedFd::from_raw_fd(number) }))
    }

    /// Up to [`MANY`] of them that nobody signals. They are opened once and for all, which takes longer than what is
    /// timed with them.
    pub fn silent(count: u32) -> &'static [Self] {
        static ALL: LazyLock<Vec<EventFd>> = LazyLock::new(|| (0..MANY).map(|_| EventFd::new()).collect());
        &ALL[..count as usize]
    }

    /// Makes it readable.
    pub fn signal(&self) {
        (&self.0).write_all(&1u64.to_ne_bytes()).expect("the count is far from full");
    }

    /// Makes it unreadable.
    ///
    /// # Panics
    ///
    /// If it is already.
    pub fn take(&self) {
        (&self.0).read_exact(&mut [0; 8]).expect("it is readable");
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
