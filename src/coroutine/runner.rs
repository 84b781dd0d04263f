//! Who runs: the innermost coroutine, or else the thread. Locks name their holders so.
//!
//! # Safety
//!
//! A runner that names a coroutine was made from its block, which is never unmapped; of a block that may be another
//! thread's only atomics are read.
#![allow(unsafe_code)]

use std::ptr;

use super::block::Block;
use super::thread::this_thread;
use crate::primitive::atomic::Ordering;

/// Names a coroutine, or a thread outside of coroutines, in a word that isn't 0: the address of the block, with the low
/// bits of its generation on top; or that of the thread's record, which is made odd.
///
/// Two coroutines have the same name if one comes 65 536 generations after the other in the same block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Runner(u64);

/// Linux gives out no higher addresses, unless a program asks for some.
const ADDRESS_BITS: u32 = 48;

impl Runner {
    /// The caller.
    #[inline(always)]
    pub(crate) fn current() -> Self {
        let thread = this_thread();
        thread.current.get().map_or_else(|| Self::thread(ptr::from_ref(thread).addr()), Self::coroutine)
    }

    /// The present tenant of a block of this thread.
    #[inline(always)]
    fn coroutine(block: &'static Block) -> Self {
        let address = ptr::from_ref(block).expose_provenance() as u64;
        Self(address | u64::from(block.state.generation()) << ADDRESS_BITS)
    }

    fn thread(address: usize) -> Self {
        Self(address as u64 | 1)
    }

    /// As a word that isn't 0.
    #[inline(always)]
    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    /// Back from a word, unless it is 0.
    ///
    /// # Safety
    ///
    /// The word is 0 or from [`to_word`](Self::to_word).
    pub(crate) unsafe fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    /// The coroutine's block, of which only the atomics may be looked at.
    fn block(self) -> Option<&'static Block> {
        let address = (self.0 & ((1 << ADDRESS_BITS) - 1)) as usize;
        // SAFETY: the address of a block (invariant of the type), which was exposed; blocks are never unmapped.
        (address & 1 == 0).then(|| unsafe { &*ptr::with_exposed_provenance(address) })
    }

    /// Whether it runs on another thread than the caller, if it runs. A hint.
    pub(crate) fn is_elsewhere(self) -> bool {
        let here = this_thread();
        match self.block() {
            Some(block) => block.thread.load(Ordering::Relaxed) != here.id.get(),
            None => self != Self::thread(ptr::from_ref(here).addr()),
        }
    }

    /// Whether it is suspended in a park. A hint.
    pub(crate) fn is_parked(self) -> bool {
        self.block().is_some_and(|block| block.state.is_parked())
    }

    /// Whether it is a coroutine that a loop of the calling thread drives.
    pub(crate) fn is_driven_here(self) -> bool {
        this_thread().live.borrow().iter().any(|block| Self::coroutine(block) == self)
    }

    /// How messages name the caller.
    pub(crate) fn describe_current() -> String {
        match this_thread().current.get() {
            // SAFETY: the calling coroutine's own block.
            Some(block) => unsafe { block.label() }.to_string(),
            None => match std::thread::current().name() {
                Some(name) => format!("thread \"{name}\""),
                None => String::from("an unnamed thread"),
            },
        }
    }
}
