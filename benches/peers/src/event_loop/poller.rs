//! What waits for descriptors and nothing else, behind one trait, and the loops that are timed with it, each on a
//! thread of its own.

use std::io;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use super::event_fd::EventFd;
use super::rally::{Clock, Rally, Side, on_two_threads};
use super::{apart, timed};
use crate::measure::cpu_time;

/// A way to wait for descriptors.
pub trait Poller: Sized {
    /// The name in reports.
    const NAME: &'static str;

    fn new() -> io::Result<Self>;

    /// Starts to watch a descriptor: each time it is made readable, a turn counts it once, whether or not it has been
    /// made unreadable meanwhile.
    fn watch(&mut self, fd: &EventFd, token: u32) -> io::Result<()>;

    /// Stops watching a descriptor.
    fn unwatch(&mut self, fd: &EventFd, token: u32) -> io::Result<()>;

    /// Waits until one is ready, at most for `timeout` (`None`: without limit), and returns how many are.
    fn turn(&mut self, timeout: Option<Duration>) -> io::Result<usize>;
}

/// A poller that watches these descriptors, after a turn that found none of them ready.
fn watching<P: Poller>(fds: &[EventFd]) -> P {
    let mut poller = P::new().expect("the kernel has been asked before");
    watch_all(&mut poller, fds);
    poller
}

fn watch_all<P: Poller>(poller: &mut P, fds: &[EventFd]) {
    for (fd, token) in fds.iter().zip(0..) {
        poller.watch(fd, token).expect("an eventfd can be watched");
    }
    assert_eq!(turn(poller, Some(Duration::ZERO)), 0);
}

fn unwatch_all<P: Poller>(poller: &mut P, fds: &[EventFd]) {
    for (fd, token) in fds.iter().zip(0..) {
        poller.unwatch(fd, token).expect("it has been watched");
    }
    assert_eq!(turn(poller, Some(Duration::ZERO)), 0);
}

/// A turn; one that a signal interrupts has found nothing.
fn turn<P: Poller>(poller: &mut P, timeout: Option<Duration>) -> usize {
    match poller.turn(timeout) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
        result => result.expect("a poller can wait"),
    }
}

/// Turns until something is ready, and returns how much.
pub fn wait<P: Poller>(poller: &mut P, timeout: Option<Duration>) -> usize {
    loop {
        match turn(poller, timeout) {
            0 => {}
            count => return count,
        }
    }
}

/// Two waits for a descriptor that has just been made readable.
pub fn fd_park<P: Poller>(times: u64) -> Duration {
    apart(|| {
        let fds = [EventFd::new(), EventFd::new()];
        let mut poller = watching::<P>(&fds);
        timed(|| {
            for _ in 0..times {
                for fd in &fds {
                    fd.signal();
                    assert_eq!(wait(&mut poller, None), 1);
                    fd.take();
                }
            }
        })
    })
}

/// Watching `N` descriptors and unwatching them.
pub fn register<P: Poller, const N: u32>(times: u64) -> Duration {
    apart(|| {
        let fds = EventFd::silent(N);
        let mut poller = P::new().expect("the kernel has been asked before");
        timed(|| {
            for _ in 0..times {
                watch_all(&mut poller, fds);
                unwatch_all(&mut poller, fds);
            }
        })
    })
}

/// A turn that doesn't wait, with `N` descriptors of which none is ready.
pub fn idle_turn<P: Poller, const N: u32>(times: u64) -> Duration {
    apart(|| {
        let fds = EventFd::silent(N);
        let mut poller = watching::<P>(fds);
        let elapsed = timed(|| {
            for _ in 0..times {
                assert_eq!(turn(&mut poller, Some(Duration::ZERO)), 0);
            }
        });
        // The kernel may take its time to end a poller that watches something, at the expense of what is timed next.
        unwatch_all(&mut poller, fds);
        elapsed
    })
}

/// A round trip of signals between two pollers that sleep.
pub fn wake_sleeping<P: Poller>(times: u64) -> Duration {
    apart(|| wake::<P>(times, None))
}

/// A round trip of signals between two pollers that don't.
pub fn wake_busy<P: Poller>(times: u64) -> Duration {
    apart(|| wake::<P>(times, Some(Duration::ZERO)))
}

fn wake<P: Poller>(times: u64, timeout: Option<Duration>) -> Duration {
    let rally = Rally::new(times);
    let player = |side| {
        let bell = Arc::new(Bell(EventFd::new()));
        let mut poller = P::new().expect("the kernel has been asked before");
        poller.watch(&bell.0, 0).expect("an eventfd can be watched");
        rally.enter(side, Waker::from(bell));
        move || assert_eq!(wait(&mut poller, timeout), 1)
    };
    on_two_threads(
        || {
            let mut wait = player(Side::First);
            let mut clock = Clock::default();
            for round in rally.rounds() {
                clock.tick(round);
                rally.hit(Side::First, round.serve());
                wait();
            }
            clock.elapsed()
        },
        || {
            let mut wait = player(Side::Second);
            for round in rally.rounds() {
                wait();
                rally.hit(Side::Second, round.answer());
            }
        },
    )
}

/// Wakes a thread's poller. Nobody makes the descriptor unreadable: each signal counts.
struct Bell(EventFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.signal();
    }
}

/// The processor time of a wait that ends by its timeout.
pub fn idle<P: Poller>(length: Duration) -> Duration {
    apart(|| {
        let mut poller = watching::<P>(EventFd::silent(1));
        let end = Instant::now() + length;
        let before = cpu_time();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return cpu_time() - before;
            }
            turn(&mut poller, Some(left));
        }
    })
}
