//! Unit tests: what happens when the kernel takes a part, puts off, interrupts or refuses.

mod cancels;
mod choices;
mod submissions;
mod transfers;

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::iter;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::{AlignedBuf, Engine, File, Operation, flush_then, group, read_then, write_all_then};
use crate::aio::{self, AioContext, MonitorKind};
use crate::coroutine::{Cancelled, Coroutine, enter_home, yield_now};
use crate::sys::fault::Fault::{self, Errno, Hold, Only};
use crate::sys::fault::{Site, holds as is_held, left, plan};

const BLOCK: usize = 4096;

/// Ends the process if the caller hasn't dropped what this returns after a long time: a test hangs.
fn watchdog() -> mpsc::Sender<()> {
    let (alive, ended) = mpsc::channel();
    thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(100)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("a test of faults hangs");
            process::abort();
        }
    });
    alive
}

/// Runs a scenario with each monitor that can be had.
fn each(scenario: impl Fn(&AioContext)) {
    let _alive = watchdog();
    for kind in [MonitorKind::Poll, MonitorKind::Epoll, MonitorKind::IoUring] {
        match AioContext::builder().monitor(kind).build() {
            Ok(context) => scenario(&context),
            Err(error) => println!("SKIPPED with {kind}: {error}"),
        }
    }
}

/// As [`each`], with a context that can use Linux AIO.
fn each_with_linux_aio(scenario: impl Fn(&AioContext)) {
    each(|context| match context.prepare_linux_aio() {
        Ok(()) => scenario(context),
        Err(reason) => println!("SKIPPED: {reason}"),
    });
}

/// The engines that a coroutine of this context can have.
fn engines(context: &AioContext) -> Vec<Engine> {
    let mut engines = vec![Engine::Inline, Engine::Workers];
    engines.extend((context.monitor().kind() == MonitorKind::IoUring).then_some(Engine::Ring));
    engines.extend(context.prepare_linux_aio().is_ok().then_some(Engine::LinuxAio));
    engines
}

/// What is at an offset of a file.
fn byte_at(offset: usize) -> u8 {
    (offset / 7 + offset / BLOCK) as u8
}

fn holds(buffer: &[u8], offset: usize) -> bool {
    buffer.iter().zip(offset..).all(|(&byte, offset)| byte == byte_at(offset))
}

/// A file of so many blocks, without a name.
fn image(blocks: usize) -> fs::File {
    open(blocks, 0).expect("a file")
}

/// The same for direct I/O, if the file system can do it.
fn direct_image(blocks: usize) -> Option<fs::File> {
    open(blocks, libc::O_DIRECT).inspect_err(|error| println!("SKIPPED with O_DIRECT: {error}")).ok()
}

fn images(blocks: usize) -> impl Iterator<Item = fs::File> {
    iter::once(image(blocks)).chain(direct_image(blocks))
}

fn open(blocks: usize, flags: i32) -> io::Result<fs::File> {
    // On a disk, as a rule: where this binary is.
    let binary = std::env::current_exe().expect("the test's own path");
    let folder = tempfile::tempdir_in(binary.parent().expect("a folder")).expect("a folder");
    let path = folder.path().join("image");
    let content: Vec<_> = (0..blocks * BLOCK).map(byte_at).collect();
    fs::write(&path, content).expect("a file");
    fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

fn aio_file(file: fs::File) -> Rc<File> {
    Rc::new(File::new(file).expect("a file").with_engine(Engine::LinuxAio))
}

/// Has a coroutine read each of the first blocks of the file; returns their errors, in order.
fn read_blocks(context: &AioContext, file: &Rc<File>, blocks: usize) -> Vec<Option<i32>> {
    let readers: Vec<_> = (0..blocks)
        .map(|number| {
            let file = file.clone();
            let read = move || {
                let mut buffer = AlignedBuf::new(BLOCK, BLOCK);
                let result = file.read_exact_at(&mut buffer, (number * BLOCK) as u64);
                assert!(result.is_err() || holds(&buffer, number * BLOCK));
                result.err().map(|error| error.raw_os_error().expect("of the kernel's"))
            };
            context.spawn_local(read).expect("a stack")
        })
        .collect();
    readers.into_iter().map(|reader| reader.join().expect("no panic")).collect()
}

/// Turns that don't wait.
fn turn(context: &AioContext) {
    for _ in 0..3 {
        context.poll(false);
    }
}

/// So many system calls that hand over requests does this take.
fn submits(context: &AioContext, f: impl FnOnce()) -> u64 {
    let before = context.stats().linux_aio_submits;
    f();
    context.stats().linux_aio_submits - before
}

// ---- submissions ----------------------------------------------------------------------------------------------------
