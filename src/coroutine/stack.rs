//! Stacks: carved from slabs, guarded, coloured.
//!
//! ```text
//!  slab: one mapping
//!  ┌───────────────┬───────────────┬───────────────┬─ ─ ─
//!  │ slot 0        │ slot 1        │ slot 2        │          a slot is a guard page and a power of two of bytes
//!  └───────────────┴───────────────┴───────────────┴─ ─ ─
//!  ┌─────┬─────────────────────────────────┬───────┐
//!  │guard│  ◀── the stack grows down  ──── │ colour│          one slot
//!  └─────┴─────────────────────────────────┴───────┘
//!        ▲ limit                     start ▲
//! ```
//!
//! **Slabs.** One `mmap` serves many stacks, and adjacent slabs merge into one kernel mapping. Addresses are reserved,
//! not committed: what a stack costs is the pages it touches and their page tables.
//!
//! **Guard.** The lowest page of each slot faults. `MADV_GUARD_INSTALL` marks it without splitting the mapping; on
//! kernels before 6.13 `mprotect` does it, at the cost of two mappings a stack, and then `vm.max_map_count` bounds how
//! many stacks there can be: the error names it.
//!
//! **Colour.** Stacks that all started at the same offset of a page would fight for the same sets of the first-level
//! cache. Slot *i* starts `(i % COLOURS) × 64` bytes lower. The colours span 3 KiB, so that a coroutine of shallow
//! depth still touches only one page. The same goes for the pages: were slots a power of two apart, their page numbers
//! would fall into a few sets of the TLB (with 256 KiB, into 4 of 256 on a CPU with 16 ways and 4096 entries, where
//! 1000 nested coroutines then cost more than twice as much); the guard page between them makes the distance odd.
//!
//! **Size classes** are never mixed: a slab has slots of one class, and a stack goes back to the slab it came from.
//! A slab of which no slot is in use is unmapped by [`trim`], and at once while another such slab of its class exists.
//!
//! # Safety
//!
//! A [`Stack`] owns its slot exclusively until it is given to [`discard`]. The slab stays mapped while it has a slot in
//! use.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ptr::NonNull;

use crate::primitive::Mutex;
use crate::sys::mmap::{Mapping, page_size};

/// The default size of a stack: 256 KiB of address space.
pub(crate) const DEFAULT_SIZE: usize = 256 << 10;
/// The smallest stack that is made; a panic with a backtrace fits.
pub(crate) const MIN_SIZE: usize = 1 << MIN_SHIFT;
/// The largest stack that is made.
pub(crate) const MAX_SIZE: usize = 1 << MAX_SHIFT;

const MIN_SHIFT: u32 = 16;
const MAX_SHIFT: u32 = 30;
/// How many size classes there are.
pub(crate) const CLASSES: usize = (MAX_SHIFT - MIN_SHIFT + 1) as usize;

/// Address space of a slab, unless a single slot is larger.
const SLAB_SIZE: usize = 64 << 20;
/// A slab has at most this many slots: enough that mappings don't matter, few enough that a slab becomes free again.
const MAX_SLOTS: u32 = 256;

const COLOURS: usize = 48;
const COLOUR_STRIDE: usize = 64;
const _: () = assert!(COLOURS * COLOUR_STRIDE <= 4096, "the start of a stack lies in the highest page of its slot");

/// A size class: which power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(u8);

impl Class {
    pub(crate) const DEFAULT: Self = Self((DEFAULT_SIZE.trailing_zeros() - MIN_SHIFT) as u8);

    /// All classes, smallest first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES as u8).map(Self)
    }

    /// The smallest class whose stacks have at least `bytes` of address space.
    pub(crate) fn for_size(bytes: usize) -> io::Result<Self> {
        if bytes == 0 || bytes > MAX_SIZE {
            let message = format!("a coroutine stack of {bytes} bytes: must be from 1 to {MAX_SIZE}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let shift = bytes.max(MIN_SIZE).next_power_of_two().trailing_zeros();
        Ok(Self((shift - MIN_SHIFT) as u8))
    }

    #[inline(always)]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Bytes of a stack.
    pub(crate) fn size(self) -> usize {
        MIN_SIZE << self.0
    }

    /// Bytes of a slot.
    fn pitch(self) -> usize {
        self.size() + page_size()
    }

    fn slots(self) -> u32 {
        ((SLAB_SIZE / self.size()) as u32).clamp(1, MAX_SLOTS)
    }
}

/// A stack that nobody else uses.
#[derive(Debug)]
pub(crate) struct Stack {
    /// Where it starts: the highest address, coloured, 16-byte aligned.
    start: NonNull<u8>,
    /// The lowest usable address, just above the guard.
    limit: NonNull<u8>,
}

impl Stack {
    /// Takes a stack of that class from a slab, or from a new one.
    ///
    /// # Errors
    ///
    /// What `mmap`, `madvise` or `mprotect` reported; nothing is lost, and a later call can succeed.
    pub(crate) fn take(class: Class) -> io::Result<Self> {
        let slabs = &SLABS[class.index()];
        let (base, slot, guarded) = slabs.lock().take(class)?;
        // SAFETY: the slot lies inside the slab's mapping, which stays while the slot is in use.
        let bottom = unsafe { base.add(slot as usize * class.pitch()) };
        if !guarded && let Err(error) = Mapping::guard(bottom, page_size()) {
            slabs.lock().put(class, base, slot, false);
            return Err(error);
        }
        let colour = slot as usize % COLOURS * COLOUR_STRIDE;
        // SAFETY: both lie inside the slot.
        let (start, limit) = unsafe { (bottom.add(class.pitch() - colour), bottom.add(page_size())) };
        Ok(Self { start, limit })
    }

    /// Gives the stack's pages back to the kernel and the slot back to its slab.
    pub(crate) fn discard(self, class: Class) {
        let len = self.start.addr().get().next_multiple_of(page_size()) - self.limit.addr().get();
        // SAFETY: the stack is ours, and nothing on it is needed any more. The rounding stays inside the slot, whose
        // end is page aligned.
        unsafe { Mapping::discard(self.limit, len) };
        SLABS[class.index()].lock().put_address(class, self.limit.addr().get() - page_size());
    }

    /// Where it starts.
    #[cfg(jump_switch)]
    pub(crate) fn into_start(self) -> NonNull<u8> {
        self.start
    }

    /// # Safety
    ///
    /// The start came from `into_start`, once, of a stack of that class.
    #[cfg(jump_switch)]
    pub(crate) unsafe fn from_start(start: NonNull<u8>, class: Class) -> Self {
        let colour = start.addr().get().next_multiple_of(page_size()) - start.addr().get();
        // SAFETY: the stack ends `colour` above the start.
        let limit = unsafe { start.add(colour).sub(class.size()) };
        Self { start, limit }
    }

    /// The highest address.
    #[cfg(not(jump_switch))]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The lowest usable address.
    #[cfg(not(jump_switch))]
    pub(crate) fn limit(&self) -> NonNull<u8> {
        self.limit
    }
}

/// Unmaps the slabs of which no slot is in use.
pub(crate) fn trim() {
    for slabs in &SLABS {
        slabs.lock().unmap_idle(0);
    }
}

static SLABS: [Mutex<Slabs>; CLASSES] = [const { Mutex::new(Slabs::new()) }; CLASSES];

/// The slabs of one class.
#[derive(Debug)]
struct Slabs {
    /// By base address.
    all: BTreeMap<usize, Slab>,
    /// Bases of those with a slot to give.
    available: BTreeSet<usize>,
    /// Bases of those of which no slot is in use; a part of `available`.
    idle: BTreeSet<usize>,
}

#[derive(Debug)]
struct Slab {
    mapping: Mapping,
    /// Slots that were used before, and whether each has its guard.
    free: Vec<(u32, bool)>,
    /// Slots from here on were never used.
    fresh: u32,
    in_use: u32,
}

impl Slabs {
    const fn new() -> Self {
        Self { all: BTreeMap::new(), available: BTreeSet::new(), idle: BTreeSet::new() }
    }

    /// Takes a slot: the slab's base, the slot's number, and whether it has its guard already.
    fn take(&mut self, class: Class) -> io::Result<(NonNull<u8>, u32, bool)> {
        let base = match self.available.first() {
            Some(&base) => base,
            None => self.map(class)?,
        };
        let slab = self.all.get_mut(&base).expect("an available slab exists");
        let (slot, guarded) = slab.free.pop().unwrap_or_else(|| {
            slab.fresh += 1;
            (slab.fresh - 1, false)
        });
        slab.in_use += 1;
        self.idle.remove(&base);
        if slab.in_use == class.slots() {
            self.available.remove(&base);
        }
        Ok((slab.mapping.base(), slot, guarded))
    }

    /// Maps a new slab.
    fn map(&mut self, class: Class) -> io::Result<usize> {
        let mapping = Mapping::reserve(class.pitch() * class.slots() as usize)?;
        let base = mapping.base().addr().get();
        let free = Vec::with_capacity(class.slots() as usize);
        self.all.insert(base, Slab { mapping, free, fresh: 0, in_use: 0 });
        self.available.insert(base);
        self.idle.insert(base);
        Ok(base)
    }

    /// Gives back the slot that starts at `address`.
    fn put_address(&mut self, class: Class, address: usize) {
        let (_, slab) = self.all.range(..=address).next_back().expect("a stack's slab exists");
        let base = slab.mapping.base();
        let slot = (address - base.addr().get()) / class.pitch();
        self.put(class, base, slot as u32, true);
    }

    fn put(&mut self, class: Class, base: NonNull<u8>, slot: u32, guarded: bool) {
        let address = base.addr().get();
        let slab = self.all.get_mut(&address).expect("a stack's slab exists");
        debug_assert!(slot < class.slots());
        slab.free.push((slot, guarded));
        slab.in_use -= 1;
        self.available.insert(address);
        if slab.in_use == 0 {
            self.idle.insert(address);
            self.unmap_idle(1);
        }
    }

    /// Unmaps idle slabs until only `keep` are left.
    fn unmap_idle(&mut self, keep: usize) {
        while self.idle.len() > keep {
            let base = self.idle.pop_last().expect("not empty");
            self.available.remove(&base);
            self.all.remove(&base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mmap::{self, fault};

    /// Tests of this file use classes of their own, so that they can count.
    fn class(size: usize) -> Class {
        Class::for_size(size).unwrap()
    }

    #[test]
    fn sizes_are_rounded_up_to_a_class_or_refused() {
        assert_eq!(class(1), class(MIN_SIZE));
        assert_eq!(class(MIN_SIZE + 1).size(), 2 * MIN_SIZE);
        assert_eq!(class(DEFAULT_SIZE), Class::DEFAULT);
        assert_eq!(class(MAX_SIZE).index(), CLASSES - 1);
        for nonsense in [0, MAX_SIZE + 1, usize::MAX] {
            assert_eq!(Class::for_size(nonsense).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn stacks_are_apart_and_start_at_different_offsets_of_different_pages() {
        let class = class(1 << 20);
        let stacks: Vec<_> = (0..8).map(|_| Stack::take(class).unwrap()).collect();
        for (stack, next) in stacks.iter().zip(&stacks[1..]) {
            let apart = next.limit.addr().get() - stack.limit.addr().get();
            assert_eq!(apart / page_size() % 2, 1, "an odd number of pages");
            assert!(stack.start < next.limit);
            let offset = |stack: &Stack| stack.start.addr().get() % page_size();
            assert_ne!(offset(stack), offset(next));
        }
        stacks.into_iter().for_each(|stack| stack.discard(class));
    }

    #[test]
    fn a_refused_mapping_is_an_error_and_a_later_one_succeeds() {
        let class = class(16 << 20);
        fault::fail_from(fault::Call::Mmap, 0);
        let error = Stack::take(class).unwrap_err();
        fault::heal();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        Stack::take(class).unwrap().discard(class);
    }

    #[test]
    fn a_refused_guard_is_an_error_and_loses_no_slot() {
        let class = class(32 << 20);
        let first = Stack::take(class).unwrap();
        let second = {
            fault::fail_from(fault::Call::Guard, 0);
            assert_eq!(Stack::take(class).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
            fault::heal();
            Stack::take(class).unwrap()
        };
        let apart = second.limit.addr().get() - first.limit.addr().get();
        assert_eq!(apart, class.pitch(), "the slot whose guard was refused is taken next");
        first.discard(class);
        second.discard(class);
    }

    #[test]
    fn a_slab_without_stacks_in_use_is_unmapped_when_it_is_the_second_one() {
        let class = class(64 << 20);
        assert_eq!(class.slots(), 1);
        let stacks: Vec<_> = (0..3).map(|_| Stack::take(class).unwrap()).collect();
        let before = mmap::unmapped();
        stacks.into_iter().for_each(|stack| stack.discard(class));
        assert!(mmap::unmapped() >= before + 2);
        assert_eq!(SLABS[class.index()].lock().all.len(), 1);
    }
}
