//! Callbacks instead of coroutines: each slot is a chain of `read_then` and `write_all_then`. (Flushes have coroutines:
//! nothing has to be quick there.)

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use aioco::aio::{self, Local, Timer};
use aioco::block::{self, AlignedBuf};
use aioco::park;

use super::{BlockFile, Part, Runner, block_files, blocks, calls, engine};
use crate::Error;
use crate::job::Job;
use crate::lane::{Lane, Next, Step};

/// What the callbacks of a thread share. A block goes from one to the next.
struct Shared {
    job: Arc<Job>,
    context: Local,
    files: Vec<Rc<BlockFile>>,
    lane: RefCell<Lane>,
    /// Blocks of slots that hold.
    holding: RefCell<Vec<AlignedBuf>>,
    /// With a rate: what is to be submitted when its time comes, in that order.
    waiting: RefCell<VecDeque<(Step, AlignedBuf)>>,
    /// Rings when the first of those is due.
    timer: Timer,
    /// Slots and flushes that haven't ended.
    live: Cell<usize>,
    /// Who waits for them.
    waiter: Waker,
}

pub fn run(job: &Arc<Job>, lane: Lane, mut runner: Runner) -> Result<Part, Error> {
    let context = aio::current().ok_or("not in a coroutine of an AioContext")?;
    let files = block_files(job)?;
    let engine = engine(job, &files)?;
    let blocks = blocks(job);
    let shared = Rc::new_cyclic(|shared: &Weak<Shared>| {
        let shared = shared.clone();
        let on_time = move || shared.upgrade().into_iter().for_each(|shared| shared.submit_due());
        Shared {
            job: job.clone(),
            files,
            lane: RefCell::new(lane),
            holding: RefCell::default(),
            waiting: RefCell::default(),
            timer: context.timer(on_time),
            live: Cell::new(job.depth),
            waiter: park::waker(),
            context: context.clone(),
        }
    });

    runner.start();
    let calls_before = calls(&context);
    let now = shared.lane.borrow_mut().begin();
    blocks.into_iter().for_each(|block| shared.go_on(block, now));
    while shared.live.get() > 0 {
        park::park();
    }
    let ended = Instant::now();
    let calls = calls(&context) - calls_before;
    runner.end();

    // The last callback is still on its way out, with a reference.
    while Rc::strong_count(&shared) > 1 {
        aioco::yield_now();
    }
    let shared = Rc::into_inner(shared).ok_or("a callback outlives its run")?;
    Ok(Part { figures: shared.lane.into_inner().into_figures(ended)?, calls, engine })
}

impl Shared {
    /// What a slot does next, as of `now`.
    fn go_on(self: &Rc<Self>, block: AlignedBuf, now: Instant) {
        loop {
            let next = self.lane.borrow_mut().next(now);
            match next {
                Next::Transfer(step) if step.not_before.is_some() => {
                    let mut waiting = self.waiting.borrow_mut();
                    waiting.push_back((step, block));
                    self.set_timer(&waiting);
                }
                Next::Transfer(step) => self.submit(step, block, now),
                Next::Hold => self.holding.borrow_mut().push(block),
                Next::Flush { alongside: false } => {
                    let shared = self.clone();
                    self.spawn(move || {
                        shared.flush();
                        shared.go_on(block, Instant::now());
                        shared.release();
                    });
                }
                Next::Flush { alongside: true } => {
                    self.live.set(self.live.get() + 1);
                    let shared = self.clone();
                    self.spawn(move || {
                        shared.flush();
                        shared.end_one();
                    });
                    continue;
                }
                Next::End => {
                    self.release();
                    self.end_one();
                }
            }
            return;
        }
    }

    fn submit(self: &Rc<Self>, step: Step, mut block: AlignedBuf, begun: Instant) {
        Lane::prepare(&self.job, &step, &mut block);
        let file = self.files[step.file].clone();
        let shared = self.clone();
        let submitted = if step.is_write {
            block::write_all_then(&self.context, file, block, step.offset, move |result, block| {
                let moved = result.map(|()| block.len());
                shared.finished(&step, begun, moved, block);
            })
        } else {
            block::read_then(&self.context, file, block, step.offset, move |result, block| {
                shared.finished(&step, begun, result, block);
            })
        };
        if let Err(error) = submitted {
            self.lane.borrow_mut().fail(error.into());
            self.end_one();
        }
    }

    fn finished(self: &Rc<Self>, step: &Step, begun: Instant, moved: io::Result<usize>, block: AlignedBuf) {
        let now = Instant::now();
        self.lane.borrow_mut().finished(step, now - begun, moved, &block);
        self.go_on(block, now);
    }

    /// Submits what is due by now.
    fn submit_due(self: &Rc<Self>) {
        let now = Instant::now();
        loop {
            let due = self.waiting.borrow_mut().pop_front_if(|(step, _)| step.not_before.is_none_or(|at| at <= now));
            let Some((step, block)) = due else { break };
            self.submit(step, block, now);
        }
        self.set_timer(&self.waiting.borrow());
    }

    fn set_timer(&self, waiting: &VecDeque<(Step, AlignedBuf)>) {
        if let Some(at) = waiting.front().and_then(|(step, _)| step.not_before) {
            self.timer.arm(at);
        }
    }

    fn flush(&self) {
        let result = self.files.iter().try_for_each(|file| file.flush());
        self.lane.borrow_mut().flushed(result);
    }

    fn spawn(self: &Rc<Self>, f: impl FnOnce() + 'static) {
        if let Err(error) = self.context.spawn_local(f) {
            self.lane.borrow_mut().flushed(Err(error));
            self.end_one();
        }
    }

    /// Those who hold ask again.
    fn release(self: &Rc<Self>) {
        let now = Instant::now();
        self.holding.take().into_iter().for_each(|block| self.go_on(block, now));
    }

    fn end_one(&self) {
        self.live.set(self.live.get() - 1);
        if self.live.get() == 0 {
            self.waiter.wake_by_ref();
        }
    }
}
