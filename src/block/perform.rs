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

use super::engine::{Engine, Operation, Policy, Way};
use super::workers;
use crate::aio::Local;
use crate::aio::request::{Interface, OnDone, Request};
use crate::coroutine::{self, yield_now};
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

/// How a request has begun.
#[derive(Debug, Clone, Copy)]
pub(super) enum Started {
    /// It has been carried out, with this result.
    Done(i64),
    /// It is pending, with the kernel or with a worker.
    Pending(Carrier),
}

/// Who has a pending request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Carrier {
    Kernel(Interface),
    Worker,
}

/// Carries out a call at once, or has it carried out and `on_done` happen then. Returns what the kernel returned, or a
/// negative error number, if it is done.
///
/// # Safety
///
/// What the call names is valid as [`Call::run`] demands it. If the request is pending afterwards, that holds until it is
/// done, and so long it stays in place.
#[inline]
pub(super) unsafe fn start(
    caller: &Caller,
    policy: &Policy,
    operation: Operation,
    call: Call,
    request: &mut Request,
    on_done: impl FnOnce() -> OnDone,
) -> Started {
    let count = || caller.context().map_or((), Local::count_block_call);
    let run = |call: Call| {
        count();
        // SAFETY: contract.
        unsafe { call.run() }
    };
    let engine = match caller {
        Caller::Blocking => return Started::Done(run(call)),
        _ => match policy.way(operation, caller.context()) {
            Way::By(Engine::Inline) => return Started::Done(run(call)),
            Way::By(engine) => engine,
            Way::AtOnceOr(engine) => {
                let result = run(Call { flags: call.flags | NO_WAIT, ..call });
                if result == -i64::from(libc::EAGAIN) {
                    policy.note_read(false);
                } else if result == -i64::from(libc::EOPNOTSUPP) {
                    policy.note_never();
                } else {
                    policy.note_read(true);
                    return Started::Done(result);
                }
                engine
            }
            Way::Timed => {
                let start = Instant::now();
                let result = run(call);
                policy.note_write(start.elapsed(), result);
                return Started::Done(result);
            }
        },
    };
    request.begin(on_done());
    let interface = match engine {
        Engine::Ring => Some(Interface::Ring),
        // SAFETY: contract.
        Engine::LinuxAio if unsafe { is_for_linux_aio(policy, &call) } => Some(Interface::LinuxAio),
        _ => None,
    };
    match (interface, caller) {
        // SAFETY: contract.
        (Some(interface), Caller::Context(context)) => match unsafe { context.request(interface, &call, request) } {
            true => Started::Pending(Carrier::Kernel(interface)),
            false => Started::Done(-i64::from(libc::ECANCELED)),
        },
        _ => {
            count();
            // SAFETY: contract.
            unsafe { workers::submit(call, request) };
            Started::Pending(Carrier::Worker)
        }
    }
}

/// # Safety
///
/// What the call names is valid.
unsafe fn is_for_linux_aio(policy: &Policy, call: &Call) -> bool {
    // SAFETY: contract.
    let end = unsafe { call.end_of_write() };
    linux_aio::can(&call.what) && end.is_none_or(|end| policy.may_write_by_linux_aio(end, call.fd))
}

/// Has a pending request cancelled, and blocks until it is done.
pub(super) fn finish(caller: &Caller, carrier: Carrier, request: &Request) {
    match (carrier, caller) {
        (Carrier::Kernel(interface), Caller::Context(context)) => context.finish(interface, request),
        _ => workers::finish(request),
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
    let mut pending = Pending { caller: Caller::current(), request: Request::new(), carrier: None };
    let Pending { caller, request, .. } = &mut pending;
    // SAFETY: contract; and `pending` stays here until the request is done.
    match unsafe { start(caller, policy, operation, call, request, || OnDone::Wake(park::waker())) } {
        Started::Done(result) => {
            let_others(caller);
            result
        }
        Started::Pending(carrier) => {
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
    caller: Caller,
    request: Request,
    carrier: Option<Carrier>,
}

impl Pending {
    /// Parks until the request is done; returns its result.
    fn wait(&self) -> i64 {
        loop {
            if let Some(result) = self.request.result() {
                return result;
            }
            park::park();
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Pending still: the coroutine is unwound out of its park.
        if let Some(carrier) = self.carrier
            && self.request.result().is_none()
        {
            finish(&self.caller, carrier, &self.request);
        }
    }
}
