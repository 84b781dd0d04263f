//! Memory for direct I/O.
//!
//! # Safety
//!
//! The memory is owned, zeroed at first, has the layout that is stored with it, and goes back where it came from: to
//! the arena, if its address is there, or else to the allocator.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use crate::arena;

/// A buffer at an aligned address, as direct I/O needs it. Zeroed at first.
///
/// Most lie in memory that contexts register with their rings once they have used it for some requests; see
/// [the module](super#registration). So it mustn't be discarded or mapped anew behind the buffer's back (madvise(2),
/// mmap(2)): requests would go on with the old pages.
///
/// ```
/// use aioco::block::AlignedBuf;
/// let buffer = AlignedBuf::new(65536, 4096);
/// assert!(buffer.as_ptr().addr() % 4096 == 0 && buffer.len() == 65536);
/// ```
pub struct AlignedBuf {
    /// Dangling if the buffer is empty.
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, as a `Box<[u8]>` does.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len` bytes.
    ///
    /// # Panics
    ///
    /// If `alignment` isn't a power of two, or the length, rounded up to it, is more than `isize` can hold.
    pub fn new(len: usize, alignment: usize) -> Self {
        let layout = Layout::from_size_align(len, alignment).expect("a power of two, and a length that fits");
        if len == 0 {
            return Self { start: NonNull::without_provenance(layout.align().try_into().expect("not zero")), layout };
        }
        if let Some(start) = arena::allocate(layout) {
            return Self { start, layout };
        }
        // SAFETY: the size isn't zero.
        let start = unsafe { alloc_zeroed(layout) };
        Self { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are ours, and initialized.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and exclusively borrowed.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.layout.size() == 0 {
            return;
        }
        // SAFETY: allocated there, with this layout.
        unsafe {
            match arena::chunk_of(self.start.as_ptr(), self.layout.size()) {
                Some(_) => arena::free(self.start, self.layout),
                None => dealloc(self.start.as_ptr(), self.layout),
            }
        }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len()).field("alignment", &self.layout.align()).finish()
    }
}
