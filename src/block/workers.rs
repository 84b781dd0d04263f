//! Threads that make system calls for coroutines, where there is no ring.
//!
//! There is one pool for the whole process. A request goes into a queue, and a thread is started if there are more
//! requests in it than threads that look for one, up to [`MAX_THREADS`]; a thread that finds nothing to do for
//! [`IDLE`] ends.
//!
//! A child that was forked has no threads: what it submits is carried out by the thread that submits it.
//!
//! # Safety
//!
//! As in `aio::request`: whoever submits a request keeps it, and what its call names, until it is done.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::process;
use std::ptr::NonNull;
use std::thread;
use std::time::Duration;

use parking_lot::Condvar;

use crate::aio::request::Request;
use crate::primitive::Mutex;
use crate::sys::file::Call;

/// As many as QEMU's pools have.
const MAX_THREADS: usize = 64;

/// How long a thread waits for a request before it ends.
const IDLE: Duration = Duration::from_secs(10);

static POOL: Pool = Pool {
    state: Mutex::new(State {
        jobs: VecDeque::new(),
        idle: 0,
        threads: 0,
        process: 0,
        running: Vec::new(),
        finishing: 0,
    }),
    work: Condvar::new(),
    done: Condvar::new(),
};

struct Pool {
    state: Mutex<State>,
    /// There is a job.
    work: Condvar,
    /// A request is done that somebody blocks for.
    done: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    /// Threads that look for a job.
    idle: usize,
    threads: usize,
    /// The process whose they are; 0 before the first.
    process: u32,
    /// Requests that threads carry out.
    running: Vec<NonNull<Request>>,
    /// How many block for a request.
    finishing: usize,
}

// SAFETY: requests are compared, and touched by whoever carries them out only.
unsafe impl Send for State {}

struct Job {
    call: Call,
    request: NonNull<Request>,
}

// SAFETY: a request may be completed by any thread, and a call made by any.
unsafe impl Send for Job {}

impl Job {
    /// Carries it out, and wakes who waits for it.
    fn run(self) {
        // SAFETY: the submitter keeps what the call names.
        let result = unsafe { self.call.run() };
        // SAFETY: it is pending, and this job is its only one.
        if let Some(told) = unsafe { Request::complete(self.request, result) } {
            told.tell();
        }
    }
}

/// Has a thread carry out a request.
///
/// # Safety
///
/// The request is begun, and stays in place until it is done; and so does what the call names, which is valid as
/// [`Call::run`] demands it.
pub(super) unsafe fn submit(call: Call, request: &Request) {
    let job = Job { call, request: request.into() };
    let mut state = POOL.state.lock();
    if state.process == 0 {
        state.process = process::id();
    }
    if state.process != process::id() {
        drop(state);
        return job.run();
    }
    state.jobs.push_back(job);
    if state.jobs.len() <= state.idle {
        POOL.work.notify_one();
    } else if state.threads < MAX_THREADS {
        state.threads += 1;
        drop(state);
        let started = thread::Builder::new().name("aioco-worker".into()).spawn(work);
        if started.is_err() {
            // One of the others gets to it; and if there are none, the caller does.
            let mut state = POOL.state.lock();
            state.threads -= 1;
            let job = if state.threads == 0 { state.jobs.pop_front() } else { None };
            drop(state);
            job.into_iter().for_each(Job::run);
        }
    }
}

/// A thread's work.
fn work() {
    let mut state = POOL.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            let request = job.request;
            state.running.push(request);
            drop(state);
            job.run();
            state = POOL.state.lock();
            let place = state.running.iter().position(|&running| running == request);
            state.running.swap_remove(place.expect("pushed above"));
            if state.finishing != 0 {
                POOL.done.notify_all();
            }
            continue;
        }
        state.idle += 1;
        let timed_out = POOL.work.wait_for(&mut state, IDLE).timed_out();
        state.idle -= 1;
        if timed_out && state.jobs.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}

/// Takes back a request that was submitted here, and that no thread has begun. Returns whether nobody has it any more;
/// otherwise it will be done.
pub(super) fn take_back(request: &Request) -> bool {
    POOL.state.lock().take_back(request)
}

impl State {
    fn take_back(&mut self, request: &Request) -> bool {
        if self.process != process::id() {
            // It is the parent's, and so is what its threads write to.
            return true;
        }
        let place = self.jobs.iter().position(|job| job.request == NonNull::from(request));
        place.is_some_and(|place| self.jobs.remove(place).is_some())
    }
}

/// [Takes back](take_back) a request, or blocks until it is done.
pub(super) fn finish(request: &Request) {
    let own = NonNull::from(request);
    let mut state = POOL.state.lock();
    if state.take_back(request) {
        return;
    }
    state.finishing += 1;
    while state.running.contains(&own) {
        POOL.done.wait(&mut state);
    }
    state.finishing -= 1;
}
