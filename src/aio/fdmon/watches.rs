//! A slab of watches that have not fired.
//!
//! A watch's number is its slot's index and generation, so a number that is spent names nothing, whoever has the slot
//! now; inserting, finding and removing take constant time. Numbers are smaller than 2⁵⁶: a back end has eight bits to
//! itself where the kernel takes 64.

use std::task::Waker;

/// Bits of a number that hold the index; as many hold the generation.
const HALF: u32 = 28;
const MASK: u64 = (1 << HALF) - 1;

/// Bits of a number.
pub(super) const BITS: u32 = 2 * HALF;

/// The number of a watch that has fired already; no slot ever has it.
pub(super) const SPENT: u64 = (1 << BITS) - 1;

/// Watches, each with what its back end keeps for it.
#[derive(Debug)]
pub(super) struct Watches<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    /// `None` if the slot is free, or its watch was withdrawn.
    watch: Option<(Waker, T)>,
}

impl<T> Watches<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Adds a watch; returns its number.
    pub(super) fn insert(&mut self, waker: Waker, data: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, watch: None });
            u32::try_from(self.slots.len() - 1).expect("fewer watches than bytes of memory")
        });
        assert!(u64::from(index) < MASK, "2²⁸ watches at once");
        let slot = &mut self.slots[index as usize];
        slot.watch = Some((waker, data));
        u64::from(slot.generation) << HALF | u64::from(index)
    }

    /// What the back end keeps for a watch.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let slot = self.slot(number)?;
        slot.watch.as_mut().map(|(_, data)| data)
    }

    /// Takes out a watch, if it is there, and frees its slot.
    pub(super) fn remove(&mut self, number: u64) -> Option<(Waker, T)> {
        let slot = self.slot(number)?;
        let watch = slot.watch.take();
        slot.generation += 1;
        // A slot whose generations are used up is not used again: no number ever comes twice.
        if u64::from(slot.generation) < MASK {
            self.free.push((number & MASK) as u32);
        }
        watch
    }

    /// Takes out a watch, if it is there, and keeps its slot from being used until [`remove`](Self::remove).
    pub(super) fn withdraw(&mut self, number: u64) -> Option<(Waker, T)> {
        self.slot(number)?.watch.take()
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut((number & MASK) as usize)?;
        (u64::from(slot.generation) == number >> HALF).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::{SPENT, Watches};

    #[test]
    fn a_slot_is_used_again_when_its_watch_is_out_and_not_while_it_is_only_withdrawn() {
        let mut watches = Watches::new();
        let insert = |watches: &mut Watches<u32>, data| watches.insert(Waker::noop().clone(), data);
        let first = insert(&mut watches, 1);
        assert_eq!(watches.withdraw(first).map(|(_, data)| data), Some(1));
        assert!(watches.withdraw(first).is_none() && watches.get_mut(first).is_none());
        let second = insert(&mut watches, 2);
        assert_eq!(watches.slots.len(), 2, "the first slot is kept");
        assert!(watches.remove(first).is_none(), "its watch is out");
        let third = insert(&mut watches, 3);
        assert_eq!(watches.slots.len(), 2, "the first slot is used again");
        assert!(third != first && watches.remove(first).is_none() && watches.get_mut(first).is_none());
        assert_eq!(watches.get_mut(second), Some(&mut 2));
        assert_eq!(watches.remove(third).map(|(_, data)| data), Some(3));
        assert!(watches.remove(SPENT).is_none() && watches.withdraw(u64::MAX).is_none());
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_not_used_again() {
        let mut watches = Watches::new();
        let first = watches.insert(Waker::noop().clone(), ());
        watches.slots[0].generation = super::MASK as u32 - 1;
        let last = ((super::MASK - 1) << super::HALF) | first;
        assert!(watches.remove(last).is_some());
        let other = watches.insert(Waker::noop().clone(), ());
        assert_eq!((watches.slots.len(), other), (2, 1));
    }
}
