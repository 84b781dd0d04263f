//! Whatever has a descriptor, with reads and writes that park.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::keep::Keeping;
use super::wait;
use crate::coroutine::{Interest, Since};
use crate::primitive::atomic::{AtomicU64, Ordering};
use crate::sys;

/// A socket, a pipe, an eventfd, a terminal: whatever has a descriptor that can be waited for. Where the descriptor would
/// make a thread wait, this parks the coroutine. (Who isn't a coroutine that has a home blocks, as ever.)
///
/// It makes the descriptor non-blocking, for all who share it: the flag is the open file's, also of duplicates and of
/// other processes. A regular file is always ready; what reading it has to wait for, the thread waits for; that is for
/// [`block::File`](crate::block::File).
///
/// `Parked<T>` reads and writes if `T` does, and `&Parked<T>` if `&T` does: so two coroutines may use one socket, one for
/// each direction or both for both.
///
/// ```
/// use aioco::{AioContext, fd::Parked};
/// use std::io::{BufRead, BufReader, Write};
/// use std::os::unix::net::UnixStream;
///
/// let (ours, theirs) = UnixStream::pair()?;
/// let context = AioContext::new()?;
/// let server = context.spawn(move || -> std::io::Result<()> {
///     let stream = Parked::new(theirs)?;
///     for line in BufReader::new(&stream).lines() {
///         writeln!(&stream, "{} to you, too", line?)?;
///     }
///     Ok(())
/// })?;
/// context.block_on(|| -> std::io::Result<()> {
///     let mut stream = Parked::new(ours)?;
///     writeln!(stream, "hello")?;
///     let mut answer = String::new();
///     BufReader::new(&mut stream).read_line(&mut answer)?;
///     assert_eq!(answer, "hello to you, too\n");
///     Ok(())
/// })?;
/// server.join().unwrap()?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # What it may be made of
///
/// The `T` keeps its descriptor, and its operations return [`WouldBlock`](io::ErrorKind::WouldBlock) only because that
/// isn't ready: where a coroutine waits for it more than once, its loop watches the descriptor from then on, and sees when
/// it *becomes* ready. So a codec goes around a `Parked`, not into it.
///
/// # Dropping
///
/// drops the `T`, which closes the descriptor if it owns it. A coroutine that waits for it has borrowed it, so nobody
/// closes it under it.
///
/// The file is closed at once if this is the thread of the context where it was waited for, or none was. On another thread,
/// its context may have it open until its next turn; shut a socket down if its peer mustn't wait for that.
pub struct Parked<T> {
    /// Dropped before the descriptor.
    keeping: Keeping,
    inner: T,
    /// Whether it was blocking.
    was_blocking: bool,
    /// By direction: how long an operation may wait, in nanoseconds; [`FOREVER`] if there is no limit.
    timeouts: [AtomicU64; 2],
}

const FOREVER: u64 = u64::MAX;

impl<T: AsFd> Parked<T> {
    /// Makes the descriptor non-blocking.
    ///
    /// # Errors
    ///
    /// What the kernel says about the descriptor.
    pub fn new(inner: T) -> io::Result<Self> {
        let was_blocking = sys::file::set_non_blocking(inner.as_fd(), true)?;
        Ok(Self {
            keeping: Keeping::default(),
            inner,
            was_blocking,
            timeouts: [AtomicU64::new(FOREVER), AtomicU64::new(FOREVER)],
        })
    }

    /// Waits until it can be read from; see [`wait_readable`](super::wait_readable).
    ///
    /// # Errors
    ///
    /// What the kernel says about the descriptor, and [`TimedOut`](io::ErrorKind::TimedOut).
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn readable(&self) -> io::Result<()> {
        self.until_ready(Interest::Readable)
    }

    /// Waits until it can be written to; see [`wait_writable`](super::wait_writable).
    ///
    /// # Errors
    ///
    /// As [`readable`](Self::readable).
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn writable(&self) -> io::Result<()> {
        self.until_ready(Interest::Writable)
    }

    /// Calls `operation` until it doesn't return [`WouldBlock`](io::ErrorKind::WouldBlock) any more, and waits until the
    /// descriptor can be read from between the calls. Those that were [interrupted](io::ErrorKind::Interrupted) are
    /// repeated at once.
    ///
    /// ```
    /// use aioco::{AioContext, fd::Parked};
    /// use std::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let address = socket.local_addr()?;
    /// let context = AioContext::new()?;
    /// let socket = Parked::new(socket)?;
    /// UdpSocket::bind("127.0.0.1:0")?.send_to(b"hello", address)?;
    /// let (len, _) = context.block_on(|| socket.read_with(|socket| socket.recv_from(&mut [0; 100])))?;
    /// assert_eq!(len, 5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `operation`, and as [`readable`](Self::readable).
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn read_with<R>(&self, mut operation: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.with(Interest::Readable, || operation(&self.inner))
    }

    /// As [`read_with`](Self::read_with), waiting until the descriptor can be written to.
    ///
    /// # Errors
    ///
    /// As [`read_with`](Self::read_with).
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn write_with<R>(&self, mut operation: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.with(Interest::Writable, || operation(&self.inner))
    }

    /// Limits how long one operation of this direction waits; then it returns [`TimedOut`](io::ErrorKind::TimedOut).
    /// `None`, as at first: without limit. A coroutine that waits already isn't concerned.
    pub fn set_timeout(&self, direction: Interest, timeout: Option<Duration>) {
        let nanos = timeout.and_then(|timeout| u64::try_from(timeout.as_nanos()).ok()).unwrap_or(FOREVER);
        self.timeouts[direction as usize].store(nanos, Ordering::Relaxed);
    }

    /// What it is made of. Reads and writes by that don't park: they return [`WouldBlock`](io::ErrorKind::WouldBlock).
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// What it is made of. It may get another descriptor here.
    pub fn get_mut(&mut self) -> &mut T {
        self.keeping = Keeping::default();
        &mut self.inner
    }

    /// What it is made of, blocking again if it was.
    ///
    /// # Errors
    ///
    /// What the kernel says about the descriptor.
    pub fn into_inner(self) -> io::Result<T> {
        if self.was_blocking {
            sys::file::set_non_blocking(self.inner.as_fd(), false)?;
        }
        Ok(self.inner)
    }

    /// Has [`into_inner`](Self::into_inner) return it blocking, though it was made non-blocking.
    pub(super) fn give_back_blocking(&mut self) {
        self.was_blocking = true;
    }

    fn deadline(&self, interest: Interest) -> Option<Instant> {
        match self.timeouts[interest as usize].load(Ordering::Relaxed) {
            FOREVER => None,
            nanos => Instant::now().checked_add(Duration::from_nanos(nanos)),
        }
    }

    /// Waits for a descriptor that may be ready already.
    fn until_ready(&self, interest: Interest) -> io::Result<()> {
        match wait::wait(self.inner.as_fd(), interest, self.deadline(interest))? {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn with<R>(&self, interest: Interest, mut operation: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        let mut deadline = None;
        loop {
            if let Some(result) = self.settle(operation(), interest, &mut deadline) {
                return result;
            }
        }
    }

    fn with_mut<R>(&mut self, interest: Interest, mut operation: impl FnMut(&mut T) -> io::Result<R>) -> io::Result<R> {
        let mut deadline = None;
        loop {
            let result = operation(&mut self.inner);
            if let Some(result) = self.settle(result, interest, &mut deadline) {
                return result;
            }
        }
    }

    /// The result of an operation, unless it is to be repeated: it was interrupted, or the descriptor wasn't ready, and this
    /// has waited for it. The deadline for all waits of an operation begins with the first.
    fn settle<R>(
        &self,
        result: io::Result<R>,
        interest: Interest,
        deadline: &mut Option<Option<Instant>>,
    ) -> Option<io::Result<R>> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let deadline = *deadline.get_or_insert_with(|| self.deadline(interest));
                match self.keeping.wait(self.inner.as_fd(), interest, Since::Now, deadline) {
                    Ok(true) => None,
                    Ok(false) => Some(Err(io::ErrorKind::TimedOut.into())),
                    Err(error) => Some(Err(error)),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            result => Some(result),
        }
    }
}

impl<T: AsFd + Read> Read for Parked<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.with_mut(Interest::Readable, |inner| inner.read(buffer))
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.with_mut(Interest::Readable, |inner| inner.read_vectored(buffers))
    }
}

impl<T: AsFd + Write> Write for Parked<T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.with_mut(Interest::Writable, |inner| inner.write(buffer))
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.with_mut(Interest::Writable, |inner| inner.write_vectored(buffers))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with_mut(Interest::Writable, Write::flush)
    }
}

impl<'a, T: AsFd> Read for &'a Parked<T>
where
    &'a T: Read,
{
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.with(Interest::Readable, || (&self.inner).read(buffer))
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.with(Interest::Readable, || (&self.inner).read_vectored(buffers))
    }
}

impl<'a, T: AsFd> Write for &'a Parked<T>
where
    &'a T: Write,
{
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.with(Interest::Writable, || (&self.inner).write(buffer))
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.with(Interest::Writable, || (&self.inner).write_vectored(buffers))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with(Interest::Writable, || (&self.inner).flush())
    }
}

impl<T: AsFd> AsFd for Parked<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<T: fmt::Debug> fmt::Debug for Parked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parked").field(&self.inner).finish()
    }
}
