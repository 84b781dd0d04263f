//! compio, on io_uring.

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ::compio::BufResult;
use ::compio::buf::{IoBuf, IoBufMut, SetLen};
use ::compio::fs::File;
use ::compio::io::{AsyncReadAt, AsyncWriteAt};
use ::compio::runtime::{self, Runtime};

use super::page::{PAGE, Page};
use super::{Direction, Engine, Load};

pub struct Compio;

impl Engine for Compio {
    const NAME: &'static str = "compio";

    fn run(load: Rc<Load>, count: u64) -> Duration {
        let runtime = Runtime::new().expect("a runtime can be had");
        let image = load.image.try_clone().expect("a descriptor can be had");
        runtime.block_on(async {
            // SAFETY: the descriptor is given away here.
            let file = unsafe { File::from_raw_fd(image.into_raw_fd()) };
            load.begin_warm_up();
            pass(&file, &load).await;
            load.begin(count);
            let start = Instant::now();
            pass(&file, &load).await;
            start.elapsed()
        })
    }
}

async fn pass(file: &File, load: &Rc<Load>) {
    let slots: Vec<_> = (0..load.depth).map(|_| runtime::spawn(work(file.clone(), load.clone()))).collect();
    for slot in slots {
        slot.await.expect("it doesn't panic");
    }
}

/// A slot's work.
async fn work(file: File, load: Rc<Load>) {
    let mut page = load.take_page();
    while let Some(offset) = load.next() {
        let BufResult(moved, returned) = match load.direction {
            Direction::Read => file.read_at(page, offset).await,
            Direction::Write => (&file).write_at(page, offset).await,
        };
        assert_eq!(moved.expect("it is a file"), PAGE);
        page = returned;
    }
    load.give_back(page);
}

impl IoBuf for Page {
    fn as_init(&self) -> &[u8] {
        &self[..]
    }
}

impl IoBufMut for Page {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes: *mut [u8; PAGE] = &mut **self;
        // SAFETY: it is as long, and borrowed. Whoever gets it fills it with what the kernel has read.
        unsafe { &mut *bytes.cast::<[MaybeUninit<u8>; PAGE]>() }
    }
}

impl SetLen for Page {
    unsafe fn set_len(&mut self, _: usize) {}
}
