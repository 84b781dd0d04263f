//! A home on a calloop loop.
//!
//! calloop has timers, and a source of its own for each registration: so each watch is a source, and the home is one
//! more, which is pinged. What a watch wakes runs in its callback, without a ping.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use aioco::coroutine::{Home, HomeCell, Interest, RunQueue, Watch, Woken, enter_home, unwind_all};
use calloop::generic::Generic;
use calloop::ping::{Ping, make_ping};
use calloop::timer::{TimeoutAction, Timer};
use calloop::{EventSource, LoopHandle, Mode, PostAction, RegistrationToken};

/// A home for coroutines, as the loop's thread has it. When it is dropped, its coroutines are unwound.
pub struct CalloopHome<D: 'static> {
    shared: Arc<Shared<D>>,
    handle: LoopHandle<'static, D>,
    source: RegistrationToken,
}

/// The home, as coroutines and other threads see it.
struct Shared<D: 'static> {
    /// `None` when the home has ended.
    own: HomeCell<Option<Own<D>>>,
    /// Whether [`run`](Self::run) is at work on the loop's thread, which looks at the queue at its end.
    is_running: HomeCell<bool>,
    woken: RunQueue,
    ping: Ping,
}

/// What is the loop's thread's.
struct Own<D: 'static> {
    home: Weak<Shared<D>>,
    handle: LoopHandle<'static, D>,
    /// Those of the watches that haven't fired.
    sources: Sources,
    next: u64,
}

type Sources = Rc<RefCell<BTreeMap<u64, RegistrationToken>>>;

/// The number of a watch that has fired from the start.
const FIRED: u64 = 0;

impl<D: 'static> CalloopHome<D> {
    /// A home on the calling thread's loop.
    pub fn new(handle: LoopHandle<'static, D>) -> calloop::Result<Self> {
        let (ping, pinged) = make_ping()?;
        let shared = Arc::new_cyclic(|home: &Weak<_>| {
            let own = Own { home: home.clone(), handle: handle.clone(), sources: Sources::default(), next: FIRED + 1 };
            let (own, is_running) = (HomeCell::new(Some(own)), HomeCell::new(false));
            Shared { own, is_running, woken: RunQueue::new(), ping }
        });
        let home = Arc::downgrade(&shared);
        let run = move |(), _: &mut (), _: &mut D| Shared::run(&home, || ());
        let source = handle.insert_source(pinged, run).map_err(|refused| refused.error)?;
        Ok(Self { shared, handle, source })
    }

    /// What coroutines are spawned on.
    pub fn home(&self) -> Arc<dyn Home> {
        self.shared.clone()
    }
}

impl<D: 'static> Drop for CalloopHome<D> {
    fn drop(&mut self) {
        let _home = enter_home(self.home());
        drop(self.shared.woken.close());
        unwind_all(&*self.shared);
        self.handle.remove(self.source);
        if let Some(own) = self.shared.own.with(Option::take) {
            // Of coroutines that others drive.
            own.sources.take().into_values().for_each(|source| self.handle.remove(source));
        }
    }
}

impl<D: 'static> Shared<D> {
    /// Runs the coroutines that are ready, after `wake` has made some so.
    fn run(home: &Weak<Self>, wake: impl FnOnce()) {
        let Some(home) = home.upgrade() else { return };
        let _home = enter_home(home.clone());
        home.is_running.with(|is_running| *is_running = true);
        let running = Running(&home);
        wake();
        home.woken.run();
        drop(running);
    }

    /// Adds a source to the loop that wakes somebody, once.
    fn watch<S: EventSource + 'static>(
        &self,
        source: S,
        waker: Waker,
        done: impl Fn() -> S::Ret + 'static,
    ) -> calloop::Result<Watch> {
        self.own.with(|own| {
            let Some(own) = own else { return Err(io::Error::from(io::ErrorKind::NotConnected).into()) };
            let number = own.next;
            own.next += 1;
            let (home, sources) = (own.home.clone(), own.sources.clone());
            let fire = move |_: S::Event, _: &mut S::Metadata, _: &mut D| {
                sources.borrow_mut().remove(&number);
                Self::run(&home, || waker.wake_by_ref());
                done()
            };
            let token = own.handle.insert_source(source, fire).map_err(|refused| refused.error)?;
            own.sources.borrow_mut().insert(number, token);
            Ok(Watch(number))
        })
    }
}

/// What is done when coroutines have run, or one of them has panicked.
struct Running<'a, D: 'static>(&'a Shared<D>);

impl<D: 'static> Drop for Running<'_, D> {
    fn drop(&mut self) {
        self.0.is_running.with(|is_running| *is_running = false);
        if !self.0.woken.is_empty() {
            self.0.ping.ping();
        }
    }
}

impl<D: 'static> Home for Shared<D> {
    fn schedule(&self, woken: Woken) {
        // On the loop's own thread, too: it may be about to sleep. But not if it runs coroutines.
        let is_running = || self.is_current() && self.is_running.with(|is_running| *is_running);
        if self.woken.push(woken) && !is_running() {
            self.ping.ping();
        }
    }

    fn is_current(&self) -> bool {
        self.own.is_current()
    }

    fn watch_fd(&self, fd: BorrowedFd<'_>, interest: Interest, waker: Waker) -> io::Result<Watch> {
        let interest = match interest {
            Interest::Readable => calloop::Interest::READ,
            Interest::Writable => calloop::Interest::WRITE,
        };
        let source = Generic::new(fd.try_clone_to_owned()?, interest, Mode::OneShot);
        match self.watch(source, waker.clone(), || Ok(PostAction::Remove)) {
            Ok(watch) => Ok(watch),
            // A regular file.
            Err(calloop::Error::IoError(error)) if error.raw_os_error() == Some(libc::EPERM) => {
                waker.wake();
                Ok(Watch(FIRED))
            }
            Err(calloop::Error::IoError(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn watch_deadline(&self, deadline: Instant, waker: Waker) -> Watch {
        self.watch(Timer::from_deadline(deadline), waker, || TimeoutAction::Drop).unwrap_or(Watch(FIRED))
    }

    fn unwatch(&self, Watch(number): Watch) -> bool {
        let pending = self.own.with(|own| {
            let Own { handle, sources, .. } = own.as_ref()?;
            Some((handle.clone(), sources.borrow_mut().remove(&number)?))
        });
        match pending {
            Some((handle, source)) => {
                handle.remove(source);
                false
            }
            None => true,
        }
    }
}
