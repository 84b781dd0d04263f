//! The loop around an interface of the kernel's that is used by hand.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use super::{Part, Runner, fill, result};
use crate::Error;
use crate::job::Job;
use crate::lane::{Lane, Next, Step};
use crate::measure::Unavailable;
use crate::raw::{Completion, RawAio, RawQueue, RawRing};

/// A queue, and what its slots do.
struct Loop<'a, Q> {
    job: &'a Job,
    lane: Lane,
    queue: Q,
    /// What each slot does, and since when.
    steps: Vec<Option<(Step, Instant)>>,
    free: Vec<usize>,
    /// With a rate: what is to be submitted when its time comes, in that order.
    waiting: VecDeque<(Step, usize)>,
    /// Flushes of single files that are under way.
    flushes: usize,
}

pub fn ring(job: &Arc<Job>, lane: Lane, runner: Runner) -> Result<Part, Error> {
    let ring = RawRing::new(&files(job), job.depth, job.block_size).map_err(no_ring)?;
    run(job, lane, runner, ring, "io_uring, by hand, with registered files and buffers (asked for by the mode)")
}

pub fn linux_aio(job: &Arc<Job>, lane: Lane, runner: Runner) -> Result<Part, Error> {
    let context = RawAio::new(&files(job), job.depth, job.block_size).map_err(no_linux_aio)?;
    run(job, lane, runner, context, "Linux AIO, by hand (asked for by the mode)")
}

fn files(job: &Job) -> Vec<BorrowedFd<'_>> {
    job.files.iter().map(|extent| extent.file.as_fd()).collect()
}

fn run(job: &Job, lane: Lane, mut runner: Runner, mut queue: impl RawQueue, engine: &str) -> Result<Part, Error> {
    (0..job.depth).for_each(|slot| fill(job, queue.block(slot)));
    let free = (0..job.depth).rev().collect();
    let steps = vec![None; job.depth];
    let mut this = Loop { job, lane, queue, steps, free, waiting: VecDeque::new(), flushes: 0 };

    runner.start();
    let calls_before = this.queue.calls();
    let now = this.lane.begin();
    this.fill_queue(now);
    while this.queue.in_flight() > 0 || !this.waiting.is_empty() {
        this.turn()?;
    }
    let ended = Instant::now();
    let calls = this.queue.calls() - calls_before;
    runner.end();

    Ok(Part { figures: this.lane.into_figures(ended)?, calls, engine: engine.to_owned() })
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

fn no_linux_aio(error: io::Error) -> Error {
    let hint = match error.raw_os_error() {
        Some(libc::EAGAIN) => ": the limit fs.aio-max-nr allows no more requests",
        Some(libc::ENOSYS) => ": this kernel has no Linux AIO, or a filter forbids it",
        Some(libc::EPERM | libc::EACCES) => ": this system forbids it",
        _ => "",
    };
    Unavailable(format!("cannot use Linux AIO by hand: {error}{hint}")).into()
}

impl<Q: RawQueue> Loop<'_, Q> {
    /// Submits, waits, and goes on with what has completed.
    fn turn(&mut self) -> Result<(), Error> {
        let deadline = self.waiting.front().and_then(|(step, _)| step.not_before);
        self.queue.enter(deadline).map_err(|error| format!("the kernel takes no requests: {error}"))?;
        while let Some(completion) = self.queue.next_completion() {
            let now = Instant::now();
            match completion {
                Completion::Transfer { slot, result: returned } => {
                    let (step, begun) = self.steps[slot].take().expect("it is this slot's request that completes");
                    self.lane.finished(&step, now - begun, result(returned), self.queue.block(slot));
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
                    (0..self.job.files.len()).for_each(|file| self.queue.flush(file));
                }
                Next::Hold | Next::End => return self.free.push(slot),
            }
        }
    }

    fn submit(&mut self, slot: usize, step: Step, now: Instant) {
        Lane::prepare(self.job, &step, self.queue.block(slot));
        match step.is_write {
            true => self.queue.write(slot, step.file, step.offset),
            false => self.queue.read(slot, step.file, step.offset),
        }
        self.steps[slot] = Some((step, now));
    }
}
