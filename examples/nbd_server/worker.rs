//! What an I/O thread does: it serves the connections that are handed to it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use aioco::aio::{self, Local};
use aioco::fd::Parked;
use aioco::park;
use socket2::Socket;

use crate::buffers::Buffers;
use crate::connection::{self, Link};
use crate::export::Export;
use crate::limits::Limits;
use crate::log;
use crate::permits::Permits;

/// When the server stops, clients have so long to take their replies.
const GRACE: Duration = Duration::from_secs(5);

/// What the connections of a thread share.
pub struct Worker {
    pub context: Local,
    pub exports: Arc<[Arc<Export>]>,
    pub limits: Limits,
    pub buffers: Rc<Buffers>,
    /// Bounds the bytes of payloads in flight.
    pub memory: Rc<Permits>,
    links: RefCell<HashMap<u64, Rc<Link>>>,
    waker: Waker,
}

/// A client at the door.
pub struct Arrival {
    pub name: String,
    pub socket: Parked<Socket>,
    pub place: Place,
}

/// One of the connections that there may be; free again when this is dropped.
pub struct Place {
    taken: Arc<AtomicUsize>,
}

impl Place {
    /// A place, if not so many are taken.
    pub fn take(taken: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        // Relaxed: a count, and nothing that comes with it.
        let below = |count| (count < limit).then_some(count + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).ok()?;
        Some(Self { taken: taken.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where a worker is handed connections, by other threads.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    arrivals: VecDeque<Arrival>,
    is_stopping: bool,
    waker: Option<Waker>,
}

impl Inbox {
    pub fn push(&self, arrival: Arrival) {
        self.change(|state| state.arrivals.push_back(arrival));
    }

    /// Has the worker end its connections, and return.
    pub fn stop(&self) {
        self.change(|state| state.is_stopping = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }

    /// Waits for the next one; `None` if there is to be no more.
    fn next(&self) -> Option<Arrival> {
        loop {
            let mut state = self.lock();
            if state.is_stopping {
                return None;
            }
            if let Some(arrival) = state.arrivals.pop_front() {
                return Some(arrival);
            }
            state.waker = Some(park::waker());
            drop(state);
            park::park();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Serves connections until the inbox is told to stop: then what is in flight is answered, and they end.
pub fn run(inbox: &Inbox, exports: Arc<[Arc<Export>]>, limits: Limits) {
    let worker = Rc::new(Worker {
        context: aio::current().expect("a worker is a coroutine of a context"),
        exports,
        limits,
        buffers: Rc::default(),
        memory: Permits::new(limits.memory),
        links: RefCell::default(),
        waker: park::waker(),
    });
    let mut number = 0;
    while let Some(arrival) = inbox.next() {
        number += 1;
        worker.begin(number, arrival);
    }
    drop(mem::take(&mut inbox.lock().arrivals));
    worker.for_each(Link::stop);
    if !worker.wait_for_the_last() {
        worker.for_each(Link::cut);
        worker.wait_for_the_last();
    }
}

impl Worker {
    fn begin(self: &Rc<Self>, number: u64, arrival: Arrival) {
        let Arrival { name, socket, place } = arrival;
        let link = Rc::new(Link::new(name, socket));
        self.links.borrow_mut().insert(number, link.clone());
        let entry = Entry { worker: self.clone(), number, _place: place };
        let serve = move || {
            connection::serve(&entry.worker, &link);
            drop(link);
            drop(entry);
        };
        if let Err(error) = self.context.spawn_local(serve) {
            log::warn(format_args!("a client has to be turned away: {error}"));
        }
    }

    fn for_each(&self, f: impl Fn(&Link)) {
        self.links.borrow().values().for_each(|link| f(link));
    }

    /// Waits until there is no connection left, for as long as they have; returns whether that is so.
    fn wait_for_the_last(&self) -> bool {
        let deadline = Instant::now() + GRACE;
        while !self.links.borrow().is_empty() {
            if Instant::now() >= deadline {
                return false;
            }
            park::park_until(deadline);
        }
        true
    }
}

/// A connection's entry in the worker's list.
struct Entry {
    worker: Rc<Worker>,
    number: u64,
    _place: Place,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let link = self.worker.links.borrow_mut().remove(&self.number);
        drop(link);
        if self.worker.links.borrow().is_empty() {
            self.worker.waker.wake_by_ref();
        }
    }
}
