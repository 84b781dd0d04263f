//! The work of one run: which offsets are next, and the memory for them.

use std::cell::{Cell, RefCell};

use super::Direction;
use super::image::{Image, SIZE};
use super::page::{PAGE, Page};

/// What all slots of a run share.
pub struct Load {
    pub image: &'static Image,
    pub direction: Direction,
    pub depth: usize,
    pages: RefCell<Vec<Page>>,
    left: Cell<u64>,
    random: Cell<u64>,
}

impl Load {
    /// With nothing to do yet.
    pub fn new(image: &'static Image, direction: Direction, depth: usize) -> Self {
        let pages = (0..depth).map(|_| Page::new()).collect();
        let random = Cell::new(0x9e37_79b9_7f4a_7c15);
        Self { image, direction, depth, pages: RefCell::new(pages), left: Cell::new(0), random }
    }

    /// So many requests are to be made.
    pub fn begin(&self, count: u64) {
        self.left.set(count);
    }

    /// As [`begin`](Self::begin), with one request a slot.
    pub fn begin_warm_up(&self) {
        self.begin(self.depth as u64);
    }

    /// The offset of the next request, if there is one more.
    #[inline]
    pub fn next(&self) -> Option<u64> {
        self.left.set(self.left.get().checked_sub(1)?);
        // Marsaglia's xorshift.
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        Some((random >> 32) % (SIZE / PAGE as u64) * PAGE as u64)
    }

    /// A slot's memory; to be [given back](Self::give_back).
    pub fn take_page(&self) -> Page {
        self.pages.borrow_mut().pop().expect("there is one for each slot")
    }

    pub fn give_back(&self, page: Page) {
        self.pages.borrow_mut().push(page);
    }
}
