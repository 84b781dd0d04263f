//! A home on a loop around `mio::Poll`.
//!
//! The loop is its owner's, with sources of its own. It asks the home how long it may sleep, hands over the events that
//! aren't its own, and has the home run its coroutines once a turn.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task;
use std::time::{Duration, Instant};

use aioco::coroutine::{Home, HomeCell, Interest, RunQueue, Watch, Woken, enter_home, unwind_all};
use mio::unix::SourceFd;
use mio::{Registry, Token, Waker};

/// A home for coroutines, as the loop's thread has it. When it is dropped, its coroutines are unwound.
pub struct MioHome {
    shared: Arc<Shared>,
    /// It is dropped on the loop's thread.
    marker: PhantomData<*mut ()>,
}

/// The home, as coroutines and other threads see it.
struct Shared {
    /// `None` when the home has ended.
    own: HomeCell<Option<Own>>,
    woken: RunQueue,
    waker: Arc<Waker>,
}

/// What is the loop's thread's.
struct Own {
    registry: Registry,
    /// Those that haven't fired, by number.
    watches: BTreeMap<u64, Watched>,
    /// When, and the number of the watch.
    deadlines: BTreeSet<(Instant, u64)>,
    next: u64,
}

struct Watched {
    source: Source,
    waker: task::Waker,
}

enum Source {
    Fd(OwnedFd),
    Deadline(Instant),
}

impl MioHome {
    /// Tokens from this one on are the home's.
    pub const FIRST_TOKEN: usize = 1 << 16;

    /// A home on the calling thread's loop, whose waker it shares: a `Poll` has but one.
    pub fn new(registry: &Registry, waker: Arc<Waker>) -> io::Result<Self> {
        let registry = registry.try_clone()?;
        let own = Own { registry, watches: BTreeMap::new(), deadlines: BTreeSet::new(), next: 1 };
        let shared = Arc::new(Shared { own: HomeCell::new(Some(own)), woken: RunQueue::new(), waker });
        Ok(Self { shared, marker: PhantomData })
    }

    /// What coroutines are spawned on.
    pub fn home(&self) -> Arc<dyn Home> {
        self.shared.clone()
    }

    /// How long the loop may sleep.
    pub fn timeout(&self) -> Option<Duration> {
        if !self.shared.woken.is_empty() {
            return Some(Duration::ZERO);
        }
        let (deadline, _) = self.shared.first_deadline()?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Takes note of an event that has one of the home's tokens.
    pub fn event(&self, token: Token) {
        // An earlier event of this turn may have ended the watch.
        if let Some(waker) = self.shared.forget((token.0 - Self::FIRST_TOKEN) as u64) {
            waker.wake();
        }
    }

    /// Runs the coroutines that are ready, each until it suspends.
    pub fn run(&self) {
        let _home = enter_home(self.home());
        while let Some(waker) = self.shared.due() {
            waker.wake();
        }
        self.shared.woken.run();
    }
}

impl Drop for MioHome {
    fn drop(&mut self) {
        let _home = enter_home(self.home());
        drop(self.shared.woken.close());
        unwind_all(&*self.shared);
        if let Some(mut own) = self.shared.own.with(Option::take) {
            // Of coroutines that others drive. The loop's epoll would keep them, though they are closed.
            while let Some((&number, _)) = own.watches.first_key_value() {
                own.forget(number);
            }
        }
    }
}

impl Shared {
    /// Ends a watch. Returns who was to be woken, if it hasn't fired.
    fn forget(&self, number: u64) -> Option<task::Waker> {
        self.own.with(|own| own.as_mut()?.forget(number))
    }

    fn first_deadline(&self) -> Option<(Instant, u64)> {
        self.own.with(|own| own.as_ref()?.deadlines.first().copied())
    }

    /// Ends the watch of a deadline that has passed, if there is one. Returns who is to be woken.
    fn due(&self) -> Option<task::Waker> {
        let (deadline, number) = self.first_deadline()?;
        if deadline <= Instant::now() { self.forget(number) } else { None }
    }
}

impl Own {
    /// Registers a descriptor. Returns whether the kernel watches it, and not because it is always ready.
    fn watch_fd(&mut self, fd: OwnedFd, interest: mio::Interest, waker: task::Waker) -> io::Result<(u64, bool)> {
        let number = self.next;
        self.next += 1;
        let token = Token(MioHome::FIRST_TOKEN + number as usize);
        match self.registry.register(&mut SourceFd(&fd.as_raw_fd()), token, interest) {
            Ok(()) => _ = self.watches.insert(number, Watched { source: Source::Fd(fd), waker }),
            // A regular file.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Ok((number, false)),
            Err(error) => return Err(error),
        }
        Ok((number, true))
    }

    fn watch_deadline(&mut self, deadline: Instant, waker: task::Waker) -> u64 {
        let number = self.next;
        self.next += 1;
        self.watches.insert(number, Watched { source: Source::Deadline(deadline), waker });
        self.deadlines.insert((deadline, number));
        number
    }

    fn forget(&mut self, number: u64) -> Option<task::Waker> {
        let Watched { source, waker } = self.watches.remove(&number)?;
        match source {
            Source::Fd(fd) => self.registry.deregister(&mut SourceFd(&fd.as_raw_fd())).expect("it is registered"),
            Source::Deadline(deadline) => _ = self.deadlines.remove(&(deadline, number)),
        }
        Some(waker)
    }
}

impl Home for Shared {
    fn schedule(&self, woken: Woken) {
        // On its own thread the loop asks for a timeout before it sleeps.
        if self.woken.push(woken) && !self.is_current() {
            self.waker.wake().expect("an eventfd takes a signal");
        }
    }

    fn is_current(&self) -> bool {
        self.own.is_current()
    }

    fn watch_fd(&self, fd: BorrowedFd<'_>, interest: Interest, waker: task::Waker) -> io::Result<Watch> {
        let fd = fd.try_clone_to_owned()?;
        let interest = match interest {
            Interest::Readable => mio::Interest::READABLE,
            Interest::Writable => mio::Interest::WRITABLE,
        };
        let watched = self.own.with(|own| Some(own.as_mut()?.watch_fd(fd, interest, waker.clone())));
        let (number, is_pending) = watched.unwrap_or_else(|| Err(io::ErrorKind::NotConnected.into()))?;
        if !is_pending {
            waker.wake();
        }
        Ok(Watch(number))
    }

    fn watch_deadline(&self, deadline: Instant, waker: task::Waker) -> Watch {
        let number = self.own.with(|own| Some(own.as_mut()?.watch_deadline(deadline, waker)));
        Watch(number.unwrap_or_default())
    }

    fn unwatch(&self, Watch(number): Watch) -> bool {
        self.forget(number).is_none()
    }
}
