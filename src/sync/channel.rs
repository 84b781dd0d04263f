//! Messages from coroutine to coroutine.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::deadline_after;
use super::messages::{Receiving, Sending};
use super::raw::channel::{Patience, RawChannel, Refusal};
use crate::primitive::atomic::{AtomicUsize, Ordering};

/// Makes a channel with room for so many messages that nobody has received yet. Both sides can be cloned, and used by
/// coroutines of any context, by plain threads, and by async code ([`Sender::send_async`], [`Receiver::recv_async`]).
///
/// Messages come in the order in which they were sent, each to one receiver; those who wait, on either side, are served
/// in the order in which they came. A message on its way to a receiver that is cancelled goes to the next one, or to the
/// front of the channel.
///
/// It closes when all senders or all receivers are gone, or by [`Sender::close`] or [`Receiver::close`]; what has been
/// sent by then can still be received.
///
/// ```
/// use aioco::{AioContext, sync::channel};
///
/// let context = AioContext::new()?;
/// let (sender, receiver) = channel(2);
/// context.spawn(move || {
///     for n in 0..5 {
///         sender.send(n).unwrap(); // waits while the channel is full
///     }
/// })?;
/// let sum = context.block_on(|| receiver.iter().sum::<i32>());
/// assert_eq!(sum, 10);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// If the capacity is 0.
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel without room for a message");
    let one = || AtomicUsize::new(1);
    let shared = Arc::new(Shared { raw: RawChannel::new(capacity), senders: one(), receivers: one() });
    (Sender { shared: shared.clone() }, Receiver { shared })
}

struct Shared<T> {
    raw: RawChannel<T>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

/// The side of a [`channel()`] that sends.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Sends a message, waiting for room if need be.
    ///
    /// # Errors
    ///
    /// The message, if the channel is closed.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait; the message is dropped then.
    #[inline]
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.shared.raw.send(message, Patience::Forever).map_err(SendError::new)
    }

    /// Sends a message if there is room.
    ///
    /// # Errors
    ///
    /// The message, if the channel is full or closed.
    #[inline]
    pub fn try_send(&self, message: T) -> Result<(), SendError<T>> {
        self.shared.raw.send(message, Patience::Never).map_err(SendError::new)
    }

    /// As [`send`](Self::send), waiting at most until `deadline`.
    ///
    /// # Errors
    ///
    /// The message, if the channel was full until then, or is closed.
    ///
    /// # Panics
    ///
    /// As [`send`](Self::send).
    pub fn send_until(&self, message: T, deadline: Instant) -> Result<(), SendError<T>> {
        self.shared.raw.send(message, Patience::Until(deadline)).map_err(SendError::new)
    }

    /// As [`send`](Self::send), waiting for at most `duration`.
    ///
    /// # Errors
    ///
    /// The message, if the channel was full until then, or is closed.
    ///
    /// # Panics
    ///
    /// As [`send`](Self::send).
    pub fn send_for(&self, message: T, duration: Duration) -> Result<(), SendError<T>> {
        self.shared.raw.send(message, patience(duration)).map_err(SendError::new)
    }

    /// As [`send`](Self::send), for async code: the message is sent when the future has been awaited.
    ///
    /// ```
    /// use aioco::{sync::channel, task};
    ///
    /// let (sender, receiver) = channel(1);
    /// let thread = std::thread::spawn(move || receiver.iter().sum::<i32>()); // or a coroutine
    /// task::block_on(async move {
    ///     for n in 0..5 {
    ///         sender.send_async(n).await.unwrap();
    ///     }
    /// });
    /// assert_eq!(thread.join().unwrap(), 10);
    /// ```
    ///
    /// It takes its place among those who wait when it is polled for the first time. If it is dropped while it waits,
    /// it leaves, and the message is dropped; [`Sending::take_back`] gives it back.
    ///
    /// # Errors
    ///
    /// The message, if the channel is closed.
    pub fn send_async(&self, message: T) -> Sending<'_, T> {
        Sending::new(&self.shared.raw, message)
    }

    /// Closes the channel: nothing more can be sent, and those who wait to send get their messages back. Returns whether
    /// it was open.
    pub fn close(&self) -> bool {
        self.shared.raw.close()
    }

    /// Whether the channel is closed.
    pub fn is_closed(&self) -> bool {
        self.shared.raw.is_closed()
    }

    /// How many messages can be received at this moment.
    pub fn len(&self) -> usize {
        self.shared.raw.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For how many messages there is room.
    pub fn capacity(&self) -> usize {
        self.shared.raw.capacity()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        // Relaxed: whoever clones has one.
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self { shared: self.shared.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // Relaxed: the messages are protected by the channel's lock.
        if self.shared.senders.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.shared.raw.close();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("raw", &self.shared.raw).finish()
    }
}

/// The side of a [`channel()`] that receives.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Receiver<T> {
    /// Receives a message, waiting for one if need be.
    ///
    /// # Errors
    ///
    /// [`Closed`](RecvError::Closed), if the channel is closed and there is none left.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait; no message is lost by that.
    #[inline]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.shared.raw.receive(Patience::Forever).map_err(RecvError::new)
    }

    /// Receives a message if there is one.
    ///
    /// # Errors
    ///
    /// If there is none.
    #[inline]
    pub fn try_recv(&self) -> Result<T, RecvError> {
        self.shared.raw.receive(Patience::Never).map_err(RecvError::new)
    }

    /// As [`recv`](Self::recv), waiting at most until `deadline`.
    ///
    /// # Errors
    ///
    /// If there was none until then, or the channel is closed and there is none left.
    ///
    /// # Panics
    ///
    /// As [`recv`](Self::recv).
    pub fn recv_until(&self, deadline: Instant) -> Result<T, RecvError> {
        self.shared.raw.receive(Patience::Until(deadline)).map_err(RecvError::new)
    }

    /// As [`recv`](Self::recv), waiting for at most `duration`.
    ///
    /// # Errors
    ///
    /// If there was none until then, or the channel is closed and there is none left.
    ///
    /// # Panics
    ///
    /// As [`recv`](Self::recv).
    pub fn recv_for(&self, duration: Duration) -> Result<T, RecvError> {
        self.shared.raw.receive(patience(duration)).map_err(RecvError::new)
    }

    /// As [`recv`](Self::recv), for async code.
    ///
    /// ```
    /// use aioco::{AioContext, sync::channel, task};
    ///
    /// let context = AioContext::new()?;
    /// let (sender, receiver) = channel(1);
    /// context.spawn(move || (0..5).try_for_each(|n| sender.send(n)))?;
    /// let sum = async {
    ///     let mut sum = 0;
    ///     while let Ok(n) = receiver.recv_async().await {
    ///         sum += n;
    ///     }
    ///     sum
    /// };
    /// assert_eq!(context.block_on(|| task::block_on(sum)), 10);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// It takes its place among those who wait when it is polled for the first time. If it is dropped while it waits,
    /// it leaves. No message is lost by that: one on its way there goes to the next receiver, or to the front of the
    /// channel.
    ///
    /// # Errors
    ///
    /// [`Closed`](RecvError::Closed), if the channel is closed and there is none left.
    pub fn recv_async(&self) -> Receiving<'_, T> {
        Receiving::new(&self.shared.raw)
    }

    /// Receives until the channel is closed and empty.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// Closes the channel, as [`Sender::close`].
    pub fn close(&self) -> bool {
        self.shared.raw.close()
    }

    /// Whether the channel is closed.
    pub fn is_closed(&self) -> bool {
        self.shared.raw.is_closed()
    }

    /// How many messages can be received at this moment.
    pub fn len(&self) -> usize {
        self.shared.raw.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For how many messages there is room.
    pub fn capacity(&self) -> usize {
        self.shared.raw.capacity()
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        // Relaxed: whoever clones has one.
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        Self { shared: self.shared.clone() }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Relaxed: the messages are protected by the channel's lock.
        if self.shared.receivers.fetch_sub(1, Ordering::Relaxed) == 1 {
            drop(self.shared.raw.close_and_drain());
        }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("raw", &self.shared.raw).finish()
    }
}

fn patience(duration: Duration) -> Patience {
    deadline_after(duration).map_or(Patience::Forever, Patience::Until)
}

/// Why a message wasn't sent, and the message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendError<T> {
    /// The channel is closed.
    Closed(T),
    /// There is no room, or there was none in time.
    Full(T),
}

impl<T> SendError<T> {
    pub(super) fn new((message, refusal): (T, Refusal)) -> Self {
        match refusal {
            Refusal::Closed => Self::Closed(message),
            Refusal::WouldWait => Self::Full(message),
        }
    }

    /// The message that wasn't sent.
    pub fn into_inner(self) -> T {
        match self {
            Self::Closed(message) | Self::Full(message) => message,
        }
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(_) => f.write_str("Closed(..)"),
            Self::Full(_) => f.write_str("Full(..)"),
        }
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(_) => f.write_str("the channel is closed"),
            Self::Full(_) => f.write_str("the channel is full"),
        }
    }
}

impl<T> Error for SendError<T> {}

/// Why no message was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvError {
    /// The channel is closed, and there is none left.
    Closed,
    /// There is none, or there was none in time.
    Empty,
}

impl RecvError {
    pub(super) fn new(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Closed => Self::Closed,
            Refusal::WouldWait => Self::Empty,
        }
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the channel is closed and empty"),
            Self::Empty => f.write_str("the channel is empty"),
        }
    }
}

impl Error for RecvError {}
