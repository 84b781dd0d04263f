//! Adding and removing many handlers at once.

use std::error::Error;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::fd_handler::FdHandler;
use super::fdmon::Failed;
use super::handler::FdCallbacks;
use super::shared::Shared;

/// Handlers that are to be added and removed at once: all of them, or none. Begun by
/// [`transaction`](super::Local::transaction).
///
/// Nothing happens before [`commit`](Self::commit). Descriptors that are to be removed stay watched, and open, until
/// then.
///
/// With io_uring a commit takes a system call for every 128 additions and removals, with poll one; with epoll it takes
/// one for each. It is much faster than one by one also because what was added last is removed first, which is the order
/// that the kernel finds them in.
///
/// ```
/// use aioco::{AioContext, aio::FdCallbacks};
/// use std::os::unix::net::UnixStream;
///
/// let sockets: Vec<_> = (0..100).map(|_| UnixStream::pair()).collect::<Result<_, _>>()?;
/// let context = AioContext::new()?;
/// let mut transaction = context.transaction();
/// for (socket, _) in &sockets {
///     transaction.add(socket, FdCallbacks::new().on_readable(|| println!("input")));
/// }
/// let handlers = transaction.commit()?;
/// assert_eq!(handlers.len(), 100);
///
/// let mut transaction = context.transaction();
/// transaction.remove_all(handlers);
/// transaction.commit()?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Dropping
///
/// it without a commit adds nothing, and removes what was to be removed.
#[derive(Debug)]
#[must_use = "nothing happens before `commit`"]
pub struct Transaction<'fd> {
    context: Arc<Shared>,
    additions: Vec<FdHandler<'fd>>,
    removals: Vec<FdHandler<'fd>>,
    /// Neither `Send` nor `Sync`: the callbacks aren't.
    marker: PhantomData<*mut ()>,
}

impl<'fd> Transaction<'fd> {
    pub(super) fn new(context: &Arc<Shared>) -> Self {
        Self { context: context.clone(), additions: Vec::new(), removals: Vec::new(), marker: PhantomData }
    }

    /// Adds a handler of a descriptor that it borrows; see [`add_fd`](super::Local::add_fd).
    pub fn add(&mut self, fd: &'fd impl AsFd, callbacks: FdCallbacks) {
        self.additions.push(FdHandler::borrowing(&self.context, fd.as_fd(), callbacks));
    }

    /// Adds a handler of a descriptor that it owns; see [`add_owned_fd`](super::Local::add_owned_fd).
    pub fn add_owned(&mut self, fd: impl AsFd + 'static, callbacks: FdCallbacks) {
        self.additions.push(FdHandler::owning(&self.context, fd, callbacks));
    }

    /// Removes a handler, of this context or of another one.
    pub fn remove(&mut self, handler: FdHandler<'fd>) {
        self.removals.push(handler);
    }

    /// Removes handlers.
    pub fn remove_all(&mut self, handlers: impl IntoIterator<Item = FdHandler<'fd>>) {
        self.removals.extend(handlers);
    }

    /// Does it all. Returns the handlers that were added, in the order of the calls.
    ///
    /// # Errors
    ///
    /// What the kernel says about a descriptor that can't be watched, or
    /// [`NotConnected`](io::ErrorKind::NotConnected) if the context has ended. Then what was added is taken out again, the
    /// last one first; none of its callbacks has been called; and nothing has been removed: the error has the handlers
    /// that were to be.
    pub fn commit(mut self) -> Result<Vec<FdHandler<'fd>>, TransactionError<'fd>> {
        let added = self.additions.iter().try_for_each(|handler| handler.add(&self.context));
        match added.and_then(|()| self.confirm()) {
            Ok(()) => {
                // Dropped from the end: see above.
                while self.removals.pop().is_some() {}
                self.context.with_local(|local| local.monitor.flush());
                Ok(self.additions)
            }
            Err(error) => {
                while self.additions.pop().is_some() {}
                Err(TransactionError { error, kept: self.removals })
            }
        }
    }

    /// Has the kernel look at what was added.
    fn confirm(&self) -> io::Result<()> {
        let failed = self.context.with_local(|local| local.monitor.failed(&mut local.fired));
        for Failed { watch, errno } in failed.unwrap_or_else(|| Ok(Vec::new()))? {
            if self.additions.iter().any(|handler| handler.node().watches().any(|own| own == watch)) {
                return Err(io::Error::from_raw_os_error(errno));
            }
        }
        Ok(())
    }
}

/// A [`Transaction`] that has failed.
///
/// It displays as the kernel's error. To convert it into an [`io::Error`] removes the handlers that it has.
#[derive(Debug)]
pub struct TransactionError<'fd> {
    error: io::Error,
    kept: Vec<FdHandler<'fd>>,
}

impl<'fd> TransactionError<'fd> {
    /// What the kernel says.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// The handlers that were to be removed, and haven't been.
    pub fn into_kept(self) -> Vec<FdHandler<'fd>> {
        self.kept
    }
}

impl fmt::Display for TransactionError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handlers can't be added: {}", self.error)
    }
}

impl Error for TransactionError<'_> {}

impl From<TransactionError<'_>> for io::Error {
    fn from(error: TransactionError<'_>) -> Self {
        error.error
    }
}
