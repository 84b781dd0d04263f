//! Waiting for a point in time.
#![allow(unsafe_code)] // # Safety: one call, in `timeout`, for a coroutine that may borrow, and is ended before we leave.

use std::error::Error;
use std::fmt;
use std::panic::{self, Location};
use std::time::{Duration, Instant};

use crate::coroutine;
use crate::park;
use crate::task::{self, JoinHandle};

/// Suspends the caller for at least `duration`: a coroutine parks, a plain thread blocks.
///
/// A duration that leads past what the clock can count lasts for ever.
///
/// ```
/// use std::time::{Duration, Instant};
/// let context = aioco::AioContext::new()?;
/// let start = Instant::now();
/// context.block_on(|| aioco::aio::sleep(Duration::from_millis(2)));
/// assert!(start.elapsed() >= Duration::from_millis(2));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// As [`park`](park::park()).
pub fn sleep(duration: Duration) {
    match Instant::now().checked_add(duration) {
        Some(deadline) => sleep_until(deadline),
        None => loop {
            park::park();
        },
    }
}

/// Suspends the caller until `deadline` has passed; not at all if it has.
///
/// # Panics
///
/// As [`park`](park::park()).
pub fn sleep_until(deadline: Instant) {
    while Instant::now() < deadline {
        park::park_until(deadline);
    }
}

/// Runs `f`, for at most `duration`: if it hasn't returned by then, it is unwound.
///
/// `f` runs in a coroutine of its own on the caller's home, which has ended when this returns; so `f` may borrow. It is
/// unwound where it is suspended: code that computes and never suspends isn't interrupted.
///
/// ```
/// use aioco::{AioContext, aio};
/// use std::time::Duration;
///
/// let context = AioContext::new()?;
/// context.block_on(|| {
///     let short = Duration::from_millis(1);
///     assert!(aio::timeout(short, || aio::sleep(Duration::from_secs(3600))).is_err());
///     assert_eq!(aio::timeout(Duration::from_secs(3600), || 42), Ok(42));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// [`Elapsed`], if the time was up first.
///
/// # Panics
///
/// - If `f` panics, with its payload.
/// - Outside of a coroutine that has a home.
/// - If no stack can be had.
///
/// # Aborts
///
/// If `f` refuses to be unwound (see the [module on coroutines](coroutine)), or has the caller unwound: its borrows
/// could not be ended.
#[track_caller]
pub fn timeout<T>(duration: Duration, f: impl FnOnce() -> T) -> Result<T, Elapsed> {
    let deadline = Instant::now().checked_add(duration);
    let home = coroutine::home().expect("timeout called outside of a coroutine that has a home");
    // SAFETY: `Child` ends the coroutine before we leave.
    let handle = unsafe { task::spawn_scoped(home, Location::caller(), f) };
    let mut child = Child { handle: Some(handle.expect("no stack for a coroutine")) };
    loop {
        match child.take_result() {
            Some(Ok(value)) => return Ok(value),
            Some(Err(payload)) => panic::resume_unwind(payload),
            None => {}
        }
        match deadline {
            Some(deadline) if Instant::now() >= deadline => return Err(Elapsed),
            Some(deadline) => park::park_until(deadline),
            None => park::park(),
        }
    }
}

/// A coroutine that is ended, at the latest when this is dropped.
struct Child<T> {
    handle: Option<JoinHandle<T>>,
}

impl<T> Child<T> {
    /// The result, if it is there; otherwise the caller is woken when it is.
    fn take_result(&mut self) -> Option<std::thread::Result<T>> {
        let result = self.handle.as_ref()?.take_or_wait();
        if result.is_some() {
            self.handle = None;
        }
        result
    }
}

impl<T> Drop for Child<T> {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.end_now();
        }
    }
}

/// The time was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time was up")
    }
}

impl Error for Elapsed {}
