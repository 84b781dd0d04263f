//! The raw channel: a buffer, and two lists of waiters with a slot for a message each.
//!
//! Messages go from hand to hand: a receiver that waits is given its message into its slot, and a sender that waits has
//! its message in its slot until there is room in the buffer. So a waiter that is woken has what it waited for, and
//! nobody who comes later takes it away.
//!
//! | buffer | senders wait | receivers wait |
//! |---|---|---|
//! | empty | no | perhaps |
//! | neither | no | no |
//! | full (or more) | perhaps | no |
//!
//! Nobody waits when the channel is closed.
//!
//! A receiver that was given a message and is unwound gives it to the next receiver, or back to the front of the buffer,
//! which may have one more than its capacity then.
//!
//! A slot belongs to its waiter until this joins, then to whoever holds the lock, and to the waiter again when it has its
//! turn or has left.
#![allow(unsafe_code)] // # Safety: slots by the rule above; a waiter that joins stays where it is until it is out.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::task::{Poll, Waker};
use std::time::Instant;

use super::awake;
use super::holder::Name;
use super::pending::{Receiving, Sending, Side};
use super::wait::{Queue, Waiting};
use super::wait_list::{Turn, WaitList, Waiter, wake_each};
use crate::park::Runner;
use crate::primitive::atomic::{AtomicUsize, Ordering};
use crate::primitive::mutant::mutant;
use crate::primitive::{ShortLock, UnsafeCell};

/// A bounded channel.
pub(crate) struct RawChannel<T> {
    state: ShortLock<State<T>>,
    /// Hints for those who think of waiting awake: who sent last, who received last, and how full the buffer was then.
    sender: Name,
    receiver: Name,
    level: AtomicUsize,
}

/// For how many messages there is room from the start.
const EAGER: usize = 1024;

struct State<T> {
    buffer: VecDeque<T>,
    capacity: usize,
    senders: WaitList<Slot<T>>,
    receivers: WaitList<Slot<T>>,
    is_closed: bool,
}

/// Why nothing was sent or received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The channel is closed (and empty, for a receiver).
    Closed,
    /// It would have to wait, or has waited until its deadline.
    WouldWait,
}

/// How long one who must wait does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Never,
    Until(Instant),
    Forever,
}

impl Patience {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Never | Self::Forever => None,
        }
    }
}

/// Room for the message of one who waits.
pub(crate) struct Slot<T>(UnsafeCell<Option<T>>);

impl<T> Slot<T> {
    pub(super) fn new(message: Option<T>) -> Self {
        Self(UnsafeCell::new(message))
    }

    /// # Safety
    ///
    /// The slot is the caller's.
    pub(super) unsafe fn take(&self) -> Option<T> {
        // SAFETY: contract.
        self.0.with_mut(|message| unsafe { (*message).take() })
    }

    /// # Safety
    ///
    /// The slot is the caller's.
    unsafe fn put(&self, new: T) {
        // SAFETY: contract.
        self.0.with_mut(|message| unsafe { *message = Some(new) });
    }
}

impl<T> State<T> {
    fn is_full(&self) -> bool {
        self.buffer.len() >= self.capacity
    }

    /// Gives a message to the first receiver that waits, or to the buffer by `store`. Returns whom to wake.
    fn deliver(&mut self, message: T, store: impl FnOnce(&mut VecDeque<T>, T)) -> Option<Waker> {
        match self.receivers.front() {
            Some(receiver) => {
                // SAFETY: it waits, and we hold the lock.
                unsafe { receiver.payload.put(message) };
                self.receivers.give_front(Turn::Own)
            }
            None => {
                store(&mut self.buffer, message);
                None
            }
        }
    }

    /// Lets the first sender that waits have the room that there is. Returns whom to wake.
    fn admit_sender(&mut self) -> Option<Waker> {
        if self.is_full() || mutant!("sender_is_not_admitted") {
            return None;
        }
        // SAFETY: it waits, and we hold the lock.
        let message = unsafe { self.senders.front()?.payload.take() };
        self.buffer.push_back(message.expect("a sender that waits has a message"));
        self.senders.give_front(Turn::Own)
    }
}

impl<T> RawChannel<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let state = State {
            buffer: VecDeque::with_capacity(capacity.min(EAGER)),
            capacity,
            senders: WaitList::new(),
            receivers: WaitList::new(),
            is_closed: false,
        };
        Self { state: ShortLock::new(state), sender: Name::new(), receiver: Name::new(), level: AtomicUsize::new(0) }
    }

    /// Sends a message, when there is room.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait; then the message is dropped.
    pub(crate) fn send(&self, message: T, patience: Patience) -> Result<(), (T, Refusal)> {
        let mut state = self.state.lock();
        if state.is_full() && !state.is_closed && patience != Patience::Never {
            let capacity = state.capacity;
            drop(state);
            self.wait_awake(&self.receiver, |level| level < capacity);
            state = self.state.lock();
        }
        if state.is_closed {
            return Err((message, Refusal::Closed));
        }
        if !state.is_full() || mutant!("admit_into_full_buffer") {
            let waker = state.deliver(message, VecDeque::push_back);
            self.note(&self.sender, &state);
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
            return Ok(());
        }
        if patience == Patience::Never {
            return Err((message, Refusal::WouldWait));
        }
        let waiter = Waiter::new(Slot::new(Some(message)));
        // SAFETY: the waiter stays in this frame until `waiting` has taken it out.
        unsafe { state.senders.push_back(&waiter) };
        drop(state);
        let senders = Senders(self);
        let waiting = Waiting::new(&senders, &waiter);
        let had_turn = waiting.wait(patience.deadline());
        waiting.use_turn();
        // SAFETY: it has had its turn, or has left: the slot is ours.
        match unsafe { waiter.payload.take() } {
            None => Ok(()),
            Some(message) => Err((message, if had_turn { Refusal::Closed } else { Refusal::WouldWait })),
        }
    }

    /// Receives a message, when there is one.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait; then no message is lost.
    pub(crate) fn receive(&self, patience: Patience) -> Result<T, Refusal> {
        let mut state = self.state.lock();
        if state.buffer.is_empty() && !state.is_closed && patience != Patience::Never {
            drop(state);
            self.wait_awake(&self.sender, |level| level > 0);
            state = self.state.lock();
        }
        if let Some(message) = state.buffer.pop_front() {
            let waker = state.admit_sender();
            self.note(&self.receiver, &state);
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
            return Ok(message);
        }
        if state.is_closed {
            return Err(Refusal::Closed);
        }
        if patience == Patience::Never {
            return Err(Refusal::WouldWait);
        }
        let waiter = Waiter::new(Slot::new(None));
        // SAFETY: the waiter stays in this frame until `waiting` has taken it out.
        unsafe { state.receivers.push_back(&waiter) };
        drop(state);
        let receivers = Receivers(self);
        let waiting = Waiting::new(&receivers, &waiter);
        let had_turn = waiting.wait(patience.deadline());
        waiting.use_turn();
        // SAFETY: as in `send`.
        let message = unsafe { waiter.payload.take() };
        message.ok_or(if had_turn { Refusal::Closed } else { Refusal::WouldWait })
    }

    /// As [`send`](Self::send), for async code.
    pub(crate) fn sending(&self, message: T) -> Sending<'_, T> {
        Sending::new(Senders(self), Some(message))
    }

    /// As [`receive`](Self::receive), for async code.
    pub(crate) fn receiving(&self) -> Receiving<'_, T> {
        Receiving::new(Receivers(self), None)
    }

    /// Under the lock: the caller, one of that side, has changed the buffer.
    fn note(&self, side: &Name, state: &State<T>) {
        if cfg!(not(all(test, loom))) {
            side.set(Runner::current());
            self.level.store(state.buffer.len(), Ordering::Relaxed);
        }
    }

    /// Waits awake, if that may pay, for the other side to bring the buffer to a level.
    #[cold]
    fn wait_awake(&self, other: &Name, is_reached: impl Fn(usize) -> bool) {
        if cfg!(not(all(test, loom))) {
            let attempt = || is_reached(self.level.load(Ordering::Relaxed)).then_some(true);
            awake::wait_awake(attempt, || awake::patience_for(other).unwrap_or_default());
        }
    }

    /// Refuses what is sent from now on, and wakes all who wait. What is in the buffer can still be received. Returns
    /// whether it was open.
    pub(crate) fn close(&self) -> bool {
        if mem::replace(&mut self.state.lock().is_closed, true) {
            return false;
        }
        if mutant!("close_tells_nobody") {
            return true;
        }
        // Nobody joins any more.
        wake_each(|| {
            let mut state = self.state.lock();
            state.senders.give_front(Turn::Shared).or_else(|| state.receivers.give_front(Turn::Shared))
        });
        true
    }

    /// Closes the channel and takes the messages that are left: there is nobody to receive them.
    pub(crate) fn close_and_drain(&self) -> VecDeque<T> {
        self.close();
        mem::take(&mut self.state.lock().buffer)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// How many messages are in the buffer.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().buffer.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.state.lock().capacity
    }
}

/// Those who wait to send.
pub(crate) struct Senders<'a, T>(&'a RawChannel<T>);

impl<T> Queue<Slot<T>> for Senders<'_, T> {
    fn withdraw(&self, waiter: &Waiter<Slot<T>>) -> bool {
        self.0.state.lock().senders.remove(waiter)
    }

    /// Its message has been sent, or never will be.
    fn hand_on(&self, _: &Waiter<Slot<T>>, _: Turn) {}
}

impl<T> Side<T> for Senders<'_, T> {
    type Output = Result<(), (T, Refusal)>;

    unsafe fn attempt(&self, slot: &Slot<T>) -> Poll<Self::Output> {
        // SAFETY: contract.
        let message = unsafe { slot.take() }.expect("one who sends has a message");
        match self.0.send(message, Patience::Never) {
            Err((message, Refusal::WouldWait)) => {
                // SAFETY: contract.
                unsafe { slot.put(message) };
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }

    unsafe fn join(&self, waiter: &Waiter<Slot<T>>) -> bool {
        let mut state = self.0.state.lock();
        let waits = state.is_full() && !state.is_closed || mutant!("sender_joins_without_looking");
        if waits {
            // SAFETY: contract.
            unsafe { state.senders.push_back(waiter) };
        }
        waits
    }

    fn replace_waker(&self, waiter: &Waiter<Slot<T>>, waker: Waker) -> Result<Waker, Waker> {
        self.0.state.lock().senders.replace_waker(waiter, waker)
    }

    fn outcome(message: Option<T>) -> Self::Output {
        message.map_or(Ok(()), |message| Err((message, Refusal::Closed)))
    }
}

/// Those who wait to receive.
pub(crate) struct Receivers<'a, T>(&'a RawChannel<T>);

impl<T> Queue<Slot<T>> for Receivers<'_, T> {
    fn withdraw(&self, waiter: &Waiter<Slot<T>>) -> bool {
        self.0.state.lock().receivers.remove(waiter)
    }

    fn hand_on(&self, waiter: &Waiter<Slot<T>>, _: Turn) {
        // SAFETY: it has had its turn: the slot is the waiter's, which is the caller.
        if let Some(message) = unsafe { waiter.payload.take() }
            && !mutant!("message_is_not_handed_on")
        {
            let waker = self.0.state.lock().deliver(message, VecDeque::push_front);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Side<T> for Receivers<'_, T> {
    type Output = Result<T, Refusal>;

    unsafe fn attempt(&self, _: &Slot<T>) -> Poll<Self::Output> {
        match self.0.receive(Patience::Never) {
            Err(Refusal::WouldWait) => Poll::Pending,
            result => Poll::Ready(result),
        }
    }

    unsafe fn join(&self, waiter: &Waiter<Slot<T>>) -> bool {
        let mut state = self.0.state.lock();
        let waits = state.buffer.is_empty() && !state.is_closed || mutant!("receiver_joins_without_looking");
        if waits {
            // SAFETY: contract.
            unsafe { state.receivers.push_back(waiter) };
        }
        waits
    }

    fn replace_waker(&self, waiter: &Waiter<Slot<T>>, waker: Waker) -> Result<Waker, Waker> {
        self.0.state.lock().receivers.replace_waker(waiter, waker)
    }

    fn outcome(message: Option<T>) -> Self::Output {
        message.ok_or(Refusal::Closed)
    }
}

impl<T> fmt::Debug for RawChannel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("RawChannel")
            .field("capacity", &state.capacity)
            .field("len", &state.buffer.len())
            .field("is_closed", &state.is_closed)
            .finish()
    }
}
