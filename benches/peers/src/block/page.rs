//! The memory of one request.

use std::ops::{Deref, DerefMut};

use ::aioco::block::AlignedBuf;

/// How much a request moves.
pub const PAGE: usize = 4096;

/// A page, aligned for direct I/O. It stays in place when it is moved.
pub struct Page(AlignedBuf);

impl Page {
    /// One that is there already: the kernel needn't find memory for it while somebody is timed.
    pub fn new() -> Self {
        let mut page = AlignedBuf::new(PAGE, PAGE);
        page.fill(0xa5);
        Self(page)
    }
}

impl Deref for Page {
    type Target = [u8; PAGE];

    fn deref(&self) -> &Self::Target {
        self.0.first_chunk().expect("so long it is")
    }
}

impl DerefMut for Page {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.first_chunk_mut().expect("so long it is")
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self[..]
    }
}

impl AsMut<[u8]> for Page {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self[..]
    }
}
