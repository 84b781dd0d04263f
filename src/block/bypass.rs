//! Requests without coroutines: the same, with a callback when they are done.
//!
//! # Safety
//!
//! A bypass is in an allocation of its own, with the buffer that its calls name, and the context has it, by a
//! [`PlacedBypass`], until it goes on: so both stay where they are while a call is pending. Nobody else gets at the buffer
//! meanwhile. A context that ends has the pending ones finished before it drops them.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use super::file::{DISCARD, File};
use super::perform::{Carrier, Tried, finish, start, try_at_once};
use super::transfer::{Advance, Other, Transfer, Work};
use crate::aio::Local;
use crate::aio::request::{Bypass, OnDone, PlacedBypass, Request};
use crate::primitive::UnsafeCell;
use crate::sys::file::{Call, What};

/// Reads as [`File::read_at`] does, without a coroutine: `then` is called with the result and the buffer, by the context's
/// loop, never within this call. So a block driver serves what needs no straight-line code, and a callback that submits the
/// next request doesn't recurse.
///
/// The file (an `Rc`, an `Arc`, a `&'static`) and the buffer are kept until then.
///
/// ```
/// use aioco::{AioContext, block};
/// use std::{cell::Cell, fs::File, rc::Rc};
///
/// let context = AioContext::new()?;
/// # let path = std::env::current_exe()?;
/// let file = Rc::new(block::File::new(File::open(path)?)?);
/// let is_done = Rc::new(Cell::new(false));
/// let done = is_done.clone();
/// block::read_then(&context, file, vec![0; 4], 0, move |result, buffer| {
///     assert_eq!(result.unwrap(), 4);
///     assert_eq!(buffer, b"\x7fELF");
///     done.set(true);
/// })?;
/// context.run_until(|| is_done.get());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// If the context ends first, the request is cancelled and waited for, and `then` is dropped.
///
/// # Errors
///
/// [`NotConnected`](io::ErrorKind::NotConnected) if the context has ended; the rest is for `then`.
pub fn read_then<F, D, B>(
    context: &Local,
    file: D,
    buffer: B,
    offset: u64,
    then: impl FnOnce(io::Result<usize>, B) + 'static,
) -> io::Result<()>
where
    F: AsFd + 'static,
    D: Deref<Target = File<F>> + 'static,
    B: AsMut<[u8]> + 'static,
{
    let place = |buffer: &mut B| Transfer::read(buffer.as_mut(), offset);
    submit(context, file, buffer, place, then)
}

/// Writes as [`File::write_all_at`] does, without a coroutine; see [`read_then`].
///
/// # Errors
///
/// As [`read_then`].
pub fn write_all_then<F, D, B>(
    context: &Local,
    file: D,
    buffer: B,
    offset: u64,
    then: impl FnOnce(io::Result<()>, B) + 'static,
) -> io::Result<()>
where
    F: AsFd + 'static,
    D: Deref<Target = File<F>> + 'static,
    B: AsRef<[u8]> + 'static,
{
    let place = |buffer: &mut B| Transfer::write((*buffer).as_ref(), offset, 0);
    submit(context, file, buffer, place, move |result, buffer| then(result.map(drop), buffer))
}

/// Flushes as [`File::flush`] does, without a coroutine; see [`read_then`]. What had been written when this was called, as
/// far as it was known to be done, is stable when `then` is called.
///
/// # Errors
///
/// As [`read_then`].
pub fn flush_then<F, D>(context: &Local, file: D, then: impl FnOnce(io::Result<()>) + 'static) -> io::Result<()>
where
    F: AsFd + 'static,
    D: Deref<Target = File<F>> + 'static,
{
    let work = |(): &mut ()| Other::new(What::Sync { data_only: true }, 0);
    submit(context, file, (), work, move |result, ()| then(result.map(drop)))
}

/// Discards as [`File::discard`] does, without a coroutine; see [`read_then`].
///
/// # Errors
///
/// As [`read_then`].
pub fn discard_then<F, D>(
    context: &Local,
    file: D,
    offset: u64,
    len: u64,
    then: impl FnOnce(io::Result<()>) + 'static,
) -> io::Result<()>
where
    F: AsFd + 'static,
    D: Deref<Target = File<F>> + 'static,
{
    let work = |(): &mut ()| Other::new(What::Allocate { mode: DISCARD, len }, offset);
    submit(context, file, (), work, move |result, ()| then(result.map(drop)))
}

/// Begins what `work` makes of the buffer, in its place.
fn submit<F, D, B, W, T>(context: &Local, file: D, buffer: B, work: impl FnOnce(&mut B) -> W, then: T) -> io::Result<()>
where
    F: AsFd + 'static,
    D: Deref<Target = File<F>> + 'static,
    B: 'static,
    W: Work + 'static,
    T: FnOnce(io::Result<usize>, B) + 'static,
{
    let this = context.place_for::<Working<D, B, W, T>>()?;
    let place = this.as_ptr();
    // SAFETY: it is ours, and so are its parts, each for itself. They are made in place: the buffer has its own before
    // anybody is told where it is.
    unsafe {
        (&raw mut (*place).file).write(file);
        (&raw mut (*place).buffer).write(UnsafeCell::new(buffer));
        (&raw mut (*place).then).write(then);
        (&raw mut (*place).request).write(Request::new());
        let work = (*place).buffer.with_mut(|buffer| work(&mut *buffer));
        (&raw mut (*place).work).write(work);
        match (*place).work.check((*place).file.target()) {
            Ok(()) => Working::next(this, context),
            Err(error) => Working::defer(this, Outcome::Refused(error), context),
        }
    }
    Ok(())
}

/// What is to be done, and what it is about.
struct Working<D, B, W, T> {
    file: D,
    /// Whoever has a pending call writes to it, or reads from it.
    buffer: UnsafeCell<B>,
    then: T,
    work: W,
    request: Request,
    outcome: Outcome,
}

/// What is known of a call.
#[derive(Debug)]
enum Outcome {
    /// There was none to make.
    Nothing,
    /// The request says it, once it is done.
    Requested(Carrier),
    /// It was carried out at once, with this result.
    Done(i64),
    /// It wasn't made.
    Refused(io::Error),
}

impl<F, D, B, W, T> Working<D, B, W, T>
where
    F: AsFd + 'static,
    D: Deref<Target = File<F>> + 'static,
    B: 'static,
    W: Work + 'static,
    T: FnOnce(io::Result<usize>, B) + 'static,
{
    /// Makes the next call, if there is one; in any case it goes on in a turn of the loop.
    ///
    /// # Safety
    ///
    /// `this` came from a box, which is the callee's from now on; no call is pending.
    #[inline(always)]
    unsafe fn next(this: NonNull<Self>, context: &Local) {
        let place = this.as_ptr();
        // SAFETY: contract. Nobody changes the file, and what is to be done is ours.
        let (target, work) = unsafe { ((*place).file.target(), &(*place).work) };
        let Some(call) = work.next(target) else {
            // SAFETY: contract.
            return unsafe { Self::defer(this, Outcome::Nothing, context) };
        };
        // SAFETY: see the head.
        match unsafe { try_at_once(target.policy, work.operation(), call) } {
            // SAFETY: contract.
            Tried::Done(result) => unsafe { Self::defer(this, Outcome::Done(result), context) },
            // SAFETY: contract.
            Tried::No => unsafe { Self::start(this, call, context) },
        }
    }

    /// Has somebody else make this call.
    ///
    /// # Safety
    ///
    /// As [`next`](Self::next); the call is what comes next.
    #[inline(never)]
    unsafe fn start(this: NonNull<Self>, call: Call, context: &Local) {
        let place = this.as_ptr();
        // SAFETY: contract; and the bypass goes on when its request is done. The file is asked now, as user code, which may
        // end the context, has no place in what follows.
        let (policy, bypass) = unsafe {
            (&raw mut (*place).outcome).write(Outcome::Nothing);
            (ptr::from_ref((*place).file.target().policy), PlacedBypass::new(this))
        };
        let Some(number) = context.keep_bypass(bypass) else { return };
        let on_done = |carrier| match carrier {
            Carrier::Kernel(_) => OnDone::GoOn(number),
            Carrier::Worker => context.on_bypass_done(number),
        };
        // SAFETY: the context has it, and doesn't look at it before its next turn; the rest is in the head.
        unsafe {
            let operation = (*place).work.operation();
            let carrier = start(Some(context), &*policy, operation, call, &mut (*place).request, on_done);
            (*place).outcome = carrier.map_or(Outcome::Nothing, Outcome::Requested);
        }
    }

    /// Goes on with this in the next turn.
    ///
    /// # Safety
    ///
    /// As [`next`](Self::next).
    #[inline]
    unsafe fn defer(this: NonNull<Self>, outcome: Outcome, context: &Local) {
        let calls = matches!(outcome, Outcome::Done(_)).into();
        // SAFETY: contract. There is no outcome yet, or it has been taken out.
        unsafe {
            (&raw mut (*this.as_ptr()).outcome).write(outcome);
            context.defer_bypass(PlacedBypass::new(this), calls);
        }
    }

    /// # Safety
    ///
    /// As [`next`](Self::next).
    #[inline]
    unsafe fn finished(this: NonNull<Self>, result: io::Result<usize>, context: &Local) {
        let place = this.as_ptr();
        // SAFETY: contract. Nobody has a pointer into it any more; each part is taken out, or dropped, once.
        let (file, buffer, then) = unsafe {
            ptr::drop_in_place(&raw mut (*place).work);
            ptr::drop_in_place(&raw mut (*place).request);
            ptr::drop_in_place(&raw mut (*place).outcome);
            ((&raw const (*place).file).read(), (&raw const (*place).buffer).read(), (&raw const (*place).then).read())
        };
        // SAFETY: so nothing is left there.
        unsafe { context.keep_place(this) };
        drop(file);
        then(result, buffer.into_inner());
    }
}

impl<F, D, B, W, T> Bypass for Working<D, B, W, T>
where
    F: AsFd + 'static,
    D: Deref<Target = File<F>> + 'static,
    B: 'static,
    W: Work + 'static,
    T: FnOnce(io::Result<usize>, B) + 'static,
{
    unsafe fn go_on(this: NonNull<Self>, context: &Local) {
        let place = this.as_ptr();
        // SAFETY: contract, here and below: no call is pending, so that all parts are ours, each for itself.
        let result = unsafe {
            let target = (*place).file.target();
            let result = match mem::replace(&mut (*place).outcome, Outcome::Nothing) {
                Outcome::Nothing => Ok(Advance::Ended),
                Outcome::Refused(error) => Err(error),
                Outcome::Done(result) => (*place).work.advance(target, result),
                Outcome::Requested(_) => {
                    let result = (*place).request.result().expect("it goes on when it is done");
                    (*place).work.advance(target, result)
                }
            };
            match result {
                Ok(Advance::Ended) => Ok((*place).work.done()),
                Ok(Advance::Moved | Advance::Again) => return Self::next(this, context),
                Err(error) => Err(error),
            }
        };
        // SAFETY: as above.
        unsafe { Self::finished(this, result, context) };
    }

    unsafe fn finish(this: NonNull<Self>, context: &Local) {
        let place = this.as_ptr();
        // SAFETY: contract; others only have the request, which is made for that, and the buffer.
        let (outcome, request) = unsafe { (&(*place).outcome, &(*place).request) };
        if let Outcome::Requested(carrier) = *outcome
            && request.result().is_none()
        {
            finish(Some(context), carrier, request);
        }
    }
}
