//! The bottom of a chain: a file, or a block device, as it is.

use std::io;
use std::rc::Rc;

use aioco::block::{self, Operation};

use crate::driver::{BlockDriver, Shortcut};
use crate::image::Image;

pub struct Raw {
    file: Rc<block::File>,
    size: u64,
    is_writable: bool,
}

impl Raw {
    pub fn new(image: &Image) -> io::Result<Self> {
        let file = Rc::new(block::File::new(image.file.try_clone()?)?);
        Ok(Self { file, size: image.size, is_writable: image.is_writable })
    }
}

impl BlockDriver for Raw {
    fn describe(&self) -> String {
        format!("raw, reads {}", self.file.engine(Operation::Read))
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn below(&self) -> Option<&Rc<dyn BlockDriver>> {
        None
    }

    fn shortcut(&self, offset: u64, _: usize) -> Option<Shortcut> {
        Some(Shortcut { file: self.file.clone(), offset })
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buffer, offset)
    }

    fn close(&self) -> io::Result<()> {
        if self.is_writable { self.file.flush() } else { Ok(()) }
    }
}
