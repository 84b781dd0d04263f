//! The engine for where the kernel has no better one: a helper thread that calls `pread` and `pwrite`.
//!
//! A request carries its buffer to the helper and back, so that at any time one side alone owns it. The helper ends
//! when the last slot is gone.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::{AlignedBuf, Direction, SystemCalls};

/// Joins its helper thread at the end of the run.
pub struct Helper {
    thread: JoinHandle<SystemCalls>,
}

/// One coroutine's place in the queue.
pub struct Slot {
    /// Away while a request is with the helper.
    buffer: Option<AlignedBuf>,
    requests: Sender<Request>,
    reply: Arc<Mutex<Option<Reply>>>,
}

struct Request {
    direction: Direction,
    offset: u64,
    buffer: AlignedBuf,
    reply: Arc<Mutex<Option<Reply>>>,
    requester: Waker,
}

struct Reply {
    buffer: AlignedBuf,
    result: io::Result<usize>,
}

impl Helper {
    pub fn start(file: File, slots: usize, block_size: usize) -> io::Result<(Helper, Vec<Slot>)> {
        let (sender, receiver) = channel();
        let slots = (0..slots)
            .map(|_| {
                Ok(Slot { buffer: Some(AlignedBuf::new(block_size)?), requests: sender.clone(), reply: Arc::default() })
            })
            .collect::<io::Result<_>>()?;
        let thread =
            std::thread::Builder::new().name("img_bench helper".into()).spawn(move || serve(&file, receiver))?;
        Ok((Helper { thread }, slots))
    }

    /// Waits for the helper's end. All slots must be gone by now.
    pub fn finish(self) -> SystemCalls {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn serve(file: &File, requests: Receiver<Request>) -> SystemCalls {
    let mut calls = SystemCalls::default();
    for Request { direction, offset, mut buffer, reply, requester } in requests {
        let result = loop {
            calls.transfer += 1;
            let result = match direction {
                Direction::Read => file.read_at(&mut buffer, offset),
                Direction::Write => file.write_at(&buffer, offset),
            };
            if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
                break result;
            }
        };
        *reply.lock() = Some(Reply { buffer, result });
        requester.wake();
    }
    calls
}

impl Slot {
    /// Moves the slot's block from or to the file; parks the coroutine meanwhile.
    pub fn transfer(&mut self, direction: Direction, offset: u64) -> io::Result<usize> {
        let gone = || io::Error::other("an earlier request on this slot was abandoned");
        let request = Request {
            direction,
            offset,
            buffer: self.buffer.take().ok_or_else(gone)?,
            reply: Arc::clone(&self.reply),
            requester: aioco::park::waker(),
        };
        self.requests.send(request).map_err(|_| io::Error::other("the helper thread has ended"))?;
        loop {
            if let Some(Reply { buffer, result }) = self.reply.lock().take() {
                self.buffer = Some(buffer);
                return result;
            }
            aioco::park::park();
        }
    }

    /// Lends the slot's block out.
    pub fn with_block<R>(&mut self, use_it: impl FnOnce(&mut [u8]) -> R) -> R {
        use_it(self.buffer.as_mut().expect("no request is under way while the slot is borrowed"))
    }
}
