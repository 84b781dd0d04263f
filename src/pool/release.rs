//! The shared part of the pool: a lock-free stack of batches with a cap.
#![allow(unsafe_code)] // # Safety: as the head of `pool`.

use super::{BATCH, Batch, BatchAdapter, Pooled};
use crate::lockfree::PushStack;
use crate::primitive::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::primitive::mutant::mutant;

/// The release stack.
#[derive(Debug)]
pub(crate) struct Release<T: Pooled> {
    stack: PushStack<BatchAdapter<T>>,
    /// At least the number of batches in `stack`.
    batches: AtomicUsize,
    /// How many objects the stack may hold.
    cap: AtomicUsize,
    refills: AtomicU64,
    overflows: AtomicU64,
}

// SAFETY: the stack is shared through atomics, and hands each batch to one thread. Objects cross threads here, which
// is part of the contract of `Local::give`: the objects belong to the pool.
unsafe impl<T: Pooled> Sync for Release<T> {}

impl<T: Pooled> Release<T> {
    // Not const: loom's atomics register themselves when they are made.
    #[cfg(all(test, loom))]
    pub(crate) fn new(cap: usize) -> Self {
        Self {
            stack: PushStack::new(),
            batches: AtomicUsize::new(0),
            cap: AtomicUsize::new(cap),
            refills: AtomicU64::new(0),
            overflows: AtomicU64::new(0),
        }
    }

    #[cfg(not(all(test, loom)))]
    pub(crate) const fn new(cap: usize) -> Self {
        Self {
            stack: PushStack::new(),
            batches: AtomicUsize::new(0),
            cap: AtomicUsize::new(cap),
            refills: AtomicU64::new(0),
            overflows: AtomicU64::new(0),
        }
    }

    /// Pushes a batch, or returns it if the stack is at its cap. An empty batch is dropped.
    pub(crate) fn push(&self, batch: Batch<T>) -> Result<(), Batch<T>> {
        // Relaxed: a soft limit; see the head of `pool`.
        if self.batches.load(Ordering::Relaxed) * BATCH as usize >= self.cap.load(Ordering::Relaxed) {
            return Err(batch);
        }
        if let Some(node) = batch.into_node() {
            if !mutant!("count_after_push") {
                self.batches.fetch_add(1, Ordering::Relaxed);
            }
            // SAFETY: the batch owned its objects, and they are valid while the pool has them.
            unsafe { self.stack.push(node) };
            if mutant!("count_after_push") {
                self.batches.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Takes one batch.
    pub(crate) fn take(&self) -> Option<Batch<T>> {
        let mut rest = self.stack.take_all();
        let first = rest.pop()?;
        while let Err(refused) = self.stack.put_back(rest) {
            rest = refused;
            if mutant!("put_back_once") {
                break;
            }
            // Others pushed meanwhile: take theirs as well, so that the stack is empty again.
            let mut pushed = self.stack.take_all();
            while let Some(node) = pushed.pop() {
                // SAFETY: `take_all` made the node ours.
                unsafe { rest.prepend(node) };
            }
        }
        self.batches.fetch_sub(1, Ordering::Relaxed);
        self.refills.fetch_add(1, Ordering::Relaxed);
        // SAFETY: nodes of this stack come from `into_node`, and `take_all` made it ours.
        Some(unsafe { Batch::from_node(first) })
    }

    /// Takes all batches.
    pub(crate) fn take_all(&self, mut each: impl FnMut(Batch<T>)) {
        let mut all = self.stack.take_all();
        while let Some(node) = all.pop() {
            self.batches.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: as in `take`.
            each(unsafe { Batch::from_node(node) });
        }
    }

    /// Raises the cap by `objects`.
    pub(crate) fn raise_cap(&self, objects: usize) {
        self.cap.fetch_add(objects, Ordering::Relaxed);
    }

    /// Lowers the cap by what `raise_cap` raised it, and takes out the batches beyond it.
    pub(crate) fn lower_cap(&self, objects: usize, mut excess: impl FnMut(Batch<T>)) {
        let cap = self.cap.fetch_sub(objects, Ordering::Relaxed) - objects;
        while self.batches.load(Ordering::Relaxed) * BATCH as usize > cap {
            match self.take() {
                Some(batch) => excess(batch),
                None => break,
            }
        }
    }

    /// Batches taken by threads whose own lists were empty, since the start.
    pub(crate) fn refills(&self) -> u64 {
        self.refills.load(Ordering::Relaxed)
    }

    /// Batches that stayed with their thread because the stack was at its cap, since the start.
    pub(crate) fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }

    pub(super) fn count_overflow(&self) {
        self.overflows.fetch_add(1, Ordering::Relaxed);
    }
}
