//! io_uring by the io-uring crate, as fast as it gets on one thread: completions are put off until that thread asks for
//! them; the file and the memory are registered.

use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{IoUring, SubmissionQueue, opcode, squeue, types};

use super::page::{PAGE, Page};
use super::{Direction, Engine, Load};

pub struct RawRing {
    ring: IoUring,
    slots: Slots,
}

impl Engine for RawRing {
    const NAME: &'static str = "raw-ring";

    fn run(load: Rc<Load>, count: u64) -> Duration {
        let mut ring = Self::new(load.clone()).expect("the kernel has been asked before");
        load.begin_warm_up();
        ring.pass();
        load.begin(count);
        let start = Instant::now();
        ring.pass();
        start.elapsed()
    }
}

impl RawRing {
    fn new(load: Rc<Load>) -> io::Result<Self> {
        let ring = build(load.depth as u32)?;
        let mut pages: Vec<Page> = (0..load.depth).map(|_| load.take_page()).collect();
        let memory = |page: &mut Page| libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: PAGE };
        let memory: Vec<_> = pages.iter_mut().map(memory).collect();
        ring.submitter().register_files(&[load.image.as_raw_fd()])?;
        // SAFETY: the pages stay in place, and nobody else touches them, until the ring is gone (it is the field before
        // theirs).
        unsafe { ring.submitter().register_buffers(&memory)? };
        Ok(Self { ring, slots: Slots { load, pages } })
    }

    fn pass(&mut self) {
        let Self { ring, slots } = self;
        let (submitter, mut submissions, mut completions) = ring.split();
        let mut pending = 0;
        for slot in 0..slots.pages.len() {
            pending += usize::from(slots.push_next(slot, &mut submissions));
        }
        while pending > 0 {
            submissions.sync();
            match submitter.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => drop(result.expect("a ring can wait")),
            }
            submissions.sync();
            completions.sync();
            for completion in &mut completions {
                assert_eq!(completion.result(), PAGE as i32);
                if !slots.push_next(completion.user_data() as usize, &mut submissions) {
                    pending -= 1;
                }
            }
            completions.sync();
        }
    }
}

struct Slots {
    load: Rc<Load>,
    /// Each slot's.
    pages: Vec<Page>,
}

impl Slots {
    /// Queues a slot's next request, if there is one more.
    fn push_next(&mut self, slot: usize, submissions: &mut SubmissionQueue<'_>) -> bool {
        let Some(offset) = self.load.next() else { return false };
        let request = self.request(slot, offset);
        // SAFETY: the page is this slot's, which has no other request.
        unsafe { submissions.push(&request) }.expect("there is an entry for each slot");
        true
    }

    fn request(&mut self, slot: usize, offset: u64) -> squeue::Entry {
        let (file, page) = (types::Fixed(0), self.pages[slot].as_mut_ptr());
        let (len, index) = (PAGE as u32, slot as u16);
        let request = match self.load.direction {
            Direction::Read => opcode::ReadFixed::new(file, page, len, index).offset(offset).build(),
            Direction::Write => opcode::WriteFixed::new(file, page, len, index).offset(offset).build(),
        };
        request.user_data(slot as u64)
    }
}

fn build(entries: u32) -> io::Result<IoUring> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries)
}

/// Whether there are rings of this kind; on a thread of its own, which the kernel may interrupt for it later.
pub fn probe() -> io::Result<()> {
    thread::scope(|scope| scope.spawn(|| build(1).map(drop)).join().expect("it doesn't panic"))
}
