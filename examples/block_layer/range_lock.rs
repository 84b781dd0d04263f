//! Ranges of blocks that one coroutine has to itself.

use std::cell::RefCell;
use std::ops::Range;
use std::task::Waker;

use aioco::park;

/// Locks ranges: of those that overlap, one is locked at a time.
#[derive(Default)]
pub struct RangeLock {
    locked: RefCell<Vec<Range<u64>>>,
    waiting: RefCell<Vec<Waker>>,
}

impl RangeLock {
    /// Parks the coroutine until nobody has any part of the range; unlocked when the guard is dropped, also by a panic.
    pub fn lock(&self, range: Range<u64>) -> RangeGuard<'_> {
        while self.is_locked(&range) {
            self.waiting.borrow_mut().push(park::waker());
            park::park();
        }
        self.locked.borrow_mut().push(range.clone());
        RangeGuard { lock: self, range }
    }

    fn is_locked(&self, range: &Range<u64>) -> bool {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        self.locked.borrow().iter().any(overlaps)
    }
}

/// A range that is locked.
pub struct RangeGuard<'a> {
    lock: &'a RangeLock,
    range: Range<u64>,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut locked = self.lock.locked.borrow_mut();
        let place = locked.iter().position(|range| *range == self.range).expect("it has been locked");
        locked.swap_remove(place);
        // In the order in which they came; those that wait for another range look again in vain.
        self.lock.waiting.take().into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use aioco::{AioContext, yield_now};

    use super::*;

    #[test]
    fn ranges_that_overlap_take_turns() {
        let context = AioContext::new().unwrap();
        let lock = Rc::new(RangeLock::default());
        let inside = Rc::new(Cell::new(0));
        let work = |range: Range<u64>| {
            let (lock, inside) = (lock.clone(), inside.clone());
            move || {
                for _ in 0..10 {
                    let _guard = lock.lock(range.clone());
                    assert_eq!(inside.replace(1), 0);
                    yield_now();
                    inside.set(0);
                }
            }
        };
        let coroutines = [0..2, 1..3, 1..2].map(|range| context.spawn_local(work(range)).unwrap());
        for coroutine in coroutines {
            coroutine.join().unwrap();
        }
        assert!(lock.locked.borrow().is_empty());
    }

    #[test]
    fn neighbours_do_not_wait() {
        let lock = RangeLock::default();
        let _first = lock.lock(0..2);
        let _second = lock.lock(2..3);
        assert!(lock.is_locked(&(1..2)) && !lock.is_locked(&(3..4)));
    }
}
