//! Descriptors: waiting for them, and types that park instead of blocking.
//!
//! [`Parked`] makes a socket, a pipe or whatever else has a descriptor one whose reads and writes park the coroutine, with
//! the traits of std: so what is written for std runs on coroutines unchanged. [`wait_readable`] and its like are what it
//! is made of. [`EventFd`] is the descriptor by which devices and their drivers tell each other that there is work.

mod eventfd;
mod keep;
mod net;
mod parked;
mod wait;

pub use eventfd::EventFd;
pub use parked::Parked;

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use self::wait::wait;
use crate::coroutine::Interest;

/// Waits until `fd` can be read from: there is input, end of file, an error or a hang-up.
///
/// A coroutine parks, if it has a home or a loop runs on its thread, also if the descriptor is ready: the others have
/// their turn. So read first, and wait when there is nothing to read. Anyone else blocks. The descriptor should be
/// non-blocking: another reader may take the input first.
///
/// ```
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
/// use aioco::{AioContext, fd};
///
/// let (mut ours, mut theirs) = UnixStream::pair()?;
/// let context = AioContext::new()?;
/// let reader = context.spawn(move || -> std::io::Result<u8> {
///     fd::wait_readable(&ours)?;
///     let mut byte = [0];
///     ours.read_exact(&mut byte)?;
///     Ok(byte[0])
/// })?;
/// theirs.write_all(b"x")?;
/// assert_eq!(reader.join().unwrap()?, b'x');
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// What the kernel says about the descriptor, if it says so at once. Otherwise one that can't be waited for counts as
/// ready, and the error comes with the next use of it.
///
/// # Panics
///
/// As [`park`](crate::park::park()).
pub fn wait_readable(fd: impl AsFd) -> io::Result<()> {
    wait(fd.as_fd(), Interest::Readable, None).map(drop)
}

/// Waits until `fd` can be written to: there is room, an error or a hang-up, or a connection has been established or
/// refused.
///
/// A coroutine parks, if it has a home or a loop runs on its thread, also if the descriptor is ready; anyone else
/// blocks.
///
/// ```
/// use std::io::{ErrorKind, Read, Write};
/// use std::os::unix::net::UnixStream;
/// use aioco::{AioContext, fd};
///
/// let (mut ours, mut theirs) = UnixStream::pair()?;
/// ours.set_nonblocking(true)?;
/// let context = AioContext::new()?;
/// let writer = context.spawn(move || -> std::io::Result<()> {
///     let mut left = &[7; 1_000_000][..];
///     while !left.is_empty() {
///         match ours.write(left) {
///             Ok(written) => left = &left[written..],
///             Err(error) if error.kind() == ErrorKind::WouldBlock => fd::wait_writable(&ours)?,
///             Err(error) => return Err(error),
///         }
///     }
///     Ok(())
/// })?;
/// let reader = std::thread::spawn(move || theirs.read_to_end(&mut Vec::new()));
/// writer.join().unwrap()?;
/// assert_eq!(reader.join().unwrap()?, 1_000_000);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// What the kernel says about the descriptor, if it says so at once. Otherwise one that can't be waited for counts as
/// ready, and the error comes with the next use of it.
///
/// # Panics
///
/// As [`park`](crate::park::park()).
pub fn wait_writable(fd: impl AsFd) -> io::Result<()> {
    wait(fd.as_fd(), Interest::Writable, None).map(drop)
}

/// As [`wait_readable`], but waits until `deadline` at the latest. Returns whether it can be read from.
///
/// ```
/// use std::io::Write;
/// use std::os::unix::net::UnixStream;
/// use std::time::{Duration, Instant};
/// use aioco::{AioContext, fd};
///
/// let (ours, mut theirs) = UnixStream::pair()?;
/// AioContext::new()?.block_on(|| -> std::io::Result<()> {
///     assert!(!fd::wait_readable_until(&ours, Instant::now() + Duration::from_millis(1))?);
///     theirs.write_all(b"x")?;
///     assert!(fd::wait_readable_until(&ours, Instant::now() + Duration::from_secs(60))?);
///     Ok(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// As [`wait_readable`].
///
/// # Panics
///
/// As [`park`](crate::park::park()).
pub fn wait_readable_until(fd: impl AsFd, deadline: Instant) -> io::Result<bool> {
    wait(fd.as_fd(), Interest::Readable, Some(deadline))
}

/// As [`wait_writable`], but waits until `deadline` at the latest. Returns whether it can be written to.
///
/// # Errors
///
/// As [`wait_writable`].
///
/// # Panics
///
/// As [`park`](crate::park::park()).
pub fn wait_writable_until(fd: impl AsFd, deadline: Instant) -> io::Result<bool> {
    wait(fd.as_fd(), Interest::Writable, Some(deadline))
}
