//! monoio, on io_uring.

use std::rc::Rc;
use std::time::{Duration, Instant};

use ::monoio::buf::{IoBuf, IoBufMut};
use ::monoio::fs::File;
use ::monoio::{IoUringDriver, RuntimeBuilder};

use super::page::{PAGE, Page};
use super::{Direction, Engine, Load};

pub struct Monoio;

impl Engine for Monoio {
    const NAME: &'static str = "monoio";

    fn run(load: Rc<Load>, count: u64) -> Duration {
        let mut runtime = RuntimeBuilder::<IoUringDriver>::new().build().expect("a runtime can be had");
        let image = load.image.try_clone().expect("a descriptor can be had");
        runtime.block_on(async {
            let file = Rc::new(File::from_std(image).expect("it is a file"));
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
    let slots: Vec<_> = (0..load.depth).map(|_| ::monoio::spawn(work(file.clone(), load.clone()))).collect();
    for slot in slots {
        slot.await;
    }
}

/// A slot's work.
async fn work(file: Rc<File>, load: Rc<Load>) {
    let mut page = load.take_page();
    while let Some(offset) = load.next() {
        let moved;
        (moved, page) = match load.direction {
            Direction::Read => file.read_at(page, offset).await,
            Direction::Write => file.write_at(page, offset).await,
        };
        assert_eq!(moved.expect("it is a file"), PAGE);
    }
    load.give_back(page);
}

// SAFETY: a page stays in place when it is moved, and is initialized.
unsafe impl IoBuf for Page {
    fn read_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        PAGE
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Page {
    fn write_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn bytes_total(&mut self) -> usize {
        PAGE
    }

    unsafe fn set_init(&mut self, _: usize) {}
}
