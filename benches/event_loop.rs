//! What an event loop's basic operations take: `cargo bench --bench event_loop`.
//!
//! These are figures to compare one version of the crate with another by; `cargo run --release -p peers -- --group
//! loop` compares it with others.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use aioco::aio::IoThread;
use aioco::fd::EventFd;
use aioco::{AioContext, park};
use criterion::{Criterion, criterion_group, criterion_main};

criterion_group!(benches, spawn_join, fd_park, remote_wake, timer);
criterion_main!(benches);

/// Spawns an empty coroutine and joins it.
fn spawn_join(criterion: &mut Criterion) {
    let context = AioContext::new().unwrap();
    criterion.bench_function("spawn-join", |bencher| {
        context.block_on(|| bencher.iter(|| context.spawn(|| ()).unwrap().join().unwrap()));
    });
}

/// Waits for a descriptor that another coroutine makes readable, twice.
fn fd_park(criterion: &mut Criterion) {
    let context = AioContext::new().unwrap();
    let [ours, theirs] = [(); 2].map(|()| Arc::new(EventFd::new().unwrap()));
    let answering = context.spawn({
        let (own, other) = (theirs.clone(), ours.clone());
        move || {
            loop {
                own.wait().unwrap();
                other.signal();
            }
        }
    });
    criterion.bench_function("fd-park x 2", |bencher| {
        context.block_on(|| {
            bencher.iter(|| {
                theirs.signal();
                ours.wait().unwrap();
            });
        });
    });
    answering.unwrap().cancel();
}

/// Wakes a coroutine whose thread sleeps, and waits, awake, until it has run.
fn remote_wake(criterion: &mut Criterion) {
    /// Long enough for a loop to go to sleep.
    const PAUSE: Duration = Duration::from_micros(20);

    let io_thread = IoThread::new("sleeper").unwrap();
    let runs = Arc::new(AtomicU64::new(0));
    let waker = Arc::new(OnceLock::<Waker>::new());
    let sleeper = io_thread.remote().spawn({
        let (runs, waker) = (runs.clone(), waker.clone());
        move || {
            waker.get_or_init(park::waker);
            loop {
                park::park();
                runs.fetch_add(1, Ordering::Release);
            }
        }
    });
    let waker = waker.wait();
    criterion.bench_function("remote wake", |bencher| {
        bencher.iter_custom(|times| {
            (0..times)
                .map(|_| {
                    thread::sleep(PAUSE);
                    let before = runs.load(Ordering::Acquire);
                    let start = Instant::now();
                    waker.wake_by_ref();
                    while runs.load(Ordering::Acquire) == before {
                        hint::spin_loop();
                    }
                    start.elapsed()
                })
                .sum()
        });
    });
    sleeper.unwrap().cancel();
}

/// Parks until a deadline that is due at once.
fn timer(criterion: &mut Criterion) {
    let context = AioContext::new().unwrap();
    criterion.bench_function("timer", |bencher| {
        context.block_on(|| bencher.iter(|| park::park_until(Instant::now())));
    });
}
