//! Messages on their way from and to async code.
#![allow(unsafe_code)] // # Safety: projections to the one field, which is pinned with the whole.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::channel::{RecvError, SendError};
use super::raw::channel::RawChannel;
use super::raw::pending;

/// A message that is being sent: the future of [`Sender::send_async`](super::Sender::send_async).
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sending<'a, T> {
    raw: pending::Sending<'a, T>,
}

impl<'a, T> Sending<'a, T> {
    pub(super) fn new(channel: &'a RawChannel<T>, message: T) -> Self {
        Self { raw: channel.sending(message) }
    }

    /// Gives up sending. Returns the message, unless it is in the channel already, or was returned before.
    ///
    /// ```
    /// use aioco::sync::channel;
    /// use std::{pin::pin, time::Duration};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    /// # runtime.block_on(async {
    /// let (sender, receiver) = channel(1);
    /// sender.send("first").unwrap();
    /// let mut sending = pin!(sender.send_async("second"));
    /// if tokio::time::timeout(Duration::from_millis(1), &mut sending).await.is_err() {
    ///     assert_eq!(sending.as_mut().take_back(), Some("second"));
    /// }
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn take_back(self: Pin<&mut Self>) -> Option<T> {
        self.raw().take_back()
    }

    fn raw(self: Pin<&mut Self>) -> Pin<&mut pending::Sending<'a, T>> {
        // SAFETY: it isn't moved out of a pinned one.
        unsafe { self.map_unchecked_mut(|sending| &mut sending.raw) }
    }
}

impl<T> Future for Sending<'_, T> {
    type Output = Result<(), SendError<T>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.raw().poll(context).map_err(SendError::new)
    }
}

impl<T> fmt::Debug for Sending<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").finish_non_exhaustive()
    }
}

/// A message that is being waited for: the future of [`Receiver::recv_async`](super::Receiver::recv_async).
#[must_use = "a future does nothing unless it is awaited"]
pub struct Receiving<'a, T> {
    raw: pending::Receiving<'a, T>,
}

impl<'a, T> Receiving<'a, T> {
    pub(super) fn new(channel: &'a RawChannel<T>) -> Self {
        Self { raw: channel.receiving() }
    }
}

impl<T> Future for Receiving<'_, T> {
    type Output = Result<T, RecvError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: it isn't moved out of a pinned one.
        let raw = unsafe { self.map_unchecked_mut(|receiving| &mut receiving.raw) };
        raw.poll(context).map_err(RecvError::new)
    }
}

impl<T> fmt::Debug for Receiving<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiving").finish_non_exhaustive()
    }
}
