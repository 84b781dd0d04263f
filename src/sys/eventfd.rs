//! A counter that one side adds to and the other waits for.
//!
//! Reference: eventfd(2).
#![allow(unsafe_code)] // # Safety: descriptors are owned or borrowed; buffers are local.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// A non-blocking eventfd.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd has no memory arguments.
        let fd = super::check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
        // SAFETY: the descriptor is new, so nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes it readable.
    pub(crate) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer is valid for its length. The only failure is EAGAIN at 2⁶⁴ - 2: it is readable then
        // anyway.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Whether an attempt to signal it with eight bytes from there fails because the address can't be read.
    pub(crate) fn cannot_read_from(&self, address: NonNull<u8>) -> bool {
        // SAFETY: the kernel checks the address; it only reads from there.
        let written = unsafe { libc::write(self.0.as_raw_fd(), address.as_ptr().cast(), 8) };
        written == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
    }

    /// Takes the count, or one of it if it is a semaphore; zero if there is nothing to take.
    pub(crate) fn take(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        // SAFETY: the buffer is valid for its length.
        let read = unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        match super::check(read as libc::c_int) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => result.map(|_| u64::from_ne_bytes(count)),
        }
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        // The only failure is that it was unreadable.
        let _ = self.take();
    }

    /// Takes over a descriptor. Also returns whether it is a semaphore, if /proc says so (since Linux 6.5).
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if /proc says that it isn't an eventfd.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<(Self, Option<bool>)> {
        let Ok(info) = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())) else {
            return Ok((Self(fd), None));
        };
        let value = |key| info.lines().find_map(|line| line.strip_prefix(key).map(str::trim));
        if value("eventfd-count:").is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the descriptor isn't an eventfd"));
        }
        Ok((Self(fd), value("eventfd-semaphore:").map(|value| value != "0")))
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> Self {
        event.0
    }
}
