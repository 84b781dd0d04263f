//! Readiness of one descriptor, or of an array of them.
//!
//! Reference: ppoll(2).
#![allow(unsafe_code)] // # Safety: numbers are checked by the kernel; the array is local or exclusively borrowed.

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

/// A descriptor number, the events that are asked for, and those that were seen.
pub(crate) type Entry = libc::pollfd;

/// Waits until one of the descriptors shows an event that its entry asks for (or an error, a hang-up, or that it isn't
/// open), or the timeout passes; `None` waits without limit. Returns how many show something.
///
/// A signal ends the wait early, with no events.
pub(crate) fn wait_many(entries: &mut [Entry], timeout: Option<Duration>) -> io::Result<usize> {
    match call(entries, timeout) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        result => result,
    }
}

fn once(fd: BorrowedFd<'_>, events: i16, timeout: Option<Duration>) -> io::Result<i16> {
    let mut entry = Entry { fd: fd.as_raw_fd(), events, revents: 0 };
    call(std::slice::from_mut(&mut entry), timeout)?;
    if entry.revents & libc::POLLNVAL != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    Ok(entry.revents)
}

fn call(entries: &mut [Entry], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(super::timespec);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `entries` is valid for its length, the timeout is null or valid, and there is no signal mask.
    let n = unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout, ptr::null()) };
    super::check(n).map(|n| n as usize)
}
