//! The memory of one request.

use std::ops::{Deref, DerefMut};

/// How much a request moves.
pub const PAGE: usize = 4096;

/// A page, aligned for direct I/O. It stays in place when it is moved.
pub struct Page(Box<Aligned>);

#[repr(align(4096))]
struct Aligned([u8; PAGE]);

impl Page {
    /// One that is there already: the kernel needn't find memory for it while somebody is timed.
    pub fn new() -> Self {
        Self(Box::new(Aligned([0xa5; PAGE])))
    }
}

impl Deref for Page {
    type Target = [u8; PAGE];

    fn deref(&self) -> &Self::Target {
        &self.0.0
    }
}

impl DerefMut for Page {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0.0
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
