//! A filter that knows a sum of each block, and refuses blocks that have changed behind its back.
//!
//! The sums are in memory, and in a file of their own while the chain is closed. A block whose sum isn't known is taken
//! as it is, and known from then on.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use aioco::block;

use crate::driver::{BLOCK, BlockDriver, Shortcut};
use crate::range_lock::RangeLock;

/// What a table of sums begins with; the size of the image comes next.
const MAGIC: [u8; 8] = *b"aiocosum";

/// In bytes.
const HEADER: usize = 16;

/// The sum of a block that isn't known.
const UNKNOWN: u64 = 0;

pub struct Checksum {
    below: Rc<dyn BlockDriver>,
    table: block::File,
    sums: RefCell<Vec<u64>>,
    /// A read that met a write on the way would see new data with an old sum, or the other way round.
    busy: RangeLock,
}

impl Checksum {
    /// With the sums from a table; an empty file is one that knows nothing.
    ///
    /// # Errors
    ///
    /// If the file is something else, or the table of an image of another size.
    pub fn new(below: Rc<dyn BlockDriver>, table: block::File) -> io::Result<Self> {
        let sums = RefCell::new(load(&table, below.size())?);
        Ok(Self { below, table, sums, busy: RangeLock::default() })
    }
}

impl BlockDriver for Checksum {
    fn describe(&self) -> String {
        "checksum".to_owned()
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn below(&self) -> Option<&Rc<dyn BlockDriver>> {
        Some(&self.below)
    }

    /// There is something to do before and after each request: that takes a coroutine.
    fn shortcut(&self, _: u64, _: usize) -> Option<Shortcut> {
        None
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let blocks = blocks(offset, buffer.len());
        let _guard = self.busy.lock(blocks.clone());
        self.below.read(buffer, offset)?;
        let mut sums = self.sums.borrow_mut();
        for (block, data) in blocks.zip(buffer.chunks(BLOCK)) {
            let (known, found) = (&mut sums[block as usize], sum(data));
            if *known == UNKNOWN {
                *known = found;
            } else if *known != found {
                let message = format!("block {block} isn't what was written: its sum is {found:#x}, not {known:#x}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        }
        Ok(())
    }

    fn write(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let blocks = blocks(offset, buffer.len());
        let _guard = self.busy.lock(blocks.clone());
        // If it fails, or is cancelled, nobody knows what is there.
        self.sums.borrow_mut()[blocks.start as usize..blocks.end as usize].fill(UNKNOWN);
        self.below.write(buffer, offset)?;
        let mut sums = self.sums.borrow_mut();
        for (block, data) in blocks.zip(buffer.chunks(BLOCK)) {
            sums[block as usize] = sum(data);
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        let mut bytes = header(self.size()).to_vec();
        bytes.extend(self.sums.borrow().iter().flat_map(|sum| sum.to_le_bytes()));
        self.table.write_all_at(&bytes, 0)?;
        self.table.flush()
    }
}

fn blocks(offset: u64, len: usize) -> Range<u64> {
    let block = BLOCK as u64;
    offset / block..(offset + len as u64) / block
}

/// Fowler, Noll and Vo's hash, by words. (A driver for disks would take a CRC, which knows what disks do wrong.)
fn sum(data: &[u8]) -> u64 {
    let (words, _) = data.as_chunks();
    let mix = |sum: u64, word: &[u8; 8]| (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x0100_0000_01b3);
    words.iter().fold(0xcbf2_9ce4_8422_2325, mix).max(UNKNOWN + 1)
}

fn header(size: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..].copy_from_slice(&size.to_le_bytes());
    header
}

fn load(table: &block::File, size: u64) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; HEADER + size as usize / BLOCK * 8];
    let len = table.read_at(&mut bytes, 0)?;
    if len == 0 {
        return Ok(vec![UNKNOWN; size as usize / BLOCK]);
    }
    if len < bytes.len() || bytes[..HEADER] != header(size) {
        let message = format!("the table of sums doesn't belong to an image of {size} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let (sums, _) = bytes[HEADER..].as_chunks();
    Ok(sums.iter().map(|sum| u64::from_le_bytes(*sum)).collect())
}
