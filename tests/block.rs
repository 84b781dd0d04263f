//! Files, through every engine and from every kind of caller.

mod common;

use std::cell::Cell;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use aioco::aio::{self, MonitorKind};
use aioco::block::{self, AlignedBuf, Engine, File, Misaligned, Operation};
use aioco::{AioContext, Coroutine, park};
use common::{Count, OnDrop, assert_cancelled, child, each, eventually, forbid, settle, spawn};
use tempfile::TempDir;

const ENGINES: [Engine; 4] = [Engine::Inline, Engine::Ring, Engine::LinuxAio, Engine::Workers];

/// Folders of different kinds, and what is special about files there.
fn folders() -> Vec<(TempDir, bool)> {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut folders = vec![(disk, false)];
    match tempfile::tempdir_in("/dev/shm") {
        Ok(memory) => folders.push((memory, true)),
        Err(error) => println!("SKIPPED on tmpfs: {error}"),
    }
    folders
}

fn open(path: &Path) -> fs::File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("a file")
}

/// Opened for direct I/O, if the file system can do it.
fn open_direct(path: &Path) -> Option<fs::File> {
    match OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT).open(path)
    {
        Ok(file) => Some(file),
        Err(error) => {
            println!("SKIPPED with O_DIRECT: {error}");
            None
        }
    }
}

/// A file through the page cache and, if the file system can do it, for direct I/O. With it, what its transfers are
/// multiples of.
fn opened(path: &Path) -> Vec<(fs::File, usize)> {
    let cached = (open(path), 1);
    [cached].into_iter().chain(open_direct(path).map(|file| (file, 4096))).collect()
}

/// The file through each engine, as often as it can be [opened]; says what carries out its requests. With it, what
/// transfers are multiples of.
fn through_each_engine(context: &AioContext, path: &Path) -> Vec<(File, usize)> {
    let mut files = Vec::new();
    for engine in ENGINES {
        for (file, unit) in opened(path) {
            let file = File::new(file).expect("a file").with_engine(engine);
            let choice = context.block_on(|| file.engine(Operation::Read));
            println!("{engine}, {}: {choice}", if unit == 1 { "page cache" } else { "direct" });
            files.push((file, unit));
        }
    }
    files
}

/// Whether this system has Linux AIO.
fn has_linux_aio() -> bool {
    let mut id: libc::c_ulong = 0;
    // SAFETY: a valid place for the result, and the context is destroyed again.
    unsafe {
        let has = libc::syscall(libc::SYS_io_setup, 1, &raw mut id) == 0;
        if has {
            libc::syscall(libc::SYS_io_destroy, id);
        }
        has
    }
}

/// A reproducible sequence of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// The pattern of a block.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// The same bytes, where direct I/O can reach them.
fn aligned(bytes: &[u8]) -> AlignedBuf {
    let mut buffer = AlignedBuf::new(bytes.len(), 4096);
    buffer.copy_from_slice(bytes);
    buffer
}

// ---- transfers ------------------------------------------------------------------------------------------------------

/// Random operations through each engine, against a model of the file.
#[test]
fn whatever_is_done_through_whatever_engine_the_file_is_what_a_simple_model_says() {
    each(|context| {
        for (folder, _) in folders() {
            let path = folder.path().join("image");
            let mut files = through_each_engine(context, &path);
            files.extend(opened(&path).into_iter().map(|(file, unit)| (File::new(file).expect("a file"), unit)));
            context.block_on(|| {
                let mut random = Random(42);
                let mut model: Vec<u8> = Vec::new();
                for step in 0..400 {
                    let (file, unit) = &files[random.below(files.len())];
                    let offset = random.below(60_000) / unit * unit;
                    let len = random.below(9000) / unit * unit;
                    let part = len / 3 / unit * unit;
                    match random.below(8) {
                        0 | 1 => {
                            let data = aligned(&pattern(step as u8, len));
                            file.write_all_at(&data, offset as u64).expect("a write");
                            put(&mut model, offset, &data);
                        }
                        2 => {
                            let data = aligned(&pattern(step as u8, len));
                            let (first, second) = data.split_at(part);
                            let slices = &mut [IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(second)];
                            file.write_all_vectored_at(slices, offset as u64).expect("a write");
                            put(&mut model, offset, &data);
                        }
                        3 => {
                            let data = aligned(&pattern(step as u8, len));
                            file.write_all_at_fua(&data, offset as u64).expect("a write");
                            put(&mut model, offset, &data);
                        }
                        4 => {
                            file.write_zeroes(offset as u64, len as u64).expect("zeroes");
                            put(&mut model, offset, &vec![0; len]);
                        }
                        5 => match file.discard(offset as u64, len as u64) {
                            Ok(()) => {
                                let end = model.len().min(offset + len);
                                model.get_mut(offset..end).into_iter().for_each(|range| range.fill(0));
                            }
                            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
                        },
                        6 => {
                            let (mut first, mut second) =
                                (AlignedBuf::new(part, 4096), AlignedBuf::new(len - part, 4096));
                            let slices = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
                            let read = file.read_vectored_at(slices, offset as u64).expect("a read");
                            check(&model, offset, &[&first[..], &second].concat(), read);
                        }
                        _ => {
                            let mut data = aligned(&vec![1; len]);
                            let read = file.read_at(&mut data, offset as u64).expect("a read");
                            check(&model, offset, &data, read);
                        }
                    }
                }
                for (file, _) in &files {
                    file.flush().expect("a flush");
                    file.flush_all().expect("a flush");
                    file.allocate(0, 100_000).expect("space");
                }
                model.resize(model.len().max(100_000), 0);
                assert_eq!(fs::read(&path).expect("it is there"), model);
            });
        }
    });
}

fn put(model: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let end = offset + data.len();
    model.resize(model.len().max(end), 0);
    model[offset..end].copy_from_slice(data);
}

fn check(model: &[u8], offset: usize, data: &[u8], read: usize) {
    let there = model.get(offset..).unwrap_or_default();
    let wanted = &there[..there.len().min(data.len())];
    assert_eq!(read, wanted.len(), "short at the end only");
    assert!(data[..read] == *wanted);
}

/// Field report 78.
#[test]
fn direct_transfers_are_aligned_or_a_typed_error_and_end_where_the_file_ends() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        let Some(file) = open_direct(&path) else { return };
        for engine in ENGINES {
            fs::write(&path, pattern(1, 10_000)).expect("a file");
            let file = File::new(file.try_clone().expect("a duplicate")).expect("a file").with_engine(engine);
            let (memory, offsets) = file.alignment();
            println!("aligned to {memory} in memory and {offsets} in the file");
            context.block_on(|| {
                let mut buffer = AlignedBuf::new(16_384, 4096);
                assert_eq!(file.read_at(&mut buffer, 0).expect("a read"), 10_000);
                assert!(buffer[..10_000] == pattern(1, 10_000));
                assert_eq!(file.read_at(&mut buffer, 8192).expect("a read"), 10_000 - 8192);
                assert_eq!(file.read_at(&mut buffer, 12_288).expect("a read"), 0);
                let error = file.read_exact_at(&mut buffer, 0).expect_err("it ends first");
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                println!("{error}");
                for (from, len, offset) in [(1, 4096, 0), (0, 4097, 0), (0, 4096, 1)] {
                    for error in [
                        file.read_at(&mut buffer[from..from + len], offset).expect_err("misaligned"),
                        file.write_all_at(&buffer[from..from + len], offset).expect_err("misaligned"),
                        file.read_vectored_at(&mut [IoSliceMut::new(&mut buffer[from..from + len])], offset)
                            .expect_err("misaligned"),
                    ] {
                        assert_eq!(error.kind(), ErrorKind::InvalidInput);
                        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Misaligned>());
                        assert!(inner.expect("typed").alignment() > 1, "{error}");
                    }
                }
                // The whole is aligned, its parts aren't.
                let (first, second) = buffer[..4096].split_at_mut(100);
                let slices = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
                let error = file.read_vectored_at(slices, 0).expect_err("misaligned");
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Misaligned>());
                assert!(inner.expect("typed").alignment() > 1, "{error}");
                buffer[..8192].copy_from_slice(&pattern(9, 8192));
                file.write_all_at(&buffer[..8192], 4096).expect("a write");
                file.flush().expect("a flush");
            });
            let mut wanted = pattern(1, 10_000);
            put(&mut wanted, 4096, &pattern(9, 8192));
            assert!(fs::read(&path).expect("it is there") == wanted);
        }
    });
}

/// Field report 85.
#[test]
fn long_lists_of_vectors_and_long_transfers_are_split() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let file = File::new(open(&folder.path().join("image"))).expect("a file");
        let data = pattern(3, 5000);
        context.block_on(|| {
            // Five thousand vectors.
            let mut slices: Vec<_> = data.chunks(1).map(IoSlice::new).collect();
            file.write_all_vectored_at(&mut slices, 7).expect("a write");
            let mut back = vec![0; 5000];
            let mut slices: Vec<_> = back.chunks_mut(1).map(IoSliceMut::new).collect();
            assert_eq!(file.read_vectored_at(&mut slices, 7).expect("a read"), 5000);
            assert!(back == data);
            // Three gigabytes, to where they take no room.
            let null = File::new(OpenOptions::new().write(true).open("/dev/null").expect("a file")).expect("a file");
            let long = vec![0; 16 << 20];
            let mut slices: Vec<_> = (0..192).map(|_| IoSlice::new(&long)).collect();
            null.write_all_vectored_at(&mut slices, 0).expect("a write");
        });
    });
}

#[test]
fn many_coroutines_read_and_write_one_file() {
    each(|context| {
        for (folder, _) in folders() {
            let path = folder.path().join("image");
            for (file, _) in through_each_engine(context, &path) {
                let file = Arc::new(file);
                let coroutines: Vec<_> = (0..64)
                    .map(|number: u8| {
                        let file = file.clone();
                        spawn(context, move || {
                            let offset = u64::from(number) * 4096;
                            let mut back = AlignedBuf::new(4096, 4096);
                            for round in 0..10 {
                                let data = aligned(&pattern(number ^ round, 4096));
                                file.write_all_at(&data, offset).expect("a write");
                                file.read_exact_at(&mut back, offset).expect("a read");
                                assert!(back[..] == data[..]);
                            }
                        })
                    })
                    .collect();
                coroutines.into_iter().for_each(|handle| handle.join().expect("no panic"));
            }
        }
    });
}

#[test]
fn errors_of_the_kernel_come_back() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, b"abc").expect("a file");
        for engine in ENGINES {
            let read_only = File::new(fs::File::open(&path).expect("a file")).expect("a file").with_engine(engine);
            context.block_on(|| {
                let error = read_only.write_all_at(b"x", 0).expect_err("opened for reading");
                assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{engine}");
                let error = read_only.allocate(0, 10).expect_err("opened for reading");
                assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{engine}");
            });
        }
    });
}

// ---- callers --------------------------------------------------------------------------------------------------------

#[test]
fn threads_and_coroutines_without_a_home_block() {
    let (folder, _) = folders().remove(0);
    let file = Arc::new(File::new(open(&folder.path().join("image"))).expect("a file"));
    file.write_all_at(b"abc", 0).expect("a write");
    let other = file.clone();
    let coroutine = Coroutine::new(move || {
        let mut back = [0; 3];
        other.read_exact_at(&mut back, 0).expect("a read");
        assert_eq!(&back, b"abc");
    })
    .expect("a stack");
    coroutine.enter();
    assert!(coroutine.is_finished());
    file.flush().expect("a flush");
}

#[test]
fn a_drop_guard_may_write_while_its_coroutine_is_unwound() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        for engine in ENGINES {
            let file = File::new(open(&path)).expect("a file").with_engine(engine);
            let handle = spawn(context, move || {
                let _writes = OnDrop(|| file.write_all_at(b"last words", 0).expect("a write"));
                park::park();
            });
            settle(context);
            handle.cancel();
            assert_cancelled(handle.join());
            assert_eq!(fs::read(&path).expect("it is there"), b"last words");
            fs::remove_file(&path).expect("it is there");
        }
    });
}

// ---- cancellation ---------------------------------------------------------------------------------------------------

/// A reader of a pipe that nothing comes through, as a file whose reads stay under way.
fn pending_read() -> (File<io::PipeReader>, io::PipeWriter) {
    let (reader, writer) = io::pipe().expect("a pipe");
    (File::new(reader).expect("a file").with_engine(Engine::Ring), writer)
}

/// Field report 80: what was a coroutine's buffer is somebody else's after its end, and the kernel doesn't write there.
#[test]
fn the_kernel_lets_go_of_the_buffer_before_a_cancelled_coroutine_has_ended() {
    each(|context| {
        if context.monitor().kind() != MonitorKind::IoUring {
            return println!("SKIPPED: pread doesn't read pipes");
        }
        let memory = Arc::new(std::sync::Mutex::new(vec![0xAA_u8; 4096]));
        let (file, mut writer) = pending_read();
        let mut reader = file.get_ref().try_clone().expect("a duplicate");
        let shared = memory.clone();
        let handle = context.spawn_local(move || {
            let mut memory = shared.lock().unwrap();
            file.read_at(&mut memory, 0).expect("a read");
        });
        settle(context);
        let handle = handle.expect("a stack");
        handle.cancel();
        assert_cancelled(handle.join());
        writer.write_all(b"late").expect("room");
        settle(context);
        let memory = memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        assert!(memory.iter().all(|&byte| byte == 0xAA), "written after the end");
        let mut late = [0; 4];
        reader.read_exact(&mut late).expect("it is still there");
        assert_eq!(&late, b"late");
    });
}

/// The same with requests that can't be cancelled.
#[test]
fn a_cancelled_coroutine_waits_for_what_the_kernel_has_of_it() {
    const LEN: usize = 1 << 20;
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, vec![7; LEN]).expect("a file");
        let Some(file) = open_direct(&path) else { return };
        for engine in [Engine::LinuxAio, Engine::Workers] {
            let file = File::new(file.try_clone().expect("a duplicate")).expect("a file").with_engine(engine);
            let file = Rc::new(file);
            for _ in 0..20 {
                let memory = Rc::new(std::cell::RefCell::new(AlignedBuf::new(LEN, 4096)));
                let (file, shared) = (file.clone(), memory.clone());
                let read = move || file.read_exact_at(&mut shared.borrow_mut(), 0).expect("a read");
                let reading = context.spawn_local(read).expect("a stack");
                // It is queued, and then handed over.
                assert!(context.poll(false));
                context.poll(false);
                reading.cancel();
                let _ = reading.join();
                memory.borrow_mut().fill(0xAA);
                thread::sleep(Duration::from_micros(500));
                settle(context);
                assert!(memory.borrow().iter().all(|&byte| byte == 0xAA), "{engine}: written after the end");
            }
        }
    });
}

#[test]
fn a_time_limit_ends_a_read() {
    each(|context| {
        if context.monitor().kind() != MonitorKind::IoUring {
            return println!("SKIPPED: pread doesn't read pipes");
        }
        let (file, mut writer) = pending_read();
        context.block_on(|| {
            let mut buffer = [0xAA; 64];
            let read = aio::timeout(Duration::from_millis(5), || file.read_at(&mut buffer, 0));
            assert!(read.is_err(), "the time was up");
            writer.write_all(b"late").expect("room");
            aioco::yield_now();
            assert_eq!(buffer, [0xAA; 64]);
            assert_eq!(file.read_at(&mut buffer[..4], 0).expect("a read"), 4);
            assert_eq!(&buffer[..4], b"late");
        });
    });
}

/// Field report 80: a hundred under way.
#[test]
fn a_context_that_ends_takes_its_requests_along() {
    let exit = child("", |_| {
        common::each_here(|context| {
            if context.monitor().kind() != MonitorKind::IoUring {
                return println!("SKIPPED: pread doesn't read pipes");
            }
            let context = AioContext::new().expect("a context");
            let (file, writer) = pending_read();
            let file = Arc::new(file);
            let ended = Count::default();
            let handles: Vec<_> = (0..100)
                .map(|_| {
                    let (file, guard) = (file.clone(), ended.guard());
                    spawn(&context, move || {
                        let _guard = guard;
                        file.read_at(&mut [0; 512], 0)
                    })
                })
                .collect();
            settle(&context);
            // And one that lives on.
            let result = Arc::new(std::sync::Mutex::new(None));
            let (place, own) = (result.clone(), file.clone());
            let driven = Coroutine::new(move || {
                let read = own.read_at(&mut [0; 512], 0);
                *place.lock().unwrap() = Some(read);
            })
            .expect("a stack");
            let _home = aioco::coroutine::enter_home(context.home());
            driven.enter();
            drop(_home);
            settle(&context);
            drop(context);
            assert_eq!(ended.get(), 100);
            handles.into_iter().for_each(|handle| assert_cancelled(handle.join().map(drop)));
            driven.enter();
            let read = result.lock().unwrap().take().expect("it goes on");
            assert_eq!(read.expect_err("cancelled").raw_os_error(), Some(libc::ECANCELED));
            drop(writer);
        });
    });
    exit.assert_success();
}

#[test]
fn requests_that_cannot_be_cancelled_are_taken_back_or_waited_for() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, vec![7; 1 << 20]).expect("a file");
        for (file, _) in through_each_engine(context, &path) {
            let file = Arc::new(file);
            for round in 0..20 {
                let handles: Vec<_> = (0..200)
                    .map(|_| {
                        let file = file.clone();
                        spawn(context, move || {
                            let mut buffer = AlignedBuf::new(8192, 4096);
                            file.read_exact_at(&mut buffer, 4096).expect("a read");
                            assert!(buffer.iter().all(|&byte| byte == 7));
                        })
                    })
                    .collect();
                // They are queued, then under way.
                assert!(context.poll(false));
                if round % 2 == 1 {
                    context.poll(false);
                }
                handles.iter().for_each(|handle| handle.cancel());
                for handle in handles {
                    if let Err(payload) = handle.join() {
                        assert!(payload.is::<aioco::coroutine::Cancelled>());
                    }
                }
            }
        }
    });
}

// ---- engines --------------------------------------------------------------------------------------------------------

#[test]
fn the_engine_is_chosen_by_what_the_file_is_and_says_why() {
    each(|context| {
        let waiting = match context.monitor().kind() {
            MonitorKind::IoUring => Engine::Ring,
            _ => Engine::Workers,
        };
        for (folder, is_memory) in folders() {
            let path: PathBuf = folder.path().join("image");
            let file = File::new(open(&path)).expect("a file");
            let direct = if is_memory { None } else { open_direct(&path) };
            let direct = direct.map(|file| File::new(file).expect("a file"));
            context.block_on(|| {
                for operation in [Operation::Read, Operation::Write, Operation::Other] {
                    println!("{operation:?}: {}", file.engine(operation));
                    let wanted = if operation == Operation::Other { waiting } else { Engine::Inline };
                    assert_eq!(file.engine(operation).engine(), wanted);
                    if let Some(direct) = &direct {
                        let choice = direct.engine(operation);
                        println!("direct {operation:?}: {choice}");
                        let wanted = match waiting {
                            Engine::Workers if operation != Operation::Other && has_linux_aio() => Engine::LinuxAio,
                            _ => waiting,
                        };
                        assert_eq!(choice.engine(), wanted);
                    }
                }
            });
            for engine in ENGINES {
                let forced = File::new(open(&path)).expect("a file").with_engine(engine);
                context.block_on(|| {
                    let choice = forced.engine(Operation::Read);
                    println!("{engine} is asked for: {choice}");
                    let can = match engine {
                        Engine::Ring => waiting == Engine::Ring,
                        Engine::LinuxAio => has_linux_aio(),
                        _ => true,
                    };
                    assert_eq!(choice.engine(), if can { engine } else { Engine::Workers });
                    assert_eq!(choice.reason() == "it was asked for", can);
                });
            }
        }
    });
}

/// Writes and reads a file for direct I/O that nobody has chosen an engine for, and says what carried that out.
fn direct_io_is_by(engine: Engine, says: &str) {
    let context = AioContext::new().expect("a context");
    println!("descriptors are monitored by {}", context.monitor());
    assert_eq!(context.monitor().kind(), MonitorKind::Epoll);
    let (folder, _) = folders().remove(0);
    let path = folder.path().join("image");
    let Some(file) = open_direct(&path) else { return };
    let file = Arc::new(File::new(file).expect("a file"));
    for operation in [Operation::Read, Operation::Write] {
        let choice = context.block_on(|| file.engine(operation));
        println!("direct {operation:?}: {choice}");
        assert_eq!(choice.engine(), engine);
        assert!(choice.reason().contains(says), "{choice}");
    }
    let coroutines: Vec<_> = (0..64)
        .map(|number: u8| {
            let file = file.clone();
            spawn(&context, move || {
                let offset = u64::from(number) * 4096;
                file.write_all_at(&aligned(&pattern(number, 4096)), offset).expect("a write");
                let mut back = AlignedBuf::new(4096, 4096);
                file.read_exact_at(&mut back, offset).expect("a read");
                assert!(back[..] == pattern(number, 4096));
            })
        })
        .collect();
    coroutines.into_iter().for_each(|handle| handle.join().expect("no panic"));
    context.block_on(|| file.flush()).expect("a flush");
    assert_eq!(context.stats().linux_aio_submits != 0, engine == Engine::LinuxAio);
}

#[test]
fn where_io_uring_is_forbidden_direct_requests_go_by_linux_aio() {
    if !has_linux_aio() {
        return println!("SKIPPED: no Linux AIO");
    }
    let exit = child("", |_| {
        forbid(&[libc::SYS_io_uring_setup], libc::EPERM);
        direct_io_is_by(Engine::LinuxAio, "no ring");
    });
    println!("{}", exit.output);
    exit.assert_success();
}

#[test]
fn where_linux_aio_is_forbidden_too_direct_requests_go_by_workers() {
    if !has_linux_aio() {
        return println!("SKIPPED: no Linux AIO");
    }
    let ring = libc::SYS_io_uring_setup;
    let cases: [(&str, &[libc::c_long], libc::c_int, &str); 4] = [
        ("EPERM", &[ring, libc::SYS_io_setup], libc::EPERM, "seccomp"),
        ("ENOSYS", &[ring, libc::SYS_io_setup], libc::ENOSYS, "lacks it"),
        ("submit", &[ring, libc::SYS_io_submit], libc::EPERM, "seccomp"),
        ("getevents", &[ring, libc::SYS_io_getevents], libc::EPERM, "seccomp"),
    ];
    for (name, ..) in cases {
        let exit = child(name, |name| {
            let (_, calls, errno, says) = cases.into_iter().find(|case| case.0 == name).expect("a case");
            forbid(calls, errno);
            direct_io_is_by(Engine::Workers, says);
        });
        println!("{}", exit.output);
        exit.assert_success();
    }
}

#[test]
fn a_loop_that_polls_sees_completions_of_linux_aio_without_a_system_call() {
    if !has_linux_aio() {
        return println!("SKIPPED: no Linux AIO");
    }
    for kind in [MonitorKind::Poll, MonitorKind::Epoll] {
        let polling = aio::Polling::up_to(Duration::from_millis(100));
        let context = AioContext::builder().monitor(kind).polling(polling).build().expect("a context");
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, pattern(1, 4096)).expect("a file");
        let Some(file) = open_direct(&path) else { return };
        let file = File::new(file).expect("a file").with_engine(Engine::LinuxAio);
        let mut buffer = AlignedBuf::new(4096, 4096);
        context.block_on(|| (0..300).for_each(|_| file.read_exact_at(&mut buffer, 0).expect("a read")));
        assert!(buffer[..] == pattern(1, 4096));
        let stats = context.stats();
        assert!(stats.poll_hits > 0 && stats.waits < 300, "{stats:?}");
    }
}

/// What isn't a file might block the loop.
#[test]
fn linux_aio_is_for_files_and_for_callers_that_have_a_context() {
    each(|context| {
        let (pipe, _writer) = io::pipe().expect("a pipe");
        let pipe = File::new(pipe).expect("a file").with_engine(Engine::LinuxAio);
        let choice = context.block_on(|| pipe.engine(Operation::Read));
        assert_eq!(choice.engine(), Engine::Workers);
        assert!(choice.reason().contains("block"), "{choice}");
        let error = context.block_on(|| pipe.read_at(&mut [0; 1], 0)).expect_err("pread doesn't read pipes");
        assert_eq!(error.raw_os_error(), Some(libc::ESPIPE));
        let (folder, _) = folders().remove(0);
        let file = File::new(open(&folder.path().join("image"))).expect("a file").with_engine(Engine::LinuxAio);
        let choice = file.engine(Operation::Read);
        assert_eq!(choice.engine(), Engine::Workers, "{choice}");
    });
}

#[test]
fn a_descriptor_may_be_borrowed() {
    let (folder, _) = folders().remove(0);
    let owned = open(&folder.path().join("image"));
    owned.write_all_at(b"abc", 0).expect("a write");
    let file = File::new(owned.as_fd()).expect("a file");
    let context = common::context();
    context.block_on(|| {
        let mut back = [0; 3];
        file.read_exact_at(&mut back, 0).expect("a read");
        assert_eq!(&back, b"abc");
    });
}

/// Whoever always finds the data keeps the others from nothing.
#[test]
fn a_coroutine_whose_requests_are_carried_out_at_once_lets_the_others_have_their_turn() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, [0; 512]).expect("a file");
        let file = File::new(open(&path)).expect("a file");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let reading = spawn(context, move || {
            let mut reads = 0;
            while !stopped.load(Ordering::Acquire) {
                file.read_exact_at(&mut [0; 512], 0).expect("a read");
                reads += 1;
            }
            reads
        });
        let remote = context.remote();
        let thread = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            remote.schedule_once(move || stop.store(true, Ordering::Release));
        });
        assert!(reading.join().expect("no panic") > 0);
        assert!(eventually(|| thread.is_finished()));
    });
}

/// Many such coroutines: each has its turn before the others have had many. And after a large request they have theirs.
#[test]
fn coroutines_whose_requests_are_carried_out_at_once_share_their_thread() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, vec![0; 1 << 20]).expect("a file");
        let file = Rc::new(File::new(open(&path)).expect("a file").with_engine(Engine::Inline));
        for (coroutines, len, most) in [(64, 512, 256), (1000, 512, 1000), (2, 1 << 20, 2)] {
            let (reads, longest) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let readers: Vec<_> = (0..coroutines)
                .map(|_| {
                    let (file, reads, longest) = (file.clone(), reads.clone(), longest.clone());
                    let read = move || {
                        let mut buffer = vec![0; len];
                        let mut last = None;
                        for round in 0..40 {
                            file.read_exact_at(&mut buffer, 0).expect("a read");
                            // At first nobody knows how many there are.
                            if let Some(last) = last.filter(|_| round > 20) {
                                longest.set(longest.get().max(reads.get() - last));
                            }
                            last = Some(reads.get());
                            reads.set(reads.get() + 1);
                        }
                    };
                    context.spawn_local(read).expect("a stack")
                })
                .collect();
            readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
            assert_eq!(reads.get(), 40 * coroutines);
            assert!(longest.get() <= most, "{coroutines} coroutines: {} in a row", longest.get());
        }
    });
}

// ---- groups ---------------------------------------------------------------------------------------------------------

#[test]
fn a_group_moves_what_single_requests_would() {
    each(|context| {
        for (folder, _) in folders() {
            for (file, unit) in through_each_engine(context, &folder.path().join("image")) {
                // Reads are longer than writes, but for the last, which meets the end.
                let (len, more) = if unit == 1 { (1000, 1500) } else { (unit, 2 * unit) };
                file.get_ref().set_len(0).expect("a file");
                let data: Vec<_> = (0..50).map(|number| aligned(&pattern(number, len))).collect();
                let mut back: Vec<_> = (0..50).map(|_| AlignedBuf::new(more, 4096)).collect();
                context.block_on(|| {
                    block::group(|group| {
                        for (number, data) in data.iter().enumerate() {
                            assert_eq!(group.write_all_at(&file, data, (number * len) as u64), number);
                        }
                        assert_eq!(group.wait_all(), 50);
                        let mut numbers: Vec<_> = std::iter::from_fn(|| group.take())
                            .map(|(number, result)| {
                                assert_eq!(result.expect("a write"), len);
                                number
                            })
                            .collect();
                        numbers.sort_unstable();
                        assert_eq!(numbers, Vec::from_iter(0..50));
                    });
                    block::group(|group| {
                        for (number, buffer) in back.iter_mut().enumerate() {
                            group.read_at(&file, buffer, (number * len) as u64);
                        }
                        // As they come.
                        for done in 1..=50 {
                            assert!(group.wait(done) >= done);
                            let (number, result) = group.take().expect("one more is done");
                            assert_eq!(result.expect("a read"), if number == 49 { len } else { more });
                        }
                        assert!(group.take().is_none());
                    });
                });
                for (back, data) in back.iter().zip(&data) {
                    assert!(back[..len] == data[..]);
                }
            }
        }
    });
}

#[test]
fn a_wait_for_many_wakes_once() {
    each(|context| {
        if context.monitor().kind() != MonitorKind::IoUring {
            return println!("SKIPPED: pread doesn't read pipes");
        }
        let pipes: Vec<_> = (0..512).map(|_| pending_read()).collect();
        let (files, writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
        let writers = Arc::new(std::sync::Mutex::new(writers.into_iter()));
        let waits = Count::default();
        let other = spawn(context, {
            let (writers, waits) = (writers.clone(), waits.clone());
            move || {
                // One completion a turn; a turn runs whoever was woken by then.
                for written in 0..512 {
                    assert_eq!(waits.get(), written / 128, "{written} written");
                    let writer = writers.lock().unwrap().next();
                    writer.expect("one for each").write_all(b"x").expect("room");
                    aioco::yield_now();
                    aioco::yield_now();
                    aio::sleep(Duration::from_micros(1));
                }
            }
        });
        let mut buffers = vec![[0; 1]; 512];
        context.block_on(|| {
            block::group(|group| {
                for (file, buffer) in files.iter().zip(&mut buffers) {
                    group.read_at(file, buffer, 0);
                }
                for wait in 1..=4 {
                    assert_eq!(group.wait(wait * 128), wait * 128);
                    waits.raise();
                }
            });
        });
        other.join().expect("no panic");
        assert!(buffers.iter().all(|buffer| buffer == b"x"));
    });
}

#[test]
fn a_group_that_is_left_has_let_go_of_its_buffers() {
    each(|context| {
        if context.monitor().kind() != MonitorKind::IoUring {
            return println!("SKIPPED: pread doesn't read pipes");
        }
        let (file, mut writer) = pending_read();
        let mut buffers = [[0xAA; 64]; 4];
        context.block_on(|| {
            block::group(|group| {
                for buffer in &mut buffers {
                    group.read_at(&file, buffer, 0);
                }
                aioco::yield_now();
            });
            let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                block::group(|group| {
                    for buffer in &mut buffers {
                        group.read_at(&file, buffer, 0);
                    }
                    aioco::yield_now();
                    panic!("in a group");
                });
            }));
            assert!(payload.is_err());
        });
        writer.write_all(&[1; 256]).expect("room");
        settle(context);
        assert_eq!(buffers, [[0xAA; 64]; 4]);
    });
}

/// Field report 79.
#[test]
fn what_fails_in_a_group_fails_alone() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, pattern(5, 4096)).expect("a file");
        for engine in ENGINES {
            let good = File::new(open(&path)).expect("a file").with_engine(engine);
            let bad = File::new(OpenOptions::new().write(true).open(&path).expect("a file")).expect("a file");
            let bad = bad.with_engine(engine);
            let mut buffers = vec![[0; 512]; 8];
            context.block_on(|| {
                block::group(|group| {
                    for (number, buffer) in buffers.iter_mut().enumerate() {
                        group.read_at(if number == 3 { &bad } else { &good }, buffer, 512 * number as u64);
                    }
                    group.wait_all();
                    for (number, result) in std::iter::from_fn(|| group.take()) {
                        match result {
                            Ok(read) => assert!(number != 3 && read == 512),
                            Err(error) => assert!(number == 3 && error.raw_os_error() == Some(libc::EBADF)),
                        }
                    }
                });
            });
        }
    });
}

// ---- bypass ---------------------------------------------------------------------------------------------------------

#[test]
fn requests_without_coroutines_bring_the_same_and_never_call_back_at_once() {
    each(|context| {
        for (folder, _) in folders() {
            for (file, unit) in through_each_engine(context, &folder.path().join("image")) {
                let (len, more) = if unit == 1 { (1000, 1500) } else { (unit, 2 * unit) };
                file.get_ref().set_len(0).expect("a file");
                let file = Rc::new(file);
                let done = Rc::new(Cell::new(0));
                for number in 0..50_u8 {
                    let count = done.clone();
                    let then = move |result: io::Result<()>, buffer: AlignedBuf| {
                        result.expect("a write");
                        assert!(buffer[..] == pattern(number, len));
                        count.set(count.get() + 1);
                    };
                    let (data, offset) = (aligned(&pattern(number, len)), u64::from(number) * len as u64);
                    block::write_all_then(context, file.clone(), data, offset, then).expect("it goes on");
                }
                assert_eq!(done.get(), 0, "not within the call");
                context.run_until(|| done.get() == 50);
                for number in 0..50_u8 {
                    let count = done.clone();
                    let then = move |result: io::Result<usize>, buffer: AlignedBuf| {
                        assert_eq!(result.expect("a read"), if number == 49 { len } else { more });
                        assert!(buffer[..len] == pattern(number, len));
                        count.set(count.get() + 1);
                    };
                    let (buffer, offset) = (AlignedBuf::new(more, 4096), u64::from(number) * len as u64);
                    block::read_then(context, file.clone(), buffer, offset, then).expect("it goes on");
                }
                assert_eq!(done.get(), 50);
                context.run_until(|| done.get() == 100);
                // Nothing to read, and nothing to write.
                for len in [0, unit] {
                    let count = done.clone();
                    let then = move |result: io::Result<usize>, _: AlignedBuf| {
                        assert_eq!(result.expect("a read"), 0);
                        count.set(count.get() + 1);
                    };
                    let buffer = AlignedBuf::new(len, 4096);
                    block::read_then(context, file.clone(), buffer, 1 << 40, then).expect("it goes on");
                }
                context.run_until(|| done.get() == 102);
            }
        }
    });
}

/// Write, flush, discard, and read what is left of it.
#[test]
fn callbacks_flush_and_discard() {
    each(|context| {
        for (folder, _) in folders() {
            for (file, _) in through_each_engine(context, &folder.path().join("image")) {
                let file = Rc::new(file);
                let done = Rc::new(Cell::new(0));
                let step = || {
                    let done = done.clone();
                    move |result: io::Result<()>| {
                        result.expect("a request");
                        done.set(done.get() + 1);
                    }
                };
                let written = step();
                block::write_all_then(context, file.clone(), aligned(&pattern(3, 1 << 16)), 0, move |result, _| {
                    written(result);
                })
                .expect("it goes on");
                context.run_until(|| done.get() == 1);
                block::flush_then(context, file.clone(), step()).expect("it goes on");
                assert_eq!(done.get(), 1, "not within the call");
                context.run_until(|| done.get() == 2);
                // Nothing, and the second quarter.
                block::discard_then(context, file.clone(), 0, 0, step()).expect("it goes on");
                block::discard_then(context, file.clone(), 1 << 14, 1 << 14, step()).expect("it goes on");
                context.run_until(|| done.get() == 4);
                let mut wanted = pattern(3, 1 << 16);
                wanted[1 << 14..1 << 15].fill(0);
                let mut left = AlignedBuf::new(1 << 16, 4096);
                context.block_on(|| file.read_exact_at(&mut left, 0)).expect("a read");
                assert!(left[..] == wanted);
            }
        }
        // It isn't open for writing.
        let file = Rc::new(File::new(fs::File::open("/proc/self/exe").expect("a file")).expect("a file"));
        let error = Rc::new(Cell::new(None));
        let place = error.clone();
        let then = move |result: io::Result<()>| place.set(Some(result.expect_err("read only").kind()));
        block::discard_then(context, file.clone(), 0, 4096, then).expect("it goes on");
        context.run_until(|| error.get().is_some());
        settle(context);
        assert_eq!(Rc::strong_count(&file), 1);
    });
}

/// Reads, and reads again when that is done, so many times in all.
fn read_over_and_over(context: &aio::Local, file: Rc<File>, left: Rc<Cell<usize>>) {
    let again = file.clone();
    let then = move |result: io::Result<usize>, _: [u8; 512]| {
        assert_eq!(result.expect("a read"), 512);
        left.set(left.get().saturating_sub(1));
        if left.get() > 0 {
            read_over_and_over(&aio::current().expect("in a callback"), again, left);
        }
    };
    block::read_then(context, file, [0; 512], 0, then).expect("it goes on");
}

/// Field report 73: submit, complete, submit; others have their turn.
#[test]
fn a_callback_that_submits_the_next_request_runs_in_constant_stack_and_starves_nobody() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, [0; 512]).expect("a file");
        for engine in ENGINES {
            let file = Rc::new(File::new(open(&path)).expect("a file").with_engine(engine));
            let left = Rc::new(Cell::new(common::scaled(20_000)));
            read_over_and_over(context, file, left.clone());
            let before = left.get();
            let other = spawn(context, || (0..100).for_each(|_| aioco::yield_now()));
            other.join().expect("no panic");
            assert!(before - left.get() <= 200, "{engine}: one a turn");
            context.run_until(|| left.get() == 0);
        }
    });
}

/// A turn that has nothing else to do is for more than one of them, and not for all.
#[test]
fn a_chain_of_callbacks_that_is_alone_goes_on_within_a_turn_for_a_while() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, [0; 512]).expect("a file");
        let file = Rc::new(File::new(open(&path)).expect("a file").with_engine(Engine::Inline));
        let left = Rc::new(Cell::new(1000));
        read_over_and_over(context, file, left.clone());
        let mut turns = 0;
        while left.get() > 0 {
            let before = left.get();
            assert!(context.poll(false));
            assert!((1..=16).contains(&(before - left.get())), "{} in a turn", before - left.get());
            turns += 1;
        }
        assert!(turns < 100, "{turns} turns");
    });
}

/// Field report 73: what the page cache has is done when its submission returns; on a small stack, at depth 32.
#[test]
fn requests_that_are_done_within_their_submission_do_not_nest() {
    let (folder, _) = folders().remove(0);
    let path = folder.path().join("image");
    fs::write(&path, [0; 512]).expect("a file");
    for kind in common::MONITORS {
        let path = path.clone();
        let scenario = move || {
            let Some(context) = common::with(kind) else { return };
            for engine in ENGINES {
                let file = Rc::new(File::new(open(&path)).expect("a file").with_engine(engine));
                let left = Rc::new(Cell::new(common::scaled(40_000)));
                for _ in 0..32 {
                    read_over_and_over(&context, file.clone(), left.clone());
                }
                context.run_until(|| left.get() == 0);
                settle(&context);
                let left = Rc::new(Cell::new(common::scaled(40_000)));
                for _ in 0..32 {
                    let (file, left) = (file.clone(), left.clone());
                    let reads = move || {
                        while left.get() > 0 {
                            left.set(left.get() - 1);
                            file.read_exact_at(&mut [0; 512], 0).expect("a read");
                        }
                    };
                    context.spawn_local(reads).expect("a stack");
                }
                context.run_until(|| left.get() == 0);
                settle(&context);
            }
        };
        let small = thread::Builder::new().stack_size(256 << 10).spawn(scenario).expect("a thread");
        small.join().expect("no panic");
    }
}

#[test]
fn errors_go_to_the_callback() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, [0; 512]).expect("a file");
        for engine in ENGINES {
            let file = Rc::new(File::new(fs::File::open(&path).expect("a file")).expect("a file").with_engine(engine));
            let error = Rc::new(Cell::new(None));
            let place = error.clone();
            let then =
                move |result: io::Result<()>, _: Vec<u8>| place.set(Some(result.expect_err("opened for reading")));
            block::write_all_then(context, file, vec![0; 10], 0, then).expect("it goes on");
            let seen = loop {
                context.poll(true);
                if let Some(error) = error.take() {
                    break error;
                }
            };
            assert_eq!(seen.raw_os_error(), Some(libc::EBADF));
        }
        let Some(file) = open_direct(&path) else { return };
        let kind = Rc::new(Cell::new(None));
        let place = kind.clone();
        let then = move |result: io::Result<usize>, _: [u8; 3]| place.set(Some(result.expect_err("misaligned").kind()));
        let file = Rc::new(File::new(file).expect("a file"));
        block::read_then(context, file, [0; 3], 0, then).expect("it goes on");
        assert_eq!(kind.get(), None, "not within the call");
        context.poll(true);
        assert_eq!(kind.get(), Some(ErrorKind::InvalidInput));
    });
}

#[test]
fn a_context_that_ends_drops_callbacks_once_the_kernel_has_let_go() {
    let exit = child("", |_| {
        common::each_here(|context| {
            let context = AioContext::builder().monitor(context.monitor().kind()).build().expect("a context");
            let dropped = Count::default();
            let called = Count::default();
            let (folder, _) = folders().remove(0);
            let path = folder.path().join("image");
            fs::write(&path, vec![0; 1 << 20]).expect("a file");
            let (pipe, writer) = pending_read();
            let pipe = Rc::new(pipe);
            let files = [Engine::Workers, Engine::LinuxAio]
                .map(|engine| Rc::new(File::new(open(&path)).expect("a file").with_engine(engine)));
            for number in 0..100 {
                let (guard, count) = (dropped.guard(), called.clone());
                let then = move |_: io::Result<usize>, _: Vec<u8>| {
                    let _guard = guard;
                    count.raise();
                };
                block::read_then(&context, files[number % 2].clone(), vec![0; 1 << 20], 0, then).expect("it goes on");
                if context.monitor().kind() == MonitorKind::IoUring {
                    let guard = dropped.guard();
                    let then = move |_: io::Result<usize>, _: Vec<u8>| {
                        let _guard = guard;
                        unreachable!("nothing comes through the pipe");
                    };
                    block::read_then(&context, pipe.clone(), vec![0; 100], 0, then).expect("it goes on");
                }
            }
            context.poll(false);
            let local = (*context).clone();
            drop(context);
            let made = if Rc::strong_count(&pipe) == 1 && called.get() <= 100 { dropped.get() } else { 0 };
            assert!(made == 100 || made == 200, "{made} of {}", called.get());
            let refused =
                block::read_then(&local, files[0].clone(), vec![0; 1], 0, |_, _| unreachable!("it has ended"));
            assert_eq!(refused.expect_err("it has ended").kind(), ErrorKind::NotConnected);
            drop(writer);
        });
    });
    exit.assert_success();
}

/// What a request costs in system calls of its own is counted, through whatever engine it goes.
#[test]
fn system_calls_of_requests_are_counted() {
    each(|context| {
        let (folder, _) = folders().remove(0);
        let path = folder.path().join("image");
        fs::write(&path, vec![0; 1 << 16]).expect("a file");
        let has_ring = context.monitor().kind() == MonitorKind::IoUring;
        for &engine in Engine::ALL {
            let file = Rc::new(File::new(open(&path)).expect("a file").with_engine(engine));
            let calls_of = |requests: &dyn Fn()| {
                let before = context.stats().block_calls;
                requests();
                context.stats().block_calls - before
            };
            // More than may be carried out in a row.
            let by_coroutine = calls_of(&|| {
                context.block_on(|| {
                    for _ in 0..100 {
                        file.read_exact_at(&mut [0; 512], 0).expect("a read");
                    }
                });
            });
            let by_callback = calls_of(&|| {
                let done = Count::default();
                for _ in 0..10 {
                    let done = done.clone();
                    let buffer = AlignedBuf::new(512, 512);
                    let then = move |result: io::Result<usize>, _: AlignedBuf| {
                        assert_eq!(result.expect("a read"), 512);
                        done.raise();
                    };
                    block::read_then(context, file.clone(), buffer, 0, then).expect("it goes on");
                }
                context.run_until(|| done.get() == 10);
            });
            let is_counted = match engine {
                Engine::Inline | Engine::Workers => true,
                Engine::Ring => !has_ring,
                Engine::LinuxAio => !has_linux_aio(),
            };
            let expected = if is_counted { (100, 10) } else { (0, 0) };
            assert_eq!((by_coroutine, by_callback), expected, "{engine}");
        }
    });
}
