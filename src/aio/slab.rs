//! A slab: things by numbers that never name another one.
//!
//! A number is its slot's index and generation, so a number that is spent names nothing, whoever has the slot now;
//! inserting, finding and removing take constant time. Numbers are smaller than 2⁵⁶: whoever puts them where the kernel
//! takes 64 bits has eight bits to itself.

/// Bits of a number that hold the index; as many hold the generation.
const HALF: u32 = 28;
const MASK: u64 = (1 << HALF) - 1;

/// Bits of a number.
pub(super) const BITS: u32 = 2 * HALF;

/// The bits of a number.
pub(super) const MAX: u64 = (1 << BITS) - 1;

/// A number that no slot ever has.
pub(super) const SPENT: u64 = MAX;

/// Things by numbers.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    /// `None` if the slot is free, or what it had was withdrawn.
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), len: 0 }
    }

    /// Adds a value; returns its number.
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let number = self.reserve();
        self.put(number, value);
        number
    }

    /// Puts a value where there is none, under a number that was reserved.
    pub(super) fn put(&mut self, number: u64, value: T) {
        let slot = self.slot(number).expect("a number that was reserved");
        slot.value = Some(value);
        self.len += 1;
    }

    /// Takes a slot out of use for a value that is to come; returns its number.
    pub(super) fn reserve(&mut self) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("fewer slots than bytes of memory")
        });
        assert!(u64::from(index) < MASK, "2²⁸ descriptors or deadlines at once");
        u64::from(self.slots[index as usize].generation) << HALF | u64::from(index)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The value of this number.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.slot(number)?.value.as_mut()
    }

    /// Takes out a value, if it is there, and frees its slot.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let value = self.withdraw(number);
        let slot = self.slot(number)?;
        slot.generation += 1;
        // A slot whose generations are used up is not used again: no number ever comes twice.
        if u64::from(slot.generation) < MASK {
            self.free.push((number & MASK) as u32);
        }
        value
    }

    /// Takes out a value, if it is there, and keeps its slot from being used until [`remove`](Self::remove).
    pub(super) fn withdraw(&mut self, number: u64) -> Option<T> {
        let value = self.slot(number)?.value.take()?;
        self.len -= 1;
        Some(value)
    }

    /// Takes out all values and frees all slots.
    pub(super) fn drain(&mut self) -> Vec<T> {
        let numbers: Vec<_> = (0..).zip(&self.slots).map(|(i, slot)| u64::from(slot.generation) << HALF | i).collect();
        numbers.into_iter().filter_map(|number| self.get_mut(number).is_some().then(|| self.remove(number))?).collect()
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut((number & MASK) as usize)?;
        (u64::from(slot.generation) == number >> HALF).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::{HALF, MASK, SPENT, Slab};

    #[test]
    fn a_slot_is_used_again_when_its_value_is_out_and_not_while_it_is_only_withdrawn() {
        let mut slab = Slab::new();
        let first = slab.insert(1);
        assert_eq!(slab.withdraw(first), Some(1));
        assert!(slab.withdraw(first).is_none() && slab.get_mut(first).is_none());
        let second = slab.insert(2);
        assert_eq!(slab.slots.len(), 2, "the first slot is kept");
        assert!(slab.remove(first).is_none(), "its value is out");
        let third = slab.insert(3);
        assert_eq!(slab.slots.len(), 2, "the first slot is used again");
        assert!(third != first && slab.remove(first).is_none() && slab.get_mut(first).is_none());
        assert_eq!(slab.get_mut(second), Some(&mut 2));
        assert_eq!(slab.remove(third), Some(3));
        assert!(slab.remove(SPENT).is_none() && slab.withdraw(u64::MAX).is_none());
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_not_used_again() {
        let mut slab = Slab::new();
        let first = slab.insert(());
        slab.slots[0].generation = MASK as u32 - 1;
        let last = ((MASK - 1) << HALF) | first;
        assert!(slab.remove(last).is_some());
        let other = slab.insert(());
        assert_eq!((slab.slots.len(), other), (2, 1));
    }

    #[test]
    fn what_is_drained_is_gone() {
        let mut slab = Slab::new();
        let numbers = [1, 2, 3].map(|value| slab.insert(value));
        slab.remove(numbers[1]);
        assert_eq!(slab.len(), 2);
        assert_eq!(slab.drain(), [1, 3]);
        assert!(slab.len() == 0 && slab.drain().is_empty() && slab.get_mut(numbers[0]).is_none());
    }
}
