//! Buffers for payloads, lent again and again. Each thread has its own.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use aioco::block::AlignedBuf;

/// Buffers have addresses fit for direct I/O.
const ALIGNMENT: usize = 4096;

/// The sizes of buffers are this, and its multiples by powers of two.
const SMALLEST: usize = 4096;

/// When no buffer is lent, no more bytes are kept.
const KEPT_IDLE: usize = 4 << 20;

/// What isn't lent is kept, as long as anything is: how much is lent is bounded elsewhere (`Permits`), so this is too.
#[derive(Default)]
pub struct Buffers {
    /// By size.
    kept: RefCell<Vec<Vec<AlignedBuf>>>,
    kept_bytes: Cell<usize>,
    lent: Cell<usize>,
}

impl Buffers {
    /// Lends a buffer of `len` bytes, with whatever content.
    pub fn lend(self: &Rc<Self>, len: usize) -> Lease {
        let size = Self::size(len);
        let kept = self.kept.borrow_mut().get_mut(Self::class(size)).and_then(Vec::pop);
        if kept.is_some() {
            self.kept_bytes.set(self.kept_bytes.get() - size);
        }
        let buffer = kept.unwrap_or_else(|| AlignedBuf::new(size, ALIGNMENT));
        self.lent.set(self.lent.get() + 1);
        Lease { buffer: Some(buffer), len, buffers: self.clone() }
    }

    /// How many bytes a buffer for `len` bytes takes.
    pub fn size(len: usize) -> usize {
        len.next_power_of_two().max(SMALLEST)
    }

    fn class(size: usize) -> usize {
        (size / SMALLEST).ilog2() as usize
    }

    fn take_back(&self, buffer: AlignedBuf) {
        let size = buffer.len();
        let class = Self::class(size);
        let mut kept = self.kept.borrow_mut();
        if kept.len() <= class {
            kept.resize_with(class + 1, Vec::new);
        }
        kept[class].push(buffer);
        self.kept_bytes.set(self.kept_bytes.get() + size);
        self.lent.set(self.lent.get() - 1);
        if self.lent.get() == 0 && self.kept_bytes.get() > KEPT_IDLE {
            // The largest ones go.
            for class in kept.iter_mut().rev() {
                while self.kept_bytes.get() > KEPT_IDLE
                    && let Some(buffer) = class.pop()
                {
                    self.kept_bytes.set(self.kept_bytes.get() - buffer.len());
                }
            }
        }
    }
}

/// A buffer that is lent.
pub struct Lease {
    buffer: Option<AlignedBuf>,
    len: usize,
    buffers: Rc<Buffers>,
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer.as_ref().expect("it is there until the drop")[..self.len]
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut().expect("it is there until the drop")[..self.len]
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.buffers.take_back(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let buffers = Rc::new(Buffers::default());
        let first = buffers.lend(5000);
        let address = first.as_ptr();
        assert_eq!((first.len(), address.addr() % ALIGNMENT), (5000, 0));
        drop(first);
        let again = buffers.lend(8192);
        assert_eq!((again.as_ptr(), again.len()), (address, 8192));
        assert_ne!(buffers.lend(1).as_ptr(), address);
    }

    #[test]
    fn little_is_kept_when_nothing_is_lent() {
        let buffers = Rc::new(Buffers::default());
        let small = buffers.lend(100);
        let many: Vec<_> = (0..20).map(|_| buffers.lend(1 << 20)).collect();
        drop(many);
        assert_eq!(buffers.kept_bytes.get(), 20 << 20);
        drop(small);
        assert!(buffers.kept_bytes.get() <= KEPT_IDLE);
        assert_eq!(buffers.kept.borrow()[0].len(), 1);
    }
}
