//! A bound on what the coroutines of a thread have of something: requests in flight, bytes of buffers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use aioco::park;

/// So many permits, and a line of those who wait for some: first come, first served.
pub struct Permits {
    total: usize,
    left: Cell<usize>,
    line: RefCell<VecDeque<(u64, Waker)>>,
    tickets: Cell<u64>,
}

impl Permits {
    pub fn new(total: usize) -> Rc<Self> {
        Rc::new(Self { total, left: Cell::new(total), line: RefCell::default(), tickets: Cell::new(0) })
    }

    /// Waits until `count` permits can be had, or all, if there are fewer. For none there is no wait.
    pub fn acquire(self: &Rc<Self>, count: usize) -> Permit {
        let count = count.min(self.total);
        if count == 0 || self.line.borrow().is_empty() && self.left.get() >= count {
            return self.take(count);
        }
        let ticket = self.tickets.replace(self.tickets.get() + 1);
        self.line.borrow_mut().push_back((ticket, park::waker()));
        let _place = InLine { permits: self, ticket };
        loop {
            park::park();
            let is_first = self.line.borrow().front().is_some_and(|&(first, _)| first == ticket);
            if is_first && self.left.get() >= count {
                return self.take(count);
            }
        }
    }

    /// Waits until nobody has a permit.
    pub fn wait_for_all(self: &Rc<Self>) {
        self.acquire(self.total);
    }

    fn take(self: &Rc<Self>, count: usize) -> Permit {
        self.left.set(self.left.get() - count);
        Permit { permits: self.clone(), count }
    }

    fn wake_first(&self) {
        if let Some((_, waker)) = self.line.borrow().front() {
            waker.wake_by_ref();
        }
    }
}

/// Some permits, given back when this is dropped.
pub struct Permit {
    permits: Rc<Permits>,
    count: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.left.set(self.permits.left.get() + self.count);
        self.permits.wake_first();
    }
}

/// A place in the line, left also by a coroutine that is unwound.
struct InLine<'a> {
    permits: &'a Permits,
    ticket: u64,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.permits.line.borrow_mut().retain(|&(ticket, _)| ticket != self.ticket);
        self.permits.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aioco::{AioContext, yield_now};

    #[test]
    fn first_come_first_served() {
        let context = AioContext::new().unwrap();
        let permits = Permits::new(10);
        let order = Rc::new(RefCell::new(Vec::new()));
        let all = permits.acquire(100);
        let waiters = [7, 2, 5].map(|count| {
            let (permits, order) = (permits.clone(), order.clone());
            let wait = move || {
                let _permit = permits.acquire(count);
                order.borrow_mut().push(count);
                yield_now();
            };
            context.spawn_local(wait).unwrap()
        });
        context.block_on(|| {
            yield_now();
            assert!(order.borrow().is_empty());
            drop(all);
        });
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        assert_eq!(*order.borrow(), [7, 2, 5]);
        context.block_on(|| permits.wait_for_all());
    }

    #[test]
    fn who_gives_up_is_not_in_the_way() {
        let context = AioContext::new().unwrap();
        let permits = Permits::new(1);
        let one = permits.acquire(1);
        let [first, second] = [(); 2].map(|()| {
            let permits = permits.clone();
            context.spawn_local(move || drop(permits.acquire(1))).unwrap()
        });
        context.block_on(yield_now);
        first.cancel();
        drop(one);
        assert!(first.join().is_err());
        second.join().unwrap();
    }
}
