//! tokio-uring: tokio's scheduler, with a ring beside its epoll instance.

use std::rc::Rc;
use std::time::{Duration, Instant};

use ::tokio_uring::buf::{IoBuf, IoBufMut};
use ::tokio_uring::fs::File;

use super::page::{PAGE, Page};
use super::{Direction, Engine, Load};

pub struct TokioUring;

impl Engine for TokioUring {
    const NAME: &'static str = "tokio-uring";

    fn run(load: Rc<Load>, count: u64) -> Duration {
        let image = load.image.try_clone().expect("a descriptor can be had");
        ::tokio_uring::start(async {
            let file = Rc::new(File::from_std(image));
            load.begin_warm_up();
            pass(&file, &load).await;
            load.begin(count);
            let start = Instant::now();
            pass(&file, &load).await;
            start.elapsed()
        })
    }
}

async fn pass(file: &Rc<File>, load: &Rc<Load>) {
    let slots: Vec<_> = (0..load.depth).map(|_| ::tokio_uring::spawn(work(file.clone(), load.clone()))).collect();
    for slot in slots {
        slot.await.expect("it doesn't panic");
    }
}

/// A slot's work.
async fn work(file: Rc<File>, load: Rc<Load>) {
    let mut page = load.take_page();
    while let Some(offset) = load.next() {
        let moved;
        (moved, page) = match load.direction {
            Direction::Read => file.read_at(page, offset).await,
            Direction::Write => file.write_at(page, offset).submit().await,
        };
        assert_eq!(moved.expect("it is a file"), PAGE);
    }
    load.give_back(page);
}

// SAFETY: a page stays in place when it is moved, and is initialized.
unsafe impl IoBuf for Page {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        PAGE
    }

    fn bytes_total(&self) -> usize {
        PAGE
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Page {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    unsafe fn set_init(&mut self, _: usize) {}
}
