//! The locks and channels of async Rust, in tasks on tokio's schedulers; and this project's channel, in such tasks.

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::tokio::runtime::Runtime;
use ::tokio::sync::{Notify, Semaphore as TokioSemaphore, mpsc};
use ::tokio::task::{self, JoinHandle};

use super::{AT_A_TIME, CAPACITY, COROUTINES, Contest, OUTSTANDING, PAIRS, PERMITS};
use crate::event_loop::tokio::{CurrentThread, Scheduler};
use crate::measure;

/// A library of locks.
pub trait Locks: 'static {
    type Mutex: Default + Send + Sync;
    type Semaphore: Send + Sync;

    fn lock(mutex: &Self::Mutex) -> impl Future<Output = impl DerefMut<Target = u64> + Send> + Send;

    fn semaphore(permits: usize) -> Self::Semaphore;

    fn acquire(semaphore: &Self::Semaphore) -> impl Future<Output = impl Drop + Send> + Send;
}

/// A library of channels.
pub trait Channels: 'static {
    type Sender: Clone + Send;
    type Receiver: Clone + Send;

    fn channel(capacity: usize) -> (Self::Sender, Self::Receiver);

    fn send(sender: &Self::Sender, message: u64) -> impl Future<Output = ()> + Send;

    fn receive(receiver: &Self::Receiver) -> impl Future<Output = Option<u64>> + Send;
}

/// tokio's.
pub struct Tokio;

impl Locks for Tokio {
    type Mutex = ::tokio::sync::Mutex<u64>;
    type Semaphore = TokioSemaphore;

    fn lock(mutex: &Self::Mutex) -> impl Future<Output = impl DerefMut<Target = u64> + Send> + Send {
        mutex.lock()
    }

    fn semaphore(permits: usize) -> Self::Semaphore {
        TokioSemaphore::new(permits)
    }

    async fn acquire(semaphore: &Self::Semaphore) -> impl Drop + Send {
        semaphore.acquire().await.expect("it isn't closed")
    }
}

/// It has one receiver, which several share by a mutex.
impl Channels for Tokio {
    type Sender = mpsc::Sender<u64>;
    type Receiver = Arc<::tokio::sync::Mutex<mpsc::Receiver<u64>>>;

    fn channel(capacity: usize) -> (Self::Sender, Self::Receiver) {
        let (sender, receiver) = mpsc::channel(capacity);
        (sender, Arc::new(::tokio::sync::Mutex::new(receiver)))
    }

    async fn send(sender: &Self::Sender, message: u64) {
        sender.send(message).await.expect("somebody receives");
    }

    async fn receive(receiver: &Self::Receiver) -> Option<u64> {
        receiver.lock().await.recv().await
    }
}

/// async-lock's, and async-channel.
pub struct AsyncLock;

impl Locks for AsyncLock {
    type Mutex = async_lock::Mutex<u64>;
    type Semaphore = async_lock::Semaphore;

    fn lock(mutex: &Self::Mutex) -> impl Future<Output = impl DerefMut<Target = u64> + Send> + Send {
        mutex.lock()
    }

    fn semaphore(permits: usize) -> Self::Semaphore {
        async_lock::Semaphore::new(permits)
    }

    fn acquire(semaphore: &Self::Semaphore) -> impl Future<Output = impl Drop + Send> + Send {
        semaphore.acquire()
    }
}

impl Channels for AsyncLock {
    type Sender = async_channel::Sender<u64>;
    type Receiver = async_channel::Receiver<u64>;

    fn channel(capacity: usize) -> (Self::Sender, Self::Receiver) {
        async_channel::bounded(capacity)
    }

    async fn send(sender: &Self::Sender, message: u64) {
        sender.send(message).await.expect("somebody receives");
    }

    async fn receive(receiver: &Self::Receiver) -> Option<u64> {
        receiver.recv().await.ok()
    }
}

/// This project's channel.
pub struct Aioco;

impl Channels for Aioco {
    type Sender = ::aioco::sync::Sender<u64>;
    type Receiver = ::aioco::sync::Receiver<u64>;

    fn channel(capacity: usize) -> (Self::Sender, Self::Receiver) {
        ::aioco::sync::channel(capacity)
    }

    async fn send(sender: &Self::Sender, message: u64) {
        sender.send_async(message).await.expect("somebody receives");
    }

    async fn receive(receiver: &Self::Receiver) -> Option<u64> {
        receiver.recv_async().await.ok()
    }
}

/// A runtime whose workers, if it has any, may run on all cores.
fn runtime<S: Scheduler>() -> Runtime {
    S::builder().on_thread_start(measure::unpin).enable_all().build().expect("a runtime can be had")
}

/// Times the tasks that `spawn` spawns, until all have ended.
fn run<S: Scheduler>(spawn: impl FnOnce() -> Vec<JoinHandle<()>> + Send + 'static) -> Duration {
    let runtime = runtime::<S>();
    let all = runtime.spawn(async {
        let start = Instant::now();
        for one in spawn() {
            one.await.expect("it doesn't panic");
        }
        start.elapsed()
    });
    runtime.block_on(all).expect("it doesn't panic")
}

/// Locks a mutex that is free.
pub fn mutex_uncontended<L: Locks>(times: u64) -> Duration {
    let mutex = L::Mutex::default();
    let task = async move {
        let start = Instant::now();
        for _ in 0..times {
            *L::lock(&mutex).await += 1;
        }
        start.elapsed()
    };
    let runtime = runtime::<CurrentThread>();
    runtime.block_on(runtime.spawn(task)).expect("it doesn't panic")
}

/// Tasks that yield with the lock held.
pub fn mutex_64<L: Locks, S: Scheduler>(times: u64) -> Duration {
    run::<S>(move || {
        let mutex = Arc::new(L::Mutex::default());
        let one = |_| {
            let mutex = mutex.clone();
            task::spawn(async move {
                for _ in 0..times {
                    let mut counter = L::lock(&mutex).await;
                    task::yield_now().await;
                    *counter += 1;
                }
            })
        };
        (0..COROUTINES).map(one).collect()
    })
}

async fn meet(contest: &Contest) {
    contest.arrive();
    while !contest.is_on() {
        task::yield_now().await;
    }
}

/// Two tasks on two workers.
pub fn mutex_2_threads<L: Locks, S: Scheduler>(times: u64) -> Duration {
    let runtime = runtime::<S>();
    let contest = Arc::new(Contest::new(times));
    let mutex = Arc::new(L::Mutex::default());
    let players = [(); 2].map(|()| {
        let (contest, mutex) = (contest.clone(), mutex.clone());
        runtime.spawn(async move {
            meet(&contest).await;
            while contest.count(&mut *L::lock(&mutex).await) {}
        })
    });
    for player in players {
        runtime.block_on(player).expect("it doesn't panic");
    }
    contest.elapsed()
}

/// Tasks that yield with a permit.
pub fn semaphore<L: Locks>(times: u64) -> Duration {
    run::<CurrentThread>(move || {
        let semaphore = Arc::new(L::semaphore(PERMITS));
        let one = |_| {
            let semaphore = semaphore.clone();
            task::spawn(async move {
                for _ in 0..times {
                    let permit = L::acquire(&semaphore).await;
                    task::yield_now().await;
                    drop(permit);
                }
            })
        };
        (0..COROUTINES).map(one).collect()
    })
}

/// One task sends, one receives.
pub fn channel_spsc<C: Channels>(times: u64) -> Duration {
    messages::<C>(1, times)
}

/// Several tasks send, and as many receive.
pub fn channel_mpmc<C: Channels>(times: u64) -> Duration {
    messages::<C>(PAIRS, times)
}

fn messages<C: Channels>(pairs: u64, times: u64) -> Duration {
    run::<CurrentThread>(move || {
        let (sender, receiver) = C::channel(CAPACITY);
        let sending = (0..pairs).map(|_| {
            let sender = sender.clone();
            task::spawn(async move {
                for n in 0..times {
                    C::send(&sender, n).await;
                }
            })
        });
        let mut all: Vec<_> = sending.collect();
        all.extend((0..pairs).map(|_| {
            let receiver = receiver.clone();
            task::spawn(async move { while C::receive(&receiver).await.is_some() {} })
        }));
        all
    })
}

/// One task sends, another one, on a second worker, receives.
pub fn channel_2_threads<C: Channels, S: Scheduler>(times: u64) -> Duration {
    let runtime = runtime::<S>();
    let contest = Arc::new(Contest::new(times));
    let (sender, receiver) = C::channel(CAPACITY);
    let sending = runtime.spawn({
        let contest = contest.clone();
        async move {
            meet(&contest).await;
            for n in 0..contest.goal {
                C::send(&sender, n).await;
            }
        }
    });
    let receiving = runtime.spawn({
        let contest = contest.clone();
        async move {
            meet(&contest).await;
            let mut counter = 0;
            while C::receive(&receiver).await.is_some() {
                contest.count(&mut counter);
            }
        }
    });
    for player in [sending, receiving] {
        runtime.block_on(player).expect("it doesn't panic");
    }
    contest.elapsed()
}

/// A task that completes, one at a time, what another keeps outstanding, which waits for as many permits.
pub fn threshold(times: u64) -> Duration {
    let completed = Arc::new(TokioSemaphore::new(0));
    let outstanding = Arc::new(TokioSemaphore::new(OUTSTANDING as usize));
    let waiter = {
        let (completed, outstanding) = (completed.clone(), outstanding.clone());
        async move {
            for _ in 0..times {
                completed.acquire_many(AT_A_TIME as u32).await.expect("it isn't closed").forget();
                outstanding.add_permits(AT_A_TIME as usize);
            }
        }
    };
    completions(times, waiter, outstanding, move || completed.add_permits(1))
}

/// The same with a wake for each completion.
pub fn wake_each(times: u64) -> Duration {
    let completed = Arc::new((Notify::new(), std::sync::atomic::AtomicU64::new(0)));
    let outstanding = Arc::new(TokioSemaphore::new(OUTSTANDING as usize));
    let waiter = {
        let (completed, outstanding) = (completed.clone(), outstanding.clone());
        async move {
            for round in 1..=times {
                while completed.1.load(std::sync::atomic::Ordering::Relaxed) < round * AT_A_TIME {
                    completed.0.notified().await;
                }
                outstanding.add_permits(AT_A_TIME as usize);
            }
        }
    };
    completions(times, waiter, outstanding, move || {
        completed.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        completed.0.notify_one();
    })
}

fn completions(
    times: u64,
    waiter: impl Future<Output = ()> + Send + 'static,
    outstanding: Arc<TokioSemaphore>,
    complete: impl Fn() + Send + 'static,
) -> Duration {
    let completer = async move {
        for _ in 0..times * AT_A_TIME {
            outstanding.acquire().await.expect("it isn't closed").forget();
            complete();
            task::yield_now().await;
        }
    };
    run::<CurrentThread>(|| vec![task::spawn(waiter), task::spawn(completer)])
}
