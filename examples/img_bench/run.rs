//! The run: one coroutine per slot, each of them straight-line code.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use aioco::{AioContext, JoinHandle};
use hdrhistogram::Histogram;
use parking_lot::Mutex;

use crate::Error;
use crate::cli::{Limit, Plan};
use crate::engine::{Direction, Engine, Slot, SystemCalls};
use crate::image::Image;
use crate::pattern::{Pattern, SplitMix64};
use crate::progress::Progress;
use crate::usage::cpu_time;

/// Longer latencies than this are recorded as this.
const LONGEST: Duration = Duration::from_secs(3600);

/// Time between two looks at the progress bar.
const FRAME: Duration = Duration::from_millis(100);

/// What a run has measured.
pub struct Outcome {
    pub engine: &'static str,
    pub engine_reason: String,
    pub elapsed: Duration,
    pub cpu: Duration,
    pub ios: u64,
    /// In nanoseconds.
    pub latencies: Histogram<u64>,
    pub calls: SystemCalls,
    pub pool: aioco::coroutine::pool::Stats,
}

/// Runs `plan` on `image`, with an event loop of its own.
pub fn run(plan: &Plan, image: &Image) -> Result<Outcome, Error> {
    let context = AioContext::new().map_err(|error| format!("cannot make an event loop: {error}"))?;
    context.block_on(|| run_on(&context, plan, image))
}

fn run_on(context: &AioContext, plan: &Plan, image: &Image) -> Result<Outcome, Error> {
    let workers = match plan.limit {
        Limit::Count(count) => plan.depth.min(usize::try_from(count).unwrap_or(usize::MAX)),
        Limit::Time(_) => plan.depth,
    };
    // Room in the pool for these, and for the few coroutines beside them.
    let _room = aioco::coroutine::pool::reserve(workers + 4);
    let (engine, slots) = Engine::start(context, plan.engine, &image.file, workers, plan.block_size)?;
    let (engine_name, engine_reason) = (engine.name(), engine.why().to_owned());

    let cpu_before = cpu_time();
    let work = Arc::new(Work::new(plan, image)?);
    let workers = spawn_workers(context, &work, slots);
    let display = context.spawn({
        let work = Arc::clone(&work);
        move || work.display()
    });
    // After a failure too: a worker ends only when its request is back.
    join(workers);
    let elapsed = work.begun.elapsed();
    let cpu = cpu_time().saturating_sub(cpu_before);
    work.end_display();
    join(display);
    let calls = engine.finish();

    let mut tally = work.tally.lock();
    if let Some(failure) = tally.failure.take() {
        return Err(failure);
    }
    Ok(Outcome {
        engine: engine_name,
        engine_reason,
        elapsed,
        cpu,
        ios: tally.latencies.len(),
        latencies: tally.latencies.clone(),
        calls,
        pool: aioco::coroutine::pool::stats(),
    })
}

fn spawn_workers(context: &AioContext, work: &Arc<Work>, slots: Vec<Slot>) -> Vec<JoinHandle<()>> {
    let mut workers = Vec::with_capacity(slots.len());
    for slot in slots {
        let spawned = context.spawn({
            let work = Arc::clone(work);
            move || {
                if let Err(error) = work.through(slot) {
                    work.fail(error);
                }
            }
        });
        match spawned {
            Ok(worker) => workers.push(worker),
            Err(error) => {
                work.fail(format!("cannot spawn coroutine {} of the queue: {error}", workers.len() + 1).into());
                break;
            }
        }
    }
    workers
}

fn join(coroutines: impl IntoIterator<Item = JoinHandle<()>>) {
    for coroutine in coroutines {
        coroutine.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

/// What the workers share.
struct Work {
    direction: Direction,
    sequential: bool,
    block_size: usize,
    /// Blocks in the image.
    blocks: u64,
    pattern: Pattern,
    check: bool,
    limit: Limit,
    begun: Instant,
    tally: Mutex<Tally>,
}

/// The part of it that changes.
struct Tally {
    handed_out: u64,
    order: SplitMix64,
    latencies: Histogram<u64>,
    /// The first one; ends the run.
    failure: Option<Error>,
    ended: bool,
    display: Option<Waker>,
}

impl Work {
    fn new(plan: &Plan, image: &Image) -> Result<Work, Error> {
        Ok(Work {
            direction: if plan.write { Direction::Write } else { Direction::Read },
            sequential: plan.sequential,
            block_size: plan.block_size,
            blocks: image.size / plan.block_size as u64,
            pattern: image.pattern,
            check: plan.verify && !plan.write,
            limit: plan.limit,
            begun: Instant::now(),
            tally: Mutex::new(Tally {
                handed_out: 0,
                order: SplitMix64::new(plan.seed),
                latencies: Histogram::new_with_max(LONGEST.as_nanos() as u64, 3)?,
                failure: None,
                ended: false,
                display: None,
            }),
        })
    }

    /// One worker: block after block through `slot`, until the run is over.
    fn through(&self, mut slot: Slot) -> Result<(), Error> {
        let mut now = Instant::now();
        while let Some(offset) = self.next(now) {
            if self.direction == Direction::Write {
                slot.with_block(|block| self.pattern.fill(offset, block));
            }
            let begun = Instant::now();
            let moved = slot.transfer(self.direction, offset);
            now = Instant::now();
            self.must_be_whole(offset, moved)?;
            self.record(now - begun);
            if self.check {
                slot.with_block(|block| self.pattern.check(offset, block))?;
            }
        }
        Ok(())
    }

    /// The offset of the next block, unless the run is over.
    fn next(&self, now: Instant) -> Option<u64> {
        let mut tally = self.tally.lock();
        let over = match self.limit {
            Limit::Count(count) => tally.handed_out == count,
            Limit::Time(time) => now - self.begun >= time,
        };
        if over || tally.failure.is_some() {
            return None;
        }
        let block = if self.sequential { tally.handed_out % self.blocks } else { tally.order.below(self.blocks) };
        tally.handed_out += 1;
        Some(block * self.block_size as u64)
    }

    fn must_be_whole(&self, offset: u64, moved: io::Result<usize>) -> Result<(), Error> {
        let (size, what) = (self.block_size, self.direction.noun());
        match moved {
            Ok(moved) if moved == size => Ok(()),
            Ok(moved) => Err(format!("short {what} at offset {offset}: {moved} of {size} bytes").into()),
            Err(error) => Err(format!("{what} of {size} bytes at offset {offset} failed: {error}").into()),
        }
    }

    fn record(&self, latency: Duration) {
        self.tally.lock().latencies.saturating_record(latency.as_nanos() as u64);
    }

    fn fail(&self, failure: Error) {
        self.tally.lock().failure.get_or_insert(failure);
    }

    /// Shows the progress bar while the run lasts.
    fn display(&self) {
        let total = match self.limit {
            Limit::Count(count) => count,
            Limit::Time(time) => time.as_millis() as u64,
        };
        let mut progress = Progress::new(self.direction.noun(), total);
        let Some(mut next_frame) = progress.appears() else { return };
        while let Some(ios) = self.ios_unless_ended() {
            let now = Instant::now();
            if now < next_frame {
                aioco::park::park_until(next_frame);
                continue;
            }
            progress.show(match self.limit {
                Limit::Count(_) => ios,
                Limit::Time(_) => (now - self.begun).as_millis() as u64,
            });
            next_frame = now + FRAME;
        }
    }

    fn ios_unless_ended(&self) -> Option<u64> {
        let mut tally = self.tally.lock();
        tally.display.get_or_insert_with(aioco::park::waker);
        (!tally.ended).then(|| tally.latencies.len())
    }

    fn end_display(&self) {
        let display = {
            let mut tally = self.tally.lock();
            tally.ended = true;
            tally.display.take()
        };
        if let Some(display) = display {
            display.wake();
        }
    }
}
