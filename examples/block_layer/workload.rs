//! A guest: keeps so many requests in flight, at random offsets, until it is refused.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use aioco::AioContext;
use aioco::block::AlignedBuf;

use crate::Error;
use crate::cli::Options;
use crate::device::{Counts, Device};
use crate::driver::BLOCK;
use crate::image::{Image, fill_block, is_filled};

/// What came of a run.
pub struct Outcome {
    pub chain: String,
    /// Until as many requests were done as were asked for.
    pub elapsed: Duration,
    pub counts: Counts,
    /// How many were in flight when the shutdown began.
    pub interrupted: usize,
    /// Requests that were let in, and never came back.
    pub lost: u64,
}

struct Workload {
    device: Rc<Device>,
    requests: u64,
    writes: u64,
    has_pattern: bool,
    random: Cell<u64>,
    submitted: Cell<u64>,
    completed: Cell<u64>,
    start: Instant,
    elapsed: Cell<Option<Duration>>,
    failure: RefCell<Option<Error>>,
}

/// Runs it on a device, which is then shut down while requests are in flight.
///
/// # Errors
///
/// The first of a request; those in flight come to their end, and the device is shut down, also then.
pub fn run(context: &AioContext, device: &Rc<Device>, options: &Options, image: &Image) -> Result<Outcome, Error> {
    let chain = context.block_on(|| device.describe());
    let workload = Rc::new(Workload {
        device: device.clone(),
        requests: options.requests,
        writes: options.writes,
        has_pattern: image.has_pattern,
        random: Cell::new(0x9e37_79b9_7f4a_7c15),
        submitted: Cell::new(0),
        completed: Cell::new(0),
        start: Instant::now(),
        elapsed: Cell::new(None),
        failure: RefCell::new(None),
    });
    for _ in 0..options.depth {
        workload.clone().go_on(AlignedBuf::new(BLOCK, BLOCK));
    }
    context.run_until(|| workload.elapsed.get().is_some());
    let interrupted = device.in_flight();
    let shut_down = context.block_on(|| device.shut_down());
    if let Some(failure) = workload.failure.take() {
        return Err(failure);
    }
    shut_down?;
    Ok(Outcome {
        chain,
        elapsed: workload.elapsed.get().unwrap_or_default(),
        counts: device.counts(),
        interrupted,
        lost: workload.submitted.get() - workload.completed.get(),
    })
}

impl Workload {
    /// Makes a slot's next request.
    fn go_on(self: Rc<Self>, mut buffer: AlignedBuf) {
        let offset = self.random() % (self.device.size() / BLOCK as u64) * BLOCK as u64;
        let writes = self.random() % 100 < self.writes;
        let workload = self.clone();
        let submitted = if writes {
            fill_block(&mut buffer, offset);
            self.device.write(buffer, offset, move |result, buffer| workload.complete(result, buffer, offset))
        } else {
            self.device.read(buffer, offset, move |result, buffer| workload.complete(result, buffer, offset))
        };
        match submitted {
            Ok(()) => self.submitted.set(self.submitted.get() + 1),
            // The device is shutting down: that is the end of this slot.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
            Err(error) => self.fail(error.into()),
        }
    }

    fn complete(self: Rc<Self>, result: io::Result<()>, buffer: AlignedBuf, offset: u64) {
        self.completed.set(self.completed.get() + 1);
        if let Err(error) = result {
            return self.fail(format!("the request at offset {offset} failed: {error}").into());
        }
        if self.has_pattern && !is_filled(&buffer, offset) {
            return self.fail(format!("the data at offset {offset} isn't what was written").into());
        }
        if self.completed.get() == self.requests {
            self.end();
        }
        self.go_on(buffer);
    }

    fn fail(&self, error: Error) {
        self.failure.borrow_mut().get_or_insert(error);
        self.end();
    }

    fn end(&self) {
        self.elapsed.set(Some(self.start.elapsed()));
    }

    /// Marsaglia's xorshift; its upper half.
    fn random(&self) -> u64 {
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        random >> 32
    }
}
