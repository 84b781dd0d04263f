//! Waiting for a future.

use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::scoped;
use crate::coroutine::{Polls, current_home};
use crate::primitive::atomic::{AtomicBool, Ordering};

/// Waits for a future: polls it on the caller's own stack, and parks whenever it is pending.
///
/// A coroutine lets the others of its thread run meanwhile. A callback of a loop runs that loop, and the future in a
/// coroutine of it. Any other thread blocks. In a coroutine it costs what the polls cost: nothing is allocated, and the
/// waker is [one word](crate::park::waker), which goes to any thread and may be kept for as long as one likes.
///
/// ```
/// use aioco::{AioContext, task};
/// use tokio::sync::oneshot;
///
/// let context = AioContext::new()?;
/// let (sender, receiver) = oneshot::channel();
/// std::thread::spawn(move || sender.send(42));
/// let answer = context.block_on(|| task::block_on(receiver)); // parks the coroutine
/// assert_eq!(answer, Ok(42));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Leaving
///
/// A coroutine that is [cancelled](crate::JoinHandle::cancel) while it waits drops the future, on its thread and before
/// anything further out; so it is when an [`aio::timeout`](crate::aio::timeout) around this is up.
///
/// A waker that is woken afterwards does nothing, unless the same coroutine is parked again: then it is one of the
/// wakes without a reason that each [`park`](crate::park::park()) may have. When the coroutine has ended, it wakes
/// nobody.
///
/// # What a future may need
///
/// - A future that is bound to a runtime (tokio's timers and sockets, for example) has to find it on the thread that
///   polls: enter it around the loop, not inside of a coroutine, whose thread others share.
/// - What the future does in a poll is done by the coroutine. It may park there (in a lock of [`sync`](crate::sync), in
///   a read of a [`block::File`](crate::block::File)), which holds up the other parts of the future, but not the other
///   coroutines.
/// - The thread of a context runs it only in a call of the context. A future that waits for it, the handle of a
///   coroutine there for example, needs [`AioContext::block_on`](crate::aio::Local::block_on) around this, which does.
/// - The other way round, a loop that runs inside of an async task blocks a thread of that task's executor. Give it a
///   thread of its own, an [`IoThread`](crate::aio::IoThread).
///
/// # Panics
///
/// - As [`park`](crate::park::park()), if it has to wait.
/// - If the future panics, with its payload.
/// - In a callback: if no stack can be had.
#[track_caller]
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let future = pin!(future.into_future());
    if let Some(polls) = Polls::new() {
        return poll_parking(polls, future);
    }
    match current_home() {
        Some(home) => {
            let turn = || home.clone().turn();
            let poll = || poll_parking(Polls::new().expect("in a coroutine"), future);
            scoped::run(home.clone(), Location::caller(), turn, poll)
        }
        None => poll_blocking(future),
    }
}

/// Polls the future, and parks the calling coroutine in between.
fn poll_parking<F: Future>(mut polls: Polls, mut future: Pin<&mut F>) -> F::Output {
    let waker = polls.waker();
    let mut context = Context::from_waker(&waker);
    loop {
        polls.begin();
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        polls.park();
    }
}

/// Polls the future, and blocks the calling thread in between.
fn poll_blocking<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    let bell = Arc::new(Bell { thread: thread::current(), has_rung: AtomicBool::new(false) });
    let waker = Waker::from(bell.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        // Acquire: pairs with the Release of `wake_by_ref`.
        while !bell.has_rung.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

/// The waker of a thread that remembers by itself: the thread's token may go to a park inside of a poll.
struct Bell {
    thread: Thread,
    has_rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: pairs with the Acquire of `poll_blocking`.
        self.has_rung.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
