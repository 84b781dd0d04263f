//! This project's event loop, through its public interface only.

use std::cell::{Cell, OnceCell};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ::aioco::aio::{FdCallbacks, FdHandler, Polling, Trigger};
use ::aioco::fd::Parked;
use ::aioco::{AioContext, aio, fd, park};

use super::echo::{BUFFER, CONNECTIONS};
use super::event_fd::EventFd;
use super::rally::{Clock, Rally, Side, on_two_threads};
use super::tally::Tally;
use super::{FAR, timed};
use crate::measure::{Core, Pinned, cpu_time};

fn context() -> AioContext {
    AioContext::new().expect("a context can be had")
}

/// A bottom half that schedules itself.
pub fn bh(times: u64) -> Duration {
    let context = context();
    let left = Rc::new(Cell::new(times));
    let trigger = Rc::new(OnceCell::<Trigger>::new());
    let bottom_half = context.bottom_half({
        let (left, trigger) = (left.clone(), trigger.clone());
        move || {
            left.set(left.get() - 1);
            if left.get() > 0 {
                trigger.get().expect("set before the first run").schedule();
            }
        }
    });
    trigger.get_or_init(|| bottom_half.trigger());
    timed(|| {
        bottom_half.schedule();
        context.run_until(|| left.get() == 0);
    })
}

/// Closures that are to run once, each scheduled by the one before.
pub fn bh_once(times: u64) -> Duration {
    fn schedule(context: &Rc<AioContext>, left: Rc<Cell<u64>>) {
        let next = context.clone();
        context.schedule_once(move || {
            left.set(left.get() - 1);
            if left.get() > 0 {
                schedule(&next, left);
            }
        });
    }

    let context = Rc::new(context());
    let left = Rc::new(Cell::new(times));
    timed(|| {
        schedule(&context, left.clone());
        context.run_until(|| left.get() == 0);
    })
}

/// An empty coroutine, spawned and joined by another.
pub fn spawn_join(times: u64) -> Duration {
    let context = context();
    context.block_on(|| {
        timed(|| {
            for _ in 0..times {
                context.spawn(|| ()).expect("a stack can be mapped").join().expect("it doesn't panic");
            }
        })
    })
}

/// Empty coroutines spawned by another thread.
pub fn spawn_remote(times: u64) -> Duration {
    static TALLY: Tally = Tally::new();

    let _pinned = Pinned::to(Core::Last);
    let context = context();
    let remote = context.remote();
    context.block_on(|| {
        TALLY.begin(times, park::waker());
        let producer = thread::spawn(move || {
            TALLY.produce(|| drop(remote.spawn(|| TALLY.count()).expect("a stack can be mapped")));
        });
        while !TALLY.is_warm() {
            park::park();
        }
        let elapsed = timed(|| {
            while !TALLY.is_complete() {
                park::park();
            }
        });
        producer.join().expect("the producer doesn't panic");
        elapsed
    })
}

/// Two coroutines of one thread, each waiting for the other to make its descriptor readable.
pub fn fd_park(times: u64) -> Duration {
    fn new() -> Arc<fd::EventFd> {
        Arc::new(fd::EventFd::new().expect("an eventfd can be had"))
    }

    fn wait(fd: &fd::EventFd) {
        assert_eq!(fd.wait().expect("an eventfd can be waited for"), 1);
    }

    let [ours, theirs] = [new(), new()];
    let context = context();
    context.block_on(|| {
        timed(|| {
            let (own, other) = (theirs.clone(), ours.clone());
            let answer = move || {
                for _ in 0..times {
                    wait(&own);
                    other.signal();
                }
            };
            let answering = context.spawn(answer).expect("a stack can be mapped");
            for _ in 0..times {
                theirs.signal();
                wait(&ours);
            }
            answering.join().expect("it doesn't panic");
        })
    })
}

/// A coroutine for each connection, which sends back what it gets.
pub fn serve_echo(listener: TcpListener) {
    fn echo(mut stream: Parked<TcpStream>) {
        let mut buffer = [0; BUFFER];
        loop {
            match stream.read(&mut buffer).expect("the client doesn't reset") {
                0 => return,
                count => stream.write_all(&buffer[..count]).expect("the client is there"),
            }
        }
    }

    let context = context();
    context.block_on(|| {
        let listener = Parked::new(listener).expect("a socket can be non-blocking");
        let accept = |_| {
            let (stream, _) = listener.accept().expect("it is a connection");
            context.spawn(|| echo(stream)).expect("a stack can be mapped")
        };
        let echoes: Vec<_> = (0..CONNECTIONS).map(accept).collect();
        echoes.into_iter().for_each(|echo| echo.join().expect("it doesn't panic"));
    });
}

/// A round trip of wakes between coroutines on two threads whose loops sleep.
pub fn wake_sleeping(times: u64) -> Duration {
    let rally = Rally::new(times);
    on_two_threads(|| context().block_on(|| serve(&rally)), || context().block_on(|| answer(&rally)))
}

/// The same with loops that poll before they sleep, as those of I/O threads do.
pub fn wake_polling(times: u64) -> Duration {
    let polling = || {
        let context = AioContext::builder().polling(Polling::up_to(Duration::from_nanos(32_768)));
        context.build().expect("a context can be had")
    };
    let rally = Rally::new(times);
    on_two_threads(|| polling().block_on(|| serve(&rally)), || polling().block_on(|| answer(&rally)))
}

/// A round trip of wakes between coroutines on two threads whose loops don't sleep.
pub fn wake_busy(times: u64) -> Duration {
    let rally = Arc::new(Rally::new(times));
    on_two_threads(|| busily(&rally, serve), || busily(&rally, answer))
}

/// Runs a player on a loop that never sleeps.
fn busily<T: Send + 'static>(rally: &Arc<Rally>, play: fn(&Rally) -> T) -> T {
    let context = context();
    let player = rally.clone();
    let player = context.spawn(move || play(&player)).expect("a stack can be mapped");
    while !rally.is_over() {
        context.poll(false);
    }
    player.join().expect("it doesn't panic")
}

fn serve(rally: &Rally) -> Duration {
    rally.enter(Side::First, park::waker());
    let mut clock = Clock::default();
    for round in rally.rounds() {
        clock.tick(round);
        rally.hit(Side::First, round.serve());
        park_until_seen(rally, round.answer());
    }
    clock.elapsed()
}

fn answer(rally: &Rally) {
    rally.enter(Side::Second, park::waker());
    for round in rally.rounds() {
        park_until_seen(rally, round.serve());
        rally.hit(Side::Second, round.answer());
    }
}

fn park_until_seen(rally: &Rally, hit: u64) {
    while !rally.has_seen(hit) {
        park::park();
    }
}

/// Adding handlers of `N` descriptors in one transaction, and removing them in another.
pub fn register<const N: u32>(times: u64) -> Duration {
    let fds = EventFd::silent(N);
    let context = context();
    timed(|| {
        for _ in 0..times {
            let handlers = add_all(&context, fds);
            let mut transaction = context.transaction();
            transaction.remove_all(handlers);
            transaction.commit().expect("nothing is added");
        }
    })
}

fn add_all(context: &AioContext, fds: &'static [EventFd]) -> Vec<FdHandler<'static>> {
    let mut transaction = context.transaction();
    for fd in fds {
        transaction.add(fd, FdCallbacks::new().on_readable(|| unreachable!("nobody signals it")));
    }
    transaction.commit().expect("an eventfd can be watched")
}

/// A turn that doesn't wait, with `N` descriptors of which none is ready.
pub fn idle_turn<const N: u32>(times: u64) -> Duration {
    let fds = EventFd::silent(N);
    let context = context();
    let _handlers = add_all(&context, fds);
    timed(|| {
        for _ in 0..times {
            assert!(!context.poll(false));
        }
    })
}

/// A timer that is armed and cancelled.
pub fn timer_cancel(times: u64) -> Duration {
    let context = context();
    let timer = context.timer(|| unreachable!("it is cancelled"));
    timed(|| {
        for _ in 0..times {
            timer.arm_after(FAR);
            assert!(timer.cancel());
        }
    })
}

/// A coroutine that parks until now.
pub fn timer_fire(times: u64) -> Duration {
    context().block_on(|| {
        timed(|| {
            for _ in 0..times {
                park::park_until(Instant::now());
            }
        })
    })
}

/// The processor time of a loop whose only coroutine waits for a deadline.
pub fn idle(length: Duration) -> Duration {
    context().block_on(|| {
        let before = cpu_time();
        aio::sleep(length);
        cpu_time() - before
    })
}
