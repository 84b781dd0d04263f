//! One thread's part of a run: which request comes next, and what has become of the others.
//!
//! A *slot* is whatever carries out one request after the other: a coroutine, a chain of callbacks, a block of a ring. It
//! asks [`next`](Lane::next) what to do, does it, and reports that by [`finished`](Lane::finished) or
//! [`flushed`](Lane::flushed). All modes run by the same lane, so what it takes is in all figures alike: a look at the
//! clock for each request, a random number, and a count in the histogram.
//!
//! With a flush interval that drains, slots that would begin a request while a flush is due or under way are told to
//! hold; the one that finishes last makes the flush. After that, and whenever a slot is told to end, those that hold have
//! to ask again: nothing else would have them do so.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Error;
use crate::job::Job;
use crate::pattern::SplitMix64;
use crate::plan::{Limit, Op};

/// Longer latencies than this are recorded as this.
const LONGEST: Duration = Duration::from_secs(3600);

/// A rate that couldn't be kept up is caught up with so much at most.
const MOST_BACKLOG: Duration = Duration::from_millis(10);

/// Between two reports to the progress bar.
const REPORT: u64 = 256;

/// What a slot is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Transfer(Step),
    /// Flush all files. If the slot isn't to wait for it (`alongside`), it asks again at once.
    Flush {
        alongside: bool,
    },
    /// Nothing, for now.
    Hold,
    /// Nothing any more.
    End,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number.
    pub file: usize,
    pub offset: u64,
    pub is_write: bool,
    /// With a rate, when it may be submitted.
    pub not_before: Option<Instant>,
}

/// One thread's part of a run.
pub struct Lane {
    job: Arc<Job>,
    random: SplitMix64,
    /// Where each file is read from next, if offsets go up.
    positions: Vec<u64>,
    /// Blocks of all files together.
    blocks: u64,
    handed_out: u64,
    count: u64,
    begun: Instant,
    deadline: Option<Instant>,
    /// With a rate: the time between two requests, and when the next one is due.
    pace: Option<(Duration, Instant)>,
    in_flight: usize,
    since_flush: u64,
    is_flushing: bool,
    latencies: Histogram<u64>,
    /// The first one.
    failure: Option<Error>,
}

/// What a lane has measured.
pub struct Figures {
    pub begun: Instant,
    pub ended: Instant,
    /// In nanoseconds.
    pub latencies: Histogram<u64>,
}

impl Lane {
    /// The lane of the thread with this number.
    pub fn new(job: &Arc<Job>, thread: usize) -> Result<Lane, Error> {
        let threads = job.threads as u64;
        let thread = thread as u64;
        let block = job.block_size as u64;
        let blocks_of = |start, end| (end - start) / block;
        let positions = job.files.iter().map(|extent| {
            // Threads that go through a file in order begin at different places.
            extent.start + blocks_of(extent.start, extent.end) * thread / threads * block
        });
        let now = Instant::now();
        let pace = job.rate.map(|rate| (Duration::from_secs_f64(threads as f64 / rate), now));
        Ok(Lane {
            random: SplitMix64::new(SplitMix64::new(job.seed).next().wrapping_add(thread)),
            positions: positions.collect(),
            blocks: job.files.iter().map(|extent| blocks_of(extent.start, extent.end)).sum(),
            handed_out: 0,
            count: match job.limit {
                Limit::Count(count) => count / threads + u64::from(thread < count % threads),
                Limit::Time(_) => u64::MAX,
            },
            begun: now,
            deadline: None,
            pace,
            in_flight: 0,
            since_flush: 0,
            is_flushing: false,
            latencies: Histogram::new_with_max(LONGEST.as_nanos() as u64, 3)?,
            failure: None,
            job: job.clone(),
        })
    }

    /// Time runs from now on.
    pub fn begin(&mut self) -> Instant {
        let now = Instant::now();
        self.begun = now;
        if let Limit::Time(time) = self.job.limit {
            self.deadline = Some(now + time);
        }
        if let Some((_, due)) = &mut self.pace {
            *due = now;
        }
        now
    }

    /// What a slot is to do, as of `now`.
    #[inline]
    pub fn next(&mut self, now: Instant) -> Next {
        if self.is_over(now) {
            return Next::End;
        }
        if let Some(flush) = self.job.flush {
            if self.is_flushing || flush.drain && self.since_flush == flush.interval && self.in_flight > 0 {
                return Next::Hold;
            }
            if self.since_flush == flush.interval {
                self.since_flush = 0;
                self.is_flushing = flush.drain;
                return Next::Flush { alongside: !flush.drain };
            }
            self.since_flush += 1;
        }
        let not_before = match &mut self.pace {
            None => None,
            Some((interval, due)) => {
                let at = (*due).max(now - MOST_BACKLOG.min(now - self.begun));
                if self.deadline.is_some_and(|deadline| at >= deadline) {
                    return Next::End;
                }
                *due = at + *interval;
                (at > now).then_some(at)
            }
        };
        let (file, offset) = if self.job.sequential { self.next_in_order() } else { self.next_at_random() };
        let is_write = match self.job.op {
            Op::Read => false,
            Op::Write => true,
            Op::Mixed { reads } => self.random.below(100) >= u64::from(reads),
        };
        self.handed_out += 1;
        self.in_flight += 1;
        Next::Transfer(Step { file, offset, is_write, not_before })
    }

    fn is_over(&self, now: Instant) -> bool {
        self.handed_out == self.count
            || self.deadline.is_some_and(|deadline| now >= deadline)
            || self.job.signals.has_failed()
    }

    fn next_in_order(&mut self) -> (usize, u64) {
        let file = (self.handed_out % self.positions.len() as u64) as usize;
        let end = self.job.files[file].end;
        let offset = self.positions[file];
        let next = (offset + self.job.step) % end;
        self.positions[file] = if next + self.job.block_size as u64 > end { 0 } else { next };
        (file, offset)
    }

    fn next_at_random(&mut self) -> (usize, u64) {
        let block_size = self.job.block_size as u64;
        let mut block = self.random.below(self.blocks);
        for (file, extent) in self.job.files.iter().enumerate() {
            let blocks = (extent.end - extent.start) / block_size;
            if block < blocks {
                return (file, extent.start + block * block_size);
            }
            block -= blocks;
        }
        unreachable!("the number is below the sum");
    }

    /// Puts into a block what is to be written.
    #[inline]
    pub fn prepare(job: &Job, step: &Step, block: &mut [u8]) {
        if step.is_write && job.byte.is_none() {
            job.files[step.file].pattern.fill(step.offset, block);
        }
    }

    /// Takes note of a request, and checks what was read.
    #[inline]
    pub fn finished(&mut self, step: &Step, latency: Duration, moved: io::Result<usize>, block: &[u8]) {
        self.in_flight -= 1;
        self.latencies.saturating_record(latency.as_nanos() as u64);
        if self.latencies.len().is_multiple_of(REPORT) {
            self.job.signals.add_done(REPORT);
        }
        if !matches!(moved, Ok(moved) if moved == self.job.block_size) {
            return self.fail(self.unwell(step, moved));
        }
        if self.job.check
            && !step.is_write
            && let Err(mismatch) = self.job.files[step.file].pattern.check(step.offset, block)
        {
            self.fail(mismatch.into());
        }
    }

    #[cold]
    fn unwell(&self, step: &Step, moved: io::Result<usize>) -> Error {
        let what = if step.is_write { "write" } else { "read" };
        let (size, offset) = (self.job.block_size, step.offset);
        match moved {
            Ok(moved) => format!("short {what} at offset {offset}: {moved} of {size} bytes").into(),
            Err(error) => format!("{what} of {size} bytes at offset {offset} failed: {error}").into(),
        }
    }

    /// Takes note of a flush of all files.
    pub fn flushed(&mut self, result: io::Result<()>) {
        self.is_flushing = false;
        if let Err(error) = result {
            self.fail(format!("a flush failed: {error}").into());
        }
    }

    /// Ends the run, for all threads.
    pub fn fail(&mut self, failure: Error) {
        self.job.signals.fail();
        self.failure.get_or_insert(failure);
    }

    /// What was measured, if all went well.
    pub fn into_figures(self, ended: Instant) -> Result<Figures, Error> {
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(Figures { begun: self.begun, ended, latencies: self.latencies }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::job::{Extent, Signals};
    use crate::pattern::Pattern;
    use crate::plan::Flush;

    const BLOCK: u64 = 4096;

    fn job(change: impl FnOnce(&mut Job)) -> Arc<Job> {
        let file = Arc::new(File::open("/dev/null").unwrap());
        let mut job = Job {
            files: vec![Extent { file, start: 0, end: 8 * BLOCK, pattern: Pattern { seed: 1 } }],
            op: Op::Read,
            depth: 4,
            threads: 1,
            block_size: BLOCK as usize,
            sequential: true,
            step: BLOCK,
            limit: Limit::Count(100),
            flush: None,
            rate: None,
            seed: 1,
            check: false,
            byte: Some(0),
            engine: None,
            polling: Duration::ZERO,
            signals: Signals::default(),
        };
        change(&mut job);
        Arc::new(job)
    }

    fn lane(change: impl FnOnce(&mut Job)) -> (Lane, Instant) {
        let mut lane = Lane::new(&job(change), 0).unwrap();
        let now = lane.begin();
        (lane, now)
    }

    #[track_caller]
    fn transfer(next: Next) -> Step {
        let Next::Transfer(step) = next else { panic!("{next:?}") };
        step
    }

    fn finish(lane: &mut Lane, step: &Step) {
        lane.finished(step, Duration::from_micros(1), Ok(BLOCK as usize), &[]);
    }

    #[test]
    fn a_drain_waits_for_all_and_the_last_one_flushes() {
        let (mut lane, now) = lane(|job| job.flush = Some(Flush { interval: 2, drain: true }));
        let steps = [transfer(lane.next(now)), transfer(lane.next(now))];
        assert_eq!(lane.next(now), Next::Hold);
        finish(&mut lane, &steps[0]);
        assert_eq!(lane.next(now), Next::Hold);
        finish(&mut lane, &steps[1]);
        assert_eq!(lane.next(now), Next::Flush { alongside: false });
        assert_eq!(lane.next(now), Next::Hold, "the flush is under way");
        lane.flushed(Ok(()));
        transfer(lane.next(now));
    }

    #[test]
    fn without_a_drain_nobody_holds() {
        let (mut lane, now) = lane(|job| job.flush = Some(Flush { interval: 2, drain: false }));
        transfer(lane.next(now));
        transfer(lane.next(now));
        assert_eq!(lane.next(now), Next::Flush { alongside: true });
        transfer(lane.next(now));
    }

    #[test]
    fn offsets_go_up_and_begin_anew() {
        let (mut lane, now) = lane(|job| job.step = 3 * BLOCK);
        let blocks: Vec<_> = (0..6).map(|_| transfer(lane.next(now)).offset / BLOCK).collect();
        assert_eq!(blocks, [0, 3, 6, 1, 4, 7]);
    }

    #[test]
    fn every_block_of_every_file_comes_at_random() {
        let (mut lane, now) = lane(|job| {
            job.sequential = false;
            job.limit = Limit::Count(1000);
            let extent = Extent { start: 2 * BLOCK, ..job.files[0].clone() };
            job.files.push(extent);
        });
        let mut seen: Vec<_> =
            (0..1000).map(|_| transfer(lane.next(now))).map(|step| (step.file, step.offset)).collect();
        seen.sort_unstable();
        seen.dedup();
        let all = |file, start| (start..8).map(move |block| (file, block * BLOCK));
        assert_eq!(seen, all(0, 0).chain(all(1, 2)).collect::<Vec<_>>());
    }

    #[test]
    fn counts_are_divided_among_threads() {
        let job = job(|job| (job.threads, job.limit) = (3, Limit::Count(8)));
        let counts = [0, 1, 2].map(|thread| {
            let mut lane = Lane::new(&job, thread).unwrap();
            let now = lane.begin();
            std::iter::from_fn(|| (lane.next(now) != Next::End).then_some(())).count()
        });
        assert_eq!(counts, [3, 3, 2]);
    }

    #[test]
    fn a_rate_hands_out_the_time_as_well() {
        let (mut lane, now) = lane(|job| job.rate = Some(1000.0));
        assert_eq!(transfer(lane.next(now)).not_before, None);
        let first = transfer(lane.next(now)).not_before.expect("later");
        assert_eq!(first, now + Duration::from_millis(1));
        assert_eq!(transfer(lane.next(now)).not_before, Some(now + Duration::from_millis(2)));
        // Late by a second: no more than 10 ms are made up for.
        let late = now + Duration::from_secs(1);
        let at_once = std::iter::from_fn(|| transfer(lane.next(late)).not_before.is_none().then_some(())).count();
        assert_eq!(at_once, 11);
    }

    #[test]
    fn a_failure_ends_all_lanes() {
        let job = job(|_| ());
        let (mut one, mut other) = (Lane::new(&job, 0).unwrap(), Lane::new(&job, 0).unwrap());
        let now = one.begin();
        let step = transfer(one.next(now));
        one.finished(&step, Duration::ZERO, Ok(7), &[]);
        assert_eq!(other.next(now), Next::End);
        let failure = one.into_figures(now).err().expect("a failure");
        assert_eq!(failure.to_string(), "short read at offset 0: 7 of 4096 bytes");
    }
}
