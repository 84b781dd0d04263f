//! Memory that `O_DIRECT` accepts, from safe code.

use std::collections::TryReserveError;
use std::io;
use std::ops::{Deref, DerefMut};

/// Enough for every logical block size, and for the DMA engines behind them.
pub const ALIGNMENT: usize = 4096;

/// A buffer that starts at a multiple of [`ALIGNMENT`].
#[derive(Debug)]
pub struct AlignedBuf {
    /// Larger than asked for, and never reallocated.
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    pub fn new(len: usize) -> io::Result<AlignedBuf> {
        let out_of_memory = |error: TryReserveError| io::Error::new(io::ErrorKind::OutOfMemory, error);
        let size = len.saturating_add(ALIGNMENT - 1);
        let mut memory = Vec::new();
        memory.try_reserve_exact(size).map_err(out_of_memory)?;
        memory.resize(size, 0);
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Ok(AlignedBuf { memory, start, len })
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_and_of_the_length_asked_for() {
        for len in [0, 1, 512, 4096, 1 << 20] {
            let mut buffer = AlignedBuf::new(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT));
            buffer.fill(1);
        }
    }

    #[test]
    fn too_much_is_an_error() {
        assert_eq!(AlignedBuf::new(usize::MAX).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }
}
