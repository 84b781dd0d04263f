//! Readiness of many descriptors.
//!
//! References: epoll_ctl(2), epoll_pwait2(2) (since Linux 5.11; older kernels get millisecond timeouts, rounded up).
#![allow(unsafe_code)] // # Safety: the instance is owned, watched numbers are checked by the kernel; buffers are local or exclusively borrowed.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// An event: what the kernel saw, and the token that was given for the descriptor.
pub(crate) type Event = libc::epoll_event;

/// An epoll instance.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 has no memory arguments.
        let fd = super::check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the descriptor is new, so nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Starts to watch the descriptor of this number.
    pub(crate) fn add(&self, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    /// Changes what the descriptor of this number is watched for.
    pub(crate) fn modify(&self, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, events, token)
    }

    /// Stops watching the descriptor of this number, which may be closed already: then there is nothing to stop.
    pub(crate) fn delete(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    fn control(&self, op: libc::c_int, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        let mut event = Event { events, u64: token };
        // SAFETY: the event is valid; the kernel checks the descriptor number.
        super::check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &mut event) }).map(drop)
    }

    /// Waits for events, at most `timeout` (`None`: without limit), and returns how many were stored at the start of
    /// `events`.
    ///
    /// A signal ends the wait early, with no events.
    pub(crate) fn wait(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        let result = match self.wait_precise(events, timeout) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => self.wait_coarse(events, timeout),
            result => result,
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            result => result,
        }
    }

    fn wait_precise(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map(super::timespec);
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: `events` is valid for its length, the timeout is null or valid, and there is no signal mask. (By
        // number: older C libraries lack the function.)
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len().min(i32::MAX as usize) as libc::c_int,
                timeout,
                ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        super::check(n as libc::c_int).map(|n| n as usize)
    }

    #[cold]
    fn wait_coarse(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map_or(-1, |timeout| {
            let millis = timeout.as_nanos().div_ceil(1_000_000);
            libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX)
        });
        let len = events.len().min(i32::MAX as usize) as libc::c_int;
        // SAFETY: `events` is valid for its length.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), len, timeout) };
        super::check(n).map(|n| n as usize)
    }
}
