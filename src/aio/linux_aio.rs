//! A context's requests by Linux AIO.
//!
//! The kernel's context is made when it is first asked for. Requests are queued, and handed over in one call at the
//! beginning of the next turn, or, if they were made since, before the loop sleeps. Completions are taken out of the
//! ring in user memory, all that are there, whenever the loop looks; for a loop that sleeps, the kernel signals the
//! context's own notifier, which every monitor waits for, and clears.
//!
//! # What the kernel doesn't take
//!
//! | answer | what becomes of the queue |
//! |---|---|
//! | a part | the rest follows at once |
//! | `EAGAIN`, and the kernel has requests | it follows when one of them is done |
//! | `EAGAIN`, and it has none | it follows after a pause, each longer than the last; after [`PATIENCE`] all fail (`ENOMEM`) |
//! | another error | it is the first one's, which fails alone; the rest follows at once |
//!
//! So if anything is queued when the loop sleeps, either a completion will wake it, or the end of a pause.
//!
//! Requests to the page cache are carried out within the submission: their completions are there when it returns. Those
//! who wait for them have their turn as all others, in the turn of the loop: nobody submits from within a submission.
//!
//! # Safety
//!
//! The kernel has what a request names until its completion has been taken out; whoever makes a request keeps that in
//! place (see [`request`](super::request)), and a context that ends finishes all. The entry itself is copied by the
//! kernel, so it may be anywhere. A request's address is its token.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::request::Request;
use super::waiter::Waiter;
use crate::sys::eventfd::EventFd;
use crate::sys::file::Call;
use crate::sys::linux_aio::{Context, Entry};

/// What counts against `fs.aio-max-nr` (65536 by default). The kernel takes three times as many, since it rounds up to
/// pages; what is more waits here.
const REQUESTS: u32 = 128;

/// Between the first two attempts, when the kernel takes nothing and has nothing.
const FIRST_PAUSE: Duration = Duration::from_micros(100);

const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// For so long it may take nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Linux AIO, for a context that may never need it.
#[derive(Debug, Default)]
pub(super) enum LinuxAio {
    #[default]
    Unused,
    Used(Box<Requests>),
    /// It can't be had: why.
    Refused(&'static str),
}

#[derive(Debug)]
pub(super) struct Requests {
    kernel: Context,
    notifier: Arc<EventFd>,
    /// Those that the kernel hasn't got, in order.
    queue: VecDeque<Entry>,
    /// How many the kernel has.
    in_flight: usize,
    put_off: PutOff,
    /// Calls of io_submit.
    submits: u64,
}

/// Whether the kernel takes requests.
#[derive(Debug, Clone, Copy)]
enum PutOff {
    /// As far as is known.
    No,
    /// When one that it has is done.
    UntilDone,
    /// It has none, and takes none.
    Until { next: Instant, pause: Duration, since: Instant },
}

impl LinuxAio {
    /// Sees to it that it can be used.
    ///
    /// # Errors
    ///
    /// Why it can't: now, or when it was first asked for.
    pub(super) fn prepare(&mut self, notifier: &Arc<EventFd>) -> Result<(), &'static str> {
        if let Self::Unused = self {
            *self = match Context::new(REQUESTS) {
                Ok(kernel) => Self::Used(Box::new(Requests {
                    kernel,
                    notifier: notifier.clone(),
                    queue: VecDeque::new(),
                    in_flight: 0,
                    put_off: PutOff::No,
                    submits: 0,
                })),
                Err(error) => Self::Refused(reason(&error)),
            };
        }
        match self {
            Self::Refused(reason) => Err(reason),
            _ => Ok(()),
        }
    }

    /// Queues a request.
    ///
    /// # Safety
    ///
    /// The request is begun, and stays in place until it is done; and so does what the call names, which is valid as
    /// [`Call::run`] demands it.
    ///
    /// # Panics
    ///
    /// If it isn't [prepared](Self::prepare), or there are [no such requests](crate::sys::linux_aio::can).
    pub(super) unsafe fn request(&mut self, call: &Call, request: NonNull<Request>) {
        let requests = self.requests().expect("a request was made before Linux AIO was prepared");
        let token = request.as_ptr().expose_provenance() as u64;
        requests.queue.push_back(Entry::new(call, token, &requests.notifier));
    }

    /// Takes out all completions, and hands over what is queued, as far as the kernel takes it. Those who are to be
    /// told are passed on.
    #[inline]
    pub(super) fn exchange(&mut self, fired: &mut Vec<Waiter>) -> io::Result<()> {
        // Each turn asks, and most contexts never need it.
        match self {
            Self::Used(requests) => requests.exchange(fired),
            _ => Ok(()),
        }
    }

    /// Whether there are no requests.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::Used(engine) => engine.in_flight == 0 && engine.queue.is_empty(),
            _ => true,
        }
    }

    /// Whether a look at user memory shows a completion.
    pub(super) fn has_news(&self) -> bool {
        matches!(self, Self::Used(requests) if requests.kernel.has_completions())
    }

    /// How many requests there are whose completion a look at user memory doesn't show.
    pub(super) fn hidden_requests(&self) -> usize {
        match self {
            Self::Used(requests) if requests.kernel.is_hidden() => requests.in_flight,
            _ => 0,
        }
    }

    /// When the queue is to be handed over though nothing has happened, if it is.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        match self {
            Self::Used(requests) => match requests.put_off {
                PutOff::Until { next, .. } => Some(next),
                _ => None,
            },
            _ => None,
        }
    }

    /// Takes back a request that the kernel hasn't got. Returns whether nobody has it any more; otherwise it will be done: Linux
    /// AIO can't cancel requests to files.
    pub(super) fn take_back(&mut self, request: &Request) -> bool {
        // It has been forgotten: see `disown`.
        let Some(requests) = self.requests() else { return true };
        let token = ptr::from_ref(request).addr() as u64;
        let place = requests.queue.iter().position(|entry| entry.token() == token);
        if let Some(place) = place {
            requests.queue.remove(place);
            requests.forget_pauses();
        }
        place.is_some()
    }

    /// [Takes back](Self::take_back) a request, or blocks until it is done. Those who wait for what else happens meanwhile are
    /// passed on.
    pub(super) fn finish(&mut self, request: &Request, fired: &mut Vec<Waiter>) -> io::Result<()> {
        if self.take_back(request) {
            return Ok(());
        }
        let Some(requests) = self.requests() else { return Ok(()) };
        while request.result().is_none() {
            requests.wait(fired)?;
        }
        Ok(())
    }

    /// Cancels the requests that the kernel hasn't got, and blocks until the others are done.
    pub(super) fn finish_all(&mut self, fired: &mut Vec<Waiter>) -> io::Result<()> {
        let Some(requests) = self.requests() else { return Ok(()) };
        while !requests.queue.is_empty() {
            requests.fail_first(libc::ECANCELED, fired);
        }
        while requests.in_flight != 0 {
            requests.wait(fired)?;
        }
        Ok(())
    }

    /// Forgets what the kernel does, which it does for the process that this one was forked from.
    pub(super) fn disown(&mut self) {
        *self = Self::Refused("the process was forked");
    }

    /// How often requests were handed over.
    pub(super) fn submits(&self) -> u64 {
        match self {
            Self::Used(requests) => requests.submits,
            _ => 0,
        }
    }

    fn requests(&mut self) -> Option<&mut Requests> {
        match self {
            Self::Used(requests) => Some(requests),
            _ => None,
        }
    }
}

impl Requests {
    fn exchange(&mut self, fired: &mut Vec<Waiter>) -> io::Result<()> {
        loop {
            self.take_completions(fired)?;
            let may_submit = match self.put_off {
                PutOff::No => true,
                PutOff::UntilDone => false,
                PutOff::Until { next, .. } => Instant::now() >= next,
            };
            if !may_submit || self.queue.is_empty() {
                return Ok(());
            }
            self.submit(fired);
        }
    }

    /// Hands over the queue, in one call. Each call that doesn't put it off makes it shorter, or was interrupted.
    fn submit(&mut self, fired: &mut Vec<Waiter>) {
        self.submits += 1;
        // SAFETY: contract of `request`; and whoever drops this has finished all of them.
        let taken = unsafe { self.kernel.submit(self.queue.make_contiguous()) };
        match taken.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)) {
            Ok(0) | Err(libc::EAGAIN) => self.put_off(fired),
            Ok(taken) => {
                self.queue.drain(..taken);
                self.in_flight += taken;
                self.put_off = PutOff::No;
            }
            Err(libc::EINTR) => {}
            Err(errno) => self.fail_first(errno, fired),
        }
    }

    fn put_off(&mut self, fired: &mut Vec<Waiter>) {
        if self.in_flight != 0 {
            self.put_off = PutOff::UntilDone;
            return;
        }
        let now = Instant::now();
        let (pause, since) = match self.put_off {
            PutOff::Until { pause, since, .. } => ((2 * pause).min(LONGEST_PAUSE), since),
            _ => (FIRST_PAUSE, now),
        };
        if now.duration_since(since) < PATIENCE {
            self.put_off = PutOff::Until { next: now + pause, pause, since };
            return;
        }
        while !self.queue.is_empty() {
            self.fail_first(libc::ENOMEM, fired);
        }
    }

    /// Ends the pauses if there is nothing left that they are for.
    fn forget_pauses(&mut self) {
        if self.queue.is_empty() {
            self.put_off = PutOff::No;
        }
    }

    fn take_completions(&mut self, fired: &mut Vec<Waiter>) -> io::Result<()> {
        let before = self.in_flight;
        let in_flight = &mut self.in_flight;
        let taken = self.kernel.completions(|token, result| {
            *in_flight -= 1;
            complete(token, result, fired);
        });
        if self.in_flight != before {
            self.put_off = PutOff::No;
        }
        taken
    }

    /// Waits for a completion.
    fn wait(&mut self, fired: &mut Vec<Waiter>) -> io::Result<()> {
        let in_flight = &mut self.in_flight;
        self.put_off = PutOff::No;
        self.kernel.wait(|token, result| {
            *in_flight -= 1;
            complete(token, result, fired);
        })
    }

    /// The first one that is queued is done, with this error.
    fn fail_first(&mut self, errno: i32, fired: &mut Vec<Waiter>) {
        if let Some(entry) = self.queue.pop_front() {
            complete(entry.token(), -i64::from(errno), fired);
        }
        self.forget_pauses();
    }
}

/// Completes the request whose token this is, with which the kernel is done.
fn complete(token: u64, result: i64, fired: &mut Vec<Waiter>) {
    let request = NonNull::new(ptr::with_exposed_provenance_mut(token as usize)).expect("an address");
    // SAFETY: it is pending, and nobody else completes it.
    fired.extend(unsafe { Request::complete(request, result) }.map(Waiter::from));
}

/// Why Linux AIO can't be used.
fn reason(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => "Linux AIO can't be used: fs.aio-max-nr allows no more requests",
        Some(libc::ENOSYS) => "Linux AIO can't be used: the kernel lacks it, or a filter forbids it",
        Some(libc::EPERM | libc::EACCES) => "Linux AIO can't be used: a filter (seccomp) forbids it",
        Some(libc::ENOMEM) => "Linux AIO can't be used: there is no memory for it",
        _ => "Linux AIO can't be used: the kernel refuses it",
    }
}
