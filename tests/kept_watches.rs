//! Descriptors that are waited for again and again, which a loop may keep watched: nothing is missed, nothing is kept open.
//!
//! From the second wait on with io_uring, they are; the other monitors, and plain threads, do the same without.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aioco::aio::{FdCallbacks, IoThread};
use aioco::fd::{EventFd, Parked};
use aioco::{AioContext, JoinHandle, aio};
use common::{
    LIMIT, alike, assert_cancelled, each, eventfd, lower, raise, rounds, scaled, settle, sockets, spawn,
    watch_something, within,
};

const MILLI: Duration = Duration::from_millis(1);

fn event() -> Arc<EventFd> {
    Arc::new(EventFd::new().expect("an eventfd"))
}

/// Has a coroutine wait for what has been signalled already, or is signalled meanwhile. Returns the count.
#[track_caller]
fn take(context: &AioContext, event: &Arc<EventFd>) -> u64 {
    let waiting = spawn(context, {
        let event = event.clone();
        move || event.wait().expect("a count")
    });
    settle(context);
    assert!(waiting.is_finished(), "it isn't told");
    waiting.join().expect("no panic")
}

/// Has a coroutine wait for it, twice.
fn get_used_to(context: &AioContext, event: &Arc<EventFd>) {
    for _ in 0..2 {
        let waiting = spawn(context, {
            let event = event.clone();
            move || event.wait().expect("a count")
        });
        settle(context);
        event.signal();
        assert_eq!(waiting.join().expect("no panic"), 1);
    }
}

/// Has a coroutine wait for input from `ours`, twice.
fn get_used_to_socket(context: &AioContext, ours: &Arc<Parked<UnixStream>>, theirs: &mut UnixStream) {
    for _ in 0..2 {
        let reading = spawn(context, {
            let ours = ours.clone();
            move || (&*ours).read(&mut [0]).expect("a byte")
        });
        settle(context);
        theirs.write_all(b"x").expect("room");
        assert_eq!(reading.join().expect("no panic"), 1);
    }
}

#[test]
fn what_is_signalled_is_counted_once_whoever_waits() {
    each(|context| {
        let event = event();
        let taken = Arc::new(AtomicU64::new(0));
        let take = {
            let (event, taken) = (event.clone(), taken.clone());
            move || while taken.fetch_add(event.wait().expect("a count"), Ordering::Relaxed) < u64::MAX / 2 {}
        };
        // Several of this loop, one of another, and one of none.
        let waiting: Vec<_> = (0..3).map(|_| spawn(context, take.clone())).collect();
        let other = IoThread::new("other").expect("a thread");
        let elsewhere = other.remote().spawn(take.clone()).expect("a stack");
        let signalled = context.block_on(|| {
            rounds(scaled(20_000)).fold(0, |count, round| {
                event.signal();
                if round % 3 == 0 {
                    aioco::yield_now();
                }
                if round % 100 == 0 {
                    aio::sleep(MILLI / 10);
                }
                count + 1
            })
        });
        while taken.load(Ordering::Relaxed) < signalled {
            context.poll(true);
        }
        settle(context);
        assert_eq!(taken.load(Ordering::Relaxed), signalled);
        assert_eq!(event.take().expect("a look"), 0);
        waiting.iter().chain([&elsewhere]).for_each(JoinHandle::cancel);
        waiting.into_iter().chain([elsewhere]).for_each(|handle| assert_cancelled(handle.join()));
    });
}

#[test]
fn signals_while_nobody_waits_are_found_by_the_next_who_does() {
    each(|context| {
        let _busy = watch_something(context);
        let event = event();
        get_used_to(context, &event);
        for _ in 0..3 {
            event.signal();
            event.signal();
            // The loop is told, and nobody else.
            settle(context);
            assert_eq!(take(context, &event), 2);
            // Nor is it told.
            event.signal();
            assert_eq!(take(context, &event), 1);
        }
        assert_eq!(context.block_on(|| event.wait_until(Instant::now() + MILLI)).expect("nothing"), 0);
        event.signal();
        assert_eq!(take(context, &event), 1);
    });
}

#[test]
fn who_is_told_and_leaves_without_taking_does_not_take_the_event_along() {
    each(|context| {
        // It is alone.
        let event = event();
        get_used_to(context, &event);
        let wait = || {
            let event = event.clone();
            spawn(context, move || event.wait().expect("a count"))
        };
        tell_and_cancel(context, &event, wait());
        assert_eq!(take(context, &event), 1);
        // Another one is told with it, takes what there is, and leaves while it is there.
        let (first, second) = (wait(), wait());
        settle(context);
        event.signal();
        assert_eq!(first.join().expect("no panic"), 1);
        tell_and_cancel(context, &event, second);
        assert_eq!(take(context, &event), 1);
    });
}

/// Signals the event and cancels who waits for it before it has its turn: callbacks run before coroutines.
fn tell_and_cancel(context: &AioContext, event: &EventFd, waiting: JoinHandle<u64>) {
    settle(context);
    let (bell, handle) = (Arc::new(eventfd()), Arc::new(waiting));
    let cancel = {
        let (bell, handle) = (bell.clone(), handle.clone());
        move || {
            lower(&bell);
            handle.cancel();
        }
    };
    let handler = context.add_owned_fd(bell.clone(), FdCallbacks::new().on_readable(cancel)).expect("a handler");
    event.signal();
    raise(&bell);
    context.run_until(|| handle.is_finished());
    drop(handler);
    assert_cancelled(Arc::into_inner(handle).expect("the callback is gone").join());
}

#[test]
fn one_that_counts_down_is_taken_one_by_one() {
    each(|context| {
        // SAFETY: no memory arguments; the descriptor is new.
        let fd = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC)) };
        let event = Arc::new(EventFd::from_fd(fd).expect("an eventfd"));
        get_used_to(context, &event);
        (0..5).for_each(|_| event.signal());
        assert_eq!([(); 5].map(|()| take(context, &event)), [1; 5]);
    });
}

#[test]
fn what_comes_from_elsewhere_is_looked_at() {
    let (ours, _theirs) = sockets();
    let error = EventFd::from_fd(ours.into()).expect_err("a socket");
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::InvalidInput, "the descriptor isn't an eventfd")
    );
    let event = EventFd::from_fd(eventfd()).expect("an eventfd");
    event.signal();
    event.signal();
    assert_eq!(event.take().expect("a count"), 2);
    assert_eq!(event.take().expect("nothing"), 0);
    raise(&OwnedFd::from(event));
}

#[test]
fn whoever_is_no_coroutine_blocks() {
    within(LIMIT, || {
        let event = event();
        assert_eq!(event.wait_until(Instant::now() + MILLI).expect("nothing"), 0);
        let signalling = thread::spawn({
            let event = event.clone();
            move || {
                thread::sleep(MILLI);
                event.signal();
            }
        });
        assert_eq!(event.wait().expect("a count"), 1);
        signalling.join().expect("no panic");
    });
}

#[test]
fn a_file_is_closed_when_its_owner_is_dropped() {
    #[derive(Clone, Copy, Debug)]
    enum Where {
        BetweenTurns,
        InATurn,
        OnAnotherThread,
    }

    each(|context| {
        for place in [Where::BetweenTurns, Where::InATurn, Where::OnAnotherThread] {
            // Also with an event that the kernel has yet to tell of.
            for is_told in [false, true] {
                let (ours, mut theirs) = sockets();
                let ours = Arc::new(Parked::new(ours).expect("a socket"));
                get_used_to_socket(context, &ours, &mut theirs);
                if is_told {
                    theirs.write_all(b"xyz").expect("room");
                    assert_eq!(ours.get_ref().read(&mut [0; 4]).expect("what has come"), 3);
                }
                match place {
                    Where::BetweenTurns => drop(ours),
                    Where::InATurn => context.block_on(|| drop(ours)),
                    Where::OnAnotherThread => {
                        thread::spawn(move || drop(ours)).join().expect("no panic");
                        // In the loop's next turn.
                        settle(context);
                    }
                }
                theirs.set_nonblocking(true).expect("a socket");
                assert_eq!(theirs.read(&mut [0]).expect("the end"), 0, "{place:?} {is_told}");
            }
        }
    });
}

#[test]
fn a_loop_that_sleeps_lets_go_of_what_is_dropped_on_another_thread() {
    within(LIMIT, || {
        let io_thread = IoThread::new("loop").expect("a thread");
        let (ours, mut theirs) = sockets();
        let reading = io_thread.remote().spawn(move || {
            let ours = Parked::new(ours).expect("a socket");
            for _ in 0..3 {
                assert_eq!((&ours).read(&mut [0]).expect("a byte"), 1);
            }
            ours
        });
        let reading = reading.expect("a stack");
        for _ in 0..3 {
            thread::sleep(MILLI);
            theirs.write_all(b"x").expect("room");
        }
        drop(reading.join().expect("no panic"));
        assert_eq!(theirs.read(&mut [0]).expect("the end"), 0);
    });
}

#[test]
fn it_outlives_the_loop_and_goes_on_in_another() {
    each(|context| {
        let event = event();
        let (ours, mut theirs) = sockets();
        let ours = Arc::new(Parked::new(ours).expect("a socket"));
        let first = alike(context);
        get_used_to(&first, &event);
        get_used_to_socket(&first, &ours, &mut theirs);
        // In two loops at once, and with a coroutine that the first one's end unwinds.
        let waiting = spawn(&first, {
            let event = event.clone();
            move || event.wait().expect("a count")
        });
        settle(&first);
        let second = alike(context);
        // It keeps watches of its own, which aren't taken for the first one's.
        let its_own = [self::event(), self::event()];
        its_own.iter().for_each(|event| get_used_to(&second, event));
        get_used_to_socket(&second, &ours, &mut theirs);
        drop(first);
        assert_cancelled(waiting.join());
        get_used_to(&second, &event);
        get_used_to_socket(&second, &ours, &mut theirs);
        drop(second);
        drop(ours);
        assert_eq!(theirs.read(&mut [0]).expect("the end"), 0);
    });
}

#[test]
fn another_descriptor_may_come_into_its_place() {
    each(|context| {
        let (ours, mut theirs) = sockets();
        let ours = Arc::new(Parked::new(ours).expect("a socket"));
        get_used_to_socket(context, &ours, &mut theirs);
        let mut ours = Arc::into_inner(ours).expect("nobody waits");
        let (other, mut others) = sockets();
        other.set_nonblocking(true).expect("a socket");
        let number = ours.as_fd().as_raw_fd();
        // It even gets the old one's number.
        *ours.get_mut() = other;
        let (again, mut theirs_again) = sockets();
        again.set_nonblocking(true).expect("a socket");
        assert_eq!(again.as_raw_fd(), number, "the lowest number that is free");
        let ours = Arc::new(ours);
        get_used_to_socket(context, &ours, &mut others);
        let mut ours = Arc::into_inner(ours).expect("nobody waits");
        *ours.get_mut() = again;
        get_used_to_socket(context, &Arc::new(ours), &mut theirs_again);
    });
}

#[test]
fn a_cancelled_wait_leaves_the_others_what_they_wait_for() {
    each(|context| {
        let (ours, mut theirs) = sockets();
        let ours = Arc::new(Parked::new(ours).expect("a socket"));
        get_used_to_socket(context, &ours, &mut theirs);
        let read = {
            let ours = ours.clone();
            move || (&*ours).read(&mut [0]).expect("a byte")
        };
        let waiting: Vec<_> = (0..4).map(|_| spawn(context, read.clone())).collect();
        settle(context);
        for (number, handle) in waiting.into_iter().enumerate() {
            if number % 2 == 0 {
                handle.cancel();
                assert_cancelled(handle.join());
            } else {
                theirs.write_all(b"x").expect("room");
                assert_eq!(handle.join().expect("no panic"), 1);
            }
        }
        // A timeout leaves it as usable.
        ours.set_timeout(aioco::coroutine::Interest::Readable, Some(MILLI));
        let error = context.block_on(|| (&*ours).read(&mut [0])).expect_err("there is nothing");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        ours.set_timeout(aioco::coroutine::Interest::Readable, None);
        get_used_to_socket(context, &ours, &mut theirs);
        assert!(aio::current().is_none());
    });
}

#[test]
fn an_end_that_comes_with_the_last_bytes_is_read_after_them() {
    each(|context| {
        let listener = Parked::<TcpListener>::bind("127.0.0.1:0".parse().expect("an address")).expect("a listener");
        let address = listener.get_ref().local_addr().expect("it is bound");
        let mut theirs = TcpStream::connect(address).expect("a connection");
        let (ours, _) = context.block_on(|| listener.accept()).expect("a connection");
        let reading = spawn(context, move || {
            let mut ours = ours;
            // More than comes at a time, so that each read takes all there is.
            let mut buffer = [0; 100];
            std::iter::from_fn(|| Some(ours.read(&mut buffer).expect("a read")).filter(|&count| count != 0))
                .sum::<usize>()
        });
        for _ in 0..3 {
            settle(context);
            theirs.write_all(b"x").expect("room");
        }
        settle(context);
        theirs.write_all(b"xy").expect("room");
        drop(theirs);
        assert_eq!(reading.join().expect("no panic"), 5);
    });
}
