//! What clients are granted.

use std::io;
use std::time::{Duration, Instant};

/// The bounds of the server, which clients can't exceed whatever they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connections: usize,
    /// Requests in flight, of a connection.
    pub depth: usize,
    /// Bytes of payloads in flight, of all connections of a thread.
    pub memory: usize,
    pub patience: Patience,
}

/// How long we wait for a client that owes us something, or that has something to take from us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience(pub Duration);

/// Until when so many bytes have to be through, and another one for each so many.
const PART: usize = 1 << 20;

impl Patience {
    /// For anything to happen.
    pub fn wait(self) -> Duration {
        self.0
    }

    /// For `len` bytes. Who sends a byte now and then keeps us waiting, too.
    pub fn deadline(self, len: usize) -> Deadline {
        let parts = 1 + (len / PART) as u32;
        Deadline(self.0.checked_mul(parts).and_then(|time| Instant::now().checked_add(time)))
    }
}

/// The end of patience; `None` is never.
pub struct Deadline(Option<Instant>);

impl Deadline {
    pub fn check(&self) -> io::Result<()> {
        if self.0.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}
