//! Waiting for a descriptor: the coroutine parks, a plain thread blocks.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::coroutine::{self, Interest, Watch};
use crate::park;
use crate::sys;

/// Waits until the descriptor is ready, or until the deadline, if there is one. Returns whether it is ready.
pub(super) fn wait(fd: BorrowedFd<'_>, interest: Interest, deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let watch = coroutine::with_home(|home| home.map(|home| home.watch_fd(fd, interest, park::waker())));
        let Some(watch) = watch else { return block(fd, interest, deadline) };
        match park(watch?, deadline) {
            Ended::ForNothing => {}
            Ended::Fired => return Ok(true),
            Ended::TimedOut => return Ok(false),
        }
    }
}

/// As [`wait`], for who can't park.
fn block(fd: BorrowedFd<'_>, interest: Interest, deadline: Option<Instant>) -> io::Result<bool> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    sys::poll::wait(fd, interest.poll_events(), left).map(|events| events != 0)
}

/// How a [`park`] has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Fired,
    TimedOut,
    ForNothing,
}

/// Parks until this watch of the coroutine's home has fired, or until the deadline, or for nothing. Then the watch is over.
#[inline(always)]
pub(super) fn park(watch: Watch, deadline: Option<Instant>) -> Ended {
    let watching = Watching(watch);
    match deadline {
        None => park::park(),
        Some(deadline) => park::park_until(deadline),
    }
    match watching.end() {
        true => Ended::Fired,
        false if deadline.is_some_and(|deadline| deadline <= Instant::now()) => Ended::TimedOut,
        false => Ended::ForNothing,
    }
}

/// A watch that ends when the coroutine is unwound.
struct Watching(Watch);

impl Watching {
    /// Ends the watch; returns whether it had fired.
    fn end(self) -> bool {
        ManuallyDrop::new(self).unwatch()
    }

    fn unwatch(&self) -> bool {
        coroutine::with_home(|home| home.expect("who parks has a home").unwatch(self.0))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.unwatch();
    }
}
