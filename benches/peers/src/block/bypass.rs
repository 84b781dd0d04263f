//! This project's block I/O without coroutines: each slot's callback makes its next request.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ::aioco::{AioContext, block};

use super::aioco::open;
use super::page::{PAGE, Page};
use super::{Direction, Engine, Load};

pub struct Bypass;

impl Engine for Bypass {
    const NAME: &'static str = "aioco-bypass";

    fn run(load: Rc<Load>, count: u64) -> Duration {
        let context = AioContext::new().expect("a context can be had");
        let slots = Rc::new(Slots { file: Rc::new(open(&load)), context, load, running: Cell::new(0) });
        slots.load.begin_warm_up();
        slots.pass();
        slots.load.begin(count);
        let start = Instant::now();
        slots.pass();
        start.elapsed()
    }
}

struct Slots {
    context: AioContext,
    file: Rc<block::File>,
    load: Rc<Load>,
    /// How many have something to do.
    running: Cell<usize>,
}

impl Slots {
    fn pass(self: &Rc<Self>) {
        self.running.set(self.load.depth);
        for _ in 0..self.load.depth {
            self.clone().go_on(self.load.take_page());
        }
        self.context.run_until(|| self.running.get() == 0);
    }

    /// Makes a slot's next request.
    fn go_on(self: Rc<Self>, page: Page) {
        let Some(offset) = self.load.next() else {
            self.load.give_back(page);
            return self.running.set(self.running.get() - 1);
        };
        let (slots, file) = (self.clone(), self.file.clone());
        let submitted = match self.load.direction {
            Direction::Read => block::read_then(&self.context, file, page, offset, move |read, page| {
                assert_eq!(read.expect("it can be read"), PAGE);
                slots.go_on(page);
            }),
            Direction::Write => block::write_all_then(&self.context, file, page, offset, move |written, page| {
                written.expect("it can be written");
                slots.go_on(page);
            }),
        };
        submitted.expect("the context hasn't ended");
    }
}
