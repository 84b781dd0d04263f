//! Readiness of one descriptor.
//!
//! Reference: ppoll(2).
#![allow(unsafe_code)] // # Safety: the descriptor is borrowed, the array is local.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

/// Waits until `fd` shows one of `events` (or an error or hang-up), or the timeout passes; returns what it shows.
///
/// `None` waits without limit. After a signal the wait starts again, with the whole timeout.
pub(crate) fn wait(fd: BorrowedFd<'_>, events: i16, timeout: Option<Duration>) -> io::Result<i16> {
    super::retry(|| once(fd, events, timeout))
}

fn once(fd: BorrowedFd<'_>, events: i16, timeout: Option<Duration>) -> io::Result<i16> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let timeout = timeout.map(super::timespec);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: one valid entry, a timeout that is null or valid, and no signal mask.
    super::check(unsafe { libc::ppoll(&mut entry, 1, timeout, ptr::null()) })?;
    if entry.revents & libc::POLLNVAL != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    Ok(entry.revents)
}
