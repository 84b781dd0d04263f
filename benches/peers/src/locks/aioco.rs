//! This project's locks, in its coroutines.

use std::cell::Cell;
use std::ops::DerefMut;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use ::aioco::sync::{Mutex, Semaphore, Threshold, channel};
use ::aioco::{AioContext, park, yield_now};

use super::{AT_A_TIME, CAPACITY, COROUTINES, Contest, OUTSTANDING, PAIRS, PERMITS, apart, on_two_threads, timed};

fn context() -> AioContext {
    AioContext::new().expect("a context can be had")
}

/// Times what `prepare` spawns, until all of it has ended.
fn run(prepare: impl FnOnce(&Crew) + Send) -> Duration {
    apart(|| {
        let crew = Crew { context: context(), running: Arc::new(AtomicUsize::new(0)) };
        prepare(&crew);
        timed(|| {
            crew.context.run_until(|| crew.running.load(Ordering::Relaxed) == 0);
        })
    })
}

/// A context that knows how many of its coroutines haven't ended.
struct Crew {
    context: AioContext,
    running: Arc<AtomicUsize>,
}

impl Crew {
    fn spawn(&self, f: impl FnOnce() + 'static) {
        self.running.fetch_add(1, Ordering::Relaxed);
        let running = self.running.clone();
        let f = move || {
            f();
            running.fetch_sub(1, Ordering::Relaxed);
        };
        self.context.spawn_local(f).expect("a stack can be had");
    }
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
    run(|crew| {
        let mutex = Arc::new(Mutex::new(0));
        for _ in 0..COROUTINES {
            let mutex = mutex.clone();
            crew.spawn(move || {
                for _ in 0..times {
                    let mut counter = mutex.lock();
                    yield_now();
                    *counter += 1;
                }
            });
        }
    })
}

fn meet(contest: &Contest) {
    contest.arrive();
    while !contest.is_on() {
        thread::yield_now();
    }
}

/// A coroutine on each of two threads.
pub fn mutex_2_threads<M: RawLock>(times: u64) -> Duration {
    let contest = Contest::new(times);
    let mutex = M::default();
    on_two_threads(|| {
        let context = context();
        meet(&contest);
        context.block_on(|| while contest.count(&mut mutex.lock()) {});
    });
    contest.elapsed()
}

/// Coroutines that suspend with a permit.
pub fn semaphore(times: u64) -> Duration {
    run(|crew| {
        let semaphore = Arc::new(Semaphore::new(PERMITS));
        for _ in 0..COROUTINES {
            let semaphore = semaphore.clone();
            crew.spawn(move || {
                for _ in 0..times {
                    let permit = semaphore.acquire(1);
                    yield_now();
                    drop(permit);
                }
            });
        }
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
    run(|crew| {
        let (sender, receiver) = channel(CAPACITY);
        for _ in 0..pairs {
            let sender = sender.clone();
            crew.spawn(move || (0..times).for_each(|n| sender.send(n).expect("somebody receives")));
        }
        for _ in 0..pairs {
            let receiver = receiver.clone();
            crew.spawn(move || receiver.iter().for_each(drop));
        }
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
        meet(&contest);
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
    completions(times, |completed, number| completed.wait(number), |completed| completed.advance(1), Threshold::new())
}

/// The same with a wake for each completion.
pub fn wake_each(times: u64) -> Duration {
    struct Completions {
        count: AtomicU64,
        waiter: OnceLock<Waker>,
    }

    completions(
        times,
        |completed, number| {
            completed.waiter.get_or_init(park::waker);
            while completed.count.load(Ordering::Acquire) < number {
                park::park();
            }
        },
        |completed| {
            completed.count.fetch_add(1, Ordering::Release);
            completed.waiter.get().expect("the waiter was the first to run").wake_by_ref();
        },
        Completions { count: AtomicU64::new(0), waiter: OnceLock::new() },
    )
}

fn completions<C: Send + Sync + 'static>(
    times: u64,
    wait: impl Fn(&C, u64) + Send + 'static,
    complete: impl Fn(&C) + Send + 'static,
    completed: C,
) -> Duration {
    run(|crew| {
        let completed = Rc::new(completed);
        let outstanding = Rc::new(Cell::new(OUTSTANDING));
        crew.spawn({
            let (completed, outstanding) = (completed.clone(), outstanding.clone());
            move || {
                for round in 1..=times {
                    wait(&completed, round * AT_A_TIME);
                    outstanding.set(outstanding.get() + AT_A_TIME);
                }
            }
        });
        crew.spawn(move || {
            for _ in 0..times * AT_A_TIME {
                while outstanding.get() == 0 {
                    yield_now();
                }
                outstanding.set(outstanding.get() - 1);
                complete(&completed);
                // The next one completes in another turn of the loop.
                yield_now();
            }
        });
    })
}
