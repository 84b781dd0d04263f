//! One blocking primitive for everything above: park and unpark, on a coroutine or on a plain thread.
//!
//! [`waker`] gives a [`Waker`] for the caller, whatever it is; [`park`] blocks the caller until that waker is woken.
//! The contract is the same on both sides: a wake that comes before the park is remembered; wakes coalesce; a park may
//! return without a wake, so callers loop on their condition. Inside a coroutine a park suspends it; on a plain thread
//! it blocks the thread, also when that thread owns an event loop.
//!
//! ```
//! use std::sync::{Arc, Mutex, atomic::{AtomicBool, Ordering}};
//! use aioco::{AioContext, park};
//!
//! let done = Arc::new(AtomicBool::new(false));
//! let context = AioContext::new()?;
//! context.block_on(|| {
//!     let waker = park::waker();
//!     let flag = done.clone();
//!     std::thread::spawn(move || {
//!         flag.store(true, Ordering::Release);
//!         waker.wake();
//!     });
//!     while !done.load(Ordering::Acquire) {
//!         park::park();
//!     }
//! });
//! # Ok::<(), std::io::Error>(())
//! ```

mod thread;

use std::task::Waker;
use std::time::Instant;

use crate::coroutine;
pub(crate) use crate::coroutine::{Runner, in_coroutine};

/// A waker for the caller: for the coroutine that it runs in, or else for its thread.
///
/// For a coroutine it is a number, free to clone and to drop; waking it when the coroutine has ended does nothing.
pub fn waker() -> Waker {
    coroutine::waker().unwrap_or_else(thread::waker)
}

/// Blocks the caller until its [`waker`] is woken, or returns at once if it was woken since the last park. May
/// return without a wake.
///
/// In a coroutine that has no home this returns to whoever entered it.
///
/// # Panics
///
/// - In a drop guard while the coroutine is unwinding.
/// - With the payload [`Cancelled`](crate::coroutine::Cancelled), to unwind the coroutine, if it is to end.
#[inline(always)]
pub fn park() {
    if !coroutine::park() {
        thread::park();
    }
}

/// As [`park`], but returns at the deadline at the latest.
///
/// In a coroutine that has no home the deadline is kept only by whoever enters it.
///
/// # Panics
///
/// As [`park`].
pub fn park_until(deadline: Instant) {
    let Some(waker) = coroutine::waker() else { return thread::park_until(deadline) };
    let watch = coroutine::home().map(|home| {
        let watch = home.watch_deadline(deadline, waker);
        Unwatch { home, watch }
    });
    park();
    drop(watch);
}

/// Ends the watch also when the coroutine is unwound out of its park.
struct Unwatch {
    home: std::sync::Arc<dyn coroutine::Home>,
    watch: coroutine::Watch,
}

impl Drop for Unwatch {
    fn drop(&mut self) {
        self.home.unwatch(self.watch);
    }
}
