//! What becomes of requests that are under way when whoever made them goes: a thread, a coroutine, a context, a process.
#![allow(clippy::disallowed_types, reason = "what a thread's destructors drop is in a thread-local")]

mod common;

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread;

use aioco::aio::{self, IoThread, MonitorKind};
use aioco::block::{self, AlignedBuf, Engine, File};
use aioco::coroutine::Cancelled;
use aioco::fd::{self, Parked};
use aioco::{AioContext, coroutine};
use common::{Count, LIMIT, alike, assert_cancelled, child, each, settle, sockets, with, within};

/// A reader of a pipe that nothing comes through, as a file whose reads stay under way.
fn pending_read() -> (File<io::PipeReader>, io::PipeWriter) {
    let (reader, writer) = io::pipe().expect("a pipe");
    (File::new(reader).expect("a file").with_engine(Engine::Ring), writer)
}

/// Runs a scenario with a context that has a ring, on a thread of its own.
fn with_ring(scenario: impl FnOnce(AioContext) + Send + 'static) {
    within(LIMIT, move || with(MonitorKind::IoUring).map_or((), scenario));
}

// ---- threads --------------------------------------------------------------------------------------------------------

/// Field report 36. A context belongs to its thread, and ends with it: what the kernel hasn't done by then is not done,
/// and nobody takes that for an error of the file.
#[test]
fn a_thread_that_ends_takes_its_requests_along_and_no_data_with_them() {
    thread_local! {
        static KEPT: RefCell<Option<AioContext>> = const { RefCell::new(None) };
    }
    for by_destructor in [false, true] {
        within(LIMIT, move || {
            let (file, mut writer) = pending_read();
            let file = Arc::new(file);
            let (ended, shared) = (Count::default(), file.clone());
            let guards: Vec<_> = (0..100).map(|_| ended.guard()).collect();
            let submitter = thread::spawn(move || {
                let Some(context) = with(MonitorKind::IoUring) else { return false };
                for guard in guards {
                    let file = shared.clone();
                    let read = move || {
                        let _guard = guard;
                        let read = file.read_at(&mut [0; 64], 0);
                        unreachable!("nothing comes through the pipe: {read:?}");
                    };
                    context.spawn_local(read).expect("a stack");
                }
                settle(&context);
                if by_destructor {
                    KEPT.set(Some(context));
                }
                true
            });
            if !submitter.join().expect("no panic") {
                return;
            }
            assert_eq!(ended.get(), 100);
            writer.write_all(b"late").expect("room");
            let mut late = [0; 4];
            file.get_ref().read_exact(&mut late).expect("nobody has read it");
            assert_eq!(&late, b"late");
        });
    }
}

/// Field report 36. Another thread's context has the request, so whoever asked may be gone before it is done.
#[test]
fn whoever_asks_another_threads_context_may_end_before_the_request_is_done() {
    within(LIMIT, || {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let path = folder.path().join("image");
        fs::write(&path, [7; 4096]).expect("a file");
        let io_thread = IoThread::new("io").expect("a thread");
        let (give, take) = mpsc::channel();
        for &engine in Engine::ALL {
            let (remote, give) = (io_thread.remote().clone(), give.clone());
            let file = File::new(fs::File::open(&path).expect("a file")).expect("a file").with_engine(engine);
            let submitter = thread::spawn(move || {
                let read = move || {
                    let mut block = AlignedBuf::new(4096, 4096);
                    let result = file.read_exact_at(&mut block, 0).map(|()| block[..] == [7; 4096]);
                    give.send(result).expect("the test waits");
                };
                drop(remote.spawn(read).expect("it lives"));
            });
            submitter.join().expect("no panic");
            assert!(take.recv().expect("a result").expect("a read"), "{engine}");
        }
        if io_thread.remote().call(|| aio::current().expect("a context").monitor().kind()).expect("it lives")
            != MonitorKind::IoUring
        {
            return println!("SKIPPED: pread doesn't read pipes");
        }
        let (file, mut writer) = pending_read();
        let remote = io_thread.remote().clone();
        let submitter = thread::spawn(move || {
            let read = move || {
                let mut byte = [0];
                give.send(file.read_at(&mut byte, 0).map(|read| read == 1 && byte == *b"x")).expect("the test waits");
            };
            drop(remote.spawn(read).expect("it lives"));
            // A call comes after what was spawned before: the request is under way.
            remote.call(|| ()).expect("it lives");
        });
        submitter.join().expect("no panic");
        writer.write_all(b"x").expect("room");
        assert!(take.recv().expect("a result").expect("a read"));
    });
}

// ---- many at once ---------------------------------------------------------------------------------------------------

/// Field report 81: the ring's queue has room for 8192 completions, and all of these come at once. With them, a stream
/// of which each byte comes after the one before.
#[test]
fn more_completions_than_their_queue_has_room_for_all_arrive_once() {
    const READS: usize = 10_000;
    with_ring(|context| {
        let (file, mut writer) = pending_read();
        let file = Rc::new(file);
        let (slow, mut trickle) = pending_read();
        let slow =
            context.spawn_local(move || (0..100).for_each(|_| assert_eq!(slow.read_at(&mut [0], 0).unwrap(), 1)));
        let slow = slow.expect("a stack");
        let seen = Rc::new(RefCell::new(vec![0_u32; READS]));
        for number in 0..READS {
            let seen = seen.clone();
            let then = move |result: io::Result<usize>, _: [u8; 1]| {
                assert_eq!(result.expect("a read"), 1);
                seen.borrow_mut()[number] += 1;
            };
            block::read_then(&context, file.clone(), [0], 0, then).expect("it goes on");
        }
        settle(&context);
        writer.write_all(&vec![1; READS]).expect("room");
        for _ in 0..100 {
            trickle.write_all(b"x").expect("room");
            context.poll(true);
        }
        context.run_until(|| Rc::strong_count(&seen) == 1);
        assert!(seen.borrow().iter().all(|&times| times == 1));
        slow.join().expect("no panic");
        settle(&context);
        assert_eq!(Rc::strong_count(&file), 1);
    });
}

/// Field reports 82 and 88: before they are submitted, while they are under way, and when they are done but nobody has
/// seen that; more of them than the ring's queue takes at once, and each cancelled twice.
#[test]
fn a_request_that_is_cancelled_is_done_or_not_and_ends_once() {
    const READS: usize = 300;
    with_ring(|context| {
        for stage in ["queued", "under way", "done"] {
            let (file, mut writer) = pending_read();
            let file = Rc::new(file);
            let (ended, read) = (Count::default(), Rc::new(Cell::new(0)));
            let handles: Vec<_> = (0..READS)
                .map(|_| {
                    let (file, guard, read) = (file.clone(), ended.guard(), read.clone());
                    let one = move || {
                        let _guard = guard;
                        assert_eq!(file.read_at(&mut [0], 0).expect("a read"), 1);
                        read.set(read.get() + 1);
                    };
                    context.spawn_local(one).expect("a stack")
                })
                .collect();
            context.poll(false);
            if stage != "queued" {
                settle(&context);
            }
            if stage == "done" {
                writer.write_all(&[1; READS / 2]).expect("room");
            }
            for _ in 0..2 {
                handles.iter().for_each(|handle| handle.cancel());
            }
            let done = handles.into_iter().filter_map(|handle| match handle.join() {
                Ok(()) => Some(()),
                Err(payload) => {
                    assert!(payload.is::<Cancelled>());
                    None
                }
            });
            assert_eq!(done.count(), read.get(), "{stage}");
            assert_eq!((ended.get(), Rc::strong_count(&file)), (READS as u32, 1), "{stage}");
            // The next finds nothing in its way.
            writer.write_all(b"next").expect("room");
            let mut byte = [0];
            while byte != *b"t" {
                context.block_on(|| file.read_exact_at(&mut byte, 0)).expect("a read");
            }
        }
    });
}

/// The same for a group, of which some requests are done.
#[test]
fn a_cancelled_group_lets_go_of_all_its_buffers() {
    with_ring(|context| {
        for written in [0, 100, 300] {
            let (file, mut writer) = pending_read();
            let file = Rc::new(file);
            let memory = Rc::new(RefCell::new(vec![[0xAA_u8]; 300]));
            let (own, shared) = (file.clone(), memory.clone());
            let read = move || {
                let memory = &mut *shared.borrow_mut();
                block::group(|group| {
                    memory.iter_mut().for_each(|byte| _ = group.read_at(&own, byte, 0));
                    group.wait_all();
                    aioco::yield_now();
                });
            };
            let reading = context.spawn_local(read).expect("a stack");
            (0..3).for_each(|_| _ = context.poll(false));
            writer.write_all(&vec![1; written]).expect("room");
            reading.cancel();
            assert_cancelled(reading.join());
            let before = memory.borrow().clone();
            assert!(before.iter().filter(|byte| **byte == [1]).count() <= written);
            writer.write_all(&[2; 300]).expect("room");
            settle(&context);
            assert_eq!(*memory.borrow(), before);
            assert_eq!(Rc::strong_count(&file), 1);
        }
    });
}

/// Field report 86: the callback's file is one's own no more, and open until it is called, also before it is submitted.
#[test]
fn a_file_that_its_owner_has_left_to_a_request_stays_open_until_that_is_done() {
    with_ring(|context| {
        for submitted in [false, true] {
            let (file, mut writer) = pending_read();
            let number = file.get_ref().as_raw_fd();
            let done = Rc::new(Cell::new(None));
            let place = done.clone();
            let then = move |result: io::Result<usize>, data: [u8; 6]| place.set(Some((result.expect("a read"), data)));
            block::read_then(&context, Rc::new(file), [0; 6], 0, then).expect("it goes on");
            if submitted {
                settle(&context);
            }
            let other = fs::File::open("/dev/zero").expect("a file");
            assert_ne!(other.as_raw_fd(), number, "the number is in use");
            writer.write_all(b"theirs").expect("it is open");
            context.run_until(|| done.get().is_some());
            assert_eq!(done.get(), Some((6, *b"theirs")));
            settle(&context);
            assert_eq!(writer.write_all(b"more").expect_err("it is closed").kind(), ErrorKind::BrokenPipe);
        }
    });
}

// ---- ends -----------------------------------------------------------------------------------------------------------

/// A read from a pipe by a coroutine and one by a callback, a wait for a socket, and an accept: none of them ever ends by
/// itself. With it, what they need for that.
fn under_way(context: &AioContext, ended: &Count) -> impl Sized + use<> {
    let (file, writer) = pending_read();
    let file = Rc::new(file);
    if context.monitor().kind() == MonitorKind::IoUring {
        let (own, guard) = (file.clone(), ended.guard());
        let read = move || {
            let _guard = guard;
            own.read_at(&mut [0; 64], 0).map(drop)
        };
        drop(context.spawn_local(read).expect("a stack"));
        let guard = ended.guard();
        let then = move |_: io::Result<usize>, _: [u8; 64]| {
            let _guard = guard;
            unreachable!("nothing comes through the pipe");
        };
        block::read_then(context, file, [0; 64], 0, then).expect("it goes on");
    } else {
        drop((ended.guard(), ended.guard()));
    }
    let (theirs, ours) = sockets();
    let guard = ended.guard();
    let wait = move || {
        let _guard = guard;
        fd::wait_readable(&ours)
    };
    drop(context.spawn(wait).expect("a stack"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let guard = ended.guard();
    let accept = move || {
        let _guard = guard;
        Parked::new(listener).expect("a socket").accept().map(drop)
    };
    drop(context.spawn(accept).expect("a stack"));
    settle(context);
    assert!(ended.get() == 0 || context.monitor().kind() != MonitorKind::IoUring);
    (writer, theirs)
}

/// Field report 93.
#[test]
fn a_context_ends_whatever_is_under_way_also_when_a_callback_panics() {
    each(|context| {
        let ended = Count::default();
        let other = alike(context);
        let _theirs = under_way(&other, &ended);
        drop(other);
        assert_eq!(ended.get(), 4);

        let ended = Count::default();
        let other = alike(context);
        let _theirs = under_way(&other, &ended);
        other.schedule_once(|| panic!("on purpose"));
        let turn = move || {
            let context = other;
            context.poll(true);
        };
        assert!(catch_unwind(AssertUnwindSafe(turn)).is_err());
        assert_eq!(ended.get(), 4);
    });
}

/// Field report 93: a process ends, with all that is under way.
#[test]
fn a_process_ends_whatever_is_under_way() {
    for way in ["returns", "aborts", "exits inside of a coroutine"] {
        let exit = child(way, |way| {
            common::each_here(|context| {
                let other = alike(context);
                let theirs = under_way(&other, &Count::default());
                // What has no owner any more ends with the process.
                std::mem::forget((other, theirs));
            });
            match way {
                "aborts" => process::abort(),
                "returns" => {}
                _ => common::context().block_on(|| process::exit(0)),
            }
        });
        match way {
            "aborts" => exit.assert_killed_by(libc::SIGABRT),
            _ => exit.assert_success(),
        }
    }
}

/// Field report 80: the unwinding of a coroutine that has borrowed a buffer for a request waits for the request, also
/// where a panic of somebody else's has begun it.
#[test]
fn a_handle_that_is_dropped_while_its_thread_unwinds_waits_for_the_kernel() {
    with_ring(|context| {
        let (file, mut writer) = pending_read();
        let file = Rc::new(file);
        let memory = Rc::new(RefCell::new([0xAA_u8; 64]));
        let (own, shared) = (file.clone(), memory.clone());
        let reading = coroutine::Coroutine::new(move || {
            let _ = own.read_at(&mut shared.borrow_mut()[..], 0);
        });
        let reading = reading.expect("a stack");
        let home = coroutine::enter_home(context.home());
        reading.enter();
        settle(&context);
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _reading = reading;
            panic!("on purpose");
        }));
        assert!(unwound.is_err());
        drop(home);
        writer.write_all(b"late").expect("room");
        settle(&context);
        assert_eq!(*memory.borrow(), [0xAA; 64]);
        let mut late = [0; 4];
        file.get_ref().read_exact(&mut late).expect("it is still there");
        assert_eq!(&late, b"late");
    });
}

/// A way to a file that ends a context when it has been gone so often.
struct Ending {
    file: Rc<File>,
    context: Rc<RefCell<Option<AioContext>>>,
    left: Cell<u32>,
}

impl Deref for Ending {
    type Target = File;

    fn deref(&self) -> &File {
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0 {
            drop(self.context.take());
        }
        &self.file
    }
}

/// What a callback's request is asked in between is somebody else's code, which may do anything.
#[test]
fn a_context_may_be_ended_in_the_middle_of_a_callbacks_request() {
    each(|context| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let path = folder.path().join("image");
        fs::write(&path, [7; 4096]).expect("a file");
        for &engine in Engine::ALL {
            for times in 1..8 {
                let file = File::new(fs::File::open(&path).expect("a file")).expect("a file").with_engine(engine);
                let file = Rc::new(file);
                let ending = alike(context);
                let local = (*ending).clone();
                let ending = Rc::new(RefCell::new(Some(ending)));
                let way = Ending { file: file.clone(), context: ending.clone(), left: Cell::new(times) };
                let (called, dropped) = (Count::default(), Count::default());
                let (count, guard) = (called.clone(), dropped.guard());
                let then = move |result: io::Result<usize>, buffer: Vec<u8>| {
                    let _guard = guard;
                    count.raise();
                    // It goes round in two, as the buffer is larger than the file.
                    assert!(result.is_err() || result.is_ok_and(|read| buffer[..read] == [7; 4096]));
                };
                block::read_then(&local, way, vec![0; 8192], 0, then).expect("it hasn't ended yet");
                while ending.borrow().is_some() && called.get() == 0 {
                    local.poll(true);
                }
                drop(ending.take());
                assert!(called.get() <= 1);
                assert_eq!((dropped.get(), Rc::strong_count(&file)), (1, 1), "{engine}, {times}");
            }
        }
    });
}
