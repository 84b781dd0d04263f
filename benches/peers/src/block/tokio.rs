//! tokio's way with files: a system call on one of its threads for blocking work.

use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ::tokio::runtime::Builder;
use ::tokio::task::{LocalSet, spawn_blocking};

use super::page::PAGE;
use super::{Direction, Engine, Load};

pub struct Tokio;

impl Engine for Tokio {
    const NAME: &'static str = "tokio";

    fn run(load: Rc<Load>, count: u64) -> Duration {
        let runtime = Builder::new_current_thread().build().expect("a runtime can be had");
        runtime.block_on(async {
            load.begin_warm_up();
            pass(&load).await;
            load.begin(count);
            let start = Instant::now();
            pass(&load).await;
            start.elapsed()
        })
    }
}

async fn pass(load: &Rc<Load>) {
    let slots = LocalSet::new();
    for _ in 0..load.depth {
        slots.spawn_local(work(load.clone()));
    }
    slots.await;
}

/// A slot's work.
async fn work(load: Rc<Load>) {
    let mut page = load.take_page();
    let (image, direction) = (load.image, load.direction);
    while let Some(offset) = load.next() {
        let call = move || {
            let moved = match direction {
                Direction::Read => image.read_at(&mut page[..], offset),
                Direction::Write => image.write_at(&page[..], offset),
            };
            (moved, page)
        };
        let moved;
        (moved, page) = spawn_blocking(call).await.expect("it doesn't panic");
        assert_eq!(moved.expect("it is a file"), PAGE);
    }
    load.give_back(page);
}
