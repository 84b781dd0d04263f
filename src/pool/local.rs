//! One thread's part of the pool: no atomics.
#![allow(unsafe_code)] // # Safety: as the head of `pool`.

use std::mem;
use std::ptr::NonNull;

use super::{BATCH, Batch, Pooled, Release};

/// Full batches that a thread may keep when the release stack is at its cap.
const OVERFLOW: usize = if cfg!(all(test, loom)) { 1 } else { 4 };

/// A thread's alloc pool (`hot`, `spare`) and overflow.
#[derive(Debug)]
pub(crate) struct Local<T: Pooled> {
    /// The object that was given back last, if it is still there. A thread that takes and gives in turn touches only
    /// this: in `hot` each step would wait for the memory writes of the one before, twice (link and head, length).
    slot: Option<NonNull<T>>,
    hot: Batch<T>,
    spare: Batch<T>,
    overflow: [Batch<T>; OVERFLOW],
}

impl<T: Pooled> Local<T> {
    pub(crate) const fn new() -> Self {
        Self { slot: None, hot: Batch::new(), spare: Batch::new(), overflow: [const { Batch::new() }; OVERFLOW] }
    }

    /// Takes the object that was given back last, from this thread or else from the release stack.
    #[inline(always)]
    pub(crate) fn take(&mut self, release: &Release<T>) -> Option<NonNull<T>> {
        let item = self.slot.take().or_else(|| self.hot.pop());
        if item.is_some() { item } else { self.refill(release) }
    }

    #[cold]
    #[inline(never)]
    fn refill(&mut self, release: &Release<T>) -> Option<NonNull<T>> {
        mem::swap(&mut self.hot, &mut self.spare);
        if self.hot.len() == 0 {
            match self.overflow.iter_mut().find(|batch| batch.len() > 0) {
                Some(batch) => mem::swap(&mut self.hot, batch),
                None => self.hot = release.take()?,
            }
        }
        self.hot.pop()
    }

    /// Gives an object back. Returns the batch that the pool has no room for, if there is one; the caller destroys it.
    ///
    /// # Safety
    ///
    /// - `item` is valid until it has been taken out again.
    /// - The caller owns `item`, and gives it up.
    #[inline(always)]
    pub(crate) unsafe fn give(&mut self, item: NonNull<T>, release: &Release<T>) -> Option<Batch<T>> {
        if self.slot.is_none() {
            self.slot = Some(item);
            return None;
        }
        let excess = if self.hot.len() < BATCH { None } else { self.spill(release) };
        // SAFETY: passed on.
        unsafe { self.hot.push(item) };
        excess
    }

    /// Makes `hot` empty.
    #[cold]
    #[inline(never)]
    fn spill(&mut self, release: &Release<T>) -> Option<Batch<T>> {
        let full = mem::replace(&mut self.spare, mem::replace(&mut self.hot, Batch::new()));
        if full.len() == 0 {
            return None;
        }
        let refused = release.push(full).err()?;
        match self.overflow.iter_mut().find(|batch| batch.len() == 0) {
            Some(place) => {
                *place = refused;
                release.count_overflow();
                None
            }
            None => Some(refused),
        }
    }

    /// Gives all to the release stack. `excess` is called with each batch that has no room there.
    pub(crate) fn donate(&mut self, release: &Release<T>, mut excess: impl FnMut(Batch<T>)) {
        self.drain(|batch| {
            if let Err(refused) = release.push(batch) {
                excess(refused);
            }
        });
    }

    /// Takes all out.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(Batch<T>)) {
        if let Some(item) = self.slot.take() {
            let mut single = Batch::new();
            // SAFETY: the slot owned the object.
            unsafe { single.push(item) };
            each(single);
        }
        let lists = [&mut self.hot, &mut self.spare].into_iter().chain(&mut self.overflow);
        for list in lists {
            let batch = mem::replace(list, Batch::new());
            if batch.len() > 0 {
                each(batch);
            }
        }
    }
}
