//! A system call for each request, one after the other.

use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::page::PAGE;
use super::{Direction, Engine, Load};

pub struct Plain;

impl Engine for Plain {
    const NAME: &'static str = "pread/pwrite";

    fn run(load: Rc<Load>, count: u64) -> Duration {
        load.begin_warm_up();
        pass(&load);
        load.begin(count);
        let start = Instant::now();
        pass(&load);
        start.elapsed()
    }
}

fn pass(load: &Load) {
    let mut page = load.take_page();
    while let Some(offset) = load.next() {
        let moved = match load.direction {
            Direction::Read => load.image.read_at(&mut page[..], offset),
            Direction::Write => load.image.write_at(&page[..], offset),
        };
        assert_eq!(moved.expect("it is a file"), PAGE);
    }
    load.give_back(page);
}
