//! The monitors: the same behaviour in all of them, what they cost, and how one is chosen.
//!
//! Each test runs its scenario with every monitor, and says so; one that the system doesn't allow is skipped, visibly.

mod common;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use aioco::aio::MonitorKind;
use aioco::coroutine::{Interest, Watch};
use aioco::{AioContext, fd, park};
use common::{
    Count, MONITORS, assert_cancelled, child, each, each_here, eventfd, eventually, forbid, lower, message_of, raise,
    scaled, settle, sockets, spawn, watch_something, with,
};

/// Counts how often it was woken.
#[derive(Default)]
struct Told(AtomicU32);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// A watch by hand.
struct Watching<'a> {
    context: &'a AioContext,
    watch: Watch,
    told: Arc<Told>,
}

impl Watching<'_> {
    fn told(&self) -> u32 {
        self.told.0.load(Ordering::Acquire)
    }

    /// Ends the watch; returns whether it had fired.
    fn end(&self) -> bool {
        self.context.home().unwatch(self.watch)
    }
}

#[track_caller]
fn watch(context: &AioContext, fd: impl AsFd, interest: Interest) -> Watching<'_> {
    let told = Arc::new(Told::default());
    let watch = context.home().watch_fd(fd.as_fd(), interest, Waker::from(told.clone()));
    Watching { context, watch: watch.expect("a watch"), told }
}

/// Turns that collect whatever there is.
fn look(context: &AioContext) {
    for _ in 0..3 {
        context.poll(false);
    }
}

/// The number of turns that a loop takes within 100 ms in which nothing is to do.
fn idle_turns(context: &AioContext) -> u32 {
    let deadline = Instant::now() + Duration::from_millis(100);
    let sleeping = spawn(context, move || {
        while Instant::now() < deadline {
            park::park_until(deadline);
        }
    });
    let mut turns = 0;
    while !sleeping.is_finished() {
        context.poll(true);
        turns += 1;
    }
    turns
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}

/// Sets the soft limit of open files; `None`: as high as it may be. Returns what it was.
fn limit_files(to: Option<usize>) -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the result.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    let was = limit.rlim_cur as usize;
    limit.rlim_cur = to.map_or(limit.rlim_max, |to| to as libc::rlim_t);
    // SAFETY: a valid argument.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    was
}

// ---- readiness ------------------------------------------------------------------------------------------------------

#[test]
fn a_watch_fires_once_when_its_descriptor_is_ready_or_becomes_so() {
    each(|context| {
        let (mut theirs, mut ours) = sockets();
        let later = watch(context, &ours, Interest::Readable);
        look(context);
        assert_eq!(later.told(), 0);
        theirs.write_all(b"x").expect("room");
        assert!(context.poll(true));
        assert_eq!(later.told(), 1);
        let now = watch(context, &ours, Interest::Readable);
        look(context);
        assert_eq!((now.told(), later.told()), (1, 1), "once each");
        assert!(later.end() && now.end());
        ours.read_exact(&mut [0]).expect("a byte");
        let never = watch(context, &ours, Interest::Readable);
        look(context);
        assert!(!never.end());
        theirs.write_all(b"x").expect("room");
        look(context);
        assert_eq!(never.told(), 0, "it was withdrawn");
    });
}

#[test]
fn the_directions_of_a_descriptor_are_watched_apart() {
    each(|context| {
        let (mut theirs, ours) = sockets();
        ours.set_nonblocking(true).expect("a socket");
        while (&ours).write(&[0; 4096]).is_ok() {}
        let (reads, writes) = (watch(context, &ours, Interest::Readable), watch(context, &ours, Interest::Writable));
        look(context);
        assert_eq!((reads.told(), writes.told()), (0, 0));
        theirs.write_all(b"x").expect("room");
        look(context);
        assert_eq!((reads.told(), writes.told()), (1, 0));
        theirs.set_nonblocking(true).expect("a socket");
        while theirs.read(&mut [0; 4096]).is_ok() {}
        look(context);
        assert_eq!((reads.told(), writes.told()), (1, 1));
        assert!(reads.end() && writes.end());
    });
}

#[test]
fn all_who_watch_one_descriptor_are_told_but_those_who_have_withdrawn() {
    each(|context| {
        let (mut theirs, ours) = sockets();
        let all: Vec<_> = (0..100).map(|_| watch(context, &ours, Interest::Readable)).collect();
        look(context);
        // The first, the last, and neighbours in between.
        let withdraws = |index: usize| index % 3 != 1;
        for (_, withdrawn) in all.iter().enumerate().filter(|(index, _)| withdraws(*index)) {
            assert!(!withdrawn.end());
        }
        theirs.write_all(b"x").expect("room");
        look(context);
        for (index, watching) in all.iter().enumerate() {
            assert_eq!(watching.told(), u32::from(!withdraws(index)), "{index}");
            assert!(watching.end());
        }
    });
}

#[test]
fn a_hang_up_is_for_both_directions_and_ends_no_wait_when_nobody_watches() {
    each(|context| {
        let (theirs, ours) = sockets();
        ours.set_nonblocking(true).expect("a socket");
        while (&ours).write(&[0; 4096]).is_ok() {}
        let (reads, writes) = (watch(context, &ours, Interest::Readable), watch(context, &ours, Interest::Writable));
        look(context);
        drop(theirs);
        look(context);
        assert_eq!((reads.told(), writes.told()), (1, 1));
        // Nobody watches: neither who was told, nor who withdrew.
        assert!(idle_turns(context) < 10);
        let fired = watch(context, &ours, Interest::Writable);
        look(context);
        assert!(fired.end());
        assert!(idle_turns(context) < 10);
        // Somebody watches the other end of a pipe that nobody reads: an error, at once.
        let mut pipe = [0; 2];
        // SAFETY: a valid place for the result; both descriptors are new.
        let (reader, writer) = unsafe {
            assert_eq!(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC), 0);
            (OwnedFd::from_raw_fd(pipe[0]), OwnedFd::from_raw_fd(pipe[1]))
        };
        drop(reader);
        let reads = watch(context, &writer, Interest::Readable);
        look(context);
        assert_eq!(reads.told(), 1, "an error is for both");
        assert!(idle_turns(context) < 10);
    });
}

#[test]
fn what_is_always_ready_fires_without_waiting() {
    let exit = child("", |_| {
        each(|context| {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("file");
            let file = File::options().create_new(true).read(true).write(true).open(&path).expect("a file");
            let directory = File::open(directory.path()).expect("a directory");
            let null = File::open("/dev/null").expect("/dev/null");
            let before = open_files();
            for file in [&file, &directory, &null] {
                for interest in [Interest::Readable, Interest::Writable] {
                    let watching = watch(context, file, interest);
                    look(context);
                    assert_eq!(watching.told(), 1, "{file:?} {interest:?}");
                    assert!(watching.end());
                }
                context.block_on(|| {
                    fd::wait_readable(file).expect("a wait");
                    fd::wait_writable(file).expect("a wait");
                });
            }
            assert_eq!(open_files(), before);
        });
    });
    exit.assert_success();
}

#[test]
fn a_watch_that_has_fired_is_not_taken_for_a_later_one() {
    each(|context| {
        let (ready, idle) = (eventfd(), eventfd());
        raise(&ready);
        let fired = watch(context, &ready, Interest::Readable);
        look(context);
        assert_eq!(fired.told(), 1);
        // One of these has what the fired one had.
        let later: Vec<_> = (0..10).map(|_| watch(context, &idle, Interest::Readable)).collect();
        assert!(fired.end());
        raise(&idle);
        look(context);
        assert!(later.iter().all(|watching| watching.told() == 1 && watching.end()));
    });
}

#[test]
fn what_cannot_be_watched_is_an_error_and_not_a_hang() {
    each(|context| {
        // SAFETY: the number that stands for the current directory; it is never closed.
        let not_open = unsafe { BorrowedFd::borrow_raw(libc::AT_FDCWD) };
        let refused = context.home().watch_fd(not_open, Interest::Readable, Waker::noop().clone());
        assert_eq!(refused.expect_err("no descriptor").raw_os_error(), Some(libc::EBADF));
        let path = File::options().read(true).custom_flags(libc::O_PATH).open("/").expect("the root");
        match context.home().watch_fd(path.as_fd(), Interest::Readable, Waker::noop().clone()) {
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EBADF)),
            Ok(watch) => {
                look(context);
                assert!(context.home().unwatch(watch), "it fires");
            }
        }
        if let Err(error) = context.block_on(|| fd::wait_readable(&path)) {
            assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        }
    });
}

// ---- numbers that are closed and reused -----------------------------------------------------------------------------

/// Puts `new` in the place of `old`, whose number it gets.
fn replace(old: OwnedFd, new: OwnedFd) -> OwnedFd {
    let number = old.into_raw_fd();
    // SAFETY: both are ours; the number was given up and is owned anew.
    unsafe {
        assert_eq!(libc::dup3(new.as_raw_fd(), number, libc::O_CLOEXEC), number);
        OwnedFd::from_raw_fd(number)
    }
}

#[test]
fn a_descriptor_that_is_closed_while_it_is_watched_does_no_harm() {
    // In processes of their own: a number that is free for a moment is anybody's.
    let exit = child("", |_| {
        each(|context| {
            for keep_alive in [false, true] {
                let (mut theirs, ours) = sockets();
                let duplicate = keep_alive.then(|| ours.try_clone().expect("a descriptor"));
                let lost = watch(context, &ours, Interest::Readable);
                look(context);
                drop(ours);
                assert!(idle_turns(context) < 10);
                let _ = theirs.write_all(b"x");
                assert!(idle_turns(context) < 10);
                let told = lost.told();
                assert!(told <= 1);
                if context.monitor().kind() == MonitorKind::Poll {
                    assert_eq!(told, 1, "poll tells");
                }
                assert_eq!(lost.end(), told == 1);
                drop(duplicate);
                // The number is free for others.
                let (mut theirs, ours) = sockets();
                let other = watch(context, &ours, Interest::Readable);
                theirs.write_all(b"x").expect("room");
                look(context);
                assert_eq!(other.told(), 1);
                assert_eq!(lost.told(), told);
            }
        });
    });
    exit.assert_success();
}

#[test]
fn events_of_an_old_file_do_not_reach_who_watches_its_number_now() {
    let exit = child("", |_| {
        each(|context| {
            for withdraw in [true, false] {
                let mut old = eventfd();
                // The file of each round stays alive, some of them ready, some not.
                let mut duplicates = Vec::new();
                let mut left = Vec::new();
                for round in 0..50 {
                    let duplicate = old.try_clone().expect("a descriptor");
                    let before = watch(context, &old, Interest::Readable);
                    if round % 2 == 0 {
                        context.poll(false);
                    }
                    if withdraw {
                        assert!(!before.end());
                    } else {
                        left.push(before);
                    }
                    old = replace(old, eventfd());
                    let now = watch(context, &old, Interest::Readable);
                    if round % 3 == 0 {
                        look(context);
                    }
                    raise(&duplicate);
                    look(context);
                    assert_eq!(now.told(), 0, "round {round}, withdrawn: {withdraw}");
                    raise(&old);
                    look(context);
                    assert_eq!(now.told(), 1, "round {round}, withdrawn: {withdraw}");
                    assert!(now.end());
                    lower(&old);
                    duplicates.push(duplicate);
                }
                for watching in left {
                    watching.end();
                    assert!(watching.told() <= 1);
                }
            }
            assert!(idle_turns(context) < 10);
        });
    });
    exit.assert_success();
}

#[test]
fn a_file_that_gets_its_old_number_back_can_be_watched() {
    let exit = child("", |_| {
        each(|context| {
            let mut ours = eventfd();
            let first = ours.try_clone().expect("a descriptor");
            let watching = watch(context, &ours, Interest::Readable);
            look(context);
            assert!(!watching.end());
            let fired = watch(context, &ours, Interest::Readable);
            raise(&ours);
            look(context);
            assert!(fired.end());
            lower(&ours);
            ours = replace(ours, eventfd());
            let watching = watch(context, &ours, Interest::Readable);
            look(context);
            assert!(!watching.end());
            ours = replace(ours, first);
            let watching = watch(context, &ours, Interest::Readable);
            look(context);
            assert_eq!(watching.told(), 0);
            raise(&ours);
            look(context);
            assert_eq!(watching.told(), 1);
        });
    });
    exit.assert_success();
}

#[test]
fn a_number_that_is_watched_and_withdrawn_over_and_over_mixes_up_nothing() {
    each(|context| {
        let (ready, idle) = (eventfd(), eventfd());
        raise(&ready);
        for round in 0..scaled(20_000) {
            let one = watch(context, &ready, Interest::Readable);
            let other = watch(context, &idle, Interest::Readable);
            if round % 3 != 0 {
                context.poll(false);
            }
            let told = one.told();
            assert_eq!(one.end(), told == 1, "round {round}");
            assert!(!other.end());
            if round % 7 == 0 {
                context.poll(false);
            }
            assert_eq!((one.told(), other.told()), (told, 0), "round {round}");
        }
        assert!(idle_turns(context) < 10);
    });
}

// ---- many -----------------------------------------------------------------------------------------------------------

#[test]
fn thousands_that_are_ready_at_once_are_all_told_once() {
    limit_files(None);
    each(|context| {
        const MANY: usize = 2000;
        let fds: Vec<_> = (0..MANY).map(|_| eventfd()).collect();
        for round in 0..3 {
            let watches: Vec<_> = fds.iter().map(|fd| watch(context, fd, Interest::Readable)).collect();
            if round != 1 {
                look(context);
            }
            let mut ready = 0;
            for (index, fd) in fds.iter().enumerate() {
                if index % 10 == 3 {
                    assert!(!watches[index].end());
                }
                if index % 5 != 4 {
                    raise(fd);
                    ready += u32::from(index % 10 != 3);
                }
            }
            let told = || watches.iter().map(Watching::told).sum::<u32>();
            let mut turns = 0;
            while told() < ready {
                assert!(context.poll(true));
                turns += 1;
            }
            assert!(turns <= 100, "{turns} turns");
            look(context);
            for (index, watching) in watches.iter().enumerate() {
                let wanted = u32::from(index % 5 != 4 && index % 10 != 3);
                assert_eq!(watching.told(), wanted, "{index}");
                assert_eq!(watching.end(), wanted == 1 || index % 10 == 3);
                if index % 5 != 4 {
                    lower(&fds[index]);
                }
            }
        }
        assert!(idle_turns(context) < 10);
    });
}

#[test]
fn thousands_that_are_ready_when_they_are_watched_are_all_told_in_one_go() {
    limit_files(None);
    each(|context| {
        const MANY: usize = 3000;
        let fds: Vec<_> = (0..MANY).map(|_| eventfd()).collect();
        fds.iter().for_each(raise);
        for _ in 0..2 {
            let watches: Vec<_> = fds.iter().map(|fd| watch(context, fd, Interest::Readable)).collect();
            let mut turns = 0;
            while context.poll(false) {
                turns += 1;
            }
            for (index, watching) in watches.iter().enumerate() {
                assert_eq!(watching.told(), 1, "{index}, after {turns} turns");
                assert!(watching.end());
            }
        }
    });
}

/// More than the completion queue of a ring has room for.
#[test]
fn more_events_than_the_kernel_has_room_for_are_all_told_and_leave_the_loop_its_ears() {
    each(|context| {
        const MANY: usize = 20_000;
        let fd = eventfd();
        let _watched = watch_something(context);
        for round in 0..3 {
            let told = Arc::new(Told::default());
            let waker = Waker::from(told.clone());
            let home = context.home();
            let watches: Vec<_> = (0..MANY)
                .map(|_| home.watch_fd(fd.as_fd(), Interest::Readable, waker.clone()).expect("a watch"))
                .collect();
            if round > 0 {
                look(context);
            }
            // The notifier's own events are among them.
            let remote = context.remote();
            let ran = Count::default();
            let count = ran.clone();
            let thread = thread::spawn(move || {
                for _ in 0..20 {
                    let count = count.clone();
                    remote.schedule_once(move || count.raise());
                    thread::yield_now();
                }
            });
            if round > 1 {
                context.poll(true);
            }
            raise(&fd);
            while (told.0.load(Ordering::Acquire) as usize) < MANY || ran.get() < 20 {
                context.poll(true);
            }
            thread.join().expect("no panic");
            assert_eq!(told.0.load(Ordering::Acquire) as usize, MANY);
            assert!(watches.into_iter().all(|watch| home.unwatch(watch)), "each has fired");
            lower(&fd);
            // It hears other threads, and sleeps between.
            let remote = context.remote();
            let thread = thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                remote.call(|| ()).expect("it goes on");
            });
            while !thread.is_finished() {
                context.block_on(|| park::park_until(Instant::now() + Duration::from_millis(1)));
            }
            thread.join().expect("no panic");
            assert!(idle_turns(context) < 10, "round {round}");
        }
    });
}

// ---- other threads --------------------------------------------------------------------------------------------------

#[test]
fn no_wake_of_another_thread_is_lost_however_the_loop_sleeps() {
    each(|context| {
        let wakes = scaled(100_000) as u64;
        let (asked, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        context.block_on(|| {
            let waker = park::waker();
            let (ask, answer) = (asked.clone(), answered.clone());
            let thread = thread::spawn(move || {
                for number in 1..=wakes {
                    ask.store(number, Ordering::Release);
                    waker.wake_by_ref();
                    while answer.load(Ordering::Acquire) < number {
                        std::hint::spin_loop();
                        if number % 64 == 0 {
                            thread::yield_now();
                        }
                    }
                }
            });
            for number in 1..=wakes {
                while asked.load(Ordering::Acquire) < number {
                    park::park();
                }
                answered.store(number, Ordering::Release);
            }
            thread.join().expect("no panic");
        });
        let stats = context.stats();
        println!("{stats:?}");
        assert!(stats.signals <= wakes + 1);
    });
}

#[test]
fn waking_a_running_context_costs_nothing_and_a_sleeping_one_a_write() {
    /// Wakes a context that is running, and then once more. Returns the signals and the clearing reads of that; there
    /// are none if it wasn't asleep yet.
    fn wake(context: &AioContext) -> (u64, u64) {
        let state = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
        let start = context.stats();
        context.block_on(|| {
            let (waker, shared) = (park::waker(), state.clone());
            let thread = thread::spawn(move || {
                (0..100).for_each(|_| waker.wake_by_ref());
                shared.0.store(true, Ordering::Release);
                // The loop falls asleep meanwhile.
                thread::sleep(Duration::from_millis(50));
                shared.1.store(true, Ordering::Release);
                waker.wake_by_ref();
            });
            // Running all the time.
            while !state.0.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let before = context.stats();
            assert_eq!(before.signals, start.signals, "it was running");
            while !state.1.load(Ordering::Acquire) {
                park::park();
            }
            let after = context.stats();
            assert!((0..=3).contains(&(after.waits - before.waits)), "{before:?} {after:?}");
            thread.join().expect("no panic");
            (after.signals - before.signals, after.notifier_reads - before.notifier_reads)
        })
    }

    each(|context| {
        let woken = || (0..50).map(|_| wake(context)).find(|&(signals, _)| signals != 0);
        assert_eq!(woken(), Some((1, 0)), "it sleeps without its monitor");
        let (ours, _theirs) = sockets();
        let waiting = spawn(context, move || fd::wait_readable(&ours));
        settle(context);
        let reads = u64::from(context.monitor().kind() != MonitorKind::IoUring);
        assert_eq!(woken(), Some((1, reads)), "one write, and one read");
        waiting.cancel();
        // The signal is gone: the loop sleeps.
        assert!(idle_turns(context) < 10);
    });
}

#[test]
fn figures_show_what_a_wait_for_a_descriptor_costs() {
    each(|context| {
        let fd = eventfd();
        raise(&fd);
        let before = context.stats();
        for _ in 0..100 {
            let watching = watch(context, &fd, Interest::Readable);
            assert!(context.poll(true));
            assert!(watching.end());
        }
        let after = context.stats();
        let controls = after.control_calls - before.control_calls;
        match context.monitor().kind() {
            MonitorKind::Epoll => assert!((100..=101).contains(&controls), "{controls}"),
            _ => assert_eq!(controls, 0),
        }
        assert_eq!(after.waits - before.waits, 100);
        // Turns in which nothing can have happened.
        for _ in 0..100 {
            context.poll(false);
        }
        let idle = context.stats().waits - after.waits;
        match context.monitor().kind() {
            MonitorKind::IoUring => assert!(idle <= 1, "{idle}"),
            _ => assert_eq!(idle, 100),
        }
    });
}

// ---- timeouts and signals -------------------------------------------------------------------------------------------

#[test]
fn deadlines_are_met_after_few_waits_and_not_early() {
    each(|context| {
        for micros in [1, 90, 900, 10_400] {
            for _ in 0..5 {
                let before = context.stats().waits;
                let deadline = Instant::now() + Duration::from_micros(micros);
                let woken = context.block_on(|| {
                    park::park_until(deadline);
                    Instant::now()
                });
                assert!(woken >= deadline, "{micros} µs: early by {:?}", deadline - woken);
                let waits = context.stats().waits - before;
                assert!(waits <= 3, "{micros} µs: {waits} waits");
            }
        }
        // A turn that doesn't block doesn't sleep.
        let deadline = Instant::now() + Duration::from_secs(60);
        let sleeping = spawn(context, move || park::park_until(deadline));
        let start = Instant::now();
        look(context);
        assert!(start.elapsed() < Duration::from_secs(30));
        sleeping.cancel();
        assert_cancelled(sleeping.join());
    });
}

#[test]
fn withdrawn_watches_do_not_end_a_wait() {
    each(|context| {
        let fds: Arc<[OwnedFd]> = (0..20).map(|_| eventfd()).collect();
        let watches: Vec<_> = fds.iter().map(|fd| watch(context, fd, Interest::Readable)).collect();
        let deadline = Instant::now() + Duration::from_millis(100);
        let sleeping = spawn(context, move || park::park_until(deadline));
        settle(context);
        watches.iter().for_each(|watching| assert!(!watching.end()));
        let theirs = fds.clone();
        let thread = thread::spawn(move || {
            for fd in theirs.iter() {
                thread::sleep(Duration::from_millis(3));
                raise(fd);
            }
        });
        let mut turns = 0;
        while !sleeping.is_finished() {
            context.poll(true);
            turns += 1;
        }
        assert_eq!(turns, 1, "one wait to the deadline");
        thread.join().expect("no panic");
    });
}

/// Field report 83.
#[test]
fn signals_neither_fail_a_wait_nor_shorten_a_deadline() {
    extern "C" fn ignore(_: libc::c_int) {}
    let exit = child("", |_| {
        // On this very thread: the timer's signals have no other to go to.
        let every = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        // SAFETY: the handler does nothing; the arguments are valid.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
            assert_eq!(libc::sigaction(libc::SIGALRM, &action, ptr::null_mut()), 0);
            let timer = libc::itimerval { it_interval: every, it_value: every };
            assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()), 0);
        }
        each_here(|context| {
            let deadline = Instant::now() + Duration::from_millis(200);
            let (mut theirs, mut ours) = sockets();
            let reader = spawn(context, move || {
                for _ in 0..200 {
                    fd::wait_readable(&ours).expect("a wait");
                    ours.read_exact(&mut [0]).expect("a byte");
                }
            });
            for _ in 0..200 {
                context.poll(false);
                theirs.write_all(b"x").expect("room");
            }
            context.block_on(|| {
                while Instant::now() < deadline {
                    park::park_until(deadline);
                }
                assert!(Instant::now() >= deadline);
            });
            reader.join().expect("no panic");
        });
    });
    exit.assert_success();
}

// ---- ends -----------------------------------------------------------------------------------------------------------

#[test]
fn a_cancelled_wait_lets_go_of_its_descriptor() {
    each(|context| {
        let (mut theirs, ours) = sockets();
        theirs.set_nonblocking(true).expect("a socket");
        let dropped = Count::default();
        let guard = dropped.guard();
        let waiting = spawn(context, move || {
            let _guard = guard;
            fd::wait_readable(&ours)
        });
        settle(context);
        assert_eq!(theirs.read(&mut [0]).expect_err("it is open").kind(), ErrorKind::WouldBlock);
        waiting.cancel();
        context.poll(false);
        assert_eq!(dropped.get(), 1);
        // Not at once: another test may be starting a child, which has a copy until it executes its program.
        let is_closed = eventually(|| theirs.read(&mut [0]).is_ok_and(|bytes| bytes == 0));
        assert!(is_closed, "the kernel has let go of it, too");
        assert_cancelled(waiting.join());
        assert!(idle_turns(context) < 10);
    });
}

/// Field report 93.
#[test]
fn a_context_that_is_dropped_with_watches_leaves_nothing_behind() {
    let exit = child("", |_| {
        let scenario = |kind| {
            let Some(context) = with(kind) else { return };
            let remote = context.remote();
            let (mut theirs, ours) = sockets();
            theirs.set_nonblocking(true).expect("a socket");
            for _ in 0..200 {
                watch(&context, &theirs, Interest::Readable);
            }
            let waiting = spawn(&context, move || fd::wait_readable(&ours));
            context.poll(false);
            let start = Instant::now();
            drop(context);
            assert!(start.elapsed() < Duration::from_secs(1));
            assert!(remote.spawn(|| ()).is_err());
            assert_cancelled(waiting.join());
            // The kernel may take a moment for what it held.
            assert!(eventually(|| theirs.read(&mut [0]).is_ok_and(|n| n == 0)), "the socket is closed");
        };
        for kind in MONITORS {
            scenario(kind);
            let before = open_files();
            (0..50).for_each(|_| scenario(kind));
            assert_eq!(open_files(), before, "{kind}");
        }
    });
    exit.assert_success();
}

#[test]
fn a_context_for_which_there_are_not_enough_descriptors_is_an_error_and_leaks_nothing() {
    let exit = child("", |_| {
        // The limit is one of numbers: with a hundred more, there is no gap below the highest.
        let fill: Vec<_> = (0..100).map(|_| eventfd()).collect();
        let next = 1 + fill.iter().map(AsRawFd::as_raw_fd).max().expect("a hundred") as usize;
        let kinds = MONITORS.map(Some).into_iter().chain([None]);
        for kind in kinds.filter(|kind| kind.is_none_or(|kind| with(kind).is_some())) {
            let build = || {
                let builder = AioContext::builder();
                kind.map_or(builder.clone(), |kind| builder.monitor(kind)).build()
            };
            let before = open_files();
            let needs = if kind == Some(MonitorKind::Poll) { 1 } else { 2 };
            for spare in 0..needs {
                let unlimited = limit_files(Some(next + spare));
                let error = build().expect_err("not enough descriptors");
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{kind:?}, {spare} to spare");
                limit_files(Some(unlimited));
                assert_eq!(open_files(), before, "{kind:?}, {spare} to spare");
            }
            let unlimited = limit_files(Some(next + needs));
            let context = build().expect("enough descriptors");
            assert_eq!(context.block_on(|| 5), 5);
            drop(context);
            limit_files(Some(unlimited));
            assert_eq!(open_files(), before, "{kind:?}");
        }
    });
    exit.assert_success();
}

/// Field report 90.
#[test]
fn rings_that_are_made_and_dropped_by_the_hundred_give_their_memory_back() {
    each_here(|context| {
        let kind = context.monitor().kind();
        for _ in 0..300 {
            let context = AioContext::builder().monitor(kind).build().expect("again");
            context.block_on(|| ());
        }
    });
}

// ---- choice ---------------------------------------------------------------------------------------------------------

/// A context works.
fn works(context: &AioContext) {
    let (mut theirs, mut ours) = sockets();
    let reader = spawn(context, move || {
        fd::wait_readable(&ours).expect("a wait");
        ours.read_exact(&mut [0]).expect("a byte");
    });
    settle(context);
    theirs.write_all(b"x").expect("room");
    reader.join().expect("no panic");
}

#[test]
fn a_context_takes_the_best_monitor_and_says_so() {
    each(|context| {
        let choice = context.monitor();
        assert_eq!(choice.reason(), None, "it was asked for");
        assert_eq!(choice.to_string(), choice.kind().to_string());
        works(context);
    });
    let chosen = AioContext::new().expect("a context");
    println!("chosen: {}", chosen.monitor());
    let best = [MonitorKind::IoUring, MonitorKind::Epoll].into_iter().find(|&kind| with(kind).is_some());
    assert_eq!(Some(chosen.monitor().kind()), best);
    assert_eq!(chosen.monitor().reason().is_none(), chosen.monitor().kind() == MonitorKind::IoUring);
    works(&chosen);
}

/// Field reports 89 and 90.
#[test]
fn a_system_that_forbids_io_uring_gets_epoll_and_the_reason() {
    let cases: [(&str, &[libc::c_long], libc::c_int, &str); 4] = [
        ("EPERM", &[libc::SYS_io_uring_setup], libc::EPERM, "kernel.io_uring_disabled"),
        ("ENOSYS", &[libc::SYS_io_uring_setup], libc::ENOSYS, "the kernel lacks it"),
        ("ENOMEM", &[libc::SYS_io_uring_setup], libc::ENOMEM, "RLIMIT_MEMLOCK"),
        ("enter", &[libc::SYS_io_uring_enter], libc::EPERM, "seccomp"),
    ];
    for (name, ..) in cases {
        let exit = child(name, |name| {
            let (_, calls, errno, says) = cases.into_iter().find(|case| case.0 == name).expect("a case");
            let before = open_files();
            forbid(calls, errno);
            let error = AioContext::builder().monitor(MonitorKind::IoUring).build().expect_err("it is forbidden");
            let text = error.to_string();
            assert!(text.starts_with("io_uring can't be used: ") && text.contains(says), "{text}");
            let context = AioContext::new().expect("a context");
            assert_eq!(context.monitor().kind(), MonitorKind::Epoll);
            let reason = context.monitor().reason().expect("a reason");
            assert_eq!(reason, text);
            assert_eq!(context.monitor().to_string(), format!("epoll ({reason})"));
            works(&context);
            drop(context);
            assert_eq!(open_files(), before);
        });
        exit.assert_success();
    }
}

#[test]
fn a_system_that_forbids_both_gets_poll_and_both_reasons() {
    let exit = child("", |_| {
        forbid(&[libc::SYS_io_uring_setup, libc::SYS_epoll_create1], libc::EPERM);
        let context = AioContext::new().expect("a context");
        assert_eq!(context.monitor().kind(), MonitorKind::Poll);
        let reason = context.monitor().reason().expect("a reason");
        assert!(reason.contains("io_uring can't be used: ") && reason.contains("; epoll can't be used: "), "{reason}");
        works(&context);
    });
    exit.assert_success();
}

#[test]
fn a_kernel_without_precise_epoll_timeouts_rounds_them_up() {
    let exit = child("", |_| {
        forbid(&[libc::SYS_epoll_pwait2], libc::ENOSYS);
        let context = AioContext::builder().monitor(MonitorKind::Epoll).build().expect("a context");
        let deadline = Instant::now() + Duration::from_micros(900);
        context.block_on(|| park::park_until(deadline));
        assert!(Instant::now() >= deadline);
        assert!(context.stats().waits <= 3, "{:?}", context.stats());
        works(&context);
    });
    exit.assert_success();
}

#[test]
fn a_monitor_that_fails_later_is_a_panic_that_names_it() {
    let exit = child("", |_| {
        each_here(|context| {
            let kind = context.monitor().kind();
            let call = match kind {
                MonitorKind::Poll => libc::SYS_ppoll,
                MonitorKind::Epoll => libc::SYS_epoll_pwait2,
                _ => libc::SYS_io_uring_enter,
            };
            forbid(&[call], libc::EINVAL);
            let fd = eventfd();
            let _watching = watch(context, &fd, Interest::Readable);
            let message = message_of(|| assert!(context.poll(true)));
            assert!(message.starts_with(&format!("{kind} failed: ")), "{message}");
        });
    });
    exit.assert_success();
}
