//! Block I/O for coroutines: files and block devices, read and written as straight-line code.
//!
//! ```
//! use aioco::{AioContext, block};
//! use std::fs::File;
//!
//! let context = AioContext::new()?;
//! # let path = std::env::current_exe()?;
//! let file = block::File::new(File::open(path)?)?;
//! let magic = context.block_on(|| {
//!     let mut magic = [0; 4]; // on the coroutine's own stack
//!     file.read_exact_at(&mut magic, 0)?;
//!     Ok::<_, std::io::Error>(magic)
//! })?;
//! assert_eq!(&magic, b"\x7fELF");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Buffers are borrowed, not handed over. That is sound because a coroutine whose request is under way can't be
//! destroyed: if it is cancelled, it stays suspended until the kernel is done with the request, while the others go on; and
//! if its context ends, that waits for it (see `request` in the source).
//!
//! # What callers can count on
//!
//! - Transfers are finished: a read is short only at the end of the file, and a write is never short. What is longer than
//!   the kernel moves at once (2 GiB, 1024 vectors) is split.
//! - Interrupted calls are made again; calls that the kernel puts off (`EAGAIN`) so many times, and then that is the
//!   error.
//! - Requests of one turn of the loop go to the kernel together, at the latest before the loop sleeps.
//! - Callers park if they are coroutines that have a home, and block otherwise.
//!
//! # Engines
//!
//! A request is carried out in one of these ways ([`Engine`]), chosen for each file and kind of request by what the file
//! is. [`File::engine`] says which, and why; [`File::with_engine`] forces one.
//!
//! | | reads | writes | the rest |
//! |---|---|---|---|
//! | direct (`O_DIRECT`) | ring | ring | ring |
//! | tmpfs, ramfs | inline | inline | ring |
//! | page cache | inline if the data is there, else ring | inline, while that is quick | ring |
//! | direct, no ring (see [`aio`](crate::aio#monitors)) | Linux AIO | Linux AIO; workers if the file grows | workers |
//! | others, no ring | workers in its place | workers in its place | workers |
//!
//! *Inline* is a system call that the caller makes itself: a copy from or to memory takes less time than to have
//! somebody else do it, and for a page cache the kernel hands requests of a ring to threads of its own. A read is inline
//! only if it needn't wait (`RWF_NOWAIT`). A write to the page cache may have to wait for the disk when there is much to
//! write back; if one takes long, those of the next tenth of a second aren't inline. After 16 requests in a row the
//! others have their turn; after fewer where there are many others, so that none waits for more than 256 requests, or one
//! of each of the others; and 16 KiB count as another request.
//!
//! *Linux AIO* is set up by a context when it is first needed, for 128 of the requests that `fs.aio-max-nr` allows in
//! all; the kernel then takes some more, and what it doesn't take waits. A context that can't have it (that limit, a
//! kernel without it, a filter) takes workers in its place for as long as it lives, and the reason names the limit. If
//! the kernel takes nothing for a second though it has nothing to do, that is an error (`ENOMEM`). Requests can't be
//! cancelled: whoever is to end waits for them.
//!
//! Where the kernel has to wait before it can begin (for a block of the file's map, for room in the device's queue),
//! the thread waits with it: always, if the page cache is in the way. So Linux AIO is chosen for direct I/O alone,
//! where a request takes a quarter (many at once) to two thirds (one at a time) of the CPU time that it takes by
//! workers, and not for what makes the file longer. A file that it was [asked for](File::with_engine) has all reads,
//! writes and flushes (since Linux 4.18) carried out by it.
//!
//! # Registration
//!
//! A ring can know files and memory beforehand, so that the kernel looks up neither the file nor the pages for each
//! request: that saves some 400 ns of the CPU time of a direct one. Contexts see to it by themselves (since Linux 5.19):
//!
//! - A regular file or block device is registered by a context whose ring has had 32 requests to it or so; 256 files at
//!   most. It stays open until its [`File`] has been dropped *and* the contexts have let go of it: the one whose thread
//!   drops it does so at once, others in their next turn, for which they are woken, and all when they end. (So a lock,
//!   or an exclusive use of a block device, may last that much longer than the `File`.)
//! - Memory of [`AlignedBuf`]s of 4 KiB to 1 MiB is registered, in chunks of 1 MiB, by a context whose ring has had
//!   128 requests that use the chunk; 64 chunks at most, until the context ends. A chunk that is registered is
//!   pinned: it counts towards `RLIMIT_MEMLOCK`, unless the process may exceed that (`CAP_IPC_LOCK`), and isn't given
//!   back to the system. Buffers on stacks, vectors and other memory go as they are.
//!
//! Whatever can't be registered goes unregistered. [`File::engine`] says whether the file is, or why not, and
//! [`Stats`](crate::aio::Stats) counts requests to such files and with such buffers, and says why buffers were refused.

mod aligned;
mod bypass;
mod engine;
#[cfg(test)]
mod faults;
mod file;
mod group;
mod perform;
mod place;
#[cfg(test)]
mod registered;
mod transfer;
mod workers;

pub use aligned::AlignedBuf;
pub use bypass::{discard_then, flush_then, read_then, write_all_then};
pub use engine::{Engine, EngineChoice, Operation};
pub use file::File;
pub use group::{Group, group};
pub use transfer::Misaligned;
