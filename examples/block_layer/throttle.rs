//! A filter that lets so many requests a second through; see [`rate`](crate::rate).

use std::io;
use std::rc::Rc;

use crate::driver::{BlockDriver, Shortcut};
use crate::rate::Rate;

pub struct Throttle {
    below: Rc<dyn BlockDriver>,
    per_second: u32,
    rate: Rate,
}

impl Throttle {
    pub fn new(below: Rc<dyn BlockDriver>, per_second: u32) -> Self {
        Self { below, per_second, rate: Rate::new(per_second) }
    }
}

impl BlockDriver for Throttle {
    fn describe(&self) -> String {
        format!("throttle to {} requests/s", self.per_second)
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn below(&self) -> Option<&Rc<dyn BlockDriver>> {
        Some(&self.below)
    }

    /// As long as the rate isn't reached, nobody waits here.
    fn shortcut(&self, offset: u64, len: usize) -> Option<Shortcut> {
        let shortcut = self.below.shortcut(offset, len)?;
        self.rate.try_pass().then_some(shortcut)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.rate.pass();
        self.below.read(buffer, offset)
    }

    fn write(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.rate.pass();
        self.below.write(buffer, offset)
    }

    fn hurry(&self) {
        self.rate.hurry();
    }

    fn close(&self) -> io::Result<()> {
        Ok(())
    }
}
