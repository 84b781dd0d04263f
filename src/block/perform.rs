//! Carrying out a call: by whom, and how the caller waits.
//!
//! # Safety
//!
//! What a call names is borrowed by the caller of [`perform`] for as long as that runs. A request is made by a coroutine
//! from its own stack ([`Pending`]), which isn't left, neither by returning nor by unwinding, before the request is
//! done. The rest is in the head of `aio::request`.
#![allow(unsafe_code)]

use std::thread;
use std::time::Instant;

use super::engine::{AtOnce, Engine, Operation, Policy};
use super::workers;
use crate::aio::request::{Interface, OnDone, Request};
use crate::aio::{self, Local};
use crate::coroutine::{self, park_for_own, unwind_cancelled, yield_now};
use crate::park;
use crate::sys::file::{Call, NO_WAIT};
use crate::sys::linux_aio;

/// Where a request comes from.
#[derive(Debug)]
pub(super) enum Caller {
    /// A coroutine of this context.
    Context(Local),
    /// A coroutine of another home.
    Home,
    /// Whoever can't park: a thread, a coroutine without a home, or one that is unwinding, which mustn't suspend. (A drop
    /// guard may write what is left.)
    Blocking,
}

impl Caller {
    #[inline]
    pub(super) fn current() -> Self {
        match coroutine::home() {
            Some(home) if !thread::panicking() => Local::from_home(home).map_or(Self::Home, Self::Context),
            _ => Self::Blocking,
        }
    }

    #[inline]
    pub(super) fn context(&self) -> Option<&Local> {
        match self {
            Self::Context(context) => Some(context),
            _ => None,
        }
    }
}

/// What has become of a call that was to be carried out at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tried {
    /// It wasn't tried, or it would have to wait for something.
    No,
    /// It was carried out, with this result: what the kernel returned, or a negative error number.
    Done(i64),
}

/// Who has a pending request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    Kernel(Interface),
    Worker,
}

/// Carries out a call on the spot, if that is the way to do it. How often that happens is for the caller to
/// [count](Local::count_block_call).
///
/// # Safety
///
/// What the call names is valid as [`Call::run`] demands it.
#[inline(always)]
pub(super) unsafe fn try_at_once(policy: &Policy, operation: Operation, call: Call) -> Tried {
    match policy.at_once(operation) {
        // SAFETY: contract, here and below.
        AtOnce::Yes => Tried::Done(unsafe { call.run() }),
        AtOnce::IfThere => {
            // SAFETY: as above.
            let result = unsafe { Call { flags: call.flags | NO_WAIT, ..call }.run() };
            if result >= 0 {
                policy.note_read(true);
                return Tried::Done(result);
            }
            missed(policy, result)
        }
        AtOnce::Timed => {
            let start = Instant::now();
            // SAFETY: as above.
            let result = unsafe { call.run() };
            policy.note_write(start.elapsed(), result);
            Tried::Done(result)
        }
        AtOnce::No => Tried::No,
    }
}

#[cold]
fn missed(policy: &Policy, result: i64) -> Tried {
    if result == -i64::from(libc::EAGAIN) {
        policy.note_read(false);
    } else if result == -i64::from(libc::EOPNOTSUPP) {
        policy.note_never();
    } else {
        return Tried::Done(result);
    }
    Caller::current().context().into_iter().for_each(Local::count_block_call);
    Tried::No
}

/// Has a call carried out, that wasn't [at once](try_at_once), for a coroutine of this context, or of another home
/// (`None`). `on_done` says what happens then. Returns who has it; `None` if the context has ended.
///
/// # Safety
///
/// What the call names is valid as [`Call::run`] demands it, until the request is done, and so long it stays in place.
pub(super) unsafe fn start(
    context: Option<&Local>,
    policy: &Policy,
    operation: Operation,
    call: Call,
    request: &mut Request,
    on_done: impl FnOnce(Carrier) -> OnDone,
) -> Option<Carrier> {
    let interface = match policy.engine(operation, context) {
        Engine::Ring => Some(Interface::Ring),
        // SAFETY: contract.
        Engine::LinuxAio if unsafe { is_for_linux_aio(policy, &call) } => Some(Interface::LinuxAio),
        _ => None,
    };
    if let (Some(interface), Some(context)) = (interface, context) {
        let carrier = Carrier::Kernel(interface);
        request.begin(on_done(carrier));
        // SAFETY: contract.
        return unsafe { context.request(interface, &call, policy.key(), request) }.then_some(carrier);
    }
    context.into_iter().for_each(Local::count_block_call);
    request.begin(on_done(Carrier::Worker));
    // SAFETY: contract.
    unsafe { workers::submit(call, request) };
    Some(Carrier::Worker)
}

/// # Safety
///
/// What the call names is valid.
unsafe fn is_for_linux_aio(policy: &Policy, call: &Call) -> bool {
    // SAFETY: contract.
    let end = unsafe { call.end_of_write() };
    linux_aio::can(&call.what) && end.is_none_or(|end| policy.may_write_by_linux_aio(end, call.fd))
}

/// The result of a call that wasn't made, because the context has ended.
pub(super) const CANCELLED: i64 = -(libc::ECANCELED as i64);

/// Has a pending request cancelled, and blocks until it is done.
pub(super) fn finish(context: Option<&Local>, carrier: Carrier, request: &Request) {
    match (carrier, context) {
        (Carrier::Kernel(interface), Some(context)) => context.finish(interface, request),
        _ => workers::finish(request),
    }
}

/// Has a pending request cancelled, which may take a while. Returns whether nobody has it any more; otherwise it will be done.
pub(super) fn cancel(context: Option<&Local>, carrier: Carrier, request: &Request) -> bool {
    match (carrier, context) {
        (Carrier::Kernel(interface), Some(context)) => context.cancel(interface, request),
        _ => workers::take_back(request),
    }
}

/// Carries out a call; the caller parks meanwhile, or blocks if it can't. Returns what the kernel returned, or a
/// negative error number.
///
/// # Safety
///
/// As [`Call::run`].
#[inline]
pub(super) unsafe fn perform(policy: &Policy, operation: Operation, call: Call) -> i64 {
    // SAFETY: passed on.
    match unsafe { try_at_once(policy, operation, call) } {
        Tried::Done(result) => {
            done_at_once(result);
            result
        }
        // SAFETY: passed on.
        Tried::No => unsafe { perform_elsewhere(policy, operation, call) },
    }
}

/// Counts a call that the calling coroutine has carried out, with this result; then the others have their turn, if it has
/// been long.
#[inline]
pub(super) fn done_at_once(result: i64) {
    if aio::count_block_call(result.max(0) as u64) && !thread::panicking() {
        yield_now();
    }
}

/// As [`perform`], for a call that wasn't carried out at once.
///
/// # Safety
///
/// As [`Call::run`].
pub(super) unsafe fn perform_elsewhere(policy: &Policy, operation: Operation, call: Call) -> i64 {
    let mut pending = Pending { request: Request::new(), carrier: None };
    let request = &mut pending.request;
    let on_done = |_| OnDone::Wake(park::waker());
    // SAFETY: contract; and `pending` stays here until the request is done.
    let begin = |context: Option<&Local>| unsafe { start(context, policy, operation, call, request, on_done) };
    let begun = match thread::panicking() {
        true => None,
        false => coroutine::with_home(|home| Some(Local::with_home(home?, begin))),
    };
    match begun {
        // It can't park. (See `Caller::Blocking`.)
        // SAFETY: contract.
        None => unsafe { call.run() },
        Some(None) => CANCELLED,
        Some(Some(carrier)) => {
            pending.carrier = Some(carrier);
            pending.wait()
        }
    }
}

/// The others have their turn, if it has been long.
#[inline]
pub(super) fn let_others(caller: &Caller) {
    if caller.context().is_some_and(Local::is_due_for_others) {
        yield_now();
    }
}

/// A request, in the frame of the coroutine that waits for it. It is done before this is gone.
struct Pending {
    request: Request,
    carrier: Option<Carrier>,
}

impl Pending {
    /// Parks until the request is done; returns its result. A coroutine that is cancelled meanwhile has the request cancelled,
    /// parks until it is done, and unwinds then.
    fn wait(&mut self) -> i64 {
        let mut is_cancelled = false;
        loop {
            match self.request.result() {
                Some(result) if !is_cancelled => return result,
                Some(_) => unwind_cancelled(),
                None => {}
            }
            if park_for_own(is_cancelled) && !is_cancelled {
                is_cancelled = true;
                if let Some(carrier) = self.carrier
                    && self.request.result().is_none()
                    && with_context(|context| cancel(context, carrier, &self.request))
                {
                    self.carrier = None;
                    unwind_cancelled();
                }
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Pending still: the coroutine is unwound out of its park, by somebody who waits for that.
        if let Some(carrier) = self.carrier
            && self.request.result().is_none()
        {
            with_context(|context| finish(context, carrier, &self.request));
        }
    }
}

/// Calls `f` with the context of a coroutine that waits for a request, if it has one: the same as when it asked, as it was
/// going to park, or has parked.
fn with_context<R>(f: impl FnOnce(Option<&Local>) -> R) -> R {
    coroutine::with_home(|home| match home {
        Some(home) => Local::with_home(home, f),
        None => f(None),
    })
}
