//! A thread that runs a context.

use std::fmt;
use std::io;
use std::process;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::{AioContext, ContextBuilder, Polling, Remote};
use crate::primitive::atomic::{AtomicBool, Ordering};

/// A named thread that runs an [`AioContext`].
///
/// ```
/// use aioco::aio::IoThread;
///
/// let io_thread = IoThread::new("io-0")?;
/// let name = io_thread.remote().call(|| std::thread::current().name().map(str::to_owned))?;
/// assert_eq!(name.as_deref(), Some("io-0"));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Dropping
///
/// stops the loop after its turn, ends the context (see there), and joins the thread. A thread that drops its own
/// `IoThread` isn't joined; and in a child that was forked from its process there is nothing to stop or to join.
pub struct IoThread {
    remote: Remote,
    stop: Arc<AtomicBool>,
    /// The process that has the thread.
    process: u32,
    thread: Option<thread::JoinHandle<()>>,
}

impl IoThread {
    /// Starts the thread and its loop, which [polls](Polling) for at most 32 µs before it sleeps: what QEMU's I/O threads
    /// do.
    ///
    /// # Errors
    ///
    /// If the thread can't be started, or as [`AioContext::new`].
    ///
    /// # Panics
    ///
    /// If the name has a zero byte.
    pub fn new(name: impl Into<String>) -> io::Result<Self> {
        Self::with(name, AioContext::builder().polling(Polling::up_to(Duration::from_nanos(32_768))))
    }

    /// Starts the thread and its loop, with a context of one's own making.
    ///
    /// ```
    /// use aioco::AioContext;
    /// use aioco::aio::{IoThread, Polling};
    /// use std::time::Duration;
    ///
    /// let patient = AioContext::builder().polling(Polling::up_to(Duration::from_micros(200)));
    /// let io_thread = IoThread::with("io-0", patient)?;
    /// # io_thread.remote().call(|| ())?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the thread can't be started, or as [`ContextBuilder::build`].
    ///
    /// # Panics
    ///
    /// If the name has a zero byte.
    pub fn with(name: impl Into<String>, context: ContextBuilder) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (made, wait_for_made) = mpsc::sync_channel(1);
        let stopped = stop.clone();
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            let context = match context.build() {
                Ok(context) => context,
                Err(error) => return made.send(Err(error)).expect("the maker waits"),
            };
            made.send(Ok(context.remote())).expect("the maker waits");
            // Relaxed: whoever sets it schedules a bottom half afterwards, and that synchronizes.
            context.run_until(|| stopped.load(Ordering::Relaxed));
        })?;
        let remote = wait_for_made.recv().expect("the thread says how it went")?;
        Ok(Self { remote, stop, process: process::id(), thread: Some(thread) })
    }

    /// What its context is reached by.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Stops the loop and waits for the thread.
    ///
    /// # Errors
    ///
    /// The payload, if a callback or a coroutine that is driven by its handle panicked in the loop; that had ended it.
    pub fn join(mut self) -> thread::Result<()> {
        self.stop().map_or(Ok(()), thread::JoinHandle::join)
    }

    /// Has the loop stop; returns the thread, if it is to be joined.
    fn stop(&mut self) -> Option<thread::JoinHandle<()>> {
        let thread = self.thread.take()?;
        if self.process != process::id() {
            return None;
        }
        self.stop.store(true, Ordering::Relaxed);
        self.remote.schedule_once(|| ());
        (thread.thread().id() != thread::current().id()).then_some(thread)
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        if let Some(thread) = self.stop() {
            // A panic there has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for IoThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoThread").field("thread", &self.thread).finish_non_exhaustive()
    }
}
