//! The only place that talks to the kernel.
//!
//! What the rooms above need, and where it is: memory with guard pages ([`mmap`]), a counter that wakes a sleeping loop
//! ([`eventfd`]), readiness of many descriptors ([`epoll`]) and of few ([`poll`]), queues shared with the kernel
//! ([`ring`]), requests to files ([`file`], `transfer`), also without a ring ([`linux_aio`]), and a call at
//! thread exit ([`thread_exit`]). Each function is one system call, or one and its retry on `EINTR`, and returns `io::Result`. Unit
//! tests plan faults in front of them (`fault`).
//!
//! # Safety
//!
//! This folder uses no other module of the crate but `primitive`. Its functions are safe where the kernel checks all
//! that matters; where they aren't, their contract says what the caller must know.

mod entrance;
pub(crate) mod epoll;
pub(crate) mod eventfd;
#[cfg(test)]
pub(crate) mod fault;
pub(crate) mod file;
pub(crate) mod futex;
pub(crate) mod linux_aio;
pub(crate) mod mmap;
pub(crate) mod poll;
pub(crate) mod ring;
pub(crate) mod thread_exit;
mod transfer;

use std::io;
use std::time::Duration;

/// The result of a system call that reports failure by -1 and `errno`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The same result as the kernel returned it: a negative error number if the call failed.
fn result_or_errno(result: isize) -> i64 {
    match result {
        -1 => -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        result => result as i64,
    }
}

/// Repeats a system call for as long as a signal interrupts it.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// A timeout for the kernel; durations that don't fit saturate.
fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos() as _,
    }
}
