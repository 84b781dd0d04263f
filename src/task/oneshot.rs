//! A channel for one value: how a coroutine's outcome gets to its join handle.
//!
//! Both ends share one allocation, which the last of them frees. Its state:
//!
//! | state | means | left by |
//! |---|---|---|
//! | `EMPTY` | there is no value, and nobody waits | the sender to `SENT`; the receiver to `ASKING` or `CLOSED` |
//! | `ASKING` | the receiver puts its waker there, or takes it back | the sender to `SENT`; the receiver to `WAITING` or `CLOSED` |
//! | `WAITING` | there is no value, but a waker | the sender to `WAKING`; the receiver to `ASKING` |
//! | `WAKING` | the sender, which is about to send, takes the waker | the sender to `SENT`; the receiver to `CLOSED` |
//! | `SENT` | the value is there, the sender is gone | the receiver to `TAKEN`, or by its end |
//! | `TAKEN` | the value was there, the sender is gone | the receiver by its end |
//! | `CLOSED` | the receiver is gone | the sender by its end |
//!
//! # Who may do what
//!
//! 1. The value is the sender's until `SENT`, then the receiver's; of several that ask a shared receiver at once, it is
//!    that one's which brings about `TAKEN`. In `CLOSED` the value remains the sender's.
//! 2. The waker is whoever's who brought about `ASKING` or `WAKING`. One that asks, and finds that the value was sent
//!    meanwhile, isn't woken: it takes the value. Wakers are other people's code, which may do anything when it is
//!    cloned, woken or dropped: that is never done in `ASKING` or `WAKING`, so that none gets stuck there.
//! 3. The allocation is the receiver's alone from `SENT` on, and the sender's alone from `CLOSED` on. Hence the sender
//!    takes the waker out before it gives the value away, and wakes it afterwards, so that the woken one finds the
//!    value.
//!
//! A value that is there when it is asked for has cost one read-modify-write, the sender's, if asking for it consumes
//! the receiver; and none, if the sender knows that the receiver is at rest ([`Sender::send_unobserved`]).
//!
//! # Ordering
//!
//! Whoever makes a state that gives something to the other end does so with Release: `SENT` (the value, and the end of
//! the sender's use of the waker), `WAITING` (the waker), `CLOSED` (the end of the receiver's use of the waker, before
//! the sender frees it). Whoever acts upon a state that it found, found it with Acquire. Checked by the model `oneshot`
//! of `loom-tests/`.
//!
//! # Safety
//!
//! Each end has a pointer to the allocation, and follows the rules above.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ptr::NonNull;
use std::task::Waker;

use crate::primitive::UnsafeCell;
use crate::primitive::atomic::{AtomicU8, Ordering};
use crate::primitive::mutant::{mutant, ordering};

const EMPTY: u8 = 0;
const ASKING: u8 = 1;
const WAITING: u8 = 2;
const WAKING: u8 = 3;
const SENT: u8 = 4;
const TAKEN: u8 = 5;
const CLOSED: u8 = 6;

struct Shared<T, A> {
    state: AtomicU8,
    waker: UnsafeCell<Option<Waker>>,
    value: UnsafeCell<Option<T>>,
    /// What the receiver keeps here, so that it is one pointer.
    attached: A,
}

impl<T, A> Shared<T, A> {
    /// Goes from one state to another, or returns what the state is instead.
    #[inline]
    fn pass(&self, from: u8, to: u8, order: Ordering) -> Result<(), u8> {
        // Acquire: pairs with the Release that made the state that the caller is going to act upon.
        let refused = ordering!(Acquire, "refused_not_acquired" => Relaxed);
        self.state.compare_exchange(from, to, order, refused).map(drop)
    }

    /// # Safety
    ///
    /// The waker is the caller's.
    unsafe fn replace_waker(&self, waker: Option<Waker>) -> Option<Waker> {
        // SAFETY: contract.
        self.waker.with_mut(|place| mem::replace(unsafe { &mut *place }, waker))
    }

    /// # Safety
    ///
    /// The value is the caller's.
    unsafe fn take_value(&self) -> Option<T> {
        // SAFETY: contract.
        self.value.with_mut(|place| unsafe { (*place).take() })
    }
}

/// Frees the allocation; returns the value if it is still there.
///
/// # Safety
///
/// The allocation is the caller's, and isn't used again.
#[inline]
unsafe fn free<T, A>(shared: NonNull<Shared<T, A>>) -> Option<T> {
    // SAFETY: both ends' pointers came from a box (`channel`), and it is the caller's with all that is in it.
    unsafe {
        let shared = Box::from_raw(shared.as_ptr());
        drop(shared.replace_waker(None));
        shared.take_value()
    }
}

/// A channel for one value. What `attach` returns is for the receiver; it is dropped by whoever frees the allocation.
#[inline]
pub(crate) fn channel<T, A>(attach: impl FnOnce() -> A) -> (Sender<T, A>, Receiver<T, A>) {
    // Written in place, a field at a time: what is made elsewhere and copied whole is read back, in other units, before
    // the writes have left the store buffer.
    let mut place = Box::<Shared<T, A>>::new_uninit();
    let shared = place.as_mut_ptr();
    // SAFETY: the box is ours, and has room for each field.
    let shared = unsafe {
        (&raw mut (*shared).attached).write(attach());
        (&raw mut (*shared).state).write(AtomicU8::new(EMPTY));
        (&raw mut (*shared).waker).write(UnsafeCell::new(None));
        (&raw mut (*shared).value).write(UnsafeCell::new(None));
        NonNull::from(Box::leak(place.assume_init()))
    };
    (Sender { shared, marker: PhantomData }, Receiver { shared, marker: PhantomData })
}

/// The end that sends the value. Whoever has one does send: it isn't dropped.
pub(crate) struct Sender<T, A> {
    shared: NonNull<Shared<T, A>>,
    marker: PhantomData<Box<(T, A)>>,
}

// SAFETY: what is sent goes from thread to thread; the rest of the allocation may be used on any.
unsafe impl<T: Send, A: Send> Send for Sender<T, A> {}

impl<T, A> Sender<T, A> {
    /// Sends the value, and wakes the receiver if it waits. If the receiver is gone, the value is dropped here.
    pub(crate) fn send(self, value: T) {
        // SAFETY: the allocation lives until the value has been sent (rule 3).
        let shared = unsafe { self.shared.as_ref() };
        // SAFETY: rule 1.
        shared.value.with_mut(|place| unsafe { *place = Some(value) });
        let mut waker = None;
        let mut state = EMPTY;
        loop {
            let next = match state {
                WAITING if !mutant!("nobody_is_woken") => WAKING,
                // SAFETY: the receiver is gone (rule 3), and the sender goes now.
                CLOSED => return drop(unsafe { free(self.shared) }),
                _ => SENT,
            };
            // Release: pairs with the Acquire of the receiver that finds the value. Acquire: pairs with the Release of
            // `take_or_wait`, for the waker.
            let order = ordering!(AcqRel, "send_not_released" => Acquire, "waker_not_acquired" => Release);
            match shared.pass(state, next, order) {
                Ok(()) if next == SENT => break,
                Ok(()) => {
                    // SAFETY: rule 2.
                    waker = unsafe { shared.replace_waker(None) };
                    state = WAKING;
                }
                Err(now) => state = now,
            }
        }
        // The allocation may be gone.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T, A> Sender<T, A> {
    /// Sends the value to a receiver that nobody uses meanwhile: without a read-modify-write, and without waking.
    ///
    /// # Safety
    ///
    /// The receiver is there, and whatever is done with it from now on happens after this.
    #[inline]
    pub(crate) unsafe fn send_unobserved(self, value: T) {
        // SAFETY: the receiver is there, and so is the allocation.
        let shared = unsafe { self.shared.as_ref() };
        // SAFETY: rule 1.
        shared.value.with_mut(|place| unsafe { *place = Some(value) });
        // Relaxed: what comes after this finds it anyway (contract).
        shared.state.store(SENT, Ordering::Relaxed);
    }
}

impl<T, A> fmt::Debug for Sender<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

/// The end that waits for the value.
pub(crate) struct Receiver<T, A> {
    shared: NonNull<Shared<T, A>>,
    marker: PhantomData<Box<(T, A)>>,
}

// SAFETY: the value comes from another thread and may go to a third.
unsafe impl<T: Send, A: Send + Sync> Send for Receiver<T, A> {}
// SAFETY: a shared receiver gives the value to one that asks, once; references to it are given to nobody.
unsafe impl<T: Send, A: Send + Sync> Sync for Receiver<T, A> {}

impl<T, A> Receiver<T, A> {
    fn shared(&self) -> &Shared<T, A> {
        // SAFETY: the allocation lives at least as long as the receiver (rule 3).
        unsafe { self.shared.as_ref() }
    }

    /// What was attached.
    #[inline]
    pub(crate) fn attached(&self) -> &A {
        &self.shared().attached
    }

    /// Whether the value has been sent.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        // Acquire: pairs with the Release of `send`: what the sender did before, the caller may rely on.
        self.shared().state.load(Ordering::Acquire) >= SENT
    }

    /// The value, if it has been sent, or else the receiver.
    #[inline]
    pub(crate) fn into_value(self) -> Result<T, Self> {
        // Acquire: pairs with the Release of `send`.
        let acquire = ordering!(Acquire, "into_value_not_acquired" => Relaxed);
        if self.shared().state.load(acquire) != SENT {
            return Err(self);
        }
        let shared = self.shared;
        mem::forget(self);
        // SAFETY: the sender is gone, and so is the receiver, whose drop would have freed it (rule 3).
        Ok(unsafe { free(shared) }.expect("a value that was sent is there until it is received"))
    }

    /// Takes the value if it has been sent; otherwise `waker`, the latest one that was given, is woken when it is.
    ///
    /// # Panics
    ///
    /// If it was taken before.
    pub(crate) fn take_or_wait(&self, waker: Waker) -> Option<T> {
        let shared = self.shared();
        let mut state = shared.state.load(Ordering::Relaxed);
        loop {
            state = match state {
                // Acquire: pairs with the Release of another that asked before.
                EMPTY | WAITING => {
                    match shared.pass(state, ASKING, ordering!(Acquire, "ask_not_acquired" => Relaxed)) {
                        Ok(()) => break,
                        Err(now) => now,
                    }
                }
                SENT | TAKEN => return Some(self.take_sent()),
                // Somebody is at the waker: the sender, which is about to send, or another that asks.
                ASKING | WAKING => {
                    waker.wake();
                    return None;
                }
                _ => unreachable!("the receiver is here"),
            }
        }
        // SAFETY: rule 2.
        let old = unsafe { shared.replace_waker(Some(waker)) };
        let old = if mutant!("first_waker_is_kept") && old.is_some() {
            // SAFETY: as above.
            unsafe { shared.replace_waker(old) }
        } else {
            old
        };
        // Release: pairs with the Acquire of the sender that takes the waker.
        let value = match shared.pass(ASKING, WAITING, ordering!(Release, "waker_not_released" => Relaxed)) {
            Ok(()) => None,
            // While somebody asks, nobody else does anything but send.
            Err(_) => Some(self.take_sent()),
        };
        drop(old);
        value
    }

    /// Takes the value if it has been sent.
    ///
    /// # Panics
    ///
    /// If it was taken before.
    pub(crate) fn take(&self) -> Option<T> {
        self.is_sent().then(|| self.take_sent())
    }

    fn take_sent(&self) -> T {
        let shared = self.shared();
        // Acquire: pairs with the Release of `send`.
        let acquire = ordering!(Acquire, "take_not_acquired" => Relaxed);
        let taken = shared.pass(SENT, TAKEN, acquire);
        taken.expect("the outcome of a coroutine was asked for after its handle had given it away");
        // SAFETY: rule 1.
        unsafe { shared.take_value() }.expect("a value that was sent is there until it is received")
    }
}

impl<T, A> Drop for Receiver<T, A> {
    fn drop(&mut self) {
        let shared = self.shared();
        // Dropped when the receiver is gone.
        let mut _waker = None;
        // Acquire: pairs with the Release of `send`, for what is freed below.
        let mut state = shared.state.load(ordering!(Acquire, "drop_not_acquired" => Relaxed));
        while state != SENT && state != TAKEN {
            // Whoever waited takes the waker along: the sender may be long in coming, and the waker may keep a task
            // alive.
            let next = if state == WAITING { ASKING } else { CLOSED };
            // Release: pairs with the Acquire of the sender that finds this, and frees what the receiver has used.
            match shared.pass(state, next, ordering!(Release, "close_not_released" => Relaxed)) {
                Ok(()) if next == CLOSED => return,
                Ok(()) => {
                    // SAFETY: rule 2.
                    _waker = unsafe { shared.replace_waker(None) };
                    state = ASKING;
                }
                Err(now) => state = now,
            }
        }
        // SAFETY: the sender is gone (rule 3), and the receiver goes now.
        drop(unsafe { free(self.shared) });
    }
}

impl<T, A> fmt::Debug for Receiver<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("is_sent", &self.is_sent()).finish_non_exhaustive()
    }
}
