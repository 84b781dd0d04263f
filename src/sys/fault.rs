//! Faults for unit tests: what a test has planned happens in place of a system call, or to it.
//!
//! A test plans for [sites](Site) that are its own: for calls of its thread, or for requests to a file that it has
//! open. So tests that run side by side don't meet each other's faults.
#![allow(unsafe_code)] // # Safety: vectors are read that a call names, whose maker keeps them valid; what replaces them is leaked.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::slice;
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::file::{Call, What};
use super::linux_aio::Entry;
use crate::primitive::Mutex;

/// Where a fault is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// io_setup, called by this thread.
    Setup,
    /// io_submit, called by this thread with entries.
    Submit,
    /// io_uring_enter, called by this thread.
    Enter,
    /// io_uring_register, called by this thread to register something.
    Register,
    /// A request to this file, whoever carries it out.
    Request(RawFd),
}

/// What happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing out of the ordinary.
    None,
    /// It fails with this error number, without effect.
    Errno(i32),
    /// It is for so much only: bytes, or entries.
    Only(usize),
    /// A call takes until something else is planned.
    Hold,
}

type Plan = (Site, Option<ThreadId>, VecDeque<Fault>);

static PLANS: Mutex<Vec<Plan>> = Mutex::new(Vec::new());

/// What is told as the results of requests that are under way, by their tokens.
static RESULTS: Mutex<Vec<(u64, i64)>> = Mutex::new(Vec::new());

/// Files whose calls are being held.
static HELD: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

fn owner(site: Site) -> Option<ThreadId> {
    (!matches!(site, Site::Request(_))).then(|| thread::current().id())
}

/// Has this happen there, one after the other; then nothing more does. Replaces what was planned there.
pub(crate) fn plan(site: Site, faults: impl IntoIterator<Item = Fault>) {
    let mut plans = PLANS.lock();
    let owner = owner(site);
    plans.retain(|plan| (plan.0, plan.1) != (site, owner));
    plans.push((site, owner, faults.into_iter().collect()));
}

/// How much of what was planned there is still to happen.
pub(crate) fn left(site: Site) -> usize {
    let owner = owner(site);
    PLANS.lock().iter().find(|plan| (plan.0, plan.1) == (site, owner)).map_or(0, |plan| plan.2.len())
}

fn next(site: Site) -> Fault {
    let owner = owner(site);
    let mut plans = PLANS.lock();
    let plan = plans.iter_mut().find(|plan| (plan.0, plan.1) == (site, owner));
    plan.and_then(|plan| plan.2.pop_front()).unwrap_or(Fault::None)
}

fn fail_at(site: Site) -> io::Result<()> {
    match next(site) {
        Fault::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
        _ => Ok(()),
    }
}

/// In front of io_setup.
pub(super) fn on_setup() -> io::Result<()> {
    fail_at(Site::Setup)
}

/// In front of io_uring_enter.
pub(super) fn on_enter() -> io::Result<()> {
    fail_at(Site::Enter)
}

/// In front of io_uring_register.
pub(super) fn on_register() -> io::Result<()> {
    fail_at(Site::Register)
}

/// In front of io_submit: what is left of these.
pub(super) fn on_submit(entries: &mut [Entry]) -> io::Result<&mut [Entry]> {
    match next(Site::Submit) {
        Fault::None | Fault::Hold => Ok(entries),
        Fault::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
        Fault::Only(count) => {
            let count = count.min(entries.len());
            Ok(&mut entries[..count])
        }
    }
}

/// Whether a call is being held there.
pub(crate) fn holds(file: RawFd) -> bool {
    HELD.lock().contains(&file)
}

/// In front of a call: what is made of it, or its result.
pub(super) fn on_call(call: Call) -> Result<Call, i64> {
    match next(Site::Request(call.fd)) {
        Fault::None => Ok(call),
        Fault::Hold => {
            let site = Site::Request(call.fd);
            HELD.lock().push(call.fd);
            while left(site) != 0 {
                thread::sleep(Duration::from_micros(100));
            }
            HELD.lock().retain(|&held| held != call.fd);
            Ok(call)
        }
        Fault::Errno(errno) => Err(-i64::from(errno)),
        Fault::Only(len) => Ok(cut(call, len)),
    }
}

/// In front of a request whose completion comes later: what is made of it.
pub(super) fn on_request(call: Call, token: u64) -> Call {
    match on_call(call) {
        Ok(call) => call,
        Err(result) => {
            RESULTS.lock().push((token, result));
            // Without effect.
            cut(call, 0)
        }
    }
}

/// What is told as the result of a request.
pub(super) fn result(token: u64, result: i64) -> i64 {
    let mut results = RESULTS.lock();
    match results.iter().position(|planned| planned.0 == token) {
        Some(index) => results.swap_remove(index).1,
        None => result,
    }
}

/// As much of a call.
fn cut(call: Call, to: usize) -> Call {
    let what = match call.what {
        What::Read { buffer, len } => What::Read { buffer, len: (len as usize).min(to) as u32 },
        What::Write { buffer, len } => What::Write { buffer, len: (len as usize).min(to) as u32 },
        What::ReadVectored { vectors, count } => {
            let (vectors, count) = cut_vectors(vectors, count, to);
            What::ReadVectored { vectors, count }
        }
        What::WriteVectored { vectors, count } => {
            let (vectors, count) = cut_vectors(vectors, count, to);
            What::WriteVectored { vectors, count }
        }
        what => what,
    };
    Call { what, ..call }
}

fn cut_vectors(vectors: *const libc::iovec, count: u32, mut left: usize) -> (*const libc::iovec, u32) {
    // SAFETY: see the head.
    let mut vectors = unsafe { slice::from_raw_parts(vectors, count as usize) }.to_vec();
    for vector in &mut vectors {
        vector.iov_len = vector.iov_len.min(left);
        left -= vector.iov_len;
    }
    vectors.retain(|vector| vector.iov_len != 0);
    let vectors = Vec::leak(vectors);
    (vectors.as_ptr(), vectors.len() as u32)
}
