//! Which way requests go, and why.

use std::fmt;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::aio::Local;
use crate::aio::registry::FileKey;
use crate::primitive::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sys::file::{Facts, size};

/// A way to carry out a request. See [the module](super#engines).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// A system call of the caller's own, which may block the thread.
    Inline,
    /// The context's io_uring.
    Ring,
    /// Linux AIO, of the context: for regular files and block devices. The kernel may block the thread that submits,
    /// always if the page cache is in the way, seldom with direct I/O. What it has no requests for (allocating,
    /// discarding, zeroing) is for workers.
    LinuxAio,
    /// Threads that make system calls for others. There are 64 at most, and none that isn't needed.
    Workers,
}

impl Engine {
    /// All that there are.
    ///
    /// ```
    /// use aioco::block::Engine;
    /// let named = Engine::ALL.iter().find(|engine| engine.to_string() == "workers");
    /// assert_eq!(named, Some(&Engine::Workers));
    /// ```
    pub const ALL: &[Engine] = &[Self::Inline, Self::Ring, Self::LinuxAio, Self::Workers];
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inline => "inline",
            Self::Ring => "ring",
            Self::LinuxAio => "linux-aio",
            Self::Workers => "workers",
        })
    }
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// All else: flushing, discarding, zeroing, allocating.
    Other,
}

/// Which engine carries out a kind of request, and why. See [`File::engine`](super::File::engine).
///
/// Displays as the engine and the reason: `ring (the file was opened with O_DIRECT)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineChoice {
    engine: Engine,
    reason: &'static str,
}

impl EngineChoice {
    /// Which one it is.
    pub fn engine(self) -> Engine {
        self.engine
    }

    /// Why.
    pub fn reason(self) -> &'static str {
        self.reason
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.engine, self.reason)
    }
}

/// Whether a request is carried out by a system call of the caller's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtOnce {
    Yes,
    /// Yes, and how long that takes is noted.
    Timed,
    /// If that needs no waiting.
    IfThere,
    No,
}

/// What is known of a file, and how it is to be reached.
#[derive(Debug)]
pub(super) struct Policy {
    facts: Facts,
    forced: Option<Engine>,
    /// Reads in a row whose data wasn't there; with [`NEVER`], the file can't tell.
    misses: AtomicU32,
    /// When writes were slow the last time, in nanoseconds after [`Policy::start`]; 0 if never.
    slow_write: AtomicU64,
    /// Whether the kernel carries out only reads and writes of this file by Linux AIO.
    no_linux_aio_for_others: AtomicBool,
    /// How long the file was when a write by Linux AIO last asked.
    size: AtomicU64,
    start: Instant,
    /// By which rings may know the file; `None` if it may be one that somebody waits for to be closed.
    key: Option<FileKey>,
}

/// So many misses in a row, and reads aren't tried at once for a while.
const MAX_MISSES: u32 = 8;

/// For so many reads.
const REST: u32 = 64;

/// The file can't tell whether data is there.
const NEVER: u32 = u32::MAX;

/// A write that takes longer than this, and a nanosecond for each byte, has waited for something.
const SLOW: Duration = Duration::from_millis(1);

/// For so long after a slow write, writes aren't inline.
const SLOW_FOR: Duration = Duration::from_millis(100);

const NO_CONTEXT: &str = "the caller is no coroutine of an AioContext";

impl Policy {
    pub(super) fn new(facts: Facts) -> Self {
        Self {
            facts,
            forced: None,
            misses: AtomicU32::new(0),
            slow_write: AtomicU64::new(0),
            no_linux_aio_for_others: AtomicBool::new(false),
            size: AtomicU64::new(0),
            start: Instant::now(),
            key: facts.is_storage.then(FileKey::new),
        }
    }

    /// By which rings may know the file.
    #[inline]
    pub(super) fn key(&self) -> Option<&FileKey> {
        self.key.as_ref()
    }

    pub(super) fn force(&mut self, engine: Engine) {
        self.forced = Some(engine);
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether a request is carried out on the spot.
    #[inline]
    pub(super) fn at_once(&self, operation: Operation) -> AtOnce {
        if let Some(forced) = self.forced {
            return if forced == Engine::Inline { AtOnce::Yes } else { AtOnce::No };
        }
        let Facts { is_direct, is_memory, is_storage, .. } = self.facts;
        match operation {
            Operation::Read | Operation::Write if is_memory => AtOnce::Yes,
            Operation::Read if is_storage && !is_direct && self.may_be_there() => AtOnce::IfThere,
            Operation::Write if is_storage && !is_direct && !self.writes_are_slow() => AtOnce::Timed,
            _ => AtOnce::No,
        }
    }

    /// What carries out a request, if it isn't carried out at once, of a coroutine of this context, or of another home
    /// (`None`).
    pub(super) fn engine(&self, operation: Operation, context: Option<&Local>) -> Engine {
        match self.forced {
            Some(forced) => self.by(forced, operation, context).engine,
            None => self.others(operation, context).engine,
        }
    }

    /// What is said about it.
    pub(super) fn choice(&self, operation: Operation, context: Option<&Local>) -> EngineChoice {
        if let Some(forced) = self.forced {
            return self.by(forced, operation, context);
        }
        let inline = |reason| EngineChoice { engine: Engine::Inline, reason };
        match self.at_once(operation) {
            AtOnce::Yes => inline("the file is in memory"),
            AtOnce::IfThere => inline("the page cache may have the data; otherwise it is waited for"),
            AtOnce::Timed => inline("the page cache takes the data"),
            AtOnce::No => match (self.others(operation, context), context) {
                (EngineChoice { engine: Engine::Ring, .. }, Some(context)) => {
                    EngineChoice { engine: Engine::Ring, reason: context.about_file(self.key()) }
                }
                (others, _) => others,
            },
        }
    }

    /// The engine that was asked for, if the caller can have it; else what does its work.
    fn by(&self, forced: Engine, operation: Operation, context: Option<&Local>) -> EngineChoice {
        let asked_for = EngineChoice { engine: forced, reason: "it was asked for" };
        match forced {
            Engine::Inline | Engine::Workers => asked_for,
            Engine::Ring => match self.others(operation, context) {
                EngineChoice { engine: Engine::Ring, .. } => asked_for,
                others => others,
            },
            Engine::LinuxAio => match self.linux_aio(operation, context) {
                Ok(()) => asked_for,
                Err(reason) => EngineChoice { engine: Engine::Workers, reason },
            },
        }
    }

    /// The engine for what may have to wait.
    #[inline]
    fn others(&self, operation: Operation, context: Option<&Local>) -> EngineChoice {
        let workers = |reason| EngineChoice { engine: Engine::Workers, reason };
        match context {
            Some(context) if context.takes_requests() => {
                EngineChoice { engine: Engine::Ring, reason: "the context has a ring" }
            }
            Some(_) if self.facts.is_direct && operation != Operation::Other => {
                match self.linux_aio(operation, context) {
                    Ok(()) => EngineChoice {
                        engine: Engine::LinuxAio,
                        reason: "the context has no ring, and direct I/O takes no thread",
                    },
                    Err(reason) => workers(reason),
                }
            }
            Some(_) => workers("the context has no ring"),
            None => workers(NO_CONTEXT),
        }
    }

    /// Whether the caller can have such requests carried out by Linux AIO; why not.
    fn linux_aio(&self, operation: Operation, context: Option<&Local>) -> Result<(), &'static str> {
        let Some(context) = context else { return Err(NO_CONTEXT) };
        if !self.facts.is_storage {
            return Err("Linux AIO would block: this is neither a regular file nor a block device");
        }
        if operation == Operation::Other && self.no_linux_aio_for_others.load(Ordering::Relaxed) {
            return Err("Linux AIO only reads and writes this file");
        }
        context.prepare_linux_aio()
    }

    /// Whether a write that ends there is for Linux AIO. By that, the caller would wait for a write that makes the file
    /// longer: so it isn't, unless it was asked for.
    pub(super) fn may_write_by_linux_aio(&self, end: u64, fd: RawFd) -> bool {
        if self.forced == Some(Engine::LinuxAio) || end <= self.size.load(Ordering::Relaxed) {
            return true;
        }
        let size = size(fd).unwrap_or(0);
        self.size.store(size, Ordering::Relaxed);
        end <= size
    }

    /// Notes that what neither reads nor writes was refused. Returns whether that may have been because of Linux AIO:
    /// then it won't be asked again.
    pub(super) fn note_no_linux_aio_for_others(&self) -> bool {
        self.forced == Some(Engine::LinuxAio) && !self.no_linux_aio_for_others.swap(true, Ordering::Relaxed)
    }

    #[inline]
    fn may_be_there(&self) -> bool {
        let misses = self.misses.load(Ordering::Relaxed);
        misses < MAX_MISSES || self.rest(misses)
    }

    #[cold]
    fn rest(&self, misses: u32) -> bool {
        if misses != NEVER {
            // One more that rests; then they are tried again. Figures of several threads may get mixed up: so what.
            let next = if misses >= MAX_MISSES + REST { MAX_MISSES - 1 } else { misses + 1 };
            self.misses.store(next, Ordering::Relaxed);
        }
        false
    }

    /// Notes whether the data of a read was there.
    #[inline]
    pub(super) fn note_read(&self, was_there: bool) {
        if was_there {
            // A hit is the rule; then the cache line isn't written to.
            if self.misses.load(Ordering::Relaxed) != 0 {
                self.misses.store(0, Ordering::Relaxed);
            }
        } else {
            let misses = self.misses.load(Ordering::Relaxed);
            self.misses.store(misses.saturating_add(1).min(MAX_MISSES), Ordering::Relaxed);
        }
    }

    /// Notes that the file can't tell whether data is there.
    pub(super) fn note_never(&self) {
        self.misses.store(NEVER, Ordering::Relaxed);
    }

    fn writes_are_slow(&self) -> bool {
        match self.slow_write.load(Ordering::Relaxed) {
            0 => false,
            at => self.start.elapsed() < Duration::from_nanos(at) + SLOW_FOR,
        }
    }

    /// Notes how long a write took that returned this.
    pub(super) fn note_write(&self, took: Duration, result: i64) {
        if took > SLOW + Duration::from_nanos(u64::try_from(result).unwrap_or_default()) {
            let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.slow_write.store(now.max(1), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        let facts =
            Facts { is_direct: false, is_memory: false, is_storage: true, memory_alignment: 1, offset_alignment: 1 };
        Policy::new(facts)
    }

    #[test]
    fn reads_that_miss_are_not_tried_at_once_for_a_while() {
        let policy = policy();
        let tries = |times| (0..times).filter(|_| policy.at_once(Operation::Read) == AtOnce::IfThere).count();
        for _ in 0..MAX_MISSES {
            assert_eq!(tries(1), 1);
            policy.note_read(false);
        }
        assert_eq!(tries(REST), 0);
        assert!(tries(2) > 0, "they are tried again");
        policy.note_read(true);
        assert_eq!(tries(100), 100);
        policy.note_never();
        assert_eq!(tries(1000), 0);
    }

    #[test]
    fn writes_are_inline_unless_one_was_slow_lately() {
        let policy = policy();
        let is_inline = || policy.at_once(Operation::Write) == AtOnce::Timed;
        assert!(is_inline());
        policy.note_write(SLOW, 0);
        policy.note_write(10 * SLOW, 1 << 30);
        assert!(is_inline(), "it was long");
        policy.note_write(2 * SLOW, 512);
        assert!(!is_inline());
    }
}
