//! Requests without coroutines: the same, with a callback when they are done.
//!
//! # Safety
//!
//! A bypass has a [`Place`], with the buffer that its calls name, and the context has the bypass, until it goes on: so
//! both stay where they are while a call is pending. Nobody else gets at the buffer meanwhile. A context that ends has
//! the pending ones finished before it drops them.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::ops::Deref;
use std::os::fd::AsFd;

use super::file::File;
use super::perform::{Caller, Carrier, Started, finish, start};
use super::place::Place;
use super::transfer::{Advance, Transfer};
use crate::aio::Local;
use crate::aio::request::{Bypass, OnDone, Request};
use crate::primitive::UnsafeCell;

/// Reads as [`File::read_at`] does, without a coroutine: `then` is called with the result and the buffer, on the context's
/// thread, in one of its next turns, never within this call. So a block driver serves what needs no straight-line code.
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

fn submit<F, D, B, T>(
    context: &Local,
    file: D,
    buffer: B,
    transfer: impl FnOnce(&mut B) -> Transfer,
    then: T,
) -> io::Result<()>
where
    F: AsFd + 'static,
    D: Deref<Target = File<F>> + 'static,
    B: 'static,
    T: FnOnce(io::Result<usize>, B) + 'static,
{
    context.refuse_if_ended()?;
    let empty = Transfer::write(&[], 0, 0);
    let mut state = Place::new(State {
        context: Caller::Context(context.clone()),
        file,
        buffer: UnsafeCell::new(buffer),
        then,
        transfer: empty,
        request: Request::new(),
        outcome: Outcome::Nothing,
    });
    // The buffer has its place now.
    // SAFETY: nobody else looks at it.
    state.transfer = state.buffer.with_mut(|buffer| transfer(unsafe { &mut *buffer }));
    if let Err(error) = state.file.target().check(&state.transfer) {
        state.outcome = Outcome::Refused(error);
    }
    let transferring = Box::new(Transferring { state, carrier: None });
    match transferring.state.outcome {
        Outcome::Nothing => transferring.next(),
        _ => transferring.schedule(),
    }
    Ok(())
}

/// A transfer, and what it is about.
struct State<D, B, T> {
    context: Caller,
    file: D,
    /// Whoever has a pending call writes to it, or reads from it.
    buffer: UnsafeCell<B>,
    then: T,
    transfer: Transfer,
    request: Request,
    outcome: Outcome,
}

/// What is known of a call that isn't pending.
enum Outcome {
    /// Nothing, or what the request says.
    Nothing,
    /// It was carried out at once, with this result.
    Done(i64),
    /// It wasn't made.
    Refused(io::Error),
}

struct Transferring<D, B, T> {
    state: Place<State<D, B, T>>,
    /// Who has its call, if one is pending.
    carrier: Option<Carrier>,
}

impl<F, D, B, T> Transferring<D, B, T>
where
    F: AsFd + 'static,
    D: Deref<Target = File<F>> + 'static,
    B: 'static,
    T: FnOnce(io::Result<usize>, B) + 'static,
{
    /// Makes the next call, if there is one; in any case it goes on in a turn of the loop.
    fn next(mut self: Box<Self>) {
        let State { context, file, transfer, request, outcome, .. } = &mut *self.state;
        let target = file.target();
        let Some(call) = transfer.next(target) else { return self.schedule() };
        let Some(number) = context.context().and_then(Local::reserve_bypass) else { return };
        let on_done = || context.context().map_or(OnDone::Nothing, |context| context.on_bypass_done(number));
        // SAFETY: see the head.
        match unsafe { start(context, target.policy, transfer.operation(), call, request, on_done) } {
            Started::Done(result) => {
                *outcome = Outcome::Done(result);
                self.put(number, true);
            }
            Started::Pending(carrier) => {
                self.carrier = Some(carrier);
                self.put(number, false);
            }
        }
    }

    /// Goes on in the next turn.
    fn schedule(self: Box<Self>) {
        if let Some(number) = self.state.context.context().and_then(Local::reserve_bypass) {
            self.put(number, true);
        }
    }

    fn put(self: Box<Self>, number: u64, is_due: bool) {
        if let Some(context) = self.state.context.context().cloned() {
            context.put_bypass(number, self, is_due);
        }
    }

    fn finished(self, result: io::Result<usize>) {
        let State { buffer, then, .. } = self.state.into_inner();
        then(result, buffer.into_inner());
    }
}

impl<F, D, B, T> Bypass for Transferring<D, B, T>
where
    F: AsFd + 'static,
    D: Deref<Target = File<F>> + 'static,
    B: 'static,
    T: FnOnce(io::Result<usize>, B) + 'static,
{
    fn go_on(mut self: Box<Self>) {
        let outcome = mem::replace(&mut self.state.outcome, Outcome::Nothing);
        let result = match (self.carrier.take(), outcome) {
            (_, Outcome::Refused(error)) => return self.finished(Err(error)),
            (None, Outcome::Done(result)) => result,
            (Some(_), _) => self.state.request.result().expect("it goes on when it is done"),
            (None, Outcome::Nothing) => {
                let done = self.state.transfer.done();
                return self.finished(Ok(done));
            }
        };
        let State { file, transfer, .. } = &mut *self.state;
        match transfer.advance(file.target(), result) {
            Ok(Advance::Ended) => {
                let done = transfer.done();
                self.finished(Ok(done));
            }
            Ok(Advance::Moved | Advance::Again) => self.next(),
            Err(error) => self.finished(Err(error)),
        }
    }

    fn finish(&self) {
        let State { context, request, .. } = &*self.state;
        if let Some(carrier) = self.carrier
            && request.result().is_none()
        {
            finish(context, carrier, request);
        }
    }
}
