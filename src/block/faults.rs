//! Unit tests: what happens when the kernel takes a part, puts off, interrupts or refuses.

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

/// Field report 72.
#[test]
fn what_a_turn_submits_goes_in_one_call_and_the_rest_of_what_was_taken_in_part_follows() {
    each_with_linux_aio(|context| {
        for file in images(10).map(aio_file) {
            let read = || assert!(read_blocks(context, &file, 10).iter().all(Option::is_none));
            assert_eq!(submits(context, read), 1);
            plan(Site::Submit, [Only(3)]);
            assert_eq!(submits(context, read), 2);
            plan(Site::Submit, [Only(1), Only(2), Only(3)]);
            assert_eq!(submits(context, read), 4);
            assert_eq!(left(Site::Submit), 0);
        }
    });
}

/// Field report 72.
#[test]
fn what_is_put_off_follows_when_something_is_done() {
    each_with_linux_aio(|context| {
        for file in images(10).map(aio_file) {
            let read = || assert!(read_blocks(context, &file, 10).iter().all(Option::is_none));
            plan(Site::Submit, [Only(3), Errno(libc::EAGAIN)]);
            assert_eq!(submits(context, read), 3);
            plan(Site::Submit, [Only(5), Errno(libc::EAGAIN), Errno(libc::EAGAIN), Only(0)]);
            read();
            assert_eq!(left(Site::Submit), 0);
        }
    });
}

#[test]
fn what_is_put_off_is_tried_again_no_more_often_than_something_is_done() {
    each_with_linux_aio(|context| {
        for file in images(10).map(aio_file) {
            plan(Site::Submit, iter::once(Only(5)).chain(iter::repeat_n(Errno(libc::EAGAIN), 100)));
            let readers: Vec<_> = (0..10)
                .map(|number| {
                    let file = file.clone();
                    let read = move || file.read_at(&mut AlignedBuf::new(BLOCK, BLOCK), number * BLOCK as u64);
                    context.spawn_local(read).expect("a stack")
                })
                .collect();
            turn(context);
            // Once for each of the five at most, and once before a pause.
            assert!(left(Site::Submit) >= 100 - 1 - 5 - 1, "{}", left(Site::Submit));
            plan(Site::Submit, []);
            readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap().expect("a read"), BLOCK));
        }
    });
}

/// Field report 72.
#[test]
fn what_is_put_off_while_the_kernel_has_nothing_is_tried_again_after_pauses() {
    each_with_linux_aio(|context| {
        for file in images(10).map(aio_file) {
            plan(Site::Submit, [Errno(libc::EAGAIN); 6]);
            let before = context.stats();
            let read = || assert!(read_blocks(context, &file, 10).iter().all(Option::is_none));
            assert_eq!(submits(context, read), 7);
            assert!(context.stats().waits - before.waits < 40, "it sleeps meanwhile: {:?}", context.stats());
            // Others that keep the loop busy don't make it try more often.
            plan(Site::Submit, [Errno(libc::EAGAIN); 6]);
            let busy = context.spawn_local(|| (0..1000).for_each(|_| yield_now())).expect("a stack");
            assert_eq!(submits(context, read), 7);
            busy.join().expect("no panic");
        }
    });
}

#[test]
fn a_kernel_that_takes_nothing_for_long_is_an_error_to_all_and_may_recover() {
    each_with_linux_aio(|context| {
        let file = aio_file(image(10));
        plan(Site::Submit, iter::repeat_n(Errno(libc::EAGAIN), 10_000));
        let tried = submits(context, || {
            assert_eq!(read_blocks(context, &file, 10), [Some(libc::ENOMEM); 10]);
        });
        assert!(tried < 1000, "{tried} times");
        plan(Site::Submit, []);
        assert!(read_blocks(context, &file, 10).iter().all(Option::is_none));
    });
}

/// Field report 72.
#[test]
fn an_interrupted_submission_is_made_again() {
    each_with_linux_aio(|context| {
        let file = aio_file(image(10));
        plan(Site::Submit, [Errno(libc::EINTR); 2000]);
        let tried = submits(context, || assert!(read_blocks(context, &file, 10).iter().all(Option::is_none)));
        assert_eq!(tried, 2001);
    });
}

/// Field reports 72 and 79.
#[test]
fn a_request_that_is_refused_fails_alone() {
    each_with_linux_aio(|context| {
        for file in images(10).map(aio_file) {
            plan(Site::Submit, [Only(2), Errno(libc::EINVAL), Errno(libc::EBADF), Only(4), Errno(libc::EFAULT)]);
            let mut wanted = [None; 10];
            wanted[2] = Some(libc::EINVAL);
            wanted[3] = Some(libc::EBADF);
            wanted[8] = Some(libc::EFAULT);
            assert_eq!(read_blocks(context, &file, 10), wanted);
        }
    });
}

/// Field report 79: and whoever has the results of the others meanwhile drops the context.
#[test]
fn a_context_may_be_dropped_right_after_an_error() {
    let _alive = watchdog();
    for kind in [MonitorKind::Poll, MonitorKind::Epoll, MonitorKind::IoUring] {
        let Ok(context) = AioContext::builder().monitor(kind).build() else { continue };
        if context.prepare_linux_aio().is_err() {
            return println!("SKIPPED: no Linux AIO");
        }
        let Some(file) = direct_image(8).map(aio_file) else { return };
        let (failed, dropped) = (Rc::new(Cell::new(0)), Rc::new(()));
        plan(Site::Submit, [Errno(libc::EBADF)]);
        for number in 0..8 {
            let (failed, dropped) = (failed.clone(), dropped.clone());
            let then = move |result: io::Result<usize>, _: AlignedBuf| {
                let _dropped = dropped;
                failed.set(failed.get() + u32::from(result.is_err()));
            };
            let buffer = AlignedBuf::new(BLOCK, BLOCK);
            read_then(&context, file.clone(), buffer, number * BLOCK as u64, then).expect("it goes on");
        }
        while failed.get() == 0 {
            context.poll(true);
        }
        drop(context);
        assert_eq!((failed.get(), Rc::strong_count(&dropped), Rc::strong_count(&file)), (1, 1, 1));
    }
}

/// Field report 74.
#[test]
fn all_completions_are_taken_at_once_and_the_notifier_is_cleared_once() {
    each_with_linux_aio(|context| {
        const READS: usize = 300;
        let file = aio_file(image(READS));
        let done = Rc::new(Cell::new(0));
        for number in 0..READS {
            let done = done.clone();
            let then = move |result: io::Result<usize>, buffer: Vec<u8>| {
                assert_eq!(result.expect("a read"), BLOCK);
                assert!(holds(&buffer, number * BLOCK));
                done.set(done.get() + 1);
            };
            let offset = (number * BLOCK) as u64;
            read_then(context, file.clone(), vec![0; BLOCK], offset, then).expect("it goes on");
        }
        let before = context.stats();
        // The page cache has it: they are carried out within the submission.
        assert!(context.poll(true));
        assert_eq!(done.get(), READS);
        while context.poll(false) {}
        context.poll(false);
        let after = context.stats();
        assert_eq!(after.linux_aio_submits - before.linux_aio_submits, 1);
        assert!(after.notifier_reads - before.notifier_reads <= 1, "{after:?}");
    });
}

#[test]
fn a_turn_that_waits_for_a_completion_brings_it() {
    each_with_linux_aio(|context| {
        let Some(file) = direct_image(8).map(aio_file) else { return };
        let mut in_vain = 0;
        for number in 0..8 {
            let done = Rc::new(Cell::new(false));
            let is_done = done.clone();
            let then = move |result: io::Result<usize>, _: AlignedBuf| {
                assert_eq!(result.expect("a read"), BLOCK);
                is_done.set(true);
            };
            read_then(context, file.clone(), AlignedBuf::new(BLOCK, BLOCK), number * BLOCK as u64, then)
                .expect("it goes on");
            in_vain += iter::repeat_with(|| context.poll(true)).take_while(|_| !done.get()).count();
        }
        // Seldom one is: the completion before was seen earlier than its signal.
        assert!(in_vain < 8, "{in_vain} turns");
    });
}

/// Field report 72: the kernel has room for some four hundred.
#[test]
fn more_requests_than_the_kernel_takes_all_have_their_turn() {
    each_with_linux_aio(|context| {
        for file in images(1500).map(aio_file) {
            assert!(read_blocks(context, &file, 1500).iter().all(Option::is_none));
        }
    });
}

#[test]
fn a_request_that_the_kernel_has_not_got_is_taken_back() {
    each_with_linux_aio(|context| {
        let file = aio_file(image(2));
        // For as long as the pauses between attempts are shorter than a busy machine's.
        let busy = || plan(Site::Submit, iter::repeat_n(Errno(libc::EAGAIN), 1000));
        let calm = || plan(Site::Submit, []);
        busy();
        let readers = [0, 1].map(|number| {
            let file = file.clone();
            let read = move || file.read_exact_at(&mut [0; BLOCK], number * BLOCK as u64);
            context.spawn_local(read).expect("a stack")
        });
        context.poll(false);
        context.poll(false);
        let [first, second] = readers;
        first.cancel();
        assert!(first.join().map(drop).expect_err("cancelled").is::<Cancelled>());
        calm();
        second.join().expect("no panic").expect("a read");
        // All are taken back while a pause is on: the next isn't put off.
        busy();
        let other = file.clone();
        let reader = context.spawn_local(move || other.read_at(&mut [0; BLOCK], 0)).expect("a stack");
        context.poll(false);
        context.poll(false);
        reader.cancel();
        assert!(reader.join().map(drop).expect_err("cancelled").is::<Cancelled>());
        calm();
        let before = context.stats().waits;
        context.block_on(|| aio::sleep(Duration::from_millis(20)));
        assert!(context.stats().waits - before < 10, "there is nothing left to try");
        assert!(read_blocks(context, &file, 2).iter().all(Option::is_none));
    });
}

#[test]
fn a_context_that_ends_cancels_what_the_kernel_has_not_got() {
    let _alive = watchdog();
    for kind in [MonitorKind::Poll, MonitorKind::Epoll, MonitorKind::IoUring] {
        let Ok(context) = AioContext::builder().monitor(kind).build() else { continue };
        if context.prepare_linux_aio().is_err() {
            return println!("SKIPPED: no Linux AIO");
        }
        let Some(file) = direct_image(10).map(aio_file) else { return };
        let results = Rc::new(RefCell::new(Vec::new()));
        plan(Site::Submit, iter::once(Only(5)).chain(iter::repeat_n(Errno(libc::EAGAIN), 1000)));
        let driven: Vec<_> = (0..10)
            .map(|number| {
                let (file, results) = (file.clone(), results.clone());
                let read = move || {
                    let mut buffer = AlignedBuf::new(BLOCK, BLOCK);
                    let read = file.read_at(&mut buffer, (number * BLOCK) as u64);
                    results.borrow_mut().push(read.map_err(|error| error.raw_os_error()));
                };
                Coroutine::new(read).expect("a stack")
            })
            .collect();
        let home = enter_home(context.home());
        driven.iter().for_each(Coroutine::enter);
        drop(home);
        // They are handed over, as far as the kernel takes them.
        context.poll(false);
        drop(context);
        driven.iter().filter(|coroutine| !coroutine.is_finished()).for_each(Coroutine::enter);
        plan(Site::Submit, []);
        let results = results.borrow();
        let cancelled = results.iter().filter(|&&result| result == Err(Some(libc::ECANCELED))).count();
        let read = results.iter().filter(|&&result| result == Ok(BLOCK)).count();
        assert_eq!((read, cancelled), (5, 5), "{results:?}");
    }
}

// ---- setup ----------------------------------------------------------------------------------------------------------

/// Field report 77.
#[test]
fn an_exhausted_limit_is_named_and_workers_take_over() {
    let cases = [
        (libc::EAGAIN, "fs.aio-max-nr"),
        (libc::ENOSYS, "lacks it"),
        (libc::EPERM, "seccomp"),
        (libc::ENOMEM, "memory"),
        (libc::EINVAL, "refuses"),
    ];
    for (errno, says) in cases {
        each(|context| {
            plan(Site::Setup, [Errno(errno)]);
            for file in images(4).map(aio_file) {
                for operation in [Operation::Read, Operation::Write, Operation::Other] {
                    let choice = context.block_on(|| file.engine(operation));
                    assert_eq!(choice.engine(), Engine::Workers);
                    assert!(choice.reason().contains(says), "{choice}");
                }
                assert!(read_blocks(context, &file, 4).iter().all(Option::is_none));
                context.block_on(|| file.flush()).expect("a flush");
            }
            assert_eq!(left(Site::Setup), 0);
            assert_eq!(context.stats().linux_aio_submits, 0);
            // One that wasn't asked for.
            let Some(direct) = direct_image(1) else { return };
            let direct = File::new(direct).expect("a file");
            let choice = context.block_on(|| direct.engine(Operation::Read));
            match context.monitor().kind() {
                MonitorKind::IoUring => assert_eq!(choice.engine(), Engine::Ring),
                _ => assert!(choice.engine() == Engine::Workers && choice.reason().contains(says), "{choice}"),
            }
        });
    }
}

/// Field report 77.
#[test]
fn nothing_is_set_up_before_it_is_used() {
    plan(Site::Setup, [Errno(libc::EAGAIN)]);
    each(|context| {
        let file = Rc::new(File::new(image(4)).expect("a file"));
        assert!(read_blocks(context, &file, 4).iter().all(Option::is_none));
        context.block_on(|| file.flush()).expect("a flush");
        for engine in [Engine::Inline, Engine::Workers] {
            let Some(file) = direct_image(4) else { return };
            let file = Rc::new(File::new(file).expect("a file").with_engine(engine));
            assert!(read_blocks(context, &file, 4).iter().all(Option::is_none));
        }
    });
    assert_eq!(left(Site::Setup), 1);
}

#[test]
fn what_makes_a_file_longer_is_for_workers_unless_it_was_asked_for() {
    each_with_linux_aio(|context| {
        if context.monitor().kind() == MonitorKind::IoUring {
            return;
        }
        let Some(grows) = direct_image(1) else { return };
        let grows = File::new(grows).expect("a file");
        let block = AlignedBuf::new(BLOCK, BLOCK);
        let write_at = |number: usize| {
            submits(context, || {
                context.block_on(|| {
                    assert_eq!(grows.engine(Operation::Write).engine(), Engine::LinuxAio);
                    let slices = &mut [IoSlice::new(&block)];
                    grows.write_all_vectored_at(slices, (number * BLOCK) as u64).expect("a write");
                    grows.write_all_at(&block, (number * BLOCK) as u64).expect("a write");
                });
            })
        };
        assert_eq!([0, 1, 0, 1, 3, 2].map(write_at), [2, 1, 2, 2, 1, 2], "the second time it is long enough");
        let Some(grows) = direct_image(1).map(aio_file) else { return };
        let write = || context.block_on(|| grows.write_all_at(&block, BLOCK as u64).expect("a write"));
        assert_eq!(submits(context, write), 1);
    });
}

#[test]
fn a_kernel_that_does_not_flush_by_linux_aio_has_workers_flush() {
    each_with_linux_aio(|context| {
        let file = aio_file(image(1));
        context.block_on(|| {
            assert_eq!(file.engine(Operation::Other).engine(), Engine::LinuxAio);
            plan(Site::Submit, [Errno(libc::EINVAL)]);
            file.flush().expect("a flush");
            assert_eq!(file.engine(Operation::Other).engine(), Engine::Workers);
            file.flush_all().expect("a flush");
            assert_eq!(file.engine(Operation::Read).engine(), Engine::LinuxAio);
        });
        let others = aio_file(image(1));
        let flush = || context.block_on(|| others.flush().and(others.flush_all()).expect("a flush"));
        assert_eq!(submits(context, flush), 2);
        // And without a coroutine.
        let third = aio_file(image(1));
        let flushed = Rc::new(Cell::new(false));
        let place = flushed.clone();
        plan(Site::Submit, [Errno(libc::EINVAL)]);
        flush_then(context, third, move |result| place.set(result.is_ok())).expect("it goes on");
        context.run_until(|| flushed.get());
        assert_eq!(left(Site::Submit), 0);
        // What it has no requests for.
        let allocate = || context.block_on(|| others.allocate(0, 100).expect("space"));
        assert_eq!(submits(context, allocate), 0);
    });
}

// ---- results --------------------------------------------------------------------------------------------------------

/// Field report 84.
#[test]
fn results_that_put_off_or_interrupt_are_no_errors_unless_there_is_no_end_of_them() {
    each(|context| {
        for engine in engines(context) {
            let file = image(2);
            let site = Site::Request(file.as_raw_fd());
            let file = Rc::new(File::new(file).expect("a file").with_engine(engine));
            context.block_on(|| {
                let mut buffer = vec![0; BLOCK];
                plan(site, [libc::EAGAIN, libc::EINTR, libc::EAGAIN, libc::EAGAIN, libc::EINTR].map(Errno));
                file.read_exact_at(&mut buffer, 0).expect("a read");
                assert!(holds(&buffer, 0) && left(site) == 0, "{engine}");
                plan(site, [libc::EINTR, libc::EAGAIN].map(Errno));
                file.write_all_at(&buffer, BLOCK as u64).expect("a write");
                assert_eq!(left(site), 0, "{engine}");
                plan(site, [libc::EINTR, libc::EAGAIN].map(Errno));
                file.flush().expect("a flush");
                assert_eq!(left(site), 0, "{engine}");
                for errno in [libc::EAGAIN, libc::EINTR] {
                    plan(site, [Errno(errno); 1000]);
                    let error = file.read_exact_at(&mut buffer, 0).expect_err("always");
                    assert_eq!(error.raw_os_error(), Some(errno), "{engine}");
                    assert!(left(site) > 800, "{engine}: it gives up");
                }
                let flushed = Rc::new(Cell::new(false));
                let (place, context) = (flushed.clone(), aio::current().expect("a coroutine of it"));
                plan(site, [libc::EINTR, libc::EAGAIN].map(Errno));
                flush_then(&context, file.clone(), move |result| place.set(result.is_ok())).expect("it goes on");
                while !flushed.get() {
                    yield_now();
                }
                assert_eq!(left(site), 0, "{engine}");
                plan(site, [Errno(libc::EIO)]);
                let error = file.read_exact_at(&mut buffer, 0).expect_err("it fails");
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{engine}");
            });
        }
    });
}

/// What is left of a transfer after each call of it.
const CUTS: [Fault; 4] = [Only(1), Only(BLOCK / 2), Only(BLOCK - 1), Only(3)];

/// Field report 85.
#[test]
fn short_transfers_are_finished() {
    each(|context| {
        for engine in engines(context) {
            let file = image(3);
            let site = Site::Request(file.as_raw_fd());
            let file = Rc::new(File::new(file).expect("a file").with_engine(engine));
            context.block_on(|| {
                let mut buffer = vec![0; 3 * BLOCK];
                plan(site, CUTS);
                assert_eq!(file.read_at(&mut buffer, 0).expect("a read"), 3 * BLOCK);
                assert!(holds(&buffer, 0) && left(site) == 0, "{engine}");
                // Across the end of the file, which is where it is.
                plan(site, CUTS);
                assert_eq!(file.read_at(&mut buffer, BLOCK as u64).expect("a read"), 2 * BLOCK);
                assert!(holds(&buffer[..2 * BLOCK], BLOCK) && left(site) == 0, "{engine}");
                // Cut within the second vector, and then between two.
                let mut parts = [vec![0; 100], vec![0; 2000], vec![0; 0], vec![0; 5000]];
                let mut slices: Vec<_> = parts.iter_mut().map(|part| IoSliceMut::new(part)).collect();
                plan(site, [Only(101), Only(1999), Only(1), Only(4000)]);
                assert_eq!(file.read_vectored_at(&mut slices, 5).expect("a read"), 7100);
                assert!(holds(&parts.concat(), 5) && left(site) == 0, "{engine}");
                // The same again, backwards: a file that is the old one elsewhere.
                let data: Vec<_> = (9..9 + 7100).map(byte_at).collect();
                plan(site, CUTS);
                file.write_all_at(&data, 9 + 3 * BLOCK as u64).expect("a write");
                assert_eq!(left(site), 0, "{engine}");
                let mut slices = [&data[..100], &data[100..2100], &[], &data[2100..]].map(IoSlice::new);
                plan(site, [Only(101), Only(1999), Only(1), Only(4000)]);
                file.write_all_vectored_at(&mut slices, 9 + 6 * BLOCK as u64).expect("a write");
                assert_eq!(left(site), 0, "{engine}");
                for at in [3, 6] {
                    let mut back = vec![0; 7100];
                    file.read_exact_at(&mut back, 9 + (at * BLOCK) as u64).expect("a read");
                    assert!(back == data, "{engine}");
                }
                // Nothing moved: the end, of a read and of the caller's patience with a write.
                plan(site, [Only(100), Only(0)]);
                assert_eq!(file.read_at(&mut buffer, 0).expect("a read"), 100);
                plan(site, [Only(100), Only(0)]);
                let error = file.write_all_at(&data, 0).expect_err("nothing was written");
                assert_eq!(error.kind(), ErrorKind::WriteZero);
            });
        }
    });
}

/// Field report 78.
#[test]
fn short_direct_transfers_go_on_where_they_are_aligned() {
    each(|context| {
        for engine in engines(context) {
            let Some(file) = direct_image(4) else { return };
            let site = Site::Request(file.as_raw_fd());
            let file = File::new(file).expect("a file").with_engine(engine);
            context.block_on(|| {
                let mut buffer = AlignedBuf::new(4 * BLOCK, BLOCK);
                plan(site, [Only(BLOCK), Only(2 * BLOCK)]);
                assert_eq!(file.read_at(&mut buffer, 0).expect("a read"), 4 * BLOCK);
                assert!(holds(&buffer, 0) && left(site) == 0, "{engine}");
                plan(site, [Only(BLOCK), Errno(libc::EAGAIN)]);
                file.write_all_at(&buffer[..2 * BLOCK], 0).expect("a write");
                assert_eq!(left(site), 0, "{engine}");
            });
        }
    });
}

/// Groups and requests without coroutines obey the same rules.
#[test]
fn short_and_interrupted_transfers_of_groups_and_callbacks_are_finished() {
    each(|context| {
        for engine in engines(context) {
            let file = image(8);
            let site = Site::Request(file.as_raw_fd());
            let file = Rc::new(File::new(file).expect("a file").with_engine(engine));
            let faults = [Only(1), Errno(libc::EINTR), Only(1000), Errno(libc::EAGAIN), Only(3), Only(3), Only(3)];
            plan(site, faults);
            let mut buffers = vec![vec![0; BLOCK]; 8];
            context.block_on(|| {
                group(|group| {
                    for (buffer, block) in buffers.iter_mut().zip(0..) {
                        group.read_at(&file, buffer, block * BLOCK as u64);
                    }
                    group.wait_all();
                    iter::from_fn(|| group.take()).for_each(|(_, read)| assert_eq!(read.expect("a read"), BLOCK));
                });
            });
            assert!(holds(&buffers.concat(), 0) && left(site) == 0, "{engine}");
            plan(site, faults);
            let done = Rc::new(Cell::new(0));
            for (block, data) in buffers.into_iter().enumerate() {
                let (count, other) = (done.clone(), file.clone());
                let written = move |result: io::Result<()>, data: Vec<u8>| {
                    result.expect("a write");
                    let context = aio::current().expect("in a callback");
                    let read = move |result: io::Result<usize>, data: Vec<u8>| {
                        assert_eq!(result.expect("a read"), BLOCK);
                        assert!(holds(&data, block * BLOCK));
                        count.set(count.get() + 1);
                    };
                    let empty = vec![0; data.len()];
                    read_then(&context, other, empty, (block * BLOCK) as u64, read).expect("it goes on");
                };
                write_all_then(context, file.clone(), data, (block * BLOCK) as u64, written).expect("it goes on");
            }
            context.run_until(|| done.get() == 8);
            assert_eq!(left(site), 0, "{engine}");
        }
    });
}

// ---- the ring's own call --------------------------------------------------------------------------------------------

/// Field report 83.
#[test]
fn a_ring_that_cannot_be_entered_for_a_while_loses_nothing() {
    let _alive = watchdog();
    let context = match AioContext::builder().monitor(MonitorKind::IoUring).build() {
        Ok(context) => context,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let file = Rc::new(File::new(image(200)).expect("a file").with_engine(Engine::Ring));
    for errno in [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ETIME] {
        for times in [1, 1000] {
            // More than the queue has room for.
            plan(Site::Enter, iter::repeat_n(Errno(errno), times));
            assert!(read_blocks(&context, &file, 200).iter().all(Option::is_none));
            let deadline = Instant::now() + Duration::from_millis(2);
            plan(Site::Enter, iter::repeat_n(Errno(errno), times));
            context.block_on(|| aio::sleep_until(deadline));
            assert!(Instant::now() >= deadline);
            plan(Site::Enter, []);
        }
    }
}

/// Field report 80: the entry is in the queue when the call fails; the kernel gets it later, when nobody waits any more.
#[test]
fn a_request_that_is_cancelled_while_the_ring_cannot_be_entered_lets_go_of_its_buffer() {
    let _alive = watchdog();
    let context = match AioContext::builder().monitor(MonitorKind::IoUring).build() {
        Ok(context) => context,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let file = Rc::new(File::new(reader).expect("a file").with_engine(Engine::Ring));
    let memory = Rc::new(RefCell::new([0xAA_u8; 64]));
    for errno in [libc::EINTR, libc::EAGAIN] {
        let (own, shared) = (file.clone(), memory.clone());
        let read = move || own.read_at(&mut shared.borrow_mut()[..], 0).map(drop);
        let reading = context.spawn_local(read).expect("a stack");
        plan(Site::Enter, [Errno(errno); 10]);
        turn(&context);
        reading.cancel();
        assert!(reading.join().map(drop).expect_err("cancelled").is::<Cancelled>());
        plan(Site::Enter, []);
        io::Write::write_all(&mut writer, b"late").expect("room");
        turn(&context);
        assert_eq!(*memory.borrow(), [0xAA; 64]);
        io::Read::read_exact(&mut file.get_ref(), &mut [0; 4]).expect("it is still there");
    }
}

/// Field report 80: an error that means more than a shortage comes out of the turn, and the request is under way all the
/// same; so it is later cancelled, or done.
#[test]
fn a_request_outlives_an_error_of_the_ring() {
    let _alive = watchdog();
    let context = match AioContext::builder().monitor(MonitorKind::IoUring).build() {
        Ok(context) => context,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let file = Rc::new(File::new(reader).expect("a file").with_engine(Engine::Ring));
    let memory = Rc::new(RefCell::new([0xAA_u8; 64]));
    let fails = || {
        plan(Site::Enter, [Errno(libc::ENXIO)]);
        let failed = panic::catch_unwind(AssertUnwindSafe(|| context.poll(false)));
        let message = *failed.expect_err("it is told").downcast::<String>().expect("a message");
        assert!(message.contains("io_uring failed"), "{message}");
        assert_eq!(left(Site::Enter), 0);
    };
    let mut is_late = || {
        io::Write::write_all(&mut writer, b"late").expect("room");
        turn(&context);
        assert_eq!(*memory.borrow(), [0xAA; 64]);
        io::Read::read_exact(&mut file.get_ref(), &mut [0; 4]).expect("it is still there");
    };
    let read = || {
        let (own, shared) = (file.clone(), memory.clone());
        move || own.read_at(&mut shared.borrow_mut()[..4], 0)
    };

    let reading = context.spawn_local(read()).expect("a stack");
    context.poll(false);
    fails();
    reading.cancel();
    assert!(reading.join().map(drop).expect_err("cancelled").is::<Cancelled>());
    is_late();

    // By somebody who waits for that, while the ring goes on to refuse.
    let read_and_drop = read();
    let reading = Coroutine::new(move || drop(read_and_drop())).expect("a stack");
    let home = enter_home(context.home());
    reading.enter();
    fails();
    plan(Site::Enter, [Errno(libc::ENXIO); 5]);
    drop(reading);
    drop(home);
    assert_eq!(left(Site::Enter), 0);
    is_late();

    let reading = context.spawn_local(read()).expect("a stack");
    context.poll(false);
    fails();
    io::Write::write_all(&mut writer, b"data").expect("room");
    assert_eq!(reading.join().expect("no panic").expect("a read"), 4);
    assert_eq!(memory.borrow()[..5], *b"data\xAA");
}

/// Whoever is cancelled while nobody can let go of its buffer is suspended for as long, and the others go on. If its context ends
/// meanwhile, that waits.
#[test]
fn a_cancelled_coroutine_waits_for_its_request_and_the_others_go_on() {
    let _alive = watchdog();
    for kind in [MonitorKind::Poll, MonitorKind::Epoll, MonitorKind::IoUring] {
        for (in_group, is_context_dropped) in [(false, false), (false, true), (true, false), (true, true)] {
            let Ok(context) = AioContext::builder().monitor(kind).build() else { continue };
            let file = image(1);
            let fd = file.as_raw_fd();
            let file = Rc::new(File::new(file).expect("a file").with_engine(Engine::Workers));
            let memory = Rc::new(RefCell::new(vec![0; BLOCK]));
            // For as long as something is planned.
            plan(Site::Request(fd), [Hold, Fault::None, Fault::None]);
            let (own, shared) = (file.clone(), memory.clone());
            let read = move || match in_group {
                false => drop(own.read_at(&mut shared.borrow_mut()[..], 0)),
                true => {
                    let (first, second) = (&mut shared.borrow_mut()[..], &mut [0; 1]);
                    group(|group| {
                        group.read_at(&own, first, 0);
                        group.read_at(&own, second, 0);
                        group.wait_all();
                    });
                }
            };
            let reading = context.spawn_local(read).expect("a stack");
            turn(&context);
            while !is_held(fd) {
                thread::yield_now();
            }
            for _ in 0..3 {
                reading.cancel();
                turn(&context);
                assert!(!reading.is_finished() && memory.try_borrow().is_err(), "its buffer is lent");
            }
            context.block_on(|| aio::sleep(Duration::from_micros(100)));
            assert!(!reading.is_finished());
            let release = thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                plan(Site::Request(fd), []);
            });
            if is_context_dropped {
                drop(context);
                assert!(reading.is_finished());
            }
            assert!(reading.join().map(drop).expect_err("cancelled").is::<Cancelled>());
            assert!(holds(&memory.borrow(), 0), "the read was carried out");
            assert_eq!(Rc::strong_count(&file), 1);
            release.join().expect("no panic");
        }
    }
}
