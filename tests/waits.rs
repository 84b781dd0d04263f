//! Waiting in a loop and on plain threads: for descriptors, for deadlines, and fairly.

mod common;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use aioco::coroutine::Interest;
use aioco::{AioContext, JoinHandle, fd, park, yield_now};
use common::{Count, LIMIT, assert_cancelled, child, context, coroutine, settle, sockets, spawn, within};

// ---- descriptors ----------------------------------------------------------------------------------------------------

/// Writes until there is no room any more.
fn fill(mut socket: &UnixStream) {
    socket.set_nonblocking(true).expect("a socket");
    while socket.write(&[0; 4096]).is_ok() {}
}

/// Reads until there is nothing more.
fn empty(mut socket: &UnixStream) {
    socket.set_nonblocking(true).expect("a socket");
    while socket.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
}

#[test]
fn a_descriptor_that_is_ready_makes_nobody_wait() {
    let context = context();
    let (mut theirs, ours) = sockets();
    theirs.write_all(b"x").expect("room");
    let handle = spawn(&context, move || {
        fd::wait_readable(&ours).expect("a wait");
        fd::wait_writable(&ours).expect("a wait");
        fd::wait_readable(ours.as_fd()).expect("a wait");
    });
    settle(&context);
    assert!(handle.is_finished(), "without a turn that blocks");
}

#[test]
fn a_descriptor_that_becomes_ready_wakes_who_waits_for_it() {
    within(LIMIT, || {
        let context = context();
        let (theirs, ours) = sockets();
        let writer = thread::spawn(move || {
            for byte in 0..200u8 {
                (&theirs).write_all(&[byte]).expect("room");
                fd::wait_readable(&theirs).expect("a wait, on a plain thread");
                let mut answer = [0];
                (&theirs).read_exact(&mut answer).expect("an answer");
                assert_eq!(answer[0], byte.wrapping_add(1));
            }
        });
        let ours = &ours;
        context.block_on(move || {
            for byte in 0..200u8 {
                fd::wait_readable(ours).expect("a wait");
                let mut got = [0];
                let (mut input, mut output) = (ours, ours);
                input.read_exact(&mut got).expect("a byte");
                assert_eq!(got[0], byte);
                fd::wait_writable(ours).expect("a wait");
                output.write_all(&[byte.wrapping_add(1)]).expect("room");
            }
        });
        writer.join().expect("no panic");
    });
}

#[test]
fn several_coroutines_wait_for_one_descriptor_and_all_are_told() {
    within(LIMIT, || {
        let context = context();
        let (mut theirs, ours) = sockets();
        let ours = Arc::new(ours);
        for _ in 0..3 {
            let all: Vec<_> = (0..5)
                .map(|_| {
                    let ours = ours.clone();
                    spawn(&context, move || fd::wait_readable(&ours).expect("a wait"))
                })
                .collect();
            settle(&context);
            assert!(all.iter().all(|handle| !handle.is_finished()));
            theirs.write_all(b"x").expect("room");
            all.into_iter().for_each(|handle| handle.join().expect("no panic"));
            empty(&ours);
        }
    });
}

#[test]
fn both_sides_of_one_descriptor_are_waited_for_independently() {
    within(LIMIT, || {
        let context = context();
        let (theirs, ours) = sockets();
        fill(&ours);
        let ours = Arc::new(ours);
        for first in ["input", "room", "both"] {
            let (reads, writes) = (ours.clone(), ours.clone());
            let reader = spawn(&context, move || fd::wait_readable(&reads).expect("a wait"));
            let writer = spawn(&context, move || fd::wait_writable(&writes).expect("a wait"));
            settle(&context);
            assert!(!reader.is_finished() && !writer.is_finished());
            if first != "input" {
                empty(&theirs);
            }
            if first != "room" {
                (&theirs).write_all(b"x").expect("room");
            }
            while !(writer.is_finished() && first != "input" || reader.is_finished() && first != "room") {
                context.poll(true);
            }
            settle(&context);
            assert_eq!((reader.is_finished(), writer.is_finished()), (first != "room", first != "input"), "{first}");
            empty(&theirs);
            (&theirs).write_all(b"x").expect("room");
            reader.join().expect("no panic");
            writer.join().expect("no panic");
            empty(&ours);
            fill(&ours);
        }
    });
}

#[test]
fn a_hang_up_and_an_error_wake_both_sides() {
    within(LIMIT, || {
        let context = context();
        let (theirs, ours) = sockets();
        fill(&ours);
        let ours = Arc::new(ours);
        let (reads, writes) = (ours.clone(), ours.clone());
        let reader = spawn(&context, move || fd::wait_readable(&reads).expect("a wait"));
        let writer = spawn(&context, move || fd::wait_writable(&writes).expect("a wait"));
        settle(&context);
        drop(theirs);
        reader.join().expect("no panic");
        writer.join().expect("no panic");
        // Half a hang-up is the end of the input.
        let (theirs, ours) = sockets();
        let reader = spawn(&context, move || {
            fd::wait_readable(&ours).expect("a wait");
            (&ours).read(&mut [0]).expect("the end of the input")
        });
        settle(&context);
        theirs.shutdown(std::net::Shutdown::Write).expect("a socket");
        assert_eq!(reader.join().expect("no panic"), 0);
        // A pipe whose reader is gone.
        let (reader, writer) = io::pipe().expect("a pipe");
        // SAFETY: the descriptor is ours.
        assert_ne!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, -1);
        while (&writer).write(&[0; 4096]).is_ok() {}
        let waiting = spawn(&context, move || {
            fd::wait_writable(&writer).expect("a wait");
            (&writer).write(b"x").expect_err("nobody reads").kind()
        });
        settle(&context);
        drop(reader);
        assert_eq!(waiting.join().expect("no panic"), ErrorKind::BrokenPipe);
    });
}

#[test]
fn connections_are_waited_for() {
    within(LIMIT, || {
        let context = context();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let client = thread::spawn(move || TcpStream::connect(address).expect("a listener"));
        let connection = context.block_on(|| {
            loop {
                match listener.accept() {
                    Ok((connection, _)) => return connection,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                fd::wait_readable(&listener).expect("a wait");
            }
        });
        drop((connection, client.join().expect("no panic")));
    });
}

#[test]
fn files_directories_and_dev_null_are_always_ready() {
    within(LIMIT, || {
        let context = context();
        let path = std::env::temp_dir().join(format!("aioco-test-{}", std::process::id()));
        let file = File::create_new(&path).expect("a new file");
        fs::remove_file(&path).expect("just made");
        let null = File::options().read(true).write(true).open("/dev/null").expect("/dev/null");
        let directory = File::open("/").expect("/");
        let zero = File::open("/dev/zero").expect("/dev/zero");
        context.block_on(|| {
            for file in [&file, &null, &directory, &zero] {
                fd::wait_readable(file).expect("always ready");
                fd::wait_writable(file).expect("always ready");
            }
        });
        // The hooks, which a coroutine calls only if poll(2) says that it must wait, agree.
        let home = context.home();
        let flag = Count::default();
        struct Raises(Count);
        impl std::task::Wake for Raises {
            fn wake(self: Arc<Self>) {
                self.0.raise();
            }
        }
        let waker: Waker = Arc::new(Raises(flag.clone())).into();
        for file in [&file, &directory] {
            for interest in [Interest::Readable, Interest::Writable] {
                let before = flag.get();
                let watch = home.watch_fd(file.as_fd(), interest, waker.clone()).expect("always ready");
                settle(&context);
                assert_eq!(flag.get(), before + 1);
                assert!(home.unwatch(watch), "it had fired");
            }
        }
    });
}

#[test]
fn a_descriptor_that_is_closed_is_an_error_or_ready_and_not_a_hang() {
    let context = context();
    let (ours, _theirs) = sockets();
    let number = ours.as_raw_fd();
    // A number that is surely free: far above any other.
    // SAFETY: F_DUPFD makes a new descriptor, which we own and close.
    let closed = unsafe {
        let high = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 900);
        assert!(high >= 900);
        assert_eq!(libc::close(high), 0);
        BorrowedFd::borrow_raw(high)
    };
    if let Err(error) = context.block_on(|| fd::wait_readable(closed)) {
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
    let blocking = fd::wait_writable(closed);
    assert_eq!(blocking.expect_err("it is closed").raw_os_error(), Some(libc::EBADF));
}

/// Closes `old`, and gives its number to `new`.
fn replace(old: UnixStream, new: UnixStream) -> UnixStream {
    let number = old.into_raw_fd();
    // SAFETY: both descriptors are ours; `dup2` closes the old one, and its number names a duplicate of the new one.
    unsafe {
        assert_eq!(libc::dup2(new.as_raw_fd(), number), number);
        UnixStream::from(OwnedFd::from_raw_fd(number))
    }
}

#[test]
fn a_number_that_is_closed_and_reused_between_waits_is_a_new_descriptor() {
    within(LIMIT, || {
        for ended_by in ["an event", "a cancel", "no wait at all"] {
            for duplicate_kept in [false, true] {
                let context = context();
                let (mut theirs, mut ours) = sockets();
                let wait = |ours: &UnixStream| {
                    // SAFETY: the number stays in use to the end of the test.
                    let number = unsafe { BorrowedFd::borrow_raw(ours.as_raw_fd()) };
                    let waiting = spawn(&context, move || fd::wait_readable(number).expect("a wait"));
                    settle(&context);
                    waiting
                };
                for _ in 0..20 {
                    match ended_by {
                        "an event" => {
                            let waiting = wait(&ours);
                            theirs.write_all(b"x").expect("room");
                            waiting.join().expect("no panic");
                        }
                        "a cancel" => {
                            let waiting = wait(&ours);
                            waiting.cancel();
                            assert_cancelled(waiting.join());
                        }
                        _ => {}
                    }
                    let duplicate = duplicate_kept.then(|| ours.try_clone().expect("a descriptor"));
                    let (new_theirs, new) = sockets();
                    ours = replace(ours, new);
                    let old_theirs = std::mem::replace(&mut theirs, new_theirs);
                    let waiting = wait(&ours);
                    assert!(!waiting.is_finished());
                    if let Some(duplicate) = duplicate {
                        (&old_theirs).write_all(b"x").expect("room");
                        drop(old_theirs);
                        settle(&context);
                        assert!(!waiting.is_finished(), "an event of the old one reached it: {ended_by}");
                        drop(duplicate);
                    }
                    theirs.write_all(b"x").expect("room");
                    waiting.join().expect("no panic");
                    empty(&ours);
                }
            }
        }
    });
}

#[test]
fn a_cancelled_wait_leaves_the_other_waits_for_the_descriptor_alone() {
    within(LIMIT, || {
        let context = context();
        let (mut theirs, ours) = sockets();
        let ours = Arc::new(ours);
        let all: Vec<_> = (0..3)
            .map(|_| {
                let ours = ours.clone();
                spawn(&context, move || fd::wait_readable(&ours).expect("a wait"))
            })
            .collect();
        settle(&context);
        let mut all = all.into_iter();
        let first = all.next().expect("three");
        first.cancel();
        assert_cancelled(first.join());
        theirs.write_all(b"x").expect("room");
        all.for_each(|handle| handle.join().expect("no panic"));
        // And one that comes after a cancelled one.
        empty(&ours);
        let waits = ours.clone();
        let lonely = spawn(&context, move || fd::wait_readable(&waits).expect("a wait"));
        settle(&context);
        lonely.cancel();
        assert_cancelled(lonely.join());
        let waits = ours.clone();
        let next = spawn(&context, move || fd::wait_readable(&waits).expect("a wait"));
        settle(&context);
        theirs.write_all(b"x").expect("room");
        next.join().expect("no panic");
    });
}

#[test]
fn a_wake_from_elsewhere_ends_no_wait_for_a_descriptor() {
    within(LIMIT, || {
        let context = context();
        let (mut theirs, ours) = sockets();
        let (give, take) = mpsc::channel();
        let waiting = spawn(&context, move || {
            give.send(park::waker()).expect("the test waits");
            fd::wait_readable(&ours).expect("a wait");
        });
        settle(&context);
        let waker: Waker = take.recv().expect("it has started");
        for _ in 0..10 {
            waker.wake_by_ref();
            settle(&context);
            assert!(!waiting.is_finished());
        }
        theirs.write_all(b"x").expect("room");
        waiting.join().expect("no panic");
    });
}

#[test]
fn hundreds_of_descriptors_become_ready_at_once() {
    within(LIMIT, || {
        let context = context();
        let mut theirs = Vec::new();
        let all: Vec<_> = (0..300)
            .map(|_| {
                let (there, ours) = sockets();
                theirs.push(there);
                spawn(&context, move || fd::wait_readable(ours).expect("a wait"))
            })
            .collect();
        settle(&context);
        theirs.iter_mut().for_each(|there| there.write_all(b"x").expect("room"));
        all.into_iter().for_each(|handle| handle.join().expect("no panic"));
    });
}

#[test]
fn a_wait_without_a_loop_blocks_the_thread_on_a_plain_thread_and_in_a_coroutine() {
    within(LIMIT, || {
        let (mut theirs, ours) = sockets();
        let writer = thread::spawn(move || {
            for _ in 0..2 {
                thread::sleep(Duration::from_millis(5));
                theirs.write_all(b"x").expect("room");
            }
            theirs
        });
        fd::wait_readable(&ours).expect("a wait");
        (&ours).read_exact(&mut [0]).expect("a byte");
        let co = coroutine(move || {
            fd::wait_readable(&ours).expect("a wait");
            fd::wait_writable(&ours).expect("a wait");
        });
        co.enter();
        assert!(co.is_finished());
        writer.join().expect("no panic");
    });
}

#[test]
fn a_coroutine_driven_by_hand_waits_in_the_loop_that_runs_on_its_thread() {
    within(LIMIT, || {
        let context = context();
        let (mut theirs, ours) = sockets();
        let co = coroutine(move || fd::wait_readable(&ours).expect("a wait"));
        context.block_on(|| co.enter());
        assert!(!co.is_finished());
        theirs.write_all(b"x").expect("room");
        while !co.is_finished() {
            context.poll(true);
        }
    });
}

// ---- deadlines ------------------------------------------------------------------------------------------------------

#[test]
fn a_park_with_a_deadline_returns_not_before_it() {
    within(LIMIT, || {
        let context = context();
        for micros in [0, 1, 300, 999, 2500, 10_400] {
            context.block_on(|| {
                let deadline = Instant::now() + Duration::from_micros(micros);
                park::park_until(deadline);
                assert!(Instant::now() >= deadline, "{micros} microseconds, in a coroutine");
            });
            // A thread's park may return early; but it must return.
            let deadline = Instant::now() + Duration::from_micros(micros);
            while Instant::now() < deadline {
                park::park_until(deadline);
            }
        }
        let past = Instant::now();
        thread::sleep(Duration::from_millis(2));
        context.block_on(|| park::park_until(past));
        park::park_until(past);
    });
}

#[test]
fn deadlines_are_met_in_order_and_equal_ones_in_the_order_in_which_they_were_set() {
    within(LIMIT, || {
        let context = context();
        let order = Arc::new(Mutex::new(Vec::new()));
        let start = Instant::now() + Duration::from_millis(20);
        let all: Vec<_> = (0..300u64)
            .map(|n| {
                let order = order.clone();
                spawn(&context, move || {
                    let slot = n * 7919 % 30;
                    let deadline = start + Duration::from_micros(slot * 100);
                    park::park_until(deadline);
                    assert!(Instant::now() >= deadline);
                    order.lock().expect("not poisoned").push((slot, n));
                })
            })
            .collect();
        all.into_iter().for_each(|handle| handle.join().expect("no panic"));
        let order = order.lock().expect("not poisoned");
        assert_eq!(order.len(), 300);
        assert!(order.is_sorted(), "{order:?}");
    });
}

#[test]
fn a_wake_ends_a_park_with_a_deadline_and_the_deadline_disturbs_nobody_later() {
    within(LIMIT, || {
        let context = context();
        let far = Instant::now() + Duration::from_secs(1000);
        let (give, take) = mpsc::channel();
        let handle = spawn(&context, move || {
            give.send(park::waker()).expect("the test waits");
            park::park_until(far);
            let near = Instant::now() + Duration::from_millis(1);
            park::park_until(near);
            assert!(Instant::now() >= near);
        });
        settle(&context);
        let waker: Waker = take.recv().expect("it has started");
        thread::spawn(move || waker.wake()).join().expect("no panic");
        handle.join().expect("no panic");
        assert!(!context.poll(false));
    });
}

#[test]
fn a_turn_that_does_not_block_meets_no_deadline_early_and_one_that_blocks_sleeps_until_it() {
    within(LIMIT, || {
        let context = context();
        let deadline = Instant::now() + Duration::from_millis(30);
        let handle = spawn(&context, move || park::park_until(deadline));
        assert!(context.poll(false));
        while Instant::now() < deadline {
            // Once the clock has passed the deadline within this call, it may be met.
            let progress = context.poll(false);
            assert!(!progress || Instant::now() >= deadline);
            assert!(!handle.is_finished() || Instant::now() >= deadline);
        }
        handle.join().expect("no panic");
        let deadline = Instant::now() + Duration::from_millis(5);
        let handle = spawn(&context, move || park::park_until(deadline));
        let mut turns = 0;
        while !handle.is_finished() {
            context.poll(true);
            turns += 1;
        }
        assert!(Instant::now() >= deadline);
        assert!(turns <= 6, "{turns} turns: it didn't sleep");
    });
}

#[test]
fn idle_turns_with_a_hang_up_that_nobody_waits_for_are_few() {
    within(LIMIT, || {
        let context = context();
        let (theirs, ours) = sockets();
        let ours = Arc::new(ours);
        // Known to the loop, told of the hang-up, and of no interest from then on.
        let waits = ours.clone();
        let waiting = spawn(&context, move || fd::wait_readable(&waits).expect("a wait"));
        settle(&context);
        drop(theirs);
        waiting.join().expect("no panic");
        let deadline = Instant::now() + Duration::from_millis(50);
        let sleeping = spawn(&context, move || park::park_until(deadline));
        let mut turns = 0;
        while !sleeping.is_finished() {
            context.poll(true);
            turns += 1;
        }
        assert!(turns < 20, "{turns} turns");
    });
}

// ---- fairness -------------------------------------------------------------------------------------------------------

#[test]
fn a_coroutine_that_yields_for_ever_starves_no_descriptor_no_deadline_and_no_other_thread() {
    within(LIMIT, || {
        let context = context();
        let yields = Arc::new(AtomicUsize::new(0));
        let count = yields.clone();
        let busy = spawn(&context, move || {
            loop {
                count.fetch_add(1, Ordering::Relaxed);
                yield_now();
            }
        });
        let (mut theirs, ours) = sockets();
        let ours = Arc::new(ours);
        for _ in 0..20 {
            let waits = ours.clone();
            let waiting = spawn(&context, move || fd::wait_readable(&waits).expect("a wait"));
            (0..40).for_each(|_| _ = context.poll(true));
            assert!(!waiting.is_finished());
            theirs.write_all(b"x").expect("room");
            let before = yields.load(Ordering::Relaxed);
            waiting.join().expect("no panic");
            let after = yields.load(Ordering::Relaxed);
            assert!(after - before <= 100, "{} yields before the descriptor's turn", after - before);
            empty(&ours);
        }
        let deadline = Instant::now() + Duration::from_millis(2);
        let timed = spawn(&context, move || {
            park::park_until(deadline);
            Instant::now()
        });
        assert!(timed.join().expect("no panic") >= deadline);
        let remote = context.remote();
        let other = thread::spawn(move || remote.spawn(|| 5).expect("a stack"));
        while !other.is_finished() {
            context.poll(true);
        }
        assert_eq!(other.join().expect("no panic").join().expect("no panic"), 5);
        busy.cancel();
        assert_cancelled(busy.join().map(|_: ()| ()));
    });
}

#[test]
fn coroutines_that_wake_each_other_for_ever_starve_no_descriptor() {
    within(LIMIT, || {
        let context = context();
        let wakers: Arc<Mutex<[Option<Waker>; 2]>> = Arc::default();
        let rounds = Arc::new(AtomicUsize::new(0));
        let pair: Vec<_> = (0..2)
            .map(|me| {
                let (wakers, rounds) = (wakers.clone(), rounds.clone());
                spawn(&context, move || {
                    wakers.lock().expect("not poisoned")[me] = Some(park::waker());
                    loop {
                        rounds.fetch_add(1, Ordering::Relaxed);
                        let other = wakers.lock().expect("not poisoned")[1 - me].clone();
                        // The yield gives the loop a turn; between two yields they go on as they like.
                        if rounds.load(Ordering::Relaxed).is_multiple_of(50) {
                            yield_now();
                        }
                        if let Some(other) = other {
                            other.wake();
                        }
                        park::park();
                    }
                })
            })
            .collect();
        let (mut theirs, ours) = sockets();
        let waiting = spawn(&context, move || fd::wait_readable(&ours).expect("a wait"));
        (0..100).for_each(|_| _ = context.poll(false));
        theirs.write_all(b"x").expect("room");
        waiting.join().expect("no panic");
        for handle in pair {
            handle.cancel();
            assert_cancelled(handle.join().map(|_: ()| ()));
        }
    });
}

// ---- regressions ----------------------------------------------------------------------------------------------------

/// Runs a spawned coroutine, up to its park, in the loop, and from there on outside of the loop: woken by a coroutine
/// that is entered by hand.
fn go_on_outside_of_the_loop<T: Send + 'static>(
    context: &AioContext,
    f: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let (give, take) = mpsc::channel();
    let handle = spawn(context, move || {
        give.send(park::waker()).expect("the test waits");
        park::park();
        f()
    });
    settle(context);
    let waker: Waker = take.recv().expect("it has started");
    coroutine(move || waker.wake()).enter();
    handle
}

#[test]
fn a_spawned_coroutine_that_runs_outside_of_its_loop_parks_in_it_all_the_same_for_a_descriptor() {
    let exit = child("", |_| {
        within(Duration::from_secs(10), || {
            let context = context();
            let (mut theirs, ours) = sockets();
            let handle = go_on_outside_of_the_loop(&context, move || fd::wait_readable(&ours).expect("a wait"));
            theirs.write_all(b"x").expect("room");
            handle.join().expect("no panic");
        });
    });
    exit.assert_success();
}

#[test]
fn a_spawned_coroutine_that_runs_outside_of_its_loop_keeps_its_deadlines() {
    let exit = child("", |_| {
        within(Duration::from_secs(10), || {
            let context = context();
            let handle = go_on_outside_of_the_loop(&context, || {
                let deadline = Instant::now() + Duration::from_millis(5);
                park::park_until(deadline);
                assert!(Instant::now() >= deadline);
            });
            handle.join().expect("no panic");
        });
    });
    exit.assert_success();
}

#[test]
fn a_spawned_coroutine_that_runs_in_another_loop_waits_in_its_own() {
    let exit = child("", |_| {
        within(Duration::from_secs(10), || {
            let (own, other) = (context(), context());
            let (give, take) = mpsc::channel();
            let (mut theirs, ours) = sockets();
            let handle = spawn(&own, move || {
                give.send(park::waker()).expect("the test waits");
                park::park();
                fd::wait_readable(&ours).expect("a wait");
            });
            settle(&own);
            let waker: Waker = take.recv().expect("it has started");
            other.block_on(|| waker.wake());
            drop(other);
            theirs.write_all(b"x").expect("room");
            handle.join().expect("no panic");
        });
    });
    exit.assert_success();
}

#[test]
fn a_number_that_is_replaced_while_somebody_waits_for_it_is_a_new_descriptor_for_the_next() {
    let exit = child("", |_| {
        within(Duration::from_secs(10), || {
            let context = context();
            let (_old_theirs, ours) = sockets();
            let number = ours.as_raw_fd();
            let _keeps_the_old_alive = ours.try_clone().expect("a descriptor");
            // SAFETY: the number stays in use to the end of the test.
            let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
            let old_wait = spawn(&context, move || fd::wait_readable(borrowed));
            settle(&context);
            let (mut theirs, new) = sockets();
            let _ours = replace(ours, new);
            let new_wait = spawn(&context, move || fd::wait_readable(borrowed));
            settle(&context);
            theirs.write_all(b"x").expect("room");
            new_wait.join().expect("no panic").expect("a wait");
            old_wait.cancel();
            let _ = old_wait.join();
        });
    });
    exit.assert_success();
}

#[test]
fn an_event_of_a_file_that_lost_its_number_during_a_cancelled_wait_reaches_nobody() {
    within(LIMIT, || {
        let context = context();
        let (mut old_theirs, ours) = sockets();
        // SAFETY: the number stays in use to the end of the test.
        let borrowed = unsafe { BorrowedFd::borrow_raw(ours.as_raw_fd()) };
        let _keeps_the_old_alive = ours.try_clone().expect("a descriptor");
        let old_wait = spawn(&context, move || fd::wait_readable(borrowed).expect("a wait"));
        settle(&context);
        let (mut theirs, new) = sockets();
        let _ours = replace(ours, new);
        old_wait.cancel();
        assert_cancelled(old_wait.join());
        let new_wait = spawn(&context, move || fd::wait_readable(borrowed).expect("a wait"));
        settle(&context);
        old_theirs.write_all(b"x").expect("room");
        settle(&context);
        assert!(!new_wait.is_finished(), "an event of the old one reached it");
        theirs.write_all(b"x").expect("room");
        new_wait.join().expect("no panic");
    });
}
