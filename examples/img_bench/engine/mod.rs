//! What carries requests to the kernel, and wakes the coroutine when one is done.
//!
//! An engine hands out one [`Slot`] per coroutine, with a block of memory that belongs to the engine: what the kernel
//! reads or writes is never a coroutine's own memory, and stays until the kernel is done with it, however the
//! coroutine ends.
//!
//! - `queue`: batches for Linux AIO, on top of `linux_aio`, the kernel's interface made safe
//! - `thread`: a helper thread, for where there is no Linux AIO
//! - `buffer`: aligned memory

mod buffer;
mod linux_aio;
mod queue;
mod thread;

use std::fs::File;
use std::io;

use aioco::AioContext;
use clap::ValueEnum;

pub use self::buffer::AlignedBuf;
use crate::Error;

/// Which engine the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// Linux AIO where it can be had, else the helper thread
    Auto,
    /// Linux AIO, or an error
    LinuxAio,
    /// A helper thread that calls pread and pwrite
    Thread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

impl Direction {
    pub fn noun(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// The engine of a run.
pub struct Engine {
    kind: Kind,
    why: String,
}

enum Kind {
    LinuxAio(queue::Queue),
    Thread(thread::Helper),
}

/// One coroutine's place in the queue: a block of memory, and at most one request.
pub enum Slot {
    LinuxAio(queue::Slot),
    Thread(thread::Slot),
}

/// System calls that an engine has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemCalls {
    pub io_submit: u64,
    pub io_getevents: u64,
    pub eventfd_read: u64,
    pub transfer: u64,
}

impl Engine {
    /// Starts an engine on `context`, with slots for blocks of `block_size` bytes.
    pub fn start(
        context: &AioContext,
        choice: Choice,
        file: &File,
        slots: usize,
        block_size: usize,
    ) -> Result<(Engine, Vec<Slot>), Error> {
        let why = match choice {
            Choice::Thread => "asked for".to_owned(),
            Choice::LinuxAio | Choice::Auto => match linux_aio::Context::new(file.try_clone()?, slots, block_size) {
                Ok(kernel) => {
                    let why = kernel.describe().to_owned();
                    let (queue, slots) = queue::Queue::start(context, kernel)?;
                    let slots = slots.into_iter().map(Slot::LinuxAio).collect();
                    return Ok((Engine { kind: Kind::LinuxAio(queue), why }, slots));
                }
                Err(error) if choice == Choice::LinuxAio => return Err(format!("no Linux AIO: {error}").into()),
                Err(error) => format!("no Linux AIO: {error}"),
            },
        };
        let (helper, slots) = thread::Helper::start(file.try_clone()?, slots, block_size)?;
        Ok((Engine { kind: Kind::Thread(helper), why }, slots.into_iter().map(Slot::Thread).collect()))
    }

    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::LinuxAio(_) => "linux-aio",
            Kind::Thread(_) => "thread",
        }
    }

    /// Why it is this engine.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Ends the engine's coroutines and threads. All slots must be gone by now.
    pub fn finish(self) -> SystemCalls {
        match self.kind {
            Kind::LinuxAio(queue) => queue.finish(),
            Kind::Thread(helper) => helper.finish(),
        }
    }
}

impl Slot {
    /// Moves the slot's block from or to `offset` in the file; parks the coroutine meanwhile.
    ///
    /// Returns how much was moved, which may be less than a block.
    pub fn transfer(&mut self, direction: Direction, offset: u64) -> io::Result<usize> {
        match self {
            Slot::LinuxAio(slot) => slot.transfer(direction, offset),
            Slot::Thread(slot) => slot.transfer(direction, offset),
        }
    }

    /// Lends the slot's block out.
    pub fn with_block<R>(&mut self, use_it: impl FnOnce(&mut [u8]) -> R) -> R {
        match self {
            Slot::LinuxAio(slot) => slot.with_block(use_it),
            Slot::Thread(slot) => slot.with_block(use_it),
        }
    }
}

impl SystemCalls {
    /// Each kind that was called, with its name.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let SystemCalls { io_submit, io_getevents, eventfd_read, transfer } = *self;
        [
            ("io_submit", io_submit),
            ("io_getevents", io_getevents),
            ("eventfd read", eventfd_read),
            ("pread/pwrite", transfer),
        ]
        .into_iter()
        .filter(|(_, calls)| *calls > 0)
    }

    pub fn total(&self) -> u64 {
        self.by_name().map(|(_, calls)| calls).sum()
    }
}
