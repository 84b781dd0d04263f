//! What a ring has registered of files and buffers, so that its requests needn't look them up.
//!
//! A request that names a descriptor has the kernel find the open file, and hold it; one that names an address has it
//! find the page behind it, and pin that. For what is registered, both have been done. It costs some calls and, for
//! buffers, memory that is pinned: so it is done for what is used again and again, and given up where the kernel
//! refuses.
//!
//! **Files.** A file has a place in the table, the same in each ring as far as that is free there, from its
//! [`MIN_FILE_REQUESTS`]th request on until its [`FileKey`] is dropped. A place is that of an identity, which never
//! comes twice, and of a descriptor: so a place that is out of date is that of nobody, and a file that names another
//! descriptor than before, which [`AsFd`](std::os::fd::AsFd) doesn't forbid, goes by that.
//!
//! A file that is registered stays open. Whoever drops a key tells the contexts that know it: the one whose thread it
//! is takes the file out of its table at once, others in their next turn, for which they are woken. A context that ends
//! gives up all. The key outlives its requests, so that none is under way then.
//!
//! **Buffers.** What is registered is a chunk of the [arena](crate::arena) as a whole, from its
//! [`MIN_CHUNK_REQUESTS`]th request on until the context ends. It is pinned there for as long. Memory of other kinds
//! isn't registered: nobody would say when it goes away.
//!
//! A child that was forked has a copy of all this, while the tables are the parent's: it doesn't touch them.
//!
//! # Safety
//!
//! A chunk is pinned in the arena before a ring has it, and unpinned after the ring has none, or when the ring is
//! another process'. If the ring doesn't give it up, it stays pinned.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use super::shared::Shared;
use crate::arena;
use crate::primitive::Mutex;
use crate::primitive::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sys::file::{Call, What};
use crate::sys::ring::{Known, Ring};

/// Places for files: some 4 KiB of the kernel's memory.
const FILES: u32 = 256;

/// Chunks that a ring may have pinned.
const CHUNKS: u16 = 64;

/// It takes two calls, each about as long as twenty requests save.
const MIN_FILE_REQUESTS: u32 = 32;

/// If the chunk's pages have never been used, it takes as long as some hundreds of requests save. But it saves the more
/// the fewer requests are under way, and whoever has made so many will make others.
const MIN_CHUNK_REQUESTS: u16 = 128;

/// A file, as the rings of contexts know it.
#[derive(Debug)]
pub(crate) struct FileKey {
    id: u64,
    /// Requests that went to a ring, up to [`MIN_FILE_REQUESTS`]; or [`NEVER`].
    requests: AtomicU32,
    /// Its place in tables; [`NOWHERE`] until it has one.
    place: AtomicU32,
    /// The contexts that know it.
    contexts: Mutex<Vec<Weak<Shared>>>,
}

/// The kernel registers no such file.
const NEVER: u32 = u32::MAX;

const NOWHERE: u32 = u32::MAX;

impl FileKey {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(VACANT.id + 1);
        Self {
            // Relaxed: nobody else gets this number.
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            requests: AtomicU32::new(0),
            place: AtomicU32::new(NOWHERE),
            contexts: Mutex::new(Vec::new()),
        }
    }

    /// Notes a request. Returns whether there were enough. (Those of several threads may get mixed up: so what.)
    fn has_enough_requests(&self) -> bool {
        let requests = self.requests.load(Ordering::Relaxed);
        if requests < MIN_FILE_REQUESTS {
            self.requests.store(requests + 1, Ordering::Relaxed);
        }
        requests == MIN_FILE_REQUESTS
    }

    /// Notes that a context knows it.
    #[cold]
    pub(super) fn is_known_by(&self, context: &Arc<Shared>) {
        let mut contexts = self.contexts.lock();
        contexts.retain(|context| context.strong_count() != 0);
        contexts.push(Arc::downgrade(context));
    }
}

impl Drop for FileKey {
    fn drop(&mut self) {
        for context in self.contexts.get_mut().drain(..) {
            if let Some(context) = context.upgrade() {
                context.forget_file(self.id, *self.place.get_mut());
            }
        }
    }
}

/// Who has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tenant {
    /// The identity of the file.
    id: u64,
    /// Its descriptor when it was registered.
    fd: RawFd,
}

/// Nobody: no file has this identity.
const VACANT: Tenant = Tenant { id: 0, fd: -1 };

/// Tables of a ring, which it may never need.
#[derive(Debug, Default)]
pub(super) struct Registry {
    files: Files,
    buffers: Buffers,
}

/// Whether there is a table.
#[derive(Debug, Clone, Copy, Default)]
enum Table {
    #[default]
    Unused,
    Used,
    /// The kernel has refused something for good: why.
    Refused(&'static str),
}

#[derive(Debug, Default)]
struct Files {
    table: Table,
    /// Who has which place; empty if there is no table.
    places: Vec<Tenant>,
    vacant: u32,
    requests: u64,
}

#[derive(Debug, Default)]
struct Buffers {
    table: Table,
    /// For each chunk, as far as they have been used here: how many requests there were, or [`PLACED`] and its place.
    chunks: Vec<u16>,
    placed: u16,
    requests: u64,
}

/// A chunk has a place.
const PLACED: u16 = 1 << 15;

/// What was made of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lookup {
    pub(super) known: Known,
    /// The file has been registered by this.
    pub(super) is_new_file: bool,
}

impl Registry {
    /// Finds what is known of a request to a file. What has been used often enough is registered now.
    #[inline]
    pub(super) fn look_up(&mut self, ring: &mut Ring, call: &Call, key: Option<&FileKey>) -> Lookup {
        let (mut file, mut is_new_file) = (None, false);
        if let Some(key) = key {
            // Relaxed: whoever has the place here has the file's identity there.
            let place = key.place.load(Ordering::Relaxed);
            if self.files.places.get(place as usize) == Some(&Tenant { id: key.id, fd: call.fd }) {
                file = Some(place);
            } else if key.has_enough_requests() {
                file = self.files.register(ring, call, key);
                is_new_file = file.is_some();
            }
            self.files.requests += u64::from(file.is_some());
        }
        let buffer = match call.what {
            What::Read { buffer, len } => self.buffers.look_up(ring, buffer, len as usize),
            What::Write { buffer, len } => self.buffers.look_up(ring, buffer, len as usize),
            _ => None,
        };
        Lookup { known: Known { file, buffer }, is_new_file }
    }

    /// Takes a file out of the table that was at this place, if it is there. No request to it is under way.
    pub(super) fn forget_file(&mut self, ring: &Ring, id: u64, place: u32) {
        let Some(entry) = self.files.places.get_mut(place as usize).filter(|entry| entry.id == id) else { return };
        // If the kernel keeps it, so do we: nobody else has this identity.
        if ring.set_file(place, None).is_ok() {
            *entry = VACANT;
            self.files.vacant += 1;
        }
    }

    /// What is said of a file that has a ring.
    pub(super) fn about_file(&self, key: Option<&FileKey>) -> &'static str {
        let Some(key) = key else { return "the context has a ring" };
        let place = key.place.load(Ordering::Relaxed);
        match self.files.table {
            _ if self.files.places.get(place as usize).is_some_and(|entry| entry.id == key.id) => {
                "the context has a ring, with which the file is registered"
            }
            Table::Refused(reason) => reason,
            Table::Used if key.requests.load(Ordering::Relaxed) >= MIN_FILE_REQUESTS && self.files.vacant == 0 => {
                "the context has a ring; the file isn't registered, for as many as can be are"
            }
            _ => "the context has a ring",
        }
    }

    /// Why chunks aren't registered, if the kernel has refused that.
    pub(super) fn buffers_refused(&self) -> Option<&'static str> {
        match self.buffers.table {
            Table::Refused(reason) => Some(reason),
            _ => None,
        }
    }

    /// Requests that named a file that is registered, and those that named such a buffer.
    pub(super) fn requests(&self) -> (u64, u64) {
        (self.files.requests, self.buffers.requests)
    }

    /// Gives up all. No request is under way.
    pub(super) fn end(&mut self, ring: &Ring) {
        // The kernel would do it some time after the ring's descriptor is closed.
        if !self.files.places.is_empty() {
            self.files = Files::default();
            let _ = ring.drop_file_table();
        }
        if self.buffers.placed != 0 && ring.drop_buffer_table().is_ok() {
            self.buffers.unpin_all();
        }
    }

    /// Forgets all, which is another process'.
    pub(super) fn disown(&mut self) {
        self.files = Files::default();
        self.buffers.unpin_all();
    }
}

impl Files {
    /// Gives a file a place, if it can have one.
    #[cold]
    fn register(&mut self, ring: &Ring, call: &Call, key: &FileKey) -> Option<u32> {
        match self.table {
            Table::Unused => match ring.make_file_table(FILES) {
                Ok(()) => {
                    self.table = Table::Used;
                    self.places = vec![VACANT; FILES as usize];
                    self.vacant = FILES;
                }
                Err(error) => self.table = Table::Refused(why_no_file_table(&error)),
            },
            Table::Used | Table::Refused(_) => {}
        }
        if self.vacant == 0 {
            return None;
        }
        // Files that are near in age begin with different places: so other tables are likely to have that free too.
        let start = key.id as u32 % FILES;
        let free = (0..FILES).map(|n| (start + n) % FILES).find(|&place| self.places[place as usize] == VACANT)?;
        // Another thread may find a place at the same time. Relaxed: it is a number.
        let place = match key.place.compare_exchange(NOWHERE, free, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => free,
            Err(place) => place,
        };
        if self.places[place as usize] != VACANT {
            return None;
        }
        if ring.set_file(place, Some(call.fd)).is_err() {
            key.requests.store(NEVER, Ordering::Relaxed);
            return None;
        }
        self.places[place as usize] = Tenant { id: key.id, fd: call.fd };
        self.vacant -= 1;
        Some(place)
    }
}

impl Buffers {
    #[inline]
    fn look_up(&mut self, ring: &Ring, start: *const u8, len: usize) -> Option<u16> {
        let chunk = arena::chunk_of(start, len)?;
        let place = match self.chunks.get_mut(chunk) {
            Some(&mut entry) if entry >= PLACED => Some(entry - PLACED),
            Some(requests) if *requests < MIN_CHUNK_REQUESTS => {
                *requests += 1;
                None
            }
            _ => self.register(ring, chunk),
        };
        self.requests += u64::from(place.is_some());
        place
    }

    /// Gives a chunk a place, if it can have one; or begins to count its requests.
    #[cold]
    fn register(&mut self, ring: &Ring, chunk: usize) -> Option<u16> {
        if chunk >= self.chunks.len() {
            self.chunks.resize(chunk + 1, 0);
            return None;
        }
        if let Table::Unused = self.table {
            self.table = match ring.make_buffer_table(CHUNKS.into()) {
                Ok(()) => Table::Used,
                Err(error) => Table::Refused(why_no_buffers(&error)),
            };
        }
        if !matches!(self.table, Table::Used) || self.placed == CHUNKS {
            return None;
        }
        let start = arena::pin(chunk);
        // SAFETY: it is pinned until the ring has given it up: see the head.
        match unsafe { ring.set_buffer(self.placed, start, arena::CHUNK) } {
            Ok(()) => {
                let place = self.placed;
                self.placed += 1;
                self.chunks[chunk] = PLACED | place;
                Some(place)
            }
            Err(error) => {
                // SAFETY: the ring hasn't got it.
                unsafe { arena::unpin(chunk) };
                self.table = Table::Refused(why_no_buffers(&error));
                None
            }
        }
    }

    fn unpin_all(&mut self) {
        self.placed = 0;
        for (chunk, entry) in std::mem::take(&mut self.chunks).into_iter().enumerate() {
            if entry >= PLACED {
                // SAFETY: contract of the callers: no ring of this process has it.
                unsafe { arena::unpin(chunk) };
            }
        }
    }
}

fn why_no_file_table(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EINVAL) => "the context has a ring; files can be registered since Linux 5.19",
        Some(libc::EMFILE) => "the context has a ring; RLIMIT_NOFILE is too low for registering files",
        _ => "the context has a ring; the kernel registers no files",
    }
}

fn why_no_buffers(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EINVAL) => "buffers can be registered since Linux 5.19",
        Some(libc::ENOMEM) => "RLIMIT_MEMLOCK is too low, or the kernel is short of memory",
        _ => "the kernel registers no buffers",
    }
}
