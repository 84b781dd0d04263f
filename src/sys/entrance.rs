//! The way into a ring: by its descriptor, or by its place among the rings that the thread has registered, where the
//! kernel needn't look up and hold the file: that saves some 35 ns of a call that takes 270 and does nothing.
//!
//! References: io_uring_enter(2) (`IORING_ENTER_REGISTERED_RING` since Linux 5.18), io_uring_register(2).
//!
//! # Safety
//!
//! A place is the thread's: an entrance that has one is used and dropped on the thread that made it, while the ring is
//! there; in a child that was forked meanwhile it is only [disowned](Entrance::disown) and dropped.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::RawFd;
use std::ptr;

// From the kernel's interface; the C library has no names for them.
const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;
const ENTER_REGISTERED_RING: u32 = 1 << 4;

/// As the kernel defines it (`io_uring_rsrc_update`).
#[repr(C)]
#[derive(Debug)]
struct Update {
    /// The place; the first that is vacant, if it is this.
    place: u32,
    reserved: u32,
    fd: u64,
}

const FIRST_VACANT: u32 = u32::MAX;

/// How the calling thread enters a ring.
#[derive(Debug)]
pub(super) struct Entrance {
    fd: RawFd,
    /// Its place among the thread's rings, of which there are 16.
    place: Option<u32>,
}

impl Entrance {
    /// The entrance of a ring for the calling thread.
    pub(super) fn new(fd: RawFd) -> Self {
        let mut update = Update { place: FIRST_VACANT, reserved: 0, fd: fd as u64 };
        // SAFETY: it is an array of one, which the kernel fills in.
        let count = unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, &raw mut update, 1) };
        Self { fd, place: (count == 1).then_some(update.place) }
    }

    /// io_uring_enter(2), with an argument if `IORING_ENTER_EXT_ARG` is among the flags.
    ///
    /// # Safety
    ///
    /// The argument, and what it refers to, is what the kernel takes for one, and what is queued in the ring names
    /// memory as whoever queued it has promised.
    pub(super) unsafe fn enter<T>(&self, submit: u32, want: u32, flags: u32, args: Option<&T>) -> io::Result<()> {
        let (ring, flags) = match self.place {
            Some(place) => (place, flags | ENTER_REGISTERED_RING),
            None => (self.fd as u32, flags),
        };
        let args = args.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: contract.
        match unsafe { libc::syscall(libc::SYS_io_uring_enter, ring, submit, want, flags, args, size_of::<T>()) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Forgets its place: this process was forked from the one whose thread has it.
    pub(super) fn disown(&mut self) {
        self.place = None;
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let update = Update { place, reserved: 0, fd: 0 };
        // SAFETY: it is an array of one, and the place is ours.
        unsafe { libc::syscall(libc::SYS_io_uring_register, self.fd, UNREGISTER_RING_FDS, &raw const update, 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::IoUring;
    use std::os::fd::AsRawFd;

    #[test]
    fn places_are_given_back_and_who_finds_none_enters_by_the_descriptor() {
        let rings: Vec<_> = match (0..20).map(|_| IoUring::new(1)).collect::<io::Result<_>>() {
            Ok(rings) => rings,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let all = || rings.iter().map(|ring: &IoUring| Entrance::new(ring.as_raw_fd())).collect::<Vec<_>>();
        let count = |entrances: &[Entrance]| entrances.iter().filter(|entrance| entrance.place.is_some()).count();
        let first = all();
        if count(&first) == 0 {
            return println!("SKIPPED: no ring can be registered");
        }
        assert_eq!(count(&first), 16);
        for entrance in &first {
            // SAFETY: nothing is queued, and no argument is announced.
            unsafe { entrance.enter(0, 0, 0, Some(&())) }.expect("an empty queue");
        }
        drop(first);
        let mut second = all();
        assert_eq!(count(&second), 16);
        let mut lost = second.swap_remove(0);
        lost.disown();
        // SAFETY: as above.
        unsafe { lost.enter(0, 0, 0, Some(&())) }.expect("it goes by the descriptor");
        drop((lost, second));
        assert_eq!(count(&all()), 15, "what was disowned is left alone");
    }
}
