//! Making a context with options, and how its monitor is chosen.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::AioContext;
use super::fdmon::{Monitor, MonitorKind};
use super::parameters::{Coalescing, Parameters, Polling};
use crate::sys::eventfd::EventFd;

/// Makes an [`AioContext`] with options. Made by [`AioContext::builder`].
///
/// ```
/// use aioco::AioContext;
/// use aioco::aio::MonitorKind;
///
/// let context = AioContext::builder().monitor(MonitorKind::Poll).build()?;
/// assert_eq!(context.monitor().kind(), MonitorKind::Poll);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until `build`"]
pub struct ContextBuilder {
    monitor: Option<MonitorKind>,
    parameters: Parameters,
}

impl ContextBuilder {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Takes this monitor and no other. Without this call the context takes the best that it can have; see
    /// [the module](super#monitors).
    pub fn monitor(mut self, kind: MonitorKind) -> Self {
        self.monitor = Some(kind);
        self
    }

    /// Polls like this before the loop sleeps. Without this call, an [`AioContext`] doesn't; an
    /// [`IoThread`](super::IoThread) polls for at most 32 µs.
    pub fn polling(mut self, polling: Polling) -> Self {
        self.parameters.polling = polling;
        self
    }

    /// Sleeps for so many events. Without this call, the first event ends a sleep.
    pub fn coalescing(mut self, coalescing: Coalescing) -> Self {
        self.parameters.coalescing = coalescing;
        self
    }

    /// Makes the context, for the calling thread.
    ///
    /// # Errors
    ///
    /// - If the kernel refuses a descriptor (limits of open files: `RLIMIT_NOFILE`, `fs.file-max`).
    /// - If the monitor that was asked for can't be had; the message says why.
    pub fn build(self) -> io::Result<AioContext> {
        AioContext::with(self.monitor, self.parameters)
    }
}

/// Which monitor a context has, and why. See [`Local::monitor`](super::Local::monitor).
///
/// Displays as the kind, and the reason if there is one: `epoll (io_uring can't be used: …)`.
#[derive(Debug, Clone)]
pub struct MonitorChoice {
    kind: MonitorKind,
    reason: Option<String>,
}

impl MonitorChoice {
    /// Which one it is.
    pub fn kind(&self) -> MonitorKind {
        self.kind
    }

    /// Why no better one was taken; `None` if this is the best one, or was asked for.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

impl fmt::Display for MonitorChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{} ({reason})", self.kind),
            None => self.kind.fmt(f),
        }
    }
}

impl fmt::Display for MonitorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Poll => "poll",
            Self::Epoll => "epoll",
            Self::IoUring => "io_uring",
        })
    }
}

/// The monitors, best first.
const PREFERENCE: [MonitorKind; 3] = [MonitorKind::IoUring, MonitorKind::Epoll, MonitorKind::Poll];

/// Makes the monitor that is asked for, or else the best that can be had.
pub(super) fn choose(wanted: Option<MonitorKind>, notifier: &Arc<EventFd>) -> io::Result<(Monitor, MonitorChoice)> {
    let candidates = wanted.as_ref().map_or(&PREFERENCE[..], std::slice::from_ref);
    let mut reasons = Vec::new();
    let mut kind = None;
    for &candidate in candidates {
        match Monitor::new(candidate, notifier) {
            Ok(monitor) => {
                let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
                return Ok((monitor, MonitorChoice { kind: candidate, reason }));
            }
            // Not this monitor is missing, but descriptors: a worse one would be no better, and for the whole life of
            // the context.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => return Err(error),
            Err(error) => {
                kind.get_or_insert(error.kind());
                reasons.push(explain(candidate, &error));
            }
        }
    }
    Err(io::Error::new(kind.unwrap_or(io::ErrorKind::Other), reasons.join("; ")))
}

/// Why a monitor can't be had, with what can be done about it.
fn explain(kind: MonitorKind, error: &io::Error) -> String {
    let hint = match (kind, error.raw_os_error()) {
        (_, Some(libc::ENOSYS)) => ": the kernel lacks it, or a seccomp filter hides it",
        (MonitorKind::IoUring, Some(libc::EPERM | libc::EACCES)) => {
            ": forbidden by kernel.io_uring_disabled, a seccomp filter or another security policy"
        }
        (MonitorKind::IoUring, Some(libc::ENOMEM)) => ": the kernel is short of memory, or RLIMIT_MEMLOCK is too low",
        (_, Some(libc::EPERM | libc::EACCES)) => ": forbidden by a seccomp filter or another security policy",
        _ => "",
    };
    format!("{kind} can't be used: {error}{hint}")
}
