//! This project's block I/O as tokio's tasks have it: each request is a coroutine of an `IoThread`, whose handle a task
//! awaits.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::aioco::aio::IoThread;
use ::aioco::block;
use ::tokio::runtime::Builder;
use ::tokio::task::LocalSet;

use super::page::PAGE;
use super::{Direction, Engine, Load, aioco};

pub struct Awaited;

impl Engine for Awaited {
    const NAME: &'static str = "aioco-async";

    fn run(load: Rc<Load>, count: u64) -> Duration {
        let io_thread = Rc::new(IoThread::new("io").expect("a thread can be had"));
        let file = Arc::new(aioco::open(&load));
        let runtime = Builder::new_current_thread().build().expect("a runtime can be had");
        runtime.block_on(async {
            load.begin_warm_up();
            pass(&io_thread, &file, &load).await;
            load.begin(count);
            let start = Instant::now();
            pass(&io_thread, &file, &load).await;
            start.elapsed()
        })
    }
}

async fn pass(io_thread: &Rc<IoThread>, file: &Arc<block::File>, load: &Rc<Load>) {
    let slots = LocalSet::new();
    for _ in 0..load.depth {
        slots.spawn_local(work(io_thread.clone(), file.clone(), load.clone()));
    }
    slots.await;
}

/// A slot's work.
async fn work(io_thread: Rc<IoThread>, file: Arc<block::File>, load: Rc<Load>) {
    let mut page = load.take_page();
    let direction = load.direction;
    while let Some(offset) = load.next() {
        let file = file.clone();
        let request = move || {
            match direction {
                Direction::Read => assert_eq!(file.read_at(&mut page[..], offset).expect("it can be read"), PAGE),
                Direction::Write => file.write_all_at(&page[..], offset).expect("it can be written"),
            }
            page
        };
        let coroutine = io_thread.remote().spawn(request).expect("a stack can be mapped");
        page = coroutine.await.expect("it doesn't panic");
    }
    load.give_back(page);
}
