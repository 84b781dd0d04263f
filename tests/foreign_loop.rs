//! The example program `foreign_loop`, and its homes by themselves: what coroutines may expect of loops that others wrote.
#![allow(unreachable_pub, reason = "the files of the example are meant for a program")]

mod common;

#[path = "../examples/foreign_loop/calloop_home.rs"]
mod calloop_home;
#[path = "../examples/foreign_loop/calloop_program.rs"]
mod calloop_program;
#[path = "../examples/foreign_loop/mio_home.rs"]
mod mio_home;
#[path = "../examples/foreign_loop/mio_program.rs"]
mod mio_program;
#[path = "../examples/foreign_loop/workload.rs"]
mod workload;

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use aioco::coroutine::{Builder, Home, Interest, Watch, current_home, enter_home};
use aioco::fd::{self, Parked};
use aioco::sync::{self, Event, channel};
use aioco::{JoinHandle, aio, block, park, task, yield_now};
use calloop::EventLoop;
use mio::{Events, Poll, Token};

use calloop_home::CalloopHome;
use common::{Count, LIMIT, assert_cancelled, assert_order, child, coroutine, rounds, scaled, sockets, within};
use mio_home::MioHome;

const SHORT: Duration = Duration::from_millis(2);
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

// ---- the loops ------------------------------------------------------------------------------------------------------

/// A loop, and the home that is its guest.
trait Host {
    fn home(&self) -> Arc<dyn Home>;

    /// Has the loop wait until something has happened, but no longer than that, and deal with it.
    fn turn(&mut self, limit: Option<Duration>);

    /// Ends the home. The loop goes on.
    fn end_home(&mut self);
}

struct MioHost {
    poll: Poll,
    events: Events,
    waker: Arc<mio::Waker>,
    home: Option<MioHome>,
}

const WAKER: Token = Token(0);

impl MioHost {
    fn new() -> Self {
        let poll = Poll::new().expect("an epoll");
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER).expect("an eventfd"));
        let home = MioHome::new(poll.registry(), waker.clone()).expect("a home");
        Self { poll, events: Events::with_capacity(16), waker, home: Some(home) }
    }
}

impl Host for MioHost {
    fn home(&self) -> Arc<dyn Home> {
        self.home.as_ref().expect("it hasn't ended").home()
    }

    fn turn(&mut self, limit: Option<Duration>) {
        let timeout = self.home.as_ref().and_then(MioHome::timeout);
        let timeout = timeout.into_iter().chain(limit).min();
        self.poll.poll(&mut self.events, timeout).expect("a poll");
        for event in self.events.iter().filter(|event| event.token() != WAKER) {
            self.home.as_ref().expect("a home that has ended watches nothing").event(event.token());
        }
        if let Some(home) = &self.home {
            home.run();
        }
    }

    fn end_home(&mut self) {
        self.home = None;
        self.waker.wake().expect("the waker is still the loop's");
    }
}

struct CalloopHost {
    event_loop: EventLoop<'static, ()>,
    home: Option<CalloopHome<()>>,
}

impl CalloopHost {
    fn new() -> Self {
        let event_loop = EventLoop::try_new().expect("a loop");
        let home = CalloopHome::new(event_loop.handle()).expect("a home");
        Self { event_loop, home: Some(home) }
    }
}

impl Host for CalloopHost {
    fn home(&self) -> Arc<dyn Home> {
        self.home.as_ref().expect("it hasn't ended").home()
    }

    fn turn(&mut self, limit: Option<Duration>) {
        self.event_loop.dispatch(limit, &mut ()).expect("a dispatch");
    }

    fn end_home(&mut self) {
        self.home = None;
    }
}

/// Runs a scenario on each loop.
fn each(scenario: impl Fn(&mut dyn Host) + Send + 'static) {
    within(LIMIT, move || {
        println!("on mio");
        scenario(&mut MioHost::new());
        println!("on calloop");
        scenario(&mut CalloopHost::new());
    });
}

impl dyn Host + '_ {
    #[track_caller]
    fn spawn<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        spawn_on(&self.home(), f)
    }

    /// Runs the loop until a coroutine has ended.
    #[track_caller]
    fn run<T>(&mut self, handle: JoinHandle<T>) -> T {
        self.wait_for(&handle);
        handle.join().expect("no panic")
    }

    fn wait_for<T>(&mut self, handle: &JoinHandle<T>) {
        while !handle.is_finished() {
            self.turn(None);
        }
    }

    /// Runs the loop until what was ready before has run.
    fn settle(&mut self) {
        let last = self.spawn(|| ());
        self.run(last);
    }

    /// A turn that doesn't wait.
    fn look(&mut self) {
        self.turn(Some(Duration::ZERO));
    }
}

#[track_caller]
fn spawn_on<T: Send + 'static>(home: &Arc<dyn Home>, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    task::spawn_on(home, Builder::new(), f).expect("a stack")
}

/// Counts its wakes.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Wakes {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn wakes() -> (Arc<Wakes>, Waker) {
    let wakes = Arc::new(Wakes::default());
    (wakes.clone(), Waker::from(wakes))
}

/// Reads one byte.
fn byte(mut from: impl Read) -> io::Result<u8> {
    let mut byte = [0];
    from.read_exact(&mut byte)?;
    Ok(byte[0])
}

/// Asserts that nobody holds the other end any more.
#[track_caller]
fn assert_closed(mut socket: &UnixStream) {
    socket.set_nonblocking(true).expect("a socket");
    assert_eq!(socket.read(&mut [0]).map_err(|error| error.kind()), Ok(0), "the other end is still open");
}

// ---- the program ----------------------------------------------------------------------------------------------------

#[test]
fn the_program_does_all_its_work_on_each_loop() {
    for run in [mio_program::run, calloop_program::run] {
        let report = within(LIMIT, move || run().expect("no error").to_string());
        let work =
            "20 lines echoed, 3 answers by the handler, 3 ticks, 2 time limits, 5050 from a thread, a file read (";
        assert!(report.starts_with(work) && report.ends_with("), 3 unwound at the end"), "{report}");
    }
}

// ---- wakes ----------------------------------------------------------------------------------------------------------

#[test]
fn what_another_thread_schedules_wakes_the_loop() {
    each(|host| {
        let home = host.home();
        let (give, take) = mpsc::channel();
        let (done, is_done) = channel(1);
        let thread = thread::spawn(move || {
            let waker: Waker = take.recv().expect("the coroutine has started");
            // The loop falls asleep meanwhile.
            thread::sleep(SHORT * 5);
            waker.wake();
            thread::sleep(SHORT * 5);
            let here = thread::current().id();
            spawn_on(&home, move || assert_ne!(thread::current().id(), here)).join().expect("no panic");
            done.send(()).expect("there is room");
        });
        let parks = host.spawn(move || {
            give.send(park::waker()).expect("the thread waits");
            park::park();
        });
        host.run(parks);
        let receives = host.spawn(move || is_done.recv());
        host.run(receives).expect("the thread has sent");
        thread.join().expect("no panic");
    });
}

#[test]
fn no_wake_of_many_is_lost() {
    each(|host| {
        let (questions, asked) = channel::<usize>(1);
        let (answers, answered) = channel(1);
        let thread = thread::spawn(move || {
            while let Ok(question) = asked.recv() {
                answers.send(question + 1).expect("somebody has asked");
            }
        });
        let asks = host.spawn(move || {
            for round in rounds(scaled(4000)) {
                questions.send(round).expect("the thread answers");
                assert_eq!(answered.recv().expect("the thread answers"), round + 1);
            }
        });
        host.run(asks);
        thread.join().expect("no panic");
    });
}

#[test]
fn coroutines_that_only_yield_let_the_loop_have_its_turns() {
    each(|host| {
        let yields = host.spawn(|| {
            loop {
                yield_now();
            }
        });
        let (theirs, ours) = sockets();
        let reads = host.spawn(move || byte(Parked::new(ours)?));
        for _ in 0..10 {
            host.look();
        }
        (&theirs).write_all(&[5]).expect("room");
        assert_eq!(host.run(reads).expect("a byte"), 5);
        yields.cancel();
        host.wait_for(&yields);
        assert_cancelled(yields.join().map(|_: ()| ()));
    });
}

#[test]
fn a_coroutine_that_is_entered_by_hand_goes_on_in_the_loop() {
    each(|host| {
        let (theirs, ours) = sockets();
        let got = Rc::new(Cell::new(0));
        let inside = got.clone();
        let co = coroutine(move || {
            let ours = Parked::new(ours).expect("a socket");
            while let Ok(byte) = byte(&ours) {
                inside.set(byte);
            }
        });
        {
            let _home = enter_home(host.home());
            co.enter();
        }
        assert!(current_home().is_none());
        let home = host.home();
        let is_current = host.spawn(move || current_home().is_some_and(|current| Arc::ptr_eq(&current, &home)));
        assert!(host.run(is_current), "one that is entered in the loop is at home there");
        for round in 1..=3 {
            (&theirs).write_all(&[round]).expect("room");
            while got.get() != round {
                host.turn(None);
            }
        }
        // It outlives the home, and waits for what doesn't come any more.
        host.end_home();
        (&theirs).write_all(&[4]).expect("room");
        host.look();
        assert_eq!(got.get(), 3);
        drop(co);
        let mut socket = &theirs;
        let error = socket.read(&mut [0]).expect_err("what was sent last hasn't been read");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_panic_of_a_coroutine_that_is_entered_by_hand_passes_through_the_loop_which_goes_on() {
    each(|host| {
        let (theirs, ours) = sockets();
        let co = coroutine(move || {
            fd::wait_readable(&ours).expect("a wait");
            panic_any("on purpose");
        });
        {
            let _home = enter_home(host.home());
            co.enter();
        }
        (&theirs).write_all(&[1]).expect("room");
        let payload = catch_unwind(AssertUnwindSafe(|| {
            loop {
                host.turn(None);
            }
        }));
        assert_eq!(payload.expect_err("panics").downcast_ref(), Some(&"on purpose"));
        let goes_on = host.spawn(|| aio::sleep(SHORT));
        host.run(goes_on);
    });
}

// ---- deadlines ------------------------------------------------------------------------------------------------------

#[test]
fn deadlines_pass_in_order_and_not_early() {
    each(|host| {
        let begin = Instant::now();
        let order = Arc::new(Mutex::new(Vec::new()));
        let sleepers = [30, 10, 20].map(|millis| {
            let order = order.clone();
            host.spawn(move || {
                let deadline = begin + Duration::from_millis(millis);
                aio::sleep_until(deadline);
                assert!(Instant::now() >= deadline);
                order.lock().expect("not poisoned").push(millis);
            })
        });
        sleepers.into_iter().for_each(|sleeper| host.run(sleeper));
        assert_order(&order.lock().expect("not poisoned"), &[10u64, 20, 30]);
        // One that has passed already.
        let late = host.spawn(move || aio::sleep_until(begin));
        host.run(late);
    });
}

#[test]
fn a_deadline_that_comes_up_while_the_loop_sleeps_for_another_is_kept() {
    each(|host| {
        let far = host.spawn(|| aio::sleep(FOR_EVER));
        host.settle();
        let home = host.home();
        let (sender, receiver) = channel(1);
        let thread = thread::spawn(move || {
            thread::sleep(SHORT * 5);
            let near = move || {
                aio::sleep(SHORT);
                sender.send(()).expect("there is room");
            };
            spawn_on(&home, near).join().expect("no panic");
        });
        let receives = host.spawn(move || receiver.recv());
        host.run(receives).expect("the sleeper has sent");
        thread.join().expect("no panic");
        assert!(!far.is_finished());
        far.cancel();
        host.wait_for(&far);
        assert_cancelled(far.join());
    });
}

#[test]
fn time_limits_end_waits_for_descriptors_and_locks() {
    each(|host| {
        let (_theirs, ours) = sockets();
        let limited = host.spawn(move || {
            let ours = Parked::new(ours).expect("a socket");
            ours.set_timeout(Interest::Readable, Some(SHORT));
            assert_eq!(byte(&ours).expect_err("nothing comes").kind(), ErrorKind::TimedOut);
            let deadline = Instant::now() + SHORT;
            assert!(!fd::wait_readable_until(ours.get_ref(), deadline).expect("a wait"));
            assert!(aio::timeout(SHORT, || fd::wait_readable(ours.get_ref())).is_err());
            assert!(!Event::new().wait_for(SHORT));
            assert!(fd::wait_writable_until(ours.get_ref(), Instant::now() + FOR_EVER).expect("a wait"));
        });
        host.run(limited);
    });
}

// ---- descriptors ----------------------------------------------------------------------------------------------------

#[test]
fn two_coroutines_wait_for_the_two_sides_of_one_socket() {
    const LEN: usize = 4 << 20;
    each(|host| {
        let (theirs, ours) = sockets();
        let ours = Arc::new(Parked::new(ours).expect("a socket"));
        let read = |host: &dyn Host| {
            let ours = ours.clone();
            host.spawn(move || byte(&*ours))
        };
        let reads = read(host);
        let writes = host.spawn({
            let ours = ours.clone();
            move || (&*ours).write_all(&vec![1; LEN])
        });
        host.settle();
        assert!(!reads.is_finished() && !writes.is_finished());

        (&theirs).write_all(&[7]).expect("room");
        assert_eq!(host.run(reads).expect("a byte"), 7);
        assert!(!writes.is_finished(), "there was room for all of it");

        let reads = read(host);
        let drains = theirs.try_clone().expect("a descriptor");
        let drain = thread::spawn(move || io::copy(&mut drains.take(LEN as u64), &mut io::sink()));
        host.run(writes).expect("written");
        assert_eq!(drain.join().expect("no panic").expect("read"), LEN as u64);
        assert!(!reads.is_finished());
        (&theirs).write_all(&[8]).expect("room");
        assert_eq!(host.run(reads).expect("a byte"), 8);

        // And several for the same side, all of whom see it.
        let waits = [(); 3].map(|()| {
            let ours = ours.clone();
            host.spawn(move || ours.readable())
        });
        host.settle();
        (&theirs).write_all(&[9]).expect("room");
        waits.into_iter().for_each(|wait| host.run(wait).expect("a wait"));
        // No watch keeps the socket open.
        let last = read(host);
        assert_eq!(host.run(last).expect("a byte"), 9);
        drop(ours);
        assert_closed(&theirs);
    });
}

#[test]
fn what_a_descriptor_wakes_runs_in_the_same_turn() {
    each(|host| {
        let (theirs, ours) = sockets();
        let reads = host.spawn(move || byte(Parked::new(ours)?));
        host.settle();
        (&theirs).write_all(&[1]).expect("room");
        host.turn(None);
        assert!(reads.is_finished());
    });
}

#[test]
fn files_are_ready_hang_ups_end_waits_and_refusals_are_errors() {
    each(|host| {
        let waits = host.spawn(|| {
            let file = File::open("/proc/self/exe").expect("this program");
            fd::wait_readable(&file).expect("a file is always ready");
            fd::wait_writable(&file).expect("a file is always ready");
            // Nothing but a name.
            let name = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/").expect("the root");
            let error = fd::wait_readable(&name).expect_err("it can't be read from");
            assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        });
        host.run(waits);

        let (theirs, ours) = sockets();
        let reads = host.spawn(move || fd::wait_readable(&ours));
        let (reader, writer) = io::pipe().expect("a pipe");
        let writes = host.spawn(move || {
            let writer = Parked::new(writer)?;
            (&writer).write_all(&vec![0; 1 << 20])
        });
        host.settle();
        assert!(!reads.is_finished() && !writes.is_finished());
        drop(theirs);
        host.run(reads).expect("the end is to be read");
        drop(reader);
        let error = host.run(writes).expect_err("nobody reads any more");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

// ---- watches --------------------------------------------------------------------------------------------------------

#[test]
fn a_watch_wakes_once_and_not_after_its_end() {
    each(|host| {
        let home = host.home();
        let (theirs, ours) = sockets();
        let watch_fd = |waker| home.watch_fd(ours.as_fd(), Interest::Readable, waker).expect("a watch");
        let deadline = Instant::now() + SHORT * 5;
        let watch_deadline = |waker| home.watch_deadline(deadline, waker);
        let watches: [(&dyn Fn(Waker) -> Watch, Instant); 2] =
            [(&watch_fd, Instant::now()), (&watch_deadline, deadline)];
        for (watch, earliest) in watches {
            let ((kept_wakes, kept), (ended_wakes, ended)) = (wakes(), wakes());
            let [kept, ended] = [kept, ended].map(watch);
            assert!(!home.unwatch(ended), "it hasn't fired");
            host.look();
            (&theirs).write_all(&[1]).expect("room");
            while kept_wakes.get() == 0 {
                host.turn(None);
            }
            assert!(Instant::now() >= earliest);
            host.look();
            assert_eq!((kept_wakes.get(), ended_wakes.get()), (1, 0));
            assert!(home.unwatch(kept), "it has fired");
        }
        let rest = host.spawn(move || {
            let mut ours = ours;
            ours.read_exact(&mut [0; 2])
        });
        host.run(rest).expect("two bytes");
        assert_closed(&theirs);
    });
}

#[test]
fn of_two_watches_that_end_one_another_in_one_turn_one_fires() {
    /// Ends the other's watch when it is woken.
    struct Rival {
        home: Arc<dyn Home>,
        others: Mutex<Option<Watch>>,
        is_in_time: Mutex<Option<bool>>,
    }

    impl Wake for Rival {
        fn wake(self: Arc<Self>) {
            let watch = self.others.lock().expect("not poisoned").expect("both watch");
            *self.is_in_time.lock().expect("not poisoned") = Some(!self.home.unwatch(watch));
        }
    }

    each(|host| {
        let home = host.home();
        let (theirs, ours) = sockets();
        let rivals = [(); 2]
            .map(|()| Arc::new(Rival { home: home.clone(), others: Mutex::default(), is_in_time: Mutex::default() }));
        let watch = |rival: &Arc<Rival>| home.watch_fd(ours.as_fd(), Interest::Readable, rival.clone().into());
        let watches = rivals.each_ref().map(|rival| watch(rival).expect("a watch"));
        for (rival, others) in rivals.iter().zip(watches.iter().rev()) {
            *rival.others.lock().expect("not poisoned") = Some(*others);
        }
        (&theirs).write_all(&[1]).expect("room");
        host.turn(None);
        host.look();
        let mut woken = rivals.map(|rival| *rival.is_in_time.lock().expect("not poisoned"));
        woken.sort_unstable();
        assert_eq!(woken, [None, Some(true)]);
    });
}

// ---- what parks -----------------------------------------------------------------------------------------------------

#[test]
fn locks_are_shared_with_threads_and_joins_reach_other_coroutines() {
    each(|host| {
        let count = Arc::new(sync::Mutex::new(0usize));
        let add = |count: Arc<sync::Mutex<usize>>| {
            move || {
                for _ in 0..100 {
                    let mut count = count.lock();
                    *count += 1;
                    // Others come to wait meanwhile.
                    if count.is_multiple_of(10) {
                        aio::sleep(Duration::from_micros(10));
                    }
                }
            }
        };
        let thread = thread::spawn(add(count.clone()));
        let home = host.home();
        let adds = {
            let count = count.clone();
            host.spawn(move || {
                let all = [(); 4].map(|()| spawn_on(&home, add(count.clone())));
                all.into_iter().for_each(|one| one.join().expect("no panic"));
                let waits = spawn_on(&home, || Event::new().wait());
                yield_now();
                waits.cancel();
                assert_cancelled(waits.join());
            })
        };
        host.run(adds);
        thread.join().expect("no panic");
        assert_eq!(*count.lock(), 500);
    });
}

#[test]
fn files_are_written_and_read_by_worker_threads() {
    each(|host| {
        let io = host.spawn(|| -> io::Result<()> {
            let file = block::File::new(tempfile::tempfile()?)?;
            file.write_all_at(&[3; 10_000], 5)?;
            file.flush()?;
            let mut data = [0; 10_000];
            file.read_exact_at(&mut data, 5)?;
            assert_eq!(data, [3; 10_000]);
            Ok(())
        });
        host.run(io).expect("no error");
    });
}

// ---- the end --------------------------------------------------------------------------------------------------------

#[test]
fn a_home_that_ends_unwinds_its_coroutines_and_leaves_the_loop_alone() {
    each(|host| {
        let dropped = Count::default();
        let (theirs, ours) = sockets();
        let event = Arc::new(Event::new());
        let home = host.home();
        let guarded = |f: Box<dyn FnOnce() + Send>| {
            let guard = dropped.guard();
            move || {
                let _guard = guard;
                f();
            }
        };
        let waits = event.clone();
        let joins = home.clone();
        let parked: [Box<dyn FnOnce() + Send>; 6] = [
            Box::new(move || {
                let ours = Parked::new(ours).expect("a socket");
                let _ = byte(&ours);
            }),
            Box::new(|| aio::sleep(FOR_EVER)),
            Box::new(move || waits.wait()),
            // Its child may be unwound first.
            Box::new(move || {
                spawn_on(&joins, park::park).join().unwrap_or_else(|payload| panic::resume_unwind(payload))
            }),
            Box::new(park::park),
            Box::new(|| {
                loop {
                    yield_now();
                }
            }),
        ];
        let mut handles: Vec<_> = parked.into_iter().map(|f| host.spawn(guarded(f))).collect();
        host.settle();
        handles.push(host.spawn(guarded(Box::new(|| unreachable!("it started")))));
        assert!(handles.iter().all(|handle| !handle.is_finished()));

        host.end_home();
        assert_eq!(dropped.get(), 7);
        handles.into_iter().for_each(|handle| assert_cancelled(handle.join()));
        assert_closed(&theirs);
        event.set();
        host.look();
        // What comes later is dropped unrun, here and elsewhere.
        let late = || guarded(Box::new(|| unreachable!("it started")));
        assert_cancelled(spawn_on(&home, late()).join());
        let late = late();
        thread::spawn(move || assert_cancelled(spawn_on(&home, late).join())).join().expect("no panic");
        assert_eq!(dropped.get(), 9);
        host.look();
    });
}

#[test]
fn a_home_that_has_ended_watches_nothing() {
    each(|host| {
        let home = host.home();
        let (wakes, waker) = wakes();
        let (theirs, ours) = sockets();
        let watch_fd = || home.watch_fd(ours.as_fd(), Interest::Readable, waker.clone());
        let watches = [watch_fd().expect("a watch"), home.watch_deadline(Instant::now() + SHORT, waker.clone())];
        host.end_home();
        (&theirs).write_all(&[1]).expect("room");
        host.turn(Some(SHORT * 5));
        host.look();
        assert_eq!(wakes.get(), 0);
        watches.into_iter().for_each(|watch| assert!(home.unwatch(watch), "there is nothing to call off any more"));
        watch_fd().expect_err("the home has ended");
        drop(ours);
        let error = (&theirs).read(&mut [0]).expect_err("what was sent hasn't been read");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the other end is still open");
    });
}

#[test]
fn homes_come_and_go_and_leave_nothing_behind() {
    /// A loop that has had a home, which did something.
    fn ended<T: Host + 'static>(mut host: T) -> T {
        let (theirs, ours) = sockets();
        let dyn_host: &mut dyn Host = &mut host;
        let reads = dyn_host.spawn(move || byte(Parked::new(ours)?));
        let sleeps = dyn_host.spawn(|| aio::sleep(FOR_EVER));
        dyn_host.settle();
        (&theirs).write_all(&[1]).expect("room");
        dyn_host.run(reads).expect("a byte");
        dyn_host.end_home();
        assert_cancelled(sleeps.join());
        dyn_host.look();
        host
    }

    // In a process of its own, whose descriptors can be counted.
    let exit = child("", |_| {
        let open = || fs::read_dir("/proc/self/fd").expect("/proc is mounted").count();
        let mut mio = ended(MioHost::new());
        let mut calloop = ended(CalloopHost::new());
        let before = open();
        for _ in 0..5 {
            mio.home = Some(MioHome::new(mio.poll.registry(), mio.waker.clone()).expect("a home"));
            calloop.home = Some(CalloopHome::new(calloop.event_loop.handle()).expect("a home"));
            (mio, calloop) = (ended(mio), ended(calloop));
        }
        assert_eq!(open(), before);
    });
    exit.assert_success();
}
