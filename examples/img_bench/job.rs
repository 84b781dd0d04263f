//! What is to be done in one run, by all of its threads.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aioco::block::{Engine, Operation};

use crate::pattern::Pattern;
use crate::plan::{Flush, Limit, Op};

/// A run's work. A [`Lane`](crate::lane::Lane) hands it out to the slots of a thread.
pub struct Job {
    pub files: Vec<Extent>,
    pub op: Op,
    pub depth: usize,
    pub threads: usize,
    pub block_size: usize,
    pub sequential: bool,
    /// Distance of offsets, where they go up.
    pub step: u64,
    pub limit: Limit,
    pub flush: Option<Flush>,
    /// Requests per second, of all threads.
    pub rate: Option<f64>,
    /// What the first random numbers come from.
    pub seed: u64,
    /// Whether all that is read is compared with the files' patterns.
    pub check: bool,
    /// What is written, if it isn't the pattern, which is worked out anew for each block.
    pub byte: Option<u8>,
    pub engine: Option<Engine>,
    /// How long loops poll before they sleep.
    pub polling: Duration,
    pub signals: Signals,
}

/// What is read from, and written to, in a file.
#[derive(Clone)]
pub struct Extent {
    pub file: Arc<File>,
    /// The first offset.
    pub start: u64,
    /// The size of the file.
    pub end: u64,
    /// What belongs there.
    pub pattern: Pattern,
}

/// What threads tell each other, and the progress bar, during a run.
#[derive(Default)]
pub struct Signals {
    failed: AtomicBool,
    done: AtomicU64,
}

impl Signals {
    /// Has all lanes end.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Adds to what the progress bar shows.
    pub fn add_done(&self, ios: u64) {
        self.done.fetch_add(ios, Ordering::Relaxed);
    }

    /// I/Os so far, not quite up to date.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

impl Job {
    /// The kind of request that the block layer is asked about.
    pub fn operation(&self) -> Operation {
        if self.op == Op::Write { Operation::Write } else { Operation::Read }
    }
}
