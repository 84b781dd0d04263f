//! The context: what its owner holds.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use super::builder::ContextBuilder;
use super::fdmon::MonitorKind;
use super::local::Local;
use super::parameters::Parameters;
use super::shared::Shared;

/// An event loop, and the home of the coroutines that are spawned on it.
///
/// It belongs to the thread that made it. What can be done with it there is with [`Local`], to which it dereferences;
/// other threads reach it through a [`Remote`](super::Remote).
///
/// # Dropping
///
/// ends it, in this order, over again for as long as drop guards make new things:
///
/// 1. Coroutines that are ready to run are ended: those that haven't started are dropped, suspended ones are unwound.
/// 2. So are all others that were spawned on it, whatever they wait for. Their join handles return
///    [`Cancelled`](crate::coroutine::Cancelled).
/// 3. Bottom halves that were scheduled are not run any more, and closures that were to run once are dropped. Block
///    requests without coroutines are cancelled and waited for, and their callbacks dropped.
/// 4. The callbacks of handlers are dropped, and so are descriptors that handlers own. (The callback of a [`Timer`] or a
///    [`BottomHalf`] is its holder's.)
/// 5. Its descriptors are closed, once the kernel has let go of what it watched; but for the eventfd by which others wake
///    it, which goes with the last [`Remote`](super::Remote) and join handle, so that a late wake writes to no other file.
///
/// Wakes, triggers, alarms and calls that come later do nothing, or say that the context has ended. A coroutine that is
/// driven by its handle and parked here stays with its handle.
///
/// A child that was forked from the context's process may drop its copy: its coroutines and callbacks are ended in the
/// child, and nothing is done to what the kernel has for the parent. It can't be used for anything else in the child.
///
/// [`Timer`]: super::Timer
/// [`BottomHalf`]: super::BottomHalf
pub struct AioContext {
    local: Local,
}

impl AioContext {
    /// Makes a context for the calling thread, with the best monitor that can be had; see [the module](super#monitors).
    ///
    /// # Errors
    ///
    /// If the kernel refuses a descriptor (limits of open files: `RLIMIT_NOFILE`, `fs.file-max`).
    pub fn new() -> io::Result<Self> {
        Self::builder().build()
    }

    /// Makes a context with options.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::new()
    }

    pub(super) fn with(monitor: Option<MonitorKind>, parameters: Parameters) -> io::Result<Self> {
        Ok(Self { local: Local::of(Arc::new(Shared::new(monitor, parameters)?)) })
    }
}

impl Deref for AioContext {
    type Target = Local;

    fn deref(&self) -> &Local {
        &self.local
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        self.local.end();
    }
}

impl fmt::Debug for AioContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AioContext").finish_non_exhaustive()
    }
}
