//! The owner's side of a spawned coroutine.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use super::oneshot::Receiver;
use crate::coroutine::{Home, Target, in_coroutine};
use crate::park;

/// Waits for a spawned coroutine, or cancels it. Dropping it lets the coroutine go on by itself.
///
/// A detached coroutine's panic does what a detached thread's does: the panic hook reports it, and that is all.
///
/// It is a future, too: async code, on whatever executor, awaits what [`join`](Self::join) returns.
pub struct JoinHandle<T> {
    outcome: Receiver<thread::Result<T>, Owner>,
}

/// What a handle knows of its coroutine.
pub(super) struct Owner {
    pub(super) home: Arc<dyn Home>,
    pub(super) target: Target,
}

impl<T> JoinHandle<T> {
    pub(super) fn new(outcome: Receiver<thread::Result<T>, Owner>) -> Self {
        Self { outcome }
    }

    #[inline]
    pub(super) fn owner(&self) -> &Owner {
        self.outcome.attached()
    }

    /// Waits for the coroutine's end.
    ///
    /// A coroutine parks; the thread of the coroutine's home, outside of coroutines, runs its loop meanwhile; any other
    /// thread blocks.
    ///
    /// # What was just spawned
    ///
    /// A spawned coroutine that joins one which it has spawned on its own home since it was last resumed need not wait
    /// for a turn of the loop: the other starts inside of the join, as if it were called, if it is the next to start of
    /// those that were spawned meanwhile. What that one wakes runs when the joiner suspends. If it ends without having
    /// suspended, the joiner goes on at once, and no other coroutine has run; after a few dozen of such joins in a row
    /// there is one that lets the others have their turn.
    ///
    /// ```
    /// let context = aioco::AioContext::new()?;
    /// let handle = context.spawn(|| 6 * 7)?;
    /// assert_eq!(handle.join().unwrap(), 42);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The panic payload, if the coroutine panicked; it is a [`Cancelled`](crate::coroutine::Cancelled) if it was
    /// cancelled or its context ended first.
    ///
    /// # Panics
    ///
    /// - As [`park`](park::park()), if the caller is a coroutine.
    /// - If it is the thread of a home whose loop [can't be run](Home::turn) here, and the coroutine hasn't ended.
    pub fn join(mut self) -> thread::Result<T> {
        self.owner().target.start_newborn();
        loop {
            self.outcome = match self.outcome.into_value() {
                Ok(result) => return result,
                Err(pending) => pending,
            };
            if let Some(result) = self.take_or_wait() {
                return result;
            }
            if self.owner().home.is_current() && !in_coroutine() {
                self.owner().home.clone().turn();
            } else {
                park::park();
            }
        }
    }

    /// The result, if it is there; otherwise the caller is woken when it is.
    pub(crate) fn take_or_wait(&self) -> Option<thread::Result<T>> {
        self.outcome.take_or_wait(park::waker())
    }

    /// Ends the coroutine at once: unwinds it where it is suspended, or drops it unrun. For its own thread, while it
    /// doesn't run.
    pub(crate) fn end_now(&self) {
        self.owner().target.end_now();
    }

    /// Makes the coroutine unwind at its next suspension, or at once if it is suspended; one that waits for
    /// [block I/O](crate::block), when it has its buffer back; one that hasn't started is dropped.
    ///
    /// Doesn't wait for it. See the [module on coroutines](crate::coroutine) for what a cancelled coroutine may do.
    pub fn cancel(&self) {
        self.owner().target.cancel();
    }

    /// Whether the coroutine has ended, so that [`join`](Self::join) won't wait.
    pub fn is_finished(&self) -> bool {
        self.outcome.is_sent()
    }
}

/// Awaits the coroutine's end: the output is what [`join`](JoinHandle::join) returns. The context of the coroutine has
/// to run somewhere meanwhile, as that of an [`IoThread`](crate::aio::IoThread) does.
///
/// ```
/// use aioco::{aio::IoThread, task};
///
/// async fn answer(io_thread: &IoThread) -> std::io::Result<i32> {
///     let handle = io_thread.remote().spawn(|| 6 * 7)?; // the coroutine
///     Ok(handle.await.expect("it doesn't panic"))
/// }
///
/// let io_thread = IoThread::new("io-0")?;
/// assert_eq!(task::block_on(answer(&io_thread))?, 42); // or any other executor
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Nothing is lost if it is dropped while it is pending, which detaches the coroutine, or if it is awaited by `&mut`
/// and that is given up: it can be awaited again, by whomever, or joined.
///
/// # Panics
///
/// If it is polled, or joined, after it has returned its output.
impl<T> Future for JoinHandle<T> {
    type Output = thread::Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = self.outcome.take().or_else(|| self.outcome.take_or_wait(context.waker().clone()));
        result.map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish_non_exhaustive()
    }
}
