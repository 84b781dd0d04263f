//! The calling thread's record: what runs on it, and its part of the pool.
//!
//! # Safety
//!
//! A record is allocated when its thread first needs one, belongs to that thread until the thread's exit hook gives it
//! back, and is then used by a later thread; it is never freed. All fields but `counts` are touched by the owning
//! thread only, and no reference to them is held over a switch.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::c_void;
use std::sync::Arc;

use super::block::Block;
use super::home::Home;
use super::newborn::Newborns;
use super::stack::CLASSES;
use super::supply;
use crate::pool::Local;
use crate::primitive::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::primitive::{Mutex, tls};
use crate::sys::thread_exit;

/// What the runtime keeps for a thread.
pub(crate) struct Thread {
    /// Never 0, and never the same for two threads (until 2³² threads have used coroutines).
    pub(super) id: Cell<u32>,
    /// The innermost coroutine that runs on this thread.
    pub(super) current: Cell<Option<&'static Block>>,
    /// The home whose loop is running on this thread.
    pub(super) home: RefCell<Option<Arc<dyn Home>>>,
    /// Calls of the current home that go on and don't count it.
    pub(super) calls: Cell<u32>,
    /// Homes that stopped being current during such a call, which may be theirs.
    pub(super) left: RefCell<Vec<Arc<dyn Home>>>,
    /// Spawned coroutines that the home hasn't got yet.
    pub(super) newborns: Newborns,
    /// Coroutines that have suspended, or wait for a newborn, and whose homes drive them.
    pub(super) live: RefCell<Vec<&'static Block>>,
    /// What a coroutine that has just ended by a panic left.
    pub(super) payload: Cell<Option<Box<dyn Any + Send>>>,
    pub(super) pools: UnsafeCell<[Local<Block>; CLASSES]>,
    pub(super) counts: Counts,
}

/// Counters with one writer each; their sums over all records are the statistics.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) created: Count,
    pub(super) ended: Count,
}

/// A counter that one thread raises and any thread reads.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// Adds one. Only the owner calls this.
    #[inline(always)]
    pub(super) fn increment(&self) {
        // Not a read-modify-write: there is one writer.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

static RECORDS: Mutex<Records> = Mutex::new(Records { all: Vec::new(), free: Vec::new() });
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

struct Records {
    all: Vec<&'static Thread>,
    free: Vec<&'static Thread>,
}

// SAFETY: records are only moved between threads while they are free, and other threads only read `counts`.
unsafe impl Send for Records {}

/// The calling thread's record.
#[inline(always)]
pub(crate) fn this_thread() -> &'static Thread {
    let record = tls::get().cast::<Thread>();
    if record.is_null() {
        return register();
    }
    // SAFETY: the slot holds null or this thread's record, and records are never freed.
    unsafe { &*record }
}

/// A number that is the calling thread's own.
#[inline]
pub(super) fn thread_id() -> u32 {
    this_thread().id.get()
}

#[cold]
fn register() -> &'static Thread {
    let mut records = RECORDS.lock();
    let record = records.free.pop().unwrap_or_else(|| {
        let record: &'static Thread = Box::leak(Box::new(Thread::new()));
        records.all.push(record);
        record
    });
    drop(records);
    record.id.set(NEXT_ID.fetch_add(1, Ordering::Relaxed));
    let record_ptr = std::ptr::from_ref(record).cast_mut().cast::<c_void>();
    tls::set(record_ptr.cast());
    thread_exit::call_at_exit(unregister, record_ptr);
    record
}

/// Donates what the thread pooled, and frees its record.
///
/// # Safety
///
/// `record` is the record that `register` stored for this thread.
unsafe extern "C" fn unregister(record: *mut c_void) {
    // SAFETY: contract.
    let record = unsafe { &*record.cast::<Thread>() };
    // Spawned coroutines whose home never ended: nobody can unwind them any more.
    for _ in 0..record.live.take().len() + record.newborns.reset() {
        supply::leak(record);
    }
    record.calls.set(0);
    drop((record.home.take(), record.left.take()));
    supply::donate(record);
    tls::set(std::ptr::null());
    RECORDS.lock().free.push(record);
}

/// The sum of a counter over all threads that there have been.
pub(super) fn sum(count: impl Fn(&Counts) -> &Count) -> u64 {
    RECORDS.lock().all.iter().map(|thread| count(&thread.counts).get()).sum()
}

impl Thread {
    fn new() -> Self {
        Self {
            id: Cell::new(0),
            current: Cell::new(None),
            home: RefCell::new(None),
            calls: Cell::new(0),
            left: RefCell::new(Vec::new()),
            newborns: Newborns::new(),
            live: RefCell::new(Vec::new()),
            payload: Cell::new(None),
            pools: UnsafeCell::new([const { Local::new() }; CLASSES]),
            counts: Counts::default(),
        }
    }

    /// This thread's pool of one size class. The reference must be gone before the next call.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the record is the thread's own; see the contract")]
    pub(super) unsafe fn pool(&self, class: super::stack::Class) -> &mut Local<Block> {
        // SAFETY: only this thread uses the pools, and one reference at a time (contract).
        unsafe { &mut (&mut *self.pools.get())[class.index()] }
    }
}
