//! Unit tests: what happens when the kernel refuses to register files or buffers, and to requests that name them.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use super::{AlignedBuf, Engine, File, Operation};
use crate::aio::{AioContext, MonitorKind};
use crate::sys::fault::Fault::{self, Errno, Only};
use crate::sys::fault::{Site, left, plan};

const BLOCK: usize = 4096;

/// Many more than it takes to register a file and a chunk.
const MANY: usize = 1000;

fn ring() -> Option<AioContext> {
    let context = AioContext::builder().monitor(MonitorKind::IoUring).build();
    context.inspect_err(|error| println!("SKIPPED: {error}")).ok()
}

/// A file without a name, whose every byte is one.
fn image() -> fs::File {
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("a file");
    io::Write::write_all(&mut &file, &[1; 4 * BLOCK]).expect("room");
    file
}

fn by_ring(file: fs::File) -> File {
    File::new(file).expect("a file").with_engine(Engine::Ring)
}

/// Reads so often; returns how many of the requests named the file, and the buffer, as registered.
fn read_often(context: &AioContext, file: &File, times: usize) -> (u64, u64) {
    let before = context.stats();
    context.block_on(|| {
        let mut buffer = AlignedBuf::new(BLOCK, BLOCK);
        for _ in 0..times {
            buffer.fill(0);
            file.read_exact_at(&mut buffer, BLOCK as u64).expect("a read");
            assert!(buffer.iter().all(|&byte| byte == 1));
        }
    });
    let after = context.stats();
    (after.registered_files - before.registered_files, after.registered_buffers - before.registered_buffers)
}

#[test]
fn a_kernel_without_tables_is_asked_once_for_each() {
    for (errno, says) in [(libc::EINVAL, "5.19"), (libc::EMFILE, "RLIMIT_NOFILE"), (libc::EPERM, "registers no files")]
    {
        let Some(context) = ring() else { return };
        let file = by_ring(image());
        plan(Site::Register, [Errno(errno), Errno(errno), Errno(errno)]);
        assert_eq!(read_often(&context, &file, MANY), (0, 0));
        assert_eq!(left(Site::Register), 1);
        let other = File::new(image()).expect("a file");
        let reason = context.block_on(|| other.engine(Operation::Other)).reason();
        assert!(reason.contains(says), "{reason}");
        assert!(context.stats().buffers_refused.is_some());
        plan(Site::Register, []);
        // And not again.
        assert_eq!(read_often(&context, &file, MANY), (0, 0));
    }
}

#[test]
fn a_file_that_cannot_be_registered_stays_unregistered_and_others_do_not() {
    let Some(context) = ring() else { return };
    let (file, other) = (by_ring(image()), by_ring(image()));
    plan(Site::Register, [Fault::None, Errno(libc::EBADF)]);
    assert_eq!(read_often(&context, &file, 100).0, 0);
    assert_eq!(left(Site::Register), 0);
    assert_eq!(read_often(&context, &file, 100).0, 0);
    assert!(read_often(&context, &other, 100).0 > 50);
}

#[test]
fn a_chunk_that_cannot_be_pinned_stays_unregistered_and_the_figures_say_why() {
    let Some(context) = ring() else { return };
    let file = by_ring(image());
    read_often(&context, &file, 100);
    plan(Site::Register, [Fault::None, Errno(libc::ENOMEM)]);
    assert_eq!(read_often(&context, &file, 2 * MANY).1, 0);
    assert_eq!(left(Site::Register), 0);
    assert!(context.stats().buffers_refused.expect("a reason").contains("RLIMIT_MEMLOCK"));
}

/// It has no place for another file then, but never takes one for the other.
#[test]
fn a_file_that_the_table_does_not_give_up_is_not_taken_for_another() {
    let Some(context) = ring() else { return };
    let file = by_ring(image());
    assert!(read_often(&context, &file, MANY).0 > 0);
    plan(Site::Register, [Errno(libc::ENOMEM)]);
    drop(file);
    assert_eq!(left(Site::Register), 0);
    let other = by_ring(image());
    assert!(read_often(&context, &other, 100).0 > 50);
}

#[test]
fn transfers_by_what_is_registered_are_finished_as_others_are() {
    let Some(context) = ring() else { return };
    let file = by_ring(image());
    assert!(read_often(&context, &file, MANY).1 > 0);
    let site = Site::Request(file.get_ref().as_raw_fd());
    plan(site, [Only(100), Errno(libc::EAGAIN), Only(1), Errno(libc::EINTR), Only(BLOCK - 102), Fault::None]);
    let (files, buffers) = read_often(&context, &file, 1);
    assert_eq!((left(site), files, buffers), (0, 6, 6));
    plan(site, [Errno(libc::EIO)]);
    let error = context.block_on(|| file.read_at(&mut AlignedBuf::new(BLOCK, BLOCK), 0)).expect_err("planned");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    plan(site, [Only(10), Errno(libc::EAGAIN)]);
    let mut data = AlignedBuf::new(BLOCK, BLOCK);
    data.fill(1);
    context.block_on(|| file.write_all_at(&data, BLOCK as u64)).expect("a write");
    assert_eq!(left(site), 0);
    read_often(&context, &file, 1);
}
