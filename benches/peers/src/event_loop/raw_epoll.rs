//! epoll by bare system calls, edge-triggered, and a timerfd for the time.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use super::event_fd::EventFd;
use super::poller::{self, Poller};
use super::{FAR, timed};

const EVENTS: usize = 64;

/// An epoll instance.
pub struct RawEpoll {
    epoll: OwnedFd,
}

impl RawEpoll {
    fn control(&self, operation: libc::c_int, fd: RawFd, token: u32) -> io::Result<()> {
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        let mut event = libc::epoll_event { events, u64: u64::from(token) };
        // SAFETY: the event is valid; the kernel checks the descriptors.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) })?;
        Ok(())
    }
}

impl Poller for RawEpoll {
    const NAME: &'static str = "raw-epoll";

    fn new() -> io::Result<Self> {
        // SAFETY: the call has no memory arguments.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Self { epoll })
    }

    fn watch(&mut self, fd: &EventFd, token: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), token)
    }

    fn unwatch(&mut self, fd: &EventFd, token: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), token)
    }

    fn turn(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = match timeout {
            Some(timeout) => timeout.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(libc::c_int::MAX),
            None => -1,
        };
        let mut events = [const { libc::epoll_event { events: 0, u64: 0 } }; EVENTS];
        let room = EVENTS as libc::c_int;
        // SAFETY: there is room for as many events as stated.
        let count = check(unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), room, timeout) })?;
        Ok(count as usize)
    }
}

/// A timerfd that is armed and disarmed.
pub fn timer_cancel(times: u64) -> Duration {
    let timer = Timer::new();
    timed(|| {
        for _ in 0..times {
            timer.set(FAR);
            timer.set(Duration::ZERO);
        }
    })
}

/// A timerfd that is armed to expire at once, waited for and read.
pub fn timer_fire(times: u64) -> Duration {
    let timer = Timer::new();
    let mut poller = RawEpoll::new().expect("an epoll instance can be had");
    poller.control(libc::EPOLL_CTL_ADD, timer.0.as_raw_fd(), 0).expect("a timerfd can be watched");
    timed(|| {
        for _ in 0..times {
            timer.set(Duration::from_nanos(1));
            assert_eq!(poller::wait(&mut poller, None), 1);
            timer.take();
        }
    })
}

/// A timerfd.
struct Timer(OwnedFd);

impl Timer {
    fn new() -> Self {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: the call has no memory arguments.
        let timer = owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) });
        Self(timer.expect("a timerfd can be had"))
    }

    /// Lets it expire, once, after the delay; never, if that is zero.
    fn set(&self, delay: Duration) {
        // SAFETY: zeroes are valid for an `itimerspec`: no delay, no repetition.
        let mut setting: libc::itimerspec = unsafe { mem::zeroed() };
        setting.it_value.tv_sec = delay.as_secs() as libc::time_t;
        setting.it_value.tv_nsec = delay.subsec_nanos().into();
        // SAFETY: the setting is valid, and the old one isn't asked for.
        let result = unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &setting, ptr::null_mut()) };
        check(result).expect("the setting is valid");
    }

    /// Makes it unreadable.
    fn take(&self) {
        let mut expirations = [0u8; 8];
        // SAFETY: the buffer is valid for its length.
        let length = unsafe { libc::read(self.0.as_raw_fd(), expirations.as_mut_ptr().cast(), expirations.len()) };
        assert_eq!(length, 8, "it has expired");
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes a descriptor that a system call has just returned.
fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the descriptor is new, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
