//! io_uring by the io-uring crate: a ring of one thread, whose completions are put off until that thread asks for them.
//!
//! A multishot poll watches a descriptor. The kernel raises a flag in the ring when there is work that was put off, so
//! a turn with nothing to do needs no system call.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::event_fd::EventFd;
use super::poller::Poller;
use super::{FAR, apart, timed};

const SUBMISSIONS: u32 = 64;

/// Far more than there can be at once: the kernel also sizes the table by it in which it finds what is to be removed.
const COMPLETIONS: u32 = 16 * 1024;

/// What marks completions of requests that aren't watches.
const NO_WATCH: u64 = u64::MAX;

/// A ring.
pub struct RawRing {
    ring: IoUring,
}

impl RawRing {
    /// Queues a request. If there is no room, submits what is queued, and forgets what has completed.
    ///
    /// # Safety
    ///
    /// What the request points to is valid until it has been submitted.
    unsafe fn push(&mut self, request: &squeue::Entry) -> io::Result<()> {
        // SAFETY: passed on; the requests keep no pointers once they have been submitted.
        while unsafe { self.ring.submission().push(request) }.is_err() {
            self.ring.submit()?;
            self.ring.completion().for_each(drop);
        }
        Ok(())
    }

    /// Submits what is queued, and has the kernel do what it has put off.
    fn catch_up(&mut self) -> io::Result<()> {
        loop {
            let submission = self.ring.submission();
            if submission.is_empty() && !submission.taskrun() {
                return Ok(());
            }
            drop(submission);
            self.ring.submit()?;
        }
    }

    /// Takes the completions and counts those of watches.
    fn count_ready(&mut self) -> usize {
        let is_watch = |entry: &cqueue::Entry| entry.user_data() != NO_WATCH && entry.result() >= 0;
        self.ring.completion().filter(is_watch).count()
    }

    /// Waits for a number of completions, and takes them.
    fn complete(&mut self, count: usize) {
        while self.ring.completion().len() < count {
            match self.ring.submit_and_wait(count) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => drop(result.expect("a ring can wait")),
            }
        }
        assert_eq!(self.ring.completion().count(), count);
    }
}

impl Poller for RawRing {
    const NAME: &'static str = "raw-ring";

    fn new() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)?;
        Ok(Self { ring })
    }

    fn watch(&mut self, fd: &EventFd, token: u32) -> io::Result<()> {
        let request = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32).multi(true).build();
        // SAFETY: there are no pointers in it.
        unsafe { self.push(&request.user_data(token.into())) }
    }

    fn unwatch(&mut self, _: &EventFd, token: u32) -> io::Result<()> {
        let request = opcode::PollRemove::new(token.into()).build();
        // SAFETY: there are no pointers in it.
        unsafe { self.push(&request.user_data(NO_WATCH)) }
    }

    fn turn(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        if timeout != Some(Duration::ZERO) {
            let waited = match timeout {
                None => self.ring.submit_and_wait(1),
                Some(timeout) => {
                    let timeout = types::Timespec::from(timeout);
                    self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&timeout))
                }
            };
            if let Err(error) = waited
                && error.raw_os_error() != Some(libc::ETIME)
            {
                return Err(error);
            }
        }
        self.catch_up()?;
        Ok(self.count_ready())
    }
}

/// Whether there are rings of this kind.
pub fn probe() -> io::Result<()> {
    apart(|| RawRing::new().map(drop))
}

/// A timeout that is requested and removed, both by the same system call.
pub fn timer_cancel(times: u64) -> Duration {
    apart(|| {
        let mut ring = RawRing::new().expect("the kernel has been asked before");
        let far = types::Timespec::from(FAR);
        timed(|| {
            for _ in 0..times {
                // SAFETY: the delay is valid until all has been submitted, below; the removal has no pointers.
                unsafe {
                    ring.push(&opcode::Timeout::new(&far).build()).expect("there is room");
                    ring.push(&opcode::TimeoutRemove::new(0).build().user_data(NO_WATCH)).expect("there is room");
                }
                ring.complete(2);
            }
        })
    })
}

/// A timeout that is requested to expire at once, and waited for.
pub fn timer_fire(times: u64) -> Duration {
    apart(|| {
        let mut ring = RawRing::new().expect("the kernel has been asked before");
        let at_once = types::Timespec::from(Duration::from_nanos(1));
        timed(|| {
            for _ in 0..times {
                // SAFETY: the delay is valid until it has been submitted, below.
                unsafe { ring.push(&opcode::Timeout::new(&at_once).build()).expect("there is room") };
                ring.complete(1);
            }
        })
    })
}
