//! What whoever added a handler holds.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use super::fdmon::Side;
use super::handler::{FdCallbacks, Node};
use super::shared::Shared;
use crate::coroutine::Interest;

/// Callbacks for a descriptor, which a context runs when it is ready. Made by [`add_fd`](super::Local::add_fd) and
/// [`add_owned_fd`](super::Local::add_owned_fd), or in a [`Transaction`](super::Transaction).
///
/// Any thread may have it and use it; the callbacks stay with the context's.
///
/// # Dropping
///
/// removes the handler: no callback begins from then on. It may be dropped from within any callback, its own included.
/// On another thread than the context's, a callback may be running, or just beginning, meanwhile; it is the context's
/// thread that drops the callbacks, soon. (A handler that is leaked stays. If its descriptor is closed, it may be called in
/// each turn, or be told about another file that has got the number: at once with poll, otherwise after an event.)
#[must_use = "a handler is removed when this is dropped"]
pub struct FdHandler<'fd> {
    node: Arc<Node>,
    /// What it borrows.
    fd: PhantomData<BorrowedFd<'fd>>,
}

impl<'fd> FdHandler<'fd> {
    pub(super) fn borrowing(context: &Arc<Shared>, fd: BorrowedFd<'fd>, callbacks: FdCallbacks) -> Self {
        Self { node: Node::new(context, fd.as_raw_fd(), None, callbacks), fd: PhantomData }
    }

    pub(super) fn owning(context: &Arc<Shared>, fd: impl AsFd + 'static, callbacks: FdCallbacks) -> Self {
        let number = fd.as_fd().as_raw_fd();
        Self { node: Node::new(context, number, Some(Box::new(fd)), callbacks), fd: PhantomData }
    }

    /// Has the context watch the descriptor. If that fails, this is no handler of the context.
    pub(super) fn add(&self, context: &Shared) -> io::Result<()> {
        context.refuse_if_ended()?;
        self.node.add(context)
    }

    /// The handler as the loop sees it.
    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Calls the callback of this side again, if there is one, when the descriptor is ready.
    pub fn enable(&self, interest: Interest) {
        self.node.enable(interest.into());
    }

    /// Calls the callback of this side no longer, until it is [enabled](Self::enable). Enabling and disabling takes
    /// constant time.
    pub fn disable(&self, interest: Interest) {
        self.node.disable(interest.into());
    }

    /// Calls the callback for errors again, when the descriptor shows one, or still does.
    pub fn enable_error(&self) {
        self.node.enable(Side::Trouble);
    }
}

impl Drop for FdHandler<'_> {
    fn drop(&mut self) {
        self.node.remove();
    }
}

impl fmt::Debug for FdHandler<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FdHandler").finish_non_exhaustive()
    }
}
