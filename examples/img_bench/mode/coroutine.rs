//! A coroutine for each slot: straight-line code over `aioco::block::File`.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use aioco::aio::{self, Local};
use aioco::block::AlignedBuf;
use aioco::{JoinHandle, coroutine, park};

use super::{BlockFile, Part, Runner, block_files, blocks, calls, engine};
use crate::Error;
use crate::job::Job;
use crate::lane::{Lane, Next, Step};

/// What the coroutines of a thread share.
struct Shared {
    job: Arc<Job>,
    files: Vec<Rc<BlockFile>>,
    lane: RefCell<Lane>,
    /// Slots that hold.
    holding: RefCell<Vec<Waker>>,
    /// Flushes that no slot waits for.
    flushes: RefCell<Vec<JoinHandle<()>>>,
    context: Local,
}

pub fn run(job: &Arc<Job>, lane: Lane, mut runner: Runner) -> Result<Part, Error> {
    let context = aio::current().ok_or("not in a coroutine of an AioContext")?;
    let files = block_files(job)?;
    let engine = engine(job, &files)?;
    let blocks = blocks(job);
    // Room in the pool for the slots, and for the few coroutines beside them.
    let _room = coroutine::pool::reserve(job.depth + 4);
    let shared = Rc::new(Shared {
        job: job.clone(),
        files,
        lane: RefCell::new(lane),
        holding: RefCell::default(),
        flushes: RefCell::default(),
        context: context.clone(),
    });

    runner.start();
    let calls_before = calls(&context);
    let now = shared.lane.borrow_mut().begin();
    let mut slots = Vec::with_capacity(job.depth);
    for block in blocks {
        let slot = shared.clone();
        match context.spawn_local(move || slot.run(block, now)) {
            Ok(handle) => slots.push(handle),
            Err(error) => {
                let number = slots.len() + 1;
                let failure = format!("cannot spawn coroutine {number} of the queue: {error}");
                shared.lane.borrow_mut().fail(failure.into());
                break;
            }
        }
    }
    // After a failure too: a slot ends only when its request is back.
    join(slots);
    let ended = Instant::now();
    join(shared.flushes.take());
    let calls = calls(&context) - calls_before;
    runner.end();

    let shared = Rc::into_inner(shared).ok_or("a slot outlives its run")?;
    Ok(Part { figures: shared.lane.into_inner().into_figures(ended)?, calls, engine })
}

fn join(coroutines: Vec<JoinHandle<()>>) {
    for coroutine in coroutines {
        coroutine.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

impl Shared {
    /// A slot: request after request, until the run is over.
    fn run(self: &Rc<Self>, mut block: AlignedBuf, mut now: Instant) {
        loop {
            let next = self.lane.borrow_mut().next(now);
            match next {
                Next::Transfer(step) => now = self.transfer(&step, &mut block, now),
                Next::Flush { alongside: false } => {
                    self.flush();
                    self.release();
                    now = Instant::now();
                }
                Next::Flush { alongside: true } => self.spawn_flush(),
                Next::Hold => {
                    self.holding.borrow_mut().push(park::waker());
                    park::park();
                    now = Instant::now();
                }
                Next::End => break,
            }
        }
        self.release();
    }

    /// Carries out a request; returns when it was done.
    fn transfer(&self, step: &Step, block: &mut AlignedBuf, mut now: Instant) -> Instant {
        if let Some(at) = step.not_before {
            aio::sleep_until(at);
            now = Instant::now();
        }
        Lane::prepare(&self.job, step, block);
        let file = &self.files[step.file];
        let moved = match step.is_write {
            true => file.write_all_at(block, step.offset).map(|()| block.len()),
            false => file.read_at(block, step.offset),
        };
        let done = Instant::now();
        self.lane.borrow_mut().finished(step, done - now, moved, block);
        done
    }

    fn flush(&self) {
        let result = self.files.iter().try_for_each(|file| file.flush());
        self.lane.borrow_mut().flushed(result);
    }

    fn spawn_flush(self: &Rc<Self>) {
        let shared = self.clone();
        match self.context.spawn_local(move || shared.flush()) {
            Ok(handle) => {
                let mut flushes = self.flushes.borrow_mut();
                flushes.retain(|flush| !flush.is_finished());
                flushes.push(handle);
            }
            Err(error) => self.lane.borrow_mut().flushed(Err(io::Error::other(error))),
        }
    }

    /// Those who hold ask again.
    fn release(&self) {
        self.holding.take().into_iter().for_each(Waker::wake);
    }
}
