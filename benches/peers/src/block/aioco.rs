//! This project's block I/O: a coroutine a slot, through its public interface only.

use std::rc::Rc;
use std::time::{Duration, Instant};

use ::aioco::{AioContext, block};

use super::page::PAGE;
use super::{Direction, Engine, Load};

pub struct Aioco;

impl Engine for Aioco {
    const NAME: &'static str = "aioco";

    fn run(load: Rc<Load>, count: u64) -> Duration {
        let context = AioContext::new().expect("a context can be had");
        let file = Rc::new(open(&load));
        context.block_on(|| {
            load.begin_warm_up();
            pass(&context, &file, &load);
            load.begin(count);
            let start = Instant::now();
            pass(&context, &file, &load);
            start.elapsed()
        })
    }
}

/// The file, as this crate sees it.
pub fn open(load: &Load) -> block::File {
    let file = load.image.try_clone().expect("a descriptor can be had");
    block::File::new(file).expect("it is a file")
}

fn pass(context: &AioContext, file: &Rc<block::File>, load: &Rc<Load>) {
    let slot = || {
        let (file, load) = (file.clone(), load.clone());
        context.spawn_local(move || work(&file, &load)).expect("a stack can be mapped")
    };
    let slots: Vec<_> = (0..load.depth).map(|_| slot()).collect();
    for slot in slots {
        slot.join().expect("it doesn't panic");
    }
}

/// A slot's work.
fn work(file: &block::File, load: &Load) {
    let mut page = load.take_page();
    while let Some(offset) = load.next() {
        match load.direction {
            Direction::Read => assert_eq!(file.read_at(&mut page[..], offset).expect("it can be read"), PAGE),
            Direction::Write => file.write_all_at(&page[..], offset).expect("it can be written"),
        }
    }
    load.give_back(page);
}
