//! Waiting again and again for the same descriptor: a home that can keeps watching it.
//!
//! A wait is a watch that is set up, fires and is gone. Who owns the descriptor can do better: from the second wait on, the
//! home of who waits [keeps watching](Home::keep_watching) it, and a wait only notes who is to be told. With io_uring that
//! spares the kernel a poll for each wait.
//!
//! **Edges.** What is kept watched tells of *becoming* ready. So who waits has just been told by the descriptor itself that
//! it isn't ready (`EAGAIN`). What happens after that isn't missed: the watch has been there all the time, what it tells
//! comes in by a turn of the loop, and there is no turn before the coroutine parks, as all of this is on the home's own
//! thread. (The kernel promises the same to users of `EPOLLET`: epoll(7).)
//!
//! **Who.** A descriptor is kept watched by one home a direction: that of the second who waits. Who waits on another home
//! has watches of its own, which are as good, and slower.
//!
//! **End.** The watch is let go before the descriptor is closed: the home may have to have it open to end the watch.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use super::wait::{self, Ended};
use crate::coroutine::{self, Home, Interest, KeptWatch, Since};
use crate::park;
use crate::primitive::atomic::{AtomicBool, AtomicU32, Ordering};

/// How a descriptor is kept watched, each direction by itself. Its owner drops this before the descriptor.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    directions: [Direction; 2],
}

impl Keeping {
    /// Notes that the caller, just now, has taken all there was: who waits next need not ask first.
    ///
    /// That is so if the next event is told to who waits next, and not to somebody who waits already, and may go without
    /// taking anything; or if there never is a keeper that tells. Before that is known, who waits next asks.
    #[inline(always)]
    pub(super) fn note_drained(&self, interest: Interest) {
        let direction = &self.directions[interest as usize];
        let is_safe = match direction.kept.get() {
            // Only the keeper's thread knows who waits there now.
            Some(Some(kept)) => kept.is_kept_by_callers_home() && direction.waiting.load(Ordering::Relaxed) == 0,
            Some(None) => true,
            None => false,
        };
        direction.drained.store(is_safe, Ordering::Relaxed);
    }

    /// Whether the caller need not ask before it [waits](Self::wait), as was [noted](Self::note_drained) and nobody has
    /// relied on since. Who may wait asks this first.
    #[inline(always)]
    pub(super) fn take_drained(&self, interest: Interest) -> bool {
        // Relaxed, everywhere: on the keeper's thread it is exact. Elsewhere it is a hint, as watches that aren't kept look
        // for themselves.
        let drained = &self.directions[interest as usize].drained;
        let was_drained = drained.load(Ordering::Relaxed);
        if was_drained {
            drained.store(false, Ordering::Relaxed);
        }
        was_drained
    }

    /// Waits for a descriptor to become ready, or until the deadline. Returns whether it may be ready, which may be for
    /// nothing.
    ///
    /// `since` says when it wasn't: [`Since::Now`] if it was just asked; [`Since::LastTold`] if it was
    /// [found drained](Self::take_drained).
    #[inline(always)]
    pub(super) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        interest: Interest,
        since: Since,
        deadline: Option<Instant>,
    ) -> io::Result<bool> {
        let direction = &self.directions[interest as usize];
        let watch = coroutine::with_home(|home| {
            let kept = direction.kept_by(home?, fd, interest)?;
            home?.watch_kept(kept, since, park::waker())
        });
        let Some(watch) = watch else { return wait::wait(fd, interest, deadline) };
        let _waiting = Waiting::new(&direction.waiting);
        Ok(wait::park(watch, deadline) != Ended::TimedOut)
    }
}

#[derive(Debug, Default)]
struct Direction {
    /// Whether somebody has waited before.
    has_waited: AtomicBool,
    /// `None` in it if the home of the second who waited can't.
    kept: OnceLock<Option<Kept>>,
    /// How many wait on that home. Only its thread reads and writes this, so Relaxed will do.
    waiting: AtomicU32,
    /// See [`Keeping::note_drained`].
    drained: AtomicBool,
}

struct Kept {
    home: Weak<dyn Home>,
    watch: KeptWatch,
}

impl Direction {
    /// The watch, if it is this home, on whose thread we are, that keeps it.
    fn kept_by(&self, home: &Arc<dyn Home>, fd: BorrowedFd<'_>, interest: Interest) -> Option<KeptWatch> {
        // Relaxed: it doesn't matter who is the second.
        if !self.has_waited.load(Ordering::Relaxed) {
            self.has_waited.store(true, Ordering::Relaxed);
            return None;
        }
        let keep = || Some(Kept { home: Arc::downgrade(home), watch: home.keep_watching(fd, interest)? });
        let kept = self.kept.get_or_init(keep).as_ref()?;
        kept.is_kept_by(home).then_some(kept.watch)
    }
}

impl Kept {
    fn is_kept_by(&self, home: &Arc<dyn Home>) -> bool {
        ptr::addr_eq(self.home.as_ptr(), Arc::as_ptr(home))
    }

    fn is_kept_by_callers_home(&self) -> bool {
        coroutine::with_home(|home| home.is_some_and(|home| self.is_kept_by(home)))
    }
}

/// One who waits, until this is dropped.
struct Waiting<'a>(&'a AtomicU32);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.store(self.0.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.watch).finish()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.let_go(self.watch);
        }
    }
}
