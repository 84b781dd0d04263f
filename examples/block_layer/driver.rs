//! What a layer is.

use std::io;
use std::rc::Rc;

use aioco::block;

/// Requests are made of whole blocks of this many bytes.
pub const BLOCK: usize = 4096;

/// A layer of a chain: a filter, or what is at the bottom.
///
/// All of a chain lives on one thread, and in one context; so drivers keep their state in `Cell`s, and take no locks
/// between threads. What is true before a call that may park needn't be true after it, though: meanwhile other
/// coroutines run.
pub trait BlockDriver {
    /// What it is, for people.
    fn describe(&self) -> String;

    /// How many bytes there are; whole [blocks](BLOCK).
    fn size(&self) -> u64;

    /// The layer below, if this one isn't the last.
    fn below(&self) -> Option<&Rc<dyn BlockDriver>>;

    /// Where a read can go without a coroutine: if neither this layer nor those below have to wait before it, or to
    /// look at the data after it.
    ///
    /// A layer that says yes has done its part: the caller makes this read, without asking again. So ask the layer
    /// below first.
    fn shortcut(&self, offset: u64, len: usize) -> Option<Shortcut>;

    /// Fills the buffer. Called in a coroutine, which it may park.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of the buffer. Called in a coroutine, which it may park.
    fn write(&self, buffer: &[u8], offset: u64) -> io::Result<()>;

    /// The requests that are under way are to come to an end soon, and no others come: whoever holds some back on
    /// purpose lets them go.
    fn hurry(&self) {}

    /// Puts away what this layer still has. No requests are under way, and none come any more; the layers below are
    /// open still. Called in a coroutine, which it may park.
    fn close(&self) -> io::Result<()>;
}

/// Where a read goes that bypasses the chain.
pub struct Shortcut {
    pub file: Rc<block::File>,
    pub offset: u64,
}

/// The layers of a chain, from top to bottom.
pub fn layers(top: &Rc<dyn BlockDriver>) -> impl Iterator<Item = &Rc<dyn BlockDriver>> {
    std::iter::successors(Some(top), |layer| layer.below())
}

#[cfg(test)]
pub mod tests {
    use std::cell::{Cell, RefCell};
    use std::task::Waker;

    use aioco::park;

    use super::*;

    /// A layer that does nothing but to say what happens to it, and to hold requests until it is told to let go.
    #[derive(Default)]
    pub struct Fake {
        pub name: &'static str,
        pub below: Option<Rc<dyn BlockDriver>>,
        pub log: Rc<RefCell<Vec<String>>>,
        pub holds: Cell<bool>,
        pub fails_to_close: bool,
        pub waiting: RefCell<Vec<Waker>>,
    }

    impl Fake {
        pub fn let_go(&self) {
            self.holds.set(false);
            self.waiting.take().into_iter().for_each(Waker::wake);
        }

        fn note(&self, what: &str) {
            self.log.borrow_mut().push(format!("{}: {what}", self.name));
        }

        fn pass(&self, what: &str) -> io::Result<()> {
            while self.holds.get() {
                self.waiting.borrow_mut().push(park::waker());
                park::park();
            }
            self.note(what);
            Ok(())
        }
    }

    impl BlockDriver for Fake {
        fn describe(&self) -> String {
            self.name.to_owned()
        }

        fn size(&self) -> u64 {
            16 * BLOCK as u64
        }

        fn below(&self) -> Option<&Rc<dyn BlockDriver>> {
            self.below.as_ref()
        }

        fn shortcut(&self, _: u64, _: usize) -> Option<Shortcut> {
            None
        }

        fn read(&self, _: &mut [u8], _: u64) -> io::Result<()> {
            self.pass("read")
        }

        fn write(&self, _: &[u8], _: u64) -> io::Result<()> {
            self.pass("write")
        }

        fn hurry(&self) {
            self.note("hurry");
        }

        fn close(&self) -> io::Result<()> {
            self.note("close");
            if self.fails_to_close { Err(io::Error::other(self.name)) } else { Ok(()) }
        }
    }
}
