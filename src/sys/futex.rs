//! Sleeping on a word of memory until another thread says that it has changed.
//!
//! Reference: futex(2).
#![allow(unsafe_code)] // # Safety: the word is borrowed for as long as the call takes; the kernel checks the rest.

use std::io;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

const WAIT: libc::c_int = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
const WAKE: libc::c_int = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;

/// Sleeps, at most `timeout` (`None`: without limit), unless the word isn't `expected`, until it is [woken](wake).
///
/// May return early, without any reason.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(super::timespec);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word is valid, and the timeout is null or valid. Errors are reasons to return: it has changed already,
    // the time is up, a signal came.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), WAIT, expected, timeout) };
}

/// Wakes a thread that sleeps on the word, if there is one. The word needn't be there any more.
pub(crate) fn wake(word: *const AtomicU32) {
    // SAFETY: the kernel only compares the address.
    let result = unsafe { libc::syscall(libc::SYS_futex, word, WAKE, 1) };
    debug_assert!(result != -1, "{}", io::Error::last_os_error());
}
