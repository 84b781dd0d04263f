//! Eventfds: how devices and their drivers tell each other that there is work.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use super::keep::Keeping;
use crate::coroutine::{Interest, Since};
use crate::sys;

/// An eventfd: a counter that one side raises and the other waits for and takes. It is what a virtqueue is kicked by, and
/// what an interrupt is injected by (QEMU's `EventNotifier`, the kick and call descriptors of vhost-user, `irqfd` and
/// `ioeventfd` of KVM).
///
/// It does the same as a [`Parked`](super::Parked) one, with fewer system calls: who comes back to wait doesn't first try
/// in vain to take.
///
/// ```
/// use aioco::{AioContext, fd::EventFd};
/// use std::sync::Arc;
///
/// let kick = Arc::new(EventFd::new()?);
/// let context = AioContext::new()?;
/// let device = context.spawn({
///     let kick = kick.clone();
///     move || -> std::io::Result<u64> {
///         let mut kicks = 0;
///         while kicks < 3 {
///             kicks += kick.wait()?;
///         }
///         Ok(kicks)
///     }
/// })?;
/// context.block_on(|| {
///     for _ in 0..3 {
///         kick.signal();
///         aioco::yield_now();
///     }
/// });
/// assert_eq!(device.join().unwrap()?, 3);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Reference: eventfd(2).
#[derive(Debug)]
pub struct EventFd {
    /// Dropped before the descriptor.
    keeping: Keeping,
    inner: sys::eventfd::EventFd,
    /// Whether who takes takes all that there is.
    takes_all: bool,
}

impl EventFd {
    /// A new one, whose count is zero.
    ///
    /// # Errors
    ///
    /// What the kernel says: there are too many open files.
    pub fn new() -> io::Result<Self> {
        Ok(Self::over(sys::eventfd::EventFd::new()?, true))
    }

    /// One that somebody else has made, perhaps in another process. It is made non-blocking for all who share it. One that
    /// counts down (`EFD_SEMAPHORE`) is taken one by one.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if it is known not to be an eventfd; what the kernel says about the
    /// descriptor.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        sys::file::set_non_blocking(fd.as_fd(), true)?;
        let (inner, is_semaphore) = sys::eventfd::EventFd::from_fd(fd)?;
        Ok(Self::over(inner, is_semaphore == Some(false)))
    }

    fn over(inner: sys::eventfd::EventFd, takes_all: bool) -> Self {
        Self { keeping: Keeping::default(), inner, takes_all }
    }

    /// Raises the count by one. From any thread; it never blocks.
    pub fn signal(&self) {
        self.inner.signal();
    }

    /// Takes the count, without waiting: zero if nobody has signalled since it was last taken.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn take(&self) -> io::Result<u64> {
        self.inner.take()
    }

    /// Waits until the count isn't zero, and takes it. A coroutine parks, if it has a home or a loop runs on its thread;
    /// anyone else blocks. Of several that wait one gets it.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    #[inline]
    pub fn wait(&self) -> io::Result<u64> {
        self.wait_at_most(None)
    }

    /// As [`wait`](Self::wait), but waits until `deadline` at the latest: then it returns zero.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn wait_until(&self, deadline: Instant) -> io::Result<u64> {
        self.wait_at_most(Some(deadline))
    }

    #[inline(always)]
    fn wait_at_most(&self, deadline: Option<Instant>) -> io::Result<u64> {
        let was_drained = self.keeping.take_drained(Interest::Readable);
        let mut since = if was_drained { Since::LastTold } else { Since::Now };
        let mut may_wait = true;
        loop {
            if since == Since::Now {
                let count = self.inner.take()?;
                if count != 0 && self.takes_all {
                    self.keeping.note_drained(Interest::Readable);
                }
                if count != 0 || !may_wait {
                    return Ok(count);
                }
            }
            may_wait = self.keeping.wait(self.as_fd(), Interest::Readable, since, deadline)?;
            since = Since::Now;
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> Self {
        event.inner.into()
    }
}
