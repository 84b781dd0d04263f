//! Requests that somebody else carries out: the kernel, through the context's ring or Linux AIO, or a worker thread.
//!
//! # How a request goes round
//!
//! | state | who has it | left when |
//! |---|---|---|
//! | made | its owner | it is submitted |
//! | pending | the kernel or a worker; its owner keeps it, and the memory that it names, in place | it is completed |
//! | done | its owner | its owner drops it, or submits it again |
//!
//! Whoever completes a request takes out what is to be done then, stores the result, and from that point on touches the
//! request no more: its owner may see the result at any time, and drop it. So whoever is to be woken is known before. (See
//! `request_state`.)
//!
//! # Safety
//!
//! A pending request stays where it is and isn't dropped, and what it names (a buffer, vectors) is left to whoever
//! carries it out: [`Local::request`](super::Local) demands it of its caller, who has to keep it however the coroutine
//! ends. A coroutine that waits keeps its request in a guard on its own stack, and a coroutine's stack doesn't go away
//! but by unwinding. If it is cancelled, it has the request cancelled, and parks until it is done before it unwinds. If it is
//! unwound by somebody who waits for that (the drop of its handle, the end of its home, a time limit), that runs the guard: it
//! has the request cancelled, and blocks until it is done. A coroutine that can't be unwound leaks its stack, which stays
//! mapped.
#![allow(unsafe_code)]

use std::alloc::{self, Layout};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::task::Waker;

use super::Local;
use super::bh;
use super::request_state::RequestState;
pub(crate) use super::request_state::Tally;
use super::shared::Shared;

/// A request: its result, and what is to be done when that is there.
#[derive(Debug)]
pub(crate) struct Request(RequestState<OnDone>);

/// Which way a request goes to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interface {
    /// The context's io_uring.
    Ring,
    LinuxAio,
}

/// What happens when a request is done.
#[derive(Debug, Default)]
pub(crate) enum OnDone {
    #[default]
    Nothing,
    /// Somebody is woken.
    Wake(Waker),
    /// It is counted, and somebody is woken if that was enough.
    Count(Arc<Tally>),
    /// The context, through which the kernel has the request, goes on with its [`Bypass`] of this number.
    GoOn(u64),
    /// The same, for whoever else has the request.
    Call(u64, Weak<Shared>),
}

/// Who is to be told that a request is done.
#[derive(Debug)]
pub(crate) enum Told {
    Waker(Waker),
    /// The [`Bypass`] of this number, of the context through which the kernel had the request.
    Bypass(u64),
    /// The context that has a [`Bypass`] of this number.
    Context(u64, Weak<Shared>),
}

impl Told {
    /// Tells them, from any thread.
    pub(crate) fn tell(self) {
        match self {
            Self::Waker(waker) => waker.wake(),
            Self::Bypass(_) => unreachable!("only the context's own thread completes what it has given to the kernel"),
            Self::Context(number, context) => {
                let Some(context) = context.upgrade() else { return };
                let home = Arc::downgrade(&context);
                let go_on = move || {
                    if let Some(context) = home.upgrade() {
                        context.go_on(number);
                    }
                };
                context.push_bottom_half(bh::Node::once_sent(&context, go_on));
            }
        }
    }
}

/// A request without a coroutine: what the loop does when it is done is a callback.
///
/// It is in an allocation of its own, and only ever named by pointers: the kernel has some into it.
pub(crate) trait Bypass: Sized {
    /// Takes note of the result. Goes on if there is more to do: the next call is under way, or done, afterwards.
    /// Otherwise it is finished, and the callback is called.
    ///
    /// # Safety
    ///
    /// `this` came from a box, which is the callee's from now on; no call is pending.
    unsafe fn go_on(this: NonNull<Self>, context: &Local);

    /// Cancels it, and blocks until it is done. Called before it is dropped without having gone on.
    ///
    /// # Safety
    ///
    /// `this` came from a box, which the caller has.
    unsafe fn finish(this: NonNull<Self>, context: &Local);
}

/// A [`Bypass`] of any kind that the context has: what a box is but for the claim that nobody else has a pointer into it.
#[derive(Debug)]
pub(crate) struct PlacedBypass {
    place: NonNull<()>,
    calls: &'static Calls,
}

/// What can be done with a bypass of some kind.
#[derive(Debug)]
struct Calls {
    go_on: unsafe fn(NonNull<()>, &Local),
    finish: unsafe fn(NonNull<()>, &Local),
    drop: unsafe fn(NonNull<()>),
}

impl PlacedBypass {
    /// # Safety
    ///
    /// The pointer came from a box, which the bypass is from now on. A call that is pending is done before the bypass
    /// goes on, and what it names stays until the bypass has gone on, or has been finished.
    pub(crate) unsafe fn new<B: Bypass + 'static>(place: NonNull<B>) -> Self {
        let calls = const {
            &Calls {
                // SAFETY: the pointer is that of `new`; the rest is passed on.
                go_on: |place, context| unsafe { B::go_on(place.cast(), context) },
                // SAFETY: as above.
                finish: |place, context| unsafe { B::finish(place.cast(), context) },
                // SAFETY: as above.
                drop: |place| drop(unsafe { Box::from_raw(place.cast::<B>().as_ptr()) }),
            }
        };
        Self { place: place.cast(), calls }
    }

    /// No call of it is pending.
    pub(super) fn go_on(self, context: &Local) {
        let this = ManuallyDrop::new(self);
        // SAFETY: its box is given away; the rest is the contract of `new`.
        unsafe { (this.calls.go_on)(this.place, context) };
    }

    pub(super) fn finish(&self, context: &Local) {
        // SAFETY: the box is ours.
        unsafe { (self.calls.finish)(self.place, context) };
    }
}

impl Drop for PlacedBypass {
    fn drop(&mut self) {
        // SAFETY: the box is ours, and this is its end.
        unsafe { (self.calls.drop)(self.place) };
    }
}

/// The memory of a bypass that has ended, for the next one: whoever submits does so mostly when something is done.
#[derive(Debug, Default)]
pub(super) struct Spare(Option<(NonNull<u8>, Layout)>);

impl Spare {
    /// Memory as that of a box, which is the caller's.
    #[inline]
    pub(super) fn take<B>(&mut self) -> NonNull<B> {
        match self.0.take_if(|&mut (_, layout)| layout == Layout::new::<B>()) {
            Some((place, _)) => place.cast(),
            None => NonNull::from(Box::leak(Box::<MaybeUninit<B>>::new_uninit())).cast(),
        }
    }

    /// # Safety
    ///
    /// It is the memory of a box, whose value is gone, and nobody else's.
    #[inline]
    pub(super) unsafe fn of<B>(place: NonNull<B>) -> Self {
        Self((size_of::<B>() != 0).then(|| (place.cast(), Layout::new::<B>())))
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some((place, layout)) = self.0 {
            // SAFETY: as in a box.
            unsafe { alloc::dealloc(place.as_ptr(), layout) };
        }
    }
}

impl Request {
    #[inline]
    pub(crate) fn new() -> Self {
        Self(RequestState::new())
    }

    /// Makes it pending, for the first time or again.
    pub(crate) fn begin(&mut self, on_done: OnDone) {
        // SAFETY: exclusively borrowed.
        unsafe { self.0.begin(on_done) };
    }

    /// The result, if it is done: what the system call returned, or a negative error number.
    pub(crate) fn result(&self) -> Option<i64> {
        self.0.result()
    }

    /// Completes a request; returns who is to be told.
    ///
    /// # Safety
    ///
    /// It is pending, the caller is the one who carries it out, and what it names is left alone from here on.
    pub(crate) unsafe fn complete(request: NonNull<Self>, result: i64) -> Option<Told> {
        // SAFETY: contract; only a place in it is named.
        let on_done = unsafe { RequestState::complete(&raw const (*request.as_ptr()).0, result) };
        match on_done {
            OnDone::Nothing => None,
            OnDone::Wake(waker) => Some(Told::Waker(waker)),
            OnDone::Count(tally) => tally.count().map(Told::Waker),
            OnDone::GoOn(number) => Some(Told::Bypass(number)),
            OnDone::Call(number, context) => Some(Told::Context(number, context)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_for_what_it_fits() {
        /// Gives memory back.
        fn spare<T>(place: NonNull<T>) -> Spare {
            // SAFETY: it is that of a box, and nothing is there.
            unsafe { Spare::of(place) }
        }
        let first: NonNull<[u64; 4]> = Spare::default().take();
        let mut kept = spare(first);
        let larger: NonNull<[u64; 5]> = kept.take();
        let less_aligned: NonNull<[u8; 32]> = kept.take();
        assert!(larger.cast() != first && less_aligned.cast() != first);
        assert_eq!(kept.take::<[u64; 4]>(), first);
        let second = kept.take::<[u64; 4]>();
        assert_ne!(second, first, "it is somebody's");
        drop((spare(first), spare(second), spare(larger), spare(less_aligned)));
    }
}
