//! This project's locks, in its coroutines.

use std::cell::Cell;
use std::ops::DerefMut;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use ::aioco::sync::{Mutex, Semaphore, Threshold, channel};
use ::aioco::{AioContext, JoinHandle, park, yield_now};

use super::{AT_A_TIME, CAPACITY, COROUTINES, Contest, OUTSTANDING, PAIRS, PERMITS, apart, on_two_threads, timed};

fn context() -> AioContext {
    AioContext::new().expect("a context can be had")
}

/// Times the coroutines that `spawn` has spawned, until all have ended.
fn run<T>(spawn: impl FnOnce(&AioContext) -> Vec<JoinHandle<T>> + Send) -> Duration {
    apart(|| {
        let context = context();
        let all = spawn(&context);
        timed(|| {
            context.run_until(|| all.iter().all(JoinHandle::is_finished));
        })
    })
}

fn spawn<T: Send + 'static>(context: &AioContext, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    context.spawn(f).expect("a stack can be had")
}

/// A mutex of either kind.
pub trait RawLock: Default + Send + Sync + 'static {
    fn lock(&self) -> impl DerefMut<Target = u64>;
}

impl RawLock for Mutex<u64> {
    #[inline(always)]
    fn lock(&self) -> impl DerefMut<Target = u64> {
        self.lock()
    }
}

impl RawLock for parking_lot::Mutex<u64> {
    #[inline(always)]
    fn lock(&self) -> impl DerefMut<Target = u64> {
        self.lock()
    }
}

/// Locks a mutex that is free, in a coroutine.
pub fn mutex_uncontended<M: RawLock>(times: u64) -> Duration {
    apart(|| {
        let mutex = M::default();
        context().block_on(|| {
            timed(|| {
                for _ in 0..times {
                    *mutex.lock() += 1;
                }
            })
        })
    })
}

/// Coroutines that suspend with the lock held.
pub fn mutex_64(times: u64) -> Duration {
    run(|context| {
        let mutex = Arc::new(Mutex::new(0));
        let one = || {
            let mutex = mutex.clone();
            spawn(context, move || {
                for _ in 0..times {
                    let mut counter = mutex.lock();
                    yield_now();
                    *counter += 1;
                }
            })
        };
        (0..COROUTINES).map(|_| one()).collect()
    })
}

/// A coroutine on each of two threads.
pub fn mutex_2_threads<M: RawLock>(times: u64) -> Duration {
    let contest = Contest::new(times);
    let mutex = M::default();
    on_two_threads(|| {
        let context = context();
        contest.meet();
        context.block_on(|| while contest.count(&mut mutex.lock()) {});
    });
    contest.elapsed()
}

/// Coroutines that suspend with a permit.
pub fn semaphore(times: u64) -> Duration {
    run(|context| {
        let semaphore = Arc::new(Semaphore::new(PERMITS));
        let one = || {
            let semaphore = semaphore.clone();
            spawn(context, move || {
                for _ in 0..times {
                    let permit = semaphore.acquire(1);
                    yield_now();
                    drop(permit);
                }
            })
        };
        (0..COROUTINES).map(|_| one()).collect()
    })
}

/// One coroutine sends, one receives.
pub fn channel_spsc(times: u64) -> Duration {
    messages(1, times)
}

/// Several coroutines send, and as many receive.
pub fn channel_mpmc(times: u64) -> Duration {
    messages(PAIRS, times)
}

fn messages(pairs: u64, times: u64) -> Duration {
    run(|context| {
        let (sender, receiver) = channel(CAPACITY);
        let sending = (0..pairs).map(|_| {
            let sender = sender.clone();
            spawn(context, move || (0..times).for_each(|n| sender.send(n).expect("somebody receives")))
        });
        let mut all: Vec<_> = sending.collect();
        all.extend((0..pairs).map(|_| {
            let receiver = receiver.clone();
            spawn(context, move || receiver.iter().for_each(drop))
        }));
        all
    })
}

/// One coroutine sends, one on another thread receives.
pub fn channel_2_threads(times: u64) -> Duration {
    let (sender, receiver) = channel(CAPACITY);
    let ends = std::sync::Mutex::new((Some(sender), Some(receiver)));
    let contest = Contest::new(times);
    on_two_threads(|| {
        let context = context();
        let sender = ends.lock().expect("no panic").0.take();
        contest.meet();
        match sender {
            Some(sender) => {
                context.block_on(|| (0..contest.goal).for_each(|n| sender.send(n).expect("somebody receives")));
            }
            None => {
                let receiver = ends.lock().expect("no panic").1.take().expect("the other end");
                let mut counter = 0;
                context.block_on(|| receiver.iter().for_each(|_: u64| _ = contest.count(&mut counter)));
            }
        }
    });
    contest.elapsed()
}

/// A coroutine that completes, one at a time, what another keeps outstanding, which is woken when it has to be.
pub fn threshold(times: u64) -> Duration {
    completions(
        times,
        |completed, number| completed.wait(number),
        |completed| completed.advance(1),
        Rc::new(Threshold::new()),
    )
}

/// The same with a wake for each completion.
pub fn wake_each(times: u64) -> Duration {
    struct Completions {
        count: Cell<u64>,
        waiter: Cell<Option<Waker>>,
    }

    completions(
        times,
        |completed, number| {
            while completed.count.get() < number {
                completed.waiter.set(Some(park::waker()));
                park::park();
            }
        },
        |completed| {
            completed.count.set(completed.count.get() + 1);
            if let Some(waiter) = completed.waiter.take() {
                waiter.wake();
            }
        },
        Rc::new(Completions { count: Cell::new(0), waiter: Cell::new(None) }),
    )
}

fn completions<C: 'static>(
    times: u64,
    wait: impl Fn(&C, u64) + Send + 'static,
    complete: impl Fn(&C) + Send + 'static,
    completed: Rc<C>,
) -> Duration {
    let context = context();
    let outstanding = Rc::new(Cell::new(OUTSTANDING));
    let total = times * AT_A_TIME;
    let waiter = context.spawn_local({
        let (completed, outstanding) = (completed.clone(), outstanding.clone());
        move || {
            for round in 1..=times {
                wait(&completed, round * AT_A_TIME);
                outstanding.set(outstanding.get() + AT_A_TIME);
            }
        }
    });
    let completer = context.spawn_local(move || {
        for _ in 0..total {
            while outstanding.get() == 0 {
                yield_now();
            }
            outstanding.set(outstanding.get() - 1);
            complete(&completed);
            // The next one completes in another turn of the loop.
            yield_now();
        }
    });
    let all = [waiter, completer].map(|handle| handle.expect("a stack can be had"));
    timed(|| {
        context.run_until(|| all.iter().all(JoinHandle::is_finished));
    })
}
