//! Waiting for descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::coroutine::{self, Home, Interest, Watch};
use crate::park;
use crate::sys;

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
/// As [`park`](park::park()).
pub fn wait_readable(fd: impl AsFd) -> io::Result<()> {
    wait(fd.as_fd(), Interest::Readable)
}

/// Waits until `fd` can be written to: there is room, an error or a hang-up, or a connection has been established or
/// refused.
///
/// A coroutine parks, if it has a home or a loop runs on its thread, also if the descriptor is ready; anyone else
/// blocks.
///
/// # Errors
///
/// What the kernel says about the descriptor, if it says so at once. Otherwise one that can't be waited for counts as
/// ready, and the error comes with the next use of it.
///
/// # Panics
///
/// As [`park`](park::park()).
pub fn wait_writable(fd: impl AsFd) -> io::Result<()> {
    wait(fd.as_fd(), Interest::Writable)
}

fn wait(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
    let Some(home) = coroutine::home() else { return sys::poll::wait(fd, interest.poll_events(), None).map(drop) };
    loop {
        let watch = home.watch_fd(fd, interest, park::waker())?;
        let watching = Watching { home: &home, watch: Some(watch) };
        park::park();
        if watching.end() {
            return Ok(());
        }
    }
}

/// A watch that ends when the coroutine is unwound.
struct Watching<'a> {
    home: &'a Arc<dyn Home>,
    watch: Option<Watch>,
}

impl Watching<'_> {
    /// Ends the watch; returns whether it had fired.
    fn end(mut self) -> bool {
        self.watch.take().is_some_and(|watch| self.home.unwatch(watch))
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take() {
            self.home.unwatch(watch);
        }
    }
}
