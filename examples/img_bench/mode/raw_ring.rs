//! The loop around a ring that is written by hand.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use super::{Part, Runner, fill, result};
use crate::Error;
use crate::job::Job;
use crate::lane::{Lane, Next, Step};
use crate::measure::Unavailable;
use crate::raw_ring::{Completion, RawRing};

/// A ring, and what its slots do.
struct Loop<'a> {
    job: &'a Job,
    lane: Lane,
    ring: RawRing,
    /// What each slot does, and since when.
    steps: Vec<Option<(Step, Instant)>>,
    free: Vec<usize>,
    /// With a rate: what is to be submitted when its time comes, in that order.
    waiting: VecDeque<(Step, usize)>,
    /// Flushes of single files that are under way.
    flushes: usize,
}

pub fn run(job: &Arc<Job>, lane: Lane, mut runner: Runner) -> Result<Part, Error> {
    let files: Vec<_> = job.files.iter().map(|extent| extent.file.as_fd()).collect();
    let mut ring = RawRing::new(&files, job.depth, job.block_size).map_err(no_ring)?;
    (0..job.depth).for_each(|slot| fill(job, ring.block(slot)));
    let free = (0..job.depth).rev().collect();
    let steps = vec![None; job.depth];
    let mut this = Loop { job, lane, ring, steps, free, waiting: VecDeque::new(), flushes: 0 };

    runner.start();
    let calls_before = this.ring.enters();
    let now = this.lane.begin();
    this.fill_queue(now);
    while this.ring.in_flight() > 0 || !this.waiting.is_empty() {
        this.turn()?;
    }
    let ended = Instant::now();
    let calls = this.ring.enters() - calls_before;
    runner.end();

    let engine = "io_uring, by hand, with registered files and buffers (asked for by the mode)".to_owned();
    Ok(Part { figures: this.lane.into_figures(ended)?, calls, engine })
}

fn no_ring(error: io::Error) -> Error {
    let hint = match error.raw_os_error() {
        Some(libc::ENOMEM) => ": the limit of locked memory (RLIMIT_MEMLOCK) is too low for its buffers",
        Some(libc::ENOSYS) => ": this kernel has no io_uring",
        Some(libc::EPERM) => ": this system forbids io_uring",
        Some(libc::EINVAL) => ": it takes Linux 6.1 or later",
        _ => "",
    };
    Unavailable(format!("cannot make a ring by hand: {error}{hint}")).into()
}

impl Loop<'_> {
    /// Submits, waits, and goes on with what has completed.
    fn turn(&mut self) -> Result<(), Error> {
        let deadline = self.waiting.front().and_then(|(step, _)| step.not_before);
        self.ring.enter(deadline).map_err(|error| format!("io_uring_enter failed: {error}"))?;
        while let Some(completion) = self.ring.next_completion() {
            let now = Instant::now();
            match completion {
                Completion::Transfer { slot, result: returned } => {
                    let (step, begun) = self.steps[slot].take().expect("it is this slot's request that completes");
                    self.lane.finished(&step, now - begun, result(returned), self.ring.block(slot));
                    self.free.push(slot);
                }
                Completion::Flush { result: returned } => {
                    self.flushes -= 1;
                    let flushed = result(returned).map(drop);
                    if self.flushes == 0 || flushed.is_err() {
                        self.lane.flushed(flushed);
                    }
                }
            }
            self.fill_queue(now);
        }
        if deadline.is_some() {
            let now = Instant::now();
            let is_due = |(step, _): &mut (Step, usize)| step.not_before.is_none_or(|at| at <= now);
            while let Some((step, slot)) = self.waiting.pop_front_if(is_due) {
                self.submit(slot, step, now);
            }
        }
        Ok(())
    }

    /// Gives free slots something to do.
    fn fill_queue(&mut self, now: Instant) {
        while let Some(slot) = self.free.pop() {
            match self.lane.next(now) {
                Next::Transfer(step) if step.not_before.is_some() => self.waiting.push_back((step, slot)),
                Next::Transfer(step) => self.submit(slot, step, now),
                Next::Flush { .. } => {
                    self.free.push(slot);
                    self.flushes += self.job.files.len();
                    (0..self.job.files.len()).for_each(|file| self.ring.flush(file));
                }
                Next::Hold | Next::End => return self.free.push(slot),
            }
        }
    }

    fn submit(&mut self, slot: usize, step: Step, now: Instant) {
        Lane::prepare(self.job, &step, self.ring.block(slot));
        match step.is_write {
            true => self.ring.write(slot, step.file, step.offset),
            false => self.ring.read(slot, step.file, step.offset),
        }
        self.steps[slot] = Some((step, now));
    }
}
