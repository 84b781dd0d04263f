//! Whatever has a descriptor, with reads and writes that park.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
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
/// A TCP stream that was accepted or connected as a `Parked` one doesn't ask in vain: when a read has got less than it asked
/// for, the next one waits first.
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
    /// Whether a read that gets less than it asked for has taken all there is, but for the news that the peer has hung up: so
    /// with a TCP stream. (Who sends it urgent data, at which a read stops, may have to send more to be read on.) Not so with
    /// a `T` that has a buffer of its own, nor with a Unix socket, where what came with descriptors is read by itself.
    is_bare: bool,
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
        let timeouts = [AtomicU64::new(FOREVER), AtomicU64::new(FOREVER)];
        Ok(Self { keeping: Keeping::default(), inner, was_blocking, timeouts, is_bare: false })
    }

    /// Waits until it can be read from; see [`wait_readable`](super::wait_readable).
    ///
    /// ```
    /// use aioco::{AioContext, fd::Parked};
    /// use std::io::{Read, Write};
    /// use std::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut client = TcpStream::connect(listener.local_addr()?)?;
    /// let context = AioContext::new()?;
    /// let stream = Parked::new(listener.accept()?.0)?;
    /// let first = context.spawn(move || -> std::io::Result<u8> {
    ///     let mut byte = [0];
    ///     // There is no `peek` that parks, so wait before it.
    ///     stream.readable()?;
    ///     stream.get_ref().peek(&mut byte)?;
    ///     let seen = byte[0];
    ///     (&stream).read_exact(&mut byte)?;
    ///     assert_eq!(byte[0], seen);
    ///     Ok(seen)
    /// })?;
    /// client.write_all(b"x")?;
    /// assert_eq!(first.join().unwrap()?, b'x');
    /// # Ok::<(), std::io::Error>(())
    /// ```
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
        self.with(Patience::new(Interest::Readable), || operation(&self.inner))
    }

    /// As [`read_with`](Self::read_with), waiting until the descriptor can be written to.
    ///
    /// ```
    /// use aioco::{AioContext, fd::Parked};
    /// use std::os::unix::net::UnixDatagram;
    ///
    /// let (ours, theirs) = UnixDatagram::pair()?;
    /// let context = AioContext::new()?;
    /// let sender = Parked::new(ours)?;
    /// // Sends more than fit in at once.
    /// let send = move |_| sender.write_with(|socket| socket.send(b"x")).map(drop);
    /// let sending = context.spawn(move || (0..1000).try_for_each(send))?;
    /// let receiving = std::thread::spawn(move || (0..1000).try_for_each(|_| theirs.recv(&mut [0; 1]).map(drop)));
    /// sending.join().unwrap()?;
    /// receiving.join().unwrap()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`read_with`](Self::read_with).
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn write_with<R>(&self, mut operation: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.with(Patience::new(Interest::Writable), || operation(&self.inner))
    }

    /// Limits how long one operation of this direction waits; then it returns [`TimedOut`](io::ErrorKind::TimedOut).
    /// `None`, as at first: without limit. A coroutine that waits already isn't concerned.
    ///
    /// ```
    /// use aioco::{AioContext, coroutine::Interest, fd::Parked};
    /// use std::io::{ErrorKind, Read};
    /// use std::os::unix::net::UnixStream;
    /// use std::time::Duration;
    ///
    /// let (ours, _theirs) = UnixStream::pair()?;
    /// let mut stream = Parked::new(ours)?;
    /// stream.set_timeout(Interest::Readable, Some(Duration::from_millis(1)));
    /// let result = AioContext::new()?.block_on(|| stream.read(&mut [0]));
    /// assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
    /// # Ok::<(), std::io::Error>(())
    /// ```
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
    /// ```
    /// use aioco::{AioContext, fd::Parked};
    /// use std::io::{Read, Write};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let (ours, mut theirs) = UnixStream::pair()?;
    /// let mut stream = Parked::new(ours)?;
    /// AioContext::new()?.block_on(|| stream.write_all(b"by a coroutine"))?;
    /// let mut ours = stream.into_inner()?;
    /// let answering = std::thread::spawn(move || theirs.write_all(b"x"));
    /// ours.read_exact(&mut [0])?; // blocks
    /// # answering.join().unwrap()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
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

    /// Says that it is a TCP stream.
    pub(super) fn bare(self) -> Self {
        Self { is_bare: true, ..self }
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

    /// Waits for a descriptor that isn't ready, as one has seen.
    fn wait(&self, since: Since, patience: &mut Patience) -> io::Result<()> {
        let interest = patience.interest;
        let deadline = *patience.deadline.get_or_insert_with(|| self.deadline(interest));
        match self.keeping.wait(self.inner.as_fd(), interest, since, deadline)? {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn with<R>(&self, mut patience: Patience, mut operation: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        loop {
            if let Some(result) = self.settle(operation(), &mut patience) {
                return result;
            }
        }
    }

    fn with_mut<R>(
        &mut self,
        mut patience: Patience,
        mut operation: impl FnMut(&mut T) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            let result = operation(&mut self.inner);
            if let Some(result) = self.settle(result, &mut patience) {
                return result;
            }
        }
    }

    /// The result of an operation, unless it is to be repeated: it was interrupted, or the descriptor wasn't ready, and this
    /// has waited for it.
    fn settle<R>(&self, result: io::Result<R>, patience: &mut Patience) -> Option<io::Result<R>> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(Since::Now, patience).err().map(Err),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            result => Some(result),
        }
    }

    /// What comes before a read: the wait for more, if the last one has taken all there was. That saves a system call that
    /// would find nothing.
    fn before_read(&self) -> io::Result<Patience> {
        let mut patience = Patience::new(Interest::Readable);
        // Drop guards can't wait, but may read what is there.
        if self.is_bare && self.keeping.take_drained(Interest::Readable) && !thread::panicking() {
            self.wait(Since::LastTold, &mut patience)?;
        }
        Ok(patience)
    }

    /// What comes after a read of at most `wanted` bytes.
    fn after_read(&self, wanted: usize, result: io::Result<usize>) -> io::Result<usize> {
        // At the end, each read tells so.
        if self.is_bare && result.as_ref().is_ok_and(|count| (1..wanted).contains(count)) {
            self.keeping.note_drained(Interest::Readable);
        }
        result
    }
}

/// How long an operation may still wait. The time begins with its first wait.
struct Patience {
    interest: Interest,
    deadline: Option<Option<Instant>>,
}

impl Patience {
    fn new(interest: Interest) -> Self {
        Self { interest, deadline: None }
    }
}

impl<T: AsFd + Read> Read for Parked<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (wanted, patience) = (buffer.len(), self.before_read()?);
        let result = self.with_mut(patience, |inner| inner.read(buffer));
        self.after_read(wanted, result)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (wanted, patience) = (total_len(buffers), self.before_read()?);
        let result = self.with_mut(patience, |inner| inner.read_vectored(buffers));
        self.after_read(wanted, result)
    }
}

impl<T: AsFd + Write> Write for Parked<T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.with_mut(Patience::new(Interest::Writable), |inner| inner.write(buffer))
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.with_mut(Patience::new(Interest::Writable), |inner| inner.write_vectored(buffers))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with_mut(Patience::new(Interest::Writable), Write::flush)
    }
}

impl<'a, T: AsFd> Read for &'a Parked<T>
where
    &'a T: Read,
{
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (wanted, patience) = (buffer.len(), self.before_read()?);
        let result = self.with(patience, || (&self.inner).read(buffer));
        self.after_read(wanted, result)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (wanted, patience) = (total_len(buffers), self.before_read()?);
        let result = self.with(patience, || (&self.inner).read_vectored(buffers));
        self.after_read(wanted, result)
    }
}

impl<'a, T: AsFd> Write for &'a Parked<T>
where
    &'a T: Write,
{
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.with(Patience::new(Interest::Writable), || (&self.inner).write(buffer))
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.with(Patience::new(Interest::Writable), || (&self.inner).write_vectored(buffers))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with(Patience::new(Interest::Writable), || (&self.inner).flush())
    }
}

fn total_len(buffers: &[IoSliceMut<'_>]) -> usize {
    buffers.iter().map(|buffer| buffer.len()).sum()
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
