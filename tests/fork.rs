//! A child that was forked from a process with contexts: it drops its copies, and the parent goes on.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{process, thread};

use aioco::aio::{FdCallbacks, IoThread};
use aioco::block::{AlignedBuf, Engine, File, Operation};
use aioco::{AioContext, aio, fd};
use common::{Count, LIMIT, child, each_here, eventfd, lower, raise, settle, sockets, spawn};

/// Runs `f` in a forked child, which then exits without destructors; returns whether it came so far.
fn forked(f: impl FnOnce()) -> bool {
    // SAFETY: the tests below fork in a process of their own, in which no other thread holds a lock that the child needs
    // (the allocator sees to its own).
    match unsafe { libc::fork() } {
        -1 => panic!("no child"),
        0 => {
            // SAFETY: ends this process if `f` hangs.
            unsafe { libc::alarm(LIMIT.as_secs() as u32 / 2) };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(result.is_err())) };
        }
        pid => {
            let mut status = 0;
            // SAFETY: the status is valid.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status == 0
        }
    }
}

#[test]
fn a_child_that_drops_its_copy_of_a_context_does_not_disturb_the_parent() {
    let exit = child("", |_| {
        each_here(|context| {
            let kind = context.monitor().kind();
            let context = AioContext::builder().monitor(kind).build().expect("a context");
            let event = Rc::new(eventfd());
            let told = Count::default();
            let callback = {
                let (event, told) = (event.clone(), told.clone());
                move || {
                    lower(&event);
                    told.raise();
                }
            };
            let _handler =
                context.add_owned_fd(event.clone(), FdCallbacks::new().on_readable(callback)).expect("a handler");
            let (mut theirs, mut ours) = sockets();
            let dropped = Count::default();
            let guard = dropped.guard();
            let reading = spawn(&context, move || {
                let _guard = guard;
                fd::wait_readable(&ours).expect("a wait");
                let mut byte = [0];
                ours.read_exact(&mut byte).expect("a byte");
                byte[0]
            });
            let sleeping = spawn(&context, || aio::sleep(Duration::from_millis(300)));
            let timer = context.timer(|| ());
            timer.arm_after(Duration::from_millis(300));
            settle(&context);

            // Twice: with watches that the kernel has, and with some that it hasn't been told of yet.
            let mut context = Some(context);
            for _ in 0..2 {
                let quiet = spawn(context.as_ref().expect("dropped in the child only"), || ());
                assert!(forked(|| {
                    drop(context.take());
                    assert_eq!(dropped.get(), 1, "its coroutines are unwound");
                    assert!(reading.is_finished() && sleeping.is_finished());
                }));
                drop(quiet);
                assert_eq!(dropped.get(), 0);
            }

            let context = context.expect("dropped in the child only");
            raise(&event);
            context.run_until(|| told.get() == 1);
            theirs.write_all(b"x").expect("room");
            assert_eq!(reading.join().expect("no panic"), b'x');
            sleeping.join().expect("no panic");
            context.run_until(|| !timer.is_armed());
            let remote = context.remote();
            let waking = thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                remote.spawn(|| 7).expect("a stack").join().expect("no panic")
            });
            let deadline = Instant::now() + LIMIT;
            while !waking.is_finished() && Instant::now() < deadline {
                context.block_on(|| aio::sleep(Duration::from_millis(1)));
            }
            assert_eq!(waking.join().expect("no panic"), 7);
        });
    });
    exit.assert_success();
}

#[test]
fn a_child_that_drops_its_copy_of_an_io_thread_waits_for_nobody() {
    let exit = child("", |_| {
        let io_thread = IoThread::new("io").expect("a thread");
        assert_eq!(io_thread.remote().call(|| 1).expect("it goes on"), 1);
        let io_thread = Arc::new(io_thread);
        let mut copy = Some(io_thread);
        assert!(forked(|| drop(copy.take())));
        let io_thread = copy.expect("dropped in the child only");
        assert_eq!(io_thread.remote().call(|| 2).expect("it goes on"), 2);
        let id = process::id();
        assert_eq!(io_thread.remote().call(process::id).expect("it goes on"), id);
    });
    exit.assert_success();
}

/// What the parent's kernel has is the parent's, and so is what it hasn't got yet.
#[test]
fn a_child_that_drops_its_copy_of_a_context_leaves_requests_alone() {
    let exit = child("", |_| {
        each_here(|context| {
            for engine in [Engine::Ring, Engine::LinuxAio] {
                let kind = context.monitor().kind();
                let context = AioContext::builder().monitor(kind).build().expect("a context");
                let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
                let path = folder.path().join("image");
                fs::write(&path, vec![7; 1 << 20]).expect("a file");
                let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
                let file = file.or_else(|_| fs::File::open(&path)).expect("a file");
                let file = Rc::new(File::new(file).expect("a file").with_engine(engine));
                println!("{}", context.block_on(|| file.engine(Operation::Read)));
                let read = || {
                    let file = file.clone();
                    let read = move || {
                        let mut buffer = AlignedBuf::new(1 << 20, 4096);
                        file.read_exact_at(&mut buffer, 0).map(|()| buffer.iter().all(|&byte| byte == 7))
                    };
                    context.spawn_local(read).expect("a stack")
                };
                // Some under way, and some that are queued.
                let mut readers: Vec<_> = (0..4).map(|_| read()).collect();
                assert!(context.poll(false));
                context.poll(false);
                readers.extend((0..4).map(|_| read()));
                context.poll(false);
                let mut context = Some(context);
                assert!(forked(|| drop(context.take())));
                let _context = context.expect("dropped in the child only");
                for reader in readers {
                    assert!(reader.join().expect("no panic").expect("a read"));
                }
            }
        });
    });
    exit.assert_success();
}
