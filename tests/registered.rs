//! Files and buffers that rings have registered: that they are, and that nobody notices.

mod common;

use std::cell::Cell;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use aioco::aio::{IoThread, Local, MonitorKind, Stats};
use aioco::block::{self, AlignedBuf, Engine, File, Operation};
use aioco::{AioContext, yield_now};
use common::{assert_cancelled, child, eventually, with};
use tempfile::TempDir;

const BLOCK: usize = 4096;

/// Many more than it takes for a file and a chunk of buffers to be registered.
const MANY: u64 = 1000;

fn ring() -> Option<AioContext> {
    with(MonitorKind::IoUring)
}

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// The byte at an offset of the image with this number.
fn byte_at(image: u8, offset: usize) -> u8 {
    (offset / 7 + offset / BLOCK) as u8 ^ image.wrapping_mul(29)
}

fn content(image: u8, offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|offset| byte_at(image, offset)).collect()
}

/// An image of so many blocks, past the page cache if the file system can do that.
fn image(folder: &Path, number: u8, blocks: usize) -> fs::File {
    let path = folder.join(format!("image-{number}"));
    fs::write(&path, content(number, 0, blocks * BLOCK)).expect("a file");
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true);
    let direct = options.clone().custom_flags(libc::O_DIRECT).open(&path);
    direct.or_else(|_| options.open(&path)).expect("a file")
}

/// The image as a file whose requests go to the ring.
fn by_ring(file: fs::File) -> File {
    File::new(file).expect("a file").with_engine(Engine::Ring)
}

/// Requests of a kind that `f` makes.
fn count<T>(context: &Local, of: impl Fn(&Stats) -> u64, f: impl FnOnce() -> T) -> (u64, T) {
    let before = of(&context.stats());
    let result = f();
    (of(&context.stats()) - before, result)
}

/// Reads the image's first block so often.
fn read_often(context: &AioContext, file: &File, number: u8, times: u64) {
    context.block_on(|| {
        let mut buffer = AlignedBuf::new(BLOCK, BLOCK);
        let wanted = content(number, 0, BLOCK);
        for _ in 0..times {
            buffer.fill(0);
            file.read_exact_at(&mut buffer, 0).expect("a read");
            assert!(*buffer == wanted);
        }
    });
}

/// What the kernel says of the only ring of this process: files that are registered, and buffers.
fn in_kernel() -> (usize, usize) {
    let rings = fs::read_dir("/proc/self/fd").expect("a folder").filter_map(Result::ok);
    let is_ring = |link: &Path| fs::read_link(link).is_ok_and(|target| target.ends_with("anon_inode:[io_uring]"));
    let numbers: Vec<_> = rings.filter(|entry| is_ring(&entry.path())).map(|entry| entry.file_name()).collect();
    assert_eq!(numbers.len(), 1, "one ring");
    let info = Path::new("/proc/self/fdinfo").join(&numbers[0]);
    let info = fs::read_to_string(info).expect("what is said of a descriptor");
    let entries = |head: &str| {
        let lines = info.lines().skip_while(|line| !line.starts_with(head)).skip(1);
        lines.take_while(|line| line.starts_with(' ')).filter(|line| !line.ends_with("<none>")).count()
    };
    (entries("UserFiles:"), entries("UserBufs:"))
}

/// Whether nobody else has the file of this path open who has locked it.
fn is_unlocked(path: &Path) -> bool {
    let file = fs::File::open(path).expect("a file");
    // SAFETY: no memory arguments.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

fn lock(file: &fs::File) {
    // SAFETY: no memory arguments.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
}

// ---- what is registered ---------------------------------------------------------------------------------------------

#[test]
fn what_is_used_again_and_again_is_registered_and_only_that() {
    let exit = child("", |_| {
        let Some(context) = ring() else { return };
        let folder = folder();
        let (first, other) = (by_ring(image(folder.path(), 1, 4)), by_ring(image(folder.path(), 2, 4)));
        let (requests, ()) = count(&context, |stats| stats.ring_requests, || read_often(&context, &first, 1, 10));
        assert_eq!(requests, 10);
        let stats = context.stats();
        assert_eq!((stats.registered_files, stats.registered_buffers), (0, 0), "it isn't worth it");

        read_often(&context, &first, 1, MANY);
        read_often(&context, &other, 2, 10);
        assert_eq!(in_kernel(), (1, 1));
        let (files, ()) = count(&context, |stats| stats.registered_files, || read_often(&context, &first, 1, MANY));
        let (buffers, ()) = count(&context, |stats| stats.registered_buffers, || read_often(&context, &first, 1, MANY));
        assert_eq!((files, buffers), (MANY, MANY));
        assert_eq!(context.stats().buffers_refused, None);

        // Other memory isn't, and goes the same way otherwise.
        let (buffers, ()) = count(
            &context,
            |stats| stats.registered_buffers,
            || {
                context.block_on(|| {
                    let (mut small, mut large) = (AlignedBuf::new(512, 512), AlignedBuf::new(4 << 20, BLOCK));
                    for _ in 0..MANY {
                        first.read_exact_at(&mut small, 0).expect("a read");
                        assert!(*small == content(1, 0, 512));
                    }
                    assert_eq!(first.read_at(&mut large, 0).expect("a read"), 4 * BLOCK);
                });
            },
        );
        assert_eq!(buffers, 0);
    });
    exit.assert_success();
}

#[test]
fn the_reason_for_the_ring_says_whether_the_file_is_registered() {
    let Some(context) = ring() else { return };
    let folder = folder();
    let file = image(folder.path(), 1, 4);
    let file = File::new(file).expect("a file");
    let reason = || context.block_on(|| file.engine(Operation::Read)).to_string();
    if !reason().starts_with("ring") {
        return println!("SKIPPED: no direct I/O here");
    }
    assert!(!reason().contains("registered"), "{}", reason());
    read_often(&context, &file, 1, MANY);
    assert!(reason().contains("with which the file is registered"), "{}", reason());
}

#[test]
fn all_kinds_of_requests_may_name_what_is_registered() {
    let Some(context) = ring() else { return };
    let folder = folder();
    let file = by_ring(image(folder.path(), 1, 16));
    read_often(&context, &file, 1, MANY);
    let (files, ()) = count(
        &context,
        |stats| stats.registered_files,
        || {
            context.block_on(|| {
                let mut buffer = AlignedBuf::new(4 * BLOCK, BLOCK);
                buffer.fill(7);
                file.write_all_at(&buffer[BLOCK..2 * BLOCK], 0).expect("a write");
                file.write_all_at_fua(&buffer, BLOCK as u64).expect("a write");
                file.flush().expect("a flush");
                file.flush_all().expect("a flush");
                let (left, right) = buffer.split_at_mut(2 * BLOCK);
                let mut slices = [left, right].map(std::io::IoSliceMut::new);
                assert_eq!(file.read_vectored_at(&mut slices, 4 * BLOCK as u64).expect("a read"), 4 * BLOCK);
                assert!(buffer[..BLOCK].iter().all(|&byte| byte == 7));
                assert!(buffer[BLOCK..] == content(1, 5 * BLOCK, 3 * BLOCK));
                file.write_zeroes(0, BLOCK as u64).expect("zeroes");
                file.read_exact_at(&mut buffer[..2 * BLOCK], 0).expect("a read");
                assert!(
                    buffer[..BLOCK].iter().all(|&byte| byte == 0) && buffer[BLOCK..2 * BLOCK].iter().all(|&b| b == 7)
                );
                // The end of the file.
                assert_eq!(file.read_at(&mut buffer, 15 * BLOCK as u64).expect("a read"), BLOCK);
                assert!(buffer[..BLOCK] == content(1, 15 * BLOCK, BLOCK));
                let mut buffers = [0; 8].map(|_| AlignedBuf::new(BLOCK, BLOCK));
                block::group(|group| {
                    for (buffer, number) in buffers.iter_mut().zip(7..) {
                        group.read_at(&file, buffer, number * BLOCK as u64);
                    }
                    group.wait_all();
                });
                for (buffer, number) in buffers.iter().zip(7..) {
                    assert!(**buffer == content(1, number * BLOCK, BLOCK), "{number}");
                }
            });
        },
    );
    assert!(files >= 15, "{files}");
    let file = Rc::new(file);
    let done = common::Count::default();
    let (buffers, ()) = count(
        &context,
        |stats| stats.registered_buffers,
        || {
            for number in 7..15usize {
                let then = done.clone();
                block::read_then(
                    &context,
                    file.clone(),
                    AlignedBuf::new(BLOCK, BLOCK),
                    (number * BLOCK) as u64,
                    move |read, buffer| {
                        assert_eq!(read.expect("a read"), BLOCK);
                        assert!(*buffer == content(1, number * BLOCK, BLOCK));
                        then.raise();
                    },
                )
                .expect("it goes on");
            }
            context.run_until(|| done.get() == 8);
        },
    );
    assert!(buffers > 0, "{buffers}");
}

// ---- how long files are kept ----------------------------------------------------------------------------------------

#[test]
fn a_file_that_is_dropped_on_its_thread_is_closed_at_once() {
    let Some(context) = ring() else { return };
    let folder = folder();
    let path = folder.path().join("image-1");
    for taken_out in [false, true] {
        let file = image(folder.path(), 1, 4);
        lock(&file);
        let file = by_ring(file);
        let (files, ()) = count(&context, |stats| stats.registered_files, || read_often(&context, &file, 1, MANY));
        assert!(files > 0 && !is_unlocked(&path));
        if taken_out {
            drop(file.into_inner())
        } else {
            drop(file)
        }
        assert!(is_unlocked(&path));
    }
}

#[test]
fn a_file_that_is_dropped_elsewhere_is_closed_soon_also_by_loops_that_sleep() {
    let Some(context) = ring() else { return };
    drop(context);
    let folder = folder();
    let path = folder.path().join("image-1");
    let threads = [0; 3].map(|_| IoThread::new("io").expect("a thread"));
    let file = image(folder.path(), 1, 4);
    lock(&file);
    let file = Arc::new(by_ring(file));
    for thread in &threads {
        let shared = file.clone();
        let read = move || {
            let mut buffer = AlignedBuf::new(BLOCK, BLOCK);
            (0..MANY).for_each(|_| shared.read_exact_at(&mut buffer, 0).expect("a read"));
            aioco::aio::current().expect("an I/O thread").stats().registered_files
        };
        let registered = thread.remote().spawn(read).expect("a stack").join().expect("no panic");
        assert!(registered >= MANY / 2, "{registered}");
    }
    assert!(!is_unlocked(&path));
    drop(file);
    assert!(eventually(|| is_unlocked(&path)));
}

#[test]
fn a_context_that_ends_closes_what_it_has_registered() {
    let folder = folder();
    let path = folder.path().join("image-1");
    let Some(context) = ring() else { return };
    let file = image(folder.path(), 1, 4);
    lock(&file);
    let descriptor = Arc::new(file);
    let file = File::new(descriptor.clone()).expect("a file").with_engine(Engine::Ring);
    context.block_on(|| {
        let mut buffer = AlignedBuf::new(BLOCK, BLOCK);
        (0..MANY).for_each(|_| file.read_exact_at(&mut buffer, 0).expect("a read"));
    });
    // A file that is never dropped.
    std::mem::forget(file);
    drop(context);
    let others = Arc::strong_count(&descriptor);
    assert_eq!(others, 2);
    // SAFETY: the file that was forgotten doesn't use its descriptor any more.
    assert_eq!(unsafe { libc::close(descriptor.as_raw_fd()) }, 0);
    std::mem::forget(descriptor);
    assert!(is_unlocked(&path));
}

#[test]
fn contexts_come_and_go_while_a_file_stays() {
    let Some(_) = ring() else { return };
    let folder = folder();
    let file = by_ring(image(folder.path(), 1, 4));
    for _ in 0..3 {
        let (one, other) = (ring().expect("as before"), ring().expect("as before"));
        for context in [&one, &other] {
            read_often(context, &file, 1, MANY);
            let (files, ()) = count(context, |stats| stats.registered_files, || read_often(context, &file, 1, 10));
            assert_eq!(files, 10);
        }
    }
}

#[test]
fn when_the_table_is_full_others_go_unregistered_until_there_is_room() {
    let exit = child("", |_| {
        let Some(context) = ring() else { return };
        let folder = folder();
        image(folder.path(), 1, 4);
        let open = || {
            let path = folder.path().join("image-1");
            let direct = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
            File::new(direct.unwrap_or_else(|_| fs::File::open(&path).expect("a file"))).expect("a file")
        };
        let mut files: Vec<_> = (0..300).map(|_| open().with_engine(Engine::Ring)).collect();
        files.iter().for_each(|file| read_often(&context, file, 1, 40));
        let is_registered =
            |file: &File| count(&context, |stats| stats.registered_files, || read_often(&context, file, 1, 1)).0 == 1;
        let registered = files.iter().filter(|file| is_registered(file)).count();
        assert_eq!((registered, in_kernel().0), (256, 256));
        let late = open();
        read_often(&context, &late, 1, 40);
        let reason = context.block_on(|| late.engine(Operation::Read)).to_string();
        assert!(!reason.starts_with("ring") || reason.contains("as many as can be are"), "{reason}");

        let last = files.pop().expect("there are some");
        assert!(!is_registered(&last));
        files.remove(100);
        assert!(is_registered(&last));
        assert_eq!(files.iter().filter(|file| is_registered(file)).count(), 255);
        drop((files, last, late));
        assert_eq!(in_kernel().0, 0);
    });
    exit.assert_success();
}

/// A place that is taken anew never leads to the file that had it before.
#[test]
fn files_that_come_and_go_are_never_taken_for_one_another() {
    let Some(context) = ring() else { return };
    let folder = folder();
    for number in 0..8 {
        image(folder.path(), number, 4);
    }
    let open = |number: u8| {
        let path = folder.path().join(format!("image-{number}"));
        (number, by_ring(fs::File::open(path).expect("a file")))
    };
    let mut files: Vec<_> = (0..8).map(open).collect();
    let mut random = Random(1);
    for _ in 0..300 {
        let which = random.below(files.len());
        let (number, file) = &files[which];
        read_often(&context, file, *number, 40);
        if random.below(3) == 0 {
            files.remove(which);
            files.push(open(random.below(8) as u8));
        }
    }
    assert!(context.stats().registered_files > 1000, "{:?}", context.stats());
}

/// A context that hasn't learned yet that a file is gone meets one that has its descriptor, and its place elsewhere.
#[test]
fn a_file_in_the_place_and_with_the_number_of_one_that_is_gone_is_not_taken_for_it() {
    let exit = child("", |_| {
        let Some(context) = ring() else { return };
        let folder = folder();
        let (gone, new) = (image(folder.path(), 1, 4), image(folder.path(), 2, 4));
        let number = gone.as_raw_fd();
        let gone = Arc::new(by_ring(gone));
        let other = IoThread::new("io").expect("a thread");
        let (tell, hear) = mpsc::channel::<Arc<File>>();
        let (ready, is_ready) = mpsc::channel();
        let reader = move || {
            let mut buffer = AlignedBuf::new(BLOCK, BLOCK);
            (0..MANY).for_each(|_| gone.read_exact_at(&mut buffer, 0).expect("a read"));
            ready.send(gone).expect("somebody listens");
            // The loop stands still meanwhile.
            let new = hear.recv().expect("another file");
            new.read_exact_at(&mut buffer, 0).expect("a read");
            buffer.to_vec()
        };
        let reader = other.remote().spawn(reader).expect("a stack");
        drop(is_ready.recv().expect("the file back"));
        // SAFETY: nobody else opens anything here.
        assert_eq!(unsafe { libc::dup2(new.as_raw_fd(), number) }, number);
        // SAFETY: nobody else has the number.
        let new = unsafe { fs::File::from_raw_fd(number) };
        // Places are chosen by age.
        (0..255).for_each(|_| drop(File::new(&new).expect("a file")));
        let new = Arc::new(by_ring(new));
        read_often(&context, &new, 2, MANY);
        assert!(context.stats().registered_files > 0);
        tell.send(new).expect("it listens");
        assert!(reader.join().expect("no panic") == content(2, 0, BLOCK));
    });
    exit.assert_success();
}

/// A file that isn't always the same.
struct Either {
    files: [fs::File; 2],
    which: Cell<usize>,
}

impl AsFd for Either {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.files[self.which.get()].as_fd()
    }
}

#[test]
fn a_file_that_names_another_descriptor_than_before_goes_by_that() {
    let Some(context) = ring() else { return };
    let folder = folder();
    let either = Either { files: [1, 2].map(|number| image(folder.path(), number, 4)), which: Cell::new(0) };
    let file = File::new(either).expect("a file").with_engine(Engine::Ring);
    context.block_on(|| {
        let mut buffer = AlignedBuf::new(BLOCK, BLOCK);
        for round in 0..4 * MANY as usize {
            let which = if round < MANY as usize { 0 } else { round % 2 };
            file.get_ref().which.set(which);
            file.read_exact_at(&mut buffer, 0).expect("a read");
            assert!(*buffer == content(1 + which as u8, 0, BLOCK), "round {round}");
        }
    });
    assert!(context.stats().registered_files > 2 * MANY - 100, "{:?}", context.stats());
}

// ---- buffers --------------------------------------------------------------------------------------------------------

/// A reproducible sequence of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Buffers come, are used and go, so that chunks are lent again, and given back to the system, while rings have some of
/// them pinned; and the file is what a simple model says.
#[test]
fn what_goes_through_buffers_that_come_and_go_is_what_a_simple_model_says() {
    let Some(context) = ring() else { return };
    let folder = folder();
    const LEN: usize = 64 * BLOCK;
    let file = by_ring(image(folder.path(), 3, LEN / BLOCK));
    let mut model = content(3, 0, LEN);
    let mut random = Random(2);
    let registered = context.block_on(|| {
        let mut held: Vec<AlignedBuf> = Vec::new();
        for round in 0..4000 {
            let len = (1 + random.below(8)) * BLOCK;
            let offset = random.below((LEN - len) / BLOCK + 1) * BLOCK;
            let mut buffer = match held.len() {
                0 => AlignedBuf::new(8 * BLOCK, BLOCK),
                n => held.swap_remove(random.below(n)),
            };
            let start = random.below((buffer.len() - len) / BLOCK + 1) * BLOCK;
            let part = &mut buffer[start..start + len];
            if random.below(2) == 0 {
                part.fill(round as u8);
                file.write_all_at(part, offset as u64).expect("a write");
                model[offset..offset + len].fill(round as u8);
            } else {
                part.fill(!model[offset]);
                file.read_exact_at(part, offset as u64).expect("a read");
                assert!(*part == model[offset..offset + len], "round {round}");
            }
            held.push(buffer);
            match random.below(200) {
                0 => held.clear(),
                // Much more than is kept.
                1 => drop((0..40).map(|_| AlignedBuf::new(1 << 20, BLOCK)).collect::<Vec<_>>()),
                2..40 => held.push(AlignedBuf::new(8 * BLOCK, BLOCK)),
                _ => {}
            }
            if round % 64 == 0 {
                yield_now();
            }
        }
        context.stats().registered_buffers
    });
    assert!(registered > 1000, "{registered}");
}

#[test]
fn buffers_are_zeroes_at_first_whoever_has_had_them() {
    for _ in 0..3 {
        let mut buffers: Vec<_> = [1, 512, 4096, 5000, 1 << 16, 1 << 20, (1 << 20) + 1]
            .into_iter()
            .map(|len| AlignedBuf::new(len, 4096))
            .collect();
        for buffer in &mut buffers {
            assert!(buffer.as_ptr().addr().is_multiple_of(4096) && buffer.iter().all(|&byte| byte == 0));
            buffer.fill(0xff);
        }
    }
    assert!(AlignedBuf::new(1 << 16, 1 << 16).as_ptr().addr().is_multiple_of(1 << 16));
}

/// The kernel gives back no memory that is locked.
#[test]
fn buffers_are_zeroes_at_first_also_where_memory_is_locked() {
    let many = || (0..40).map(|_| AlignedBuf::new(1 << 20, BLOCK)).collect::<Vec<_>>();
    let exit = child("", |_| {
        let mut buffers = many();
        for buffer in &mut buffers {
            buffer.fill(0xff);
            // SAFETY: it is mapped.
            if unsafe { libc::mlock(buffer.as_ptr().cast(), buffer.len()) } != 0 {
                return println!("SKIPPED: no memory may be locked");
            }
        }
        drop(buffers);
        assert!(many().iter().all(|buffer| buffer.iter().all(|&byte| byte == 0)));
    });
    exit.assert_success();
}

#[test]
fn more_chunks_than_a_ring_can_register_are_used_all_the_same() {
    let exit = child("", |_| {
        let Some(context) = ring() else { return };
        let folder = folder();
        let file = by_ring(image(folder.path(), 1, 4));
        // One for each chunk.
        let mut buffers: Vec<_> = (0..70).map(|_| AlignedBuf::new(1 << 20, BLOCK)).collect();
        context.block_on(|| {
            let wanted = content(1, 0, BLOCK);
            for buffer in &mut buffers {
                for _ in 0..600 {
                    buffer[..BLOCK].fill(0);
                    file.read_exact_at(&mut buffer[..BLOCK], 0).expect("a read");
                    assert!(buffer[..BLOCK] == wanted);
                }
            }
        });
        assert_eq!(in_kernel().1, 64);
    });
    exit.assert_success();
}

/// Without the capability that lifts the limit of locked memory, the kernel pins no more than that.
#[test]
fn where_no_memory_may_be_locked_buffers_go_unregistered_and_the_figures_say_why() {
    let exit = child("", |_| {
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit is valid.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);
        drop_capabilities();
        let Some(context) = ring() else { return };
        let folder = folder();
        let file = by_ring(image(folder.path(), 1, 4));
        read_often(&context, &file, 1, 2 * MANY);
        let stats = context.stats();
        assert_eq!(stats.registered_buffers, 0);
        assert!(stats.registered_files > MANY, "files take no locked memory");
        assert!(stats.buffers_refused.is_some_and(|reason| reason.contains("RLIMIT_MEMLOCK")), "{stats:?}");
        drop(context);
        // Where the chunk hasn't stayed pinned, it is given back, and is zeroes anew.
        assert!(AlignedBuf::new(1 << 20, BLOCK).iter().all(|&byte| byte == 0));
    });
    exit.assert_success();
}

/// Gives up all capabilities of the calling thread.
fn drop_capabilities() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: the structures are those of capset(2).
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) }, 0);
}

#[test]
fn requests_that_are_cancelled_leave_their_buffers_alone_afterwards() {
    let Some(context) = ring() else { return };
    let folder = folder();
    let file = Rc::new(by_ring(image(folder.path(), 1, 256)));
    read_often(&context, &file, 1, MANY);
    for turns in 0..20 {
        let readers: Vec<_> = (0..32)
            .map(|_| {
                let file = file.clone();
                let read = move || {
                    let mut buffer = AlignedBuf::new(64 * BLOCK, BLOCK);
                    loop {
                        file.read_exact_at(&mut buffer, 0).expect("a read");
                        assert!(buffer[..BLOCK] == content(1, 0, BLOCK));
                    }
                };
                context.spawn_local(read).expect("a stack")
            })
            .collect();
        (0..turns % 5).for_each(|_| {
            context.poll(false);
        });
        readers.iter().for_each(|reader| reader.cancel());
        readers.into_iter().for_each(|reader: aioco::JoinHandle<()>| assert_cancelled(reader.join()));
        // What they had is lent again, and the kernel doesn't write to it any more.
        let watched: Vec<_> = (0..32).map(|_| AlignedBuf::new(64 * BLOCK, BLOCK)).collect();
        (0..3).for_each(|_| {
            context.poll(false);
        });
        read_often(&context, &file, 1, 10);
        assert!(watched.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0)));
    }
}

// ---- forks ----------------------------------------------------------------------------------------------------------

#[test]
fn after_a_fork_the_parent_and_the_child_each_have_their_own_pages() {
    let exit = child("", |_| {
        let Some(context) = ring() else { return };
        let folder = folder();
        let mut file = Some(by_ring(image(folder.path(), 1, 16)));
        let mut buffer = AlignedBuf::new(BLOCK, BLOCK);
        let mut context = Some(context);
        for round in 0..4 {
            let (owner, image) = (context.as_ref().expect("dropped in children"), file.as_ref().expect("the same"));
            read_often(owner, image, 1, MANY);
            buffer.fill(0xa0 | round);
            let (tell_parent, mut parent_hears) = std::io::pipe().map(|(hears, tells)| (tells, hears)).expect("a pipe");
            let (mut child_hears, tell_child) = std::io::pipe().expect("a pipe");
            // SAFETY: this process has no other thread that matters.
            match unsafe { libc::fork() } {
                -1 => panic!("no child"),
                0 => {
                    // SAFETY: ends this process if it hangs.
                    unsafe { libc::alarm(common::LIMIT.as_secs() as u32 / 2) };
                    drop(tell_child);
                    let check = || {
                        // The parent writes to its pages meanwhile, which aren't ours.
                        drop(tell_parent);
                        std::io::Read::read(&mut child_hears, &mut [0]).expect("the end of a pipe");
                        assert!(buffer.iter().all(|&byte| byte == 0xa0 | round));
                        // Ours can be registered too.
                        let own = ring().expect("a ring");
                        read_often(&own, file.as_ref().expect("a copy"), 1, MANY);
                        assert!(own.stats().registered_buffers > 0 && own.stats().registered_files > 0);
                        // And whatever is dropped here is a copy.
                        drop(file.take());
                        drop(own);
                        drop(context.take());
                    };
                    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
                    // SAFETY: ends this process.
                    unsafe { libc::_exit(i32::from(result.is_err())) };
                }
                pid => {
                    drop((tell_parent, child_hears));
                    std::io::Read::read(&mut parent_hears, &mut [0]).expect("the end of a pipe");
                    let (written, ()) = count(
                        owner,
                        |stats| stats.registered_buffers,
                        || {
                            owner.block_on(|| {
                                buffer.fill(0x50 | round);
                                image.write_all_at(&buffer, 8 * BLOCK as u64).expect("a write");
                                buffer.fill(0);
                                image.read_exact_at(&mut buffer, 8 * BLOCK as u64).expect("a read");
                                assert!(buffer.iter().all(|&byte| byte == 0x50 | round));
                                image.read_exact_at(&mut buffer, 0).expect("a read");
                                assert!(*buffer == content(1, 0, BLOCK));
                            });
                        },
                    );
                    assert_eq!(written, 3);
                    drop(tell_child);
                    let mut status = 0;
                    // SAFETY: the status is valid.
                    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                    assert_eq!(status, 0, "the child's checks");
                    let (files, ()) = count(owner, |stats| stats.registered_files, || read_often(owner, image, 1, 10));
                    assert_eq!((files, in_kernel()), (10, (1, 1)), "it is still registered");
                }
            }
        }
        let path = folder.path().join("image-1");
        let mut stored = vec![0; BLOCK];
        fs::File::open(path).expect("a file").read_exact_at(&mut stored, 8 * BLOCK as u64).expect("a read");
        assert!(stored.iter().all(|&byte| byte == 0x53));
    });
    exit.assert_success();
}

/// Several threads with a ring each use the same chunk, and hand buffers to each other.
#[test]
fn buffers_go_from_thread_to_thread() {
    let Some(_) = ring() else { return };
    let folder = folder();
    let file = Arc::new(by_ring(image(folder.path(), 1, 64)));
    // So that few buffers are on their way, all in one chunk.
    let (first, mut hears) = mpsc::sync_channel::<AlignedBuf>(8);
    let mut threads = Vec::new();
    for number in 0..4 {
        let (tell, next) = mpsc::sync_channel(8);
        let file = file.clone();
        threads.push(thread::spawn(move || {
            let context = ring().expect("as before");
            for (round, mut buffer) in hears.into_iter().enumerate() {
                let offset = (round * 7 + number) % 64 * BLOCK;
                context.block_on(|| file.read_exact_at(&mut buffer, offset as u64)).expect("a read");
                assert!(*buffer == content(1, offset, BLOCK));
                tell.send(buffer).expect("the next thread listens");
            }
            context.stats().registered_buffers
        }));
        hears = next;
    }
    let last = thread::spawn(move || hears.into_iter().count());
    (0..2000).for_each(|_| first.send(AlignedBuf::new(BLOCK, BLOCK)).expect("the first thread listens"));
    drop(first);
    assert_eq!(last.join().expect("no panic"), 2000);
    for thread in threads {
        assert!(thread.join().expect("no panic") > 500);
    }
}
