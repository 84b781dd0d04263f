//! What locks take, free and contended: `cargo bench --bench locks`.
//!
//! These are figures to compare one version of the crate with another by; `cargo run --release -p peers -- --group locks`
//! compares it with others.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aioco::sync::{Mutex, RwLock, Semaphore, Threshold, WaitQueue, channel, task_group};
use aioco::{AioContext, JoinHandle, yield_now};
use criterion::{Criterion, criterion_group, criterion_main};

criterion_group!(benches, free, handed_over, two_threads, messages, completions, groups);
criterion_main!(benches);

/// How many coroutines want the same thing.
const MANY: u64 = 64;

/// Takes what is free, and gives it back.
fn free(criterion: &mut Criterion) {
    let (mutex, lock, semaphore) = (Mutex::new(0), RwLock::new(0), Semaphore::new(1));
    let context = AioContext::new().unwrap();
    let mut measure = |name: &str, f: &dyn Fn()| {
        criterion.bench_function(name, |bencher| context.block_on(|| bencher.iter(f)));
    };
    measure("mutex, free", &|| *mutex.lock() += 1);
    measure("rwlock, free, read", &|| _ = *lock.read());
    measure("rwlock, free, write", &|| *lock.write() += 1);
    measure("semaphore, free", &|| drop(semaphore.acquire(1)));
}

/// Times what many coroutines of one context do, each so many times.
fn many(body: impl Fn(u64) + Clone + 'static) -> impl FnMut(u64) -> Duration {
    move |times| {
        let context = AioContext::new().unwrap();
        let all: Vec<_> = (0..MANY)
            .map(|_| {
                let body = body.clone();
                context.spawn_local(move || body(times / MANY + 1)).unwrap()
            })
            .collect();
        let start = Instant::now();
        context.run_until(|| all.last().is_some_and(JoinHandle::is_finished));
        start.elapsed()
    }
}

/// Each suspends with the lock held, so that the others queue.
fn handed_over(criterion: &mut Criterion) {
    criterion.bench_function("mutex, 64 coroutines", |bencher| {
        let mutex = Rc::new(Mutex::new(0));
        bencher.iter_custom(many(move |times| {
            for _ in 0..times {
                let mut value = mutex.lock();
                yield_now();
                *value += 1;
            }
        }));
    });
    criterion.bench_function("wait queue, 64 coroutines in turn", |bencher| {
        let queue = Rc::new(WaitQueue::new());
        bencher.iter_custom(many(move |times| {
            for _ in 0..times {
                queue.wake_one();
                queue.wait(());
            }
            queue.wake_all();
        }));
    });
}

/// A coroutine against another one on a second thread.
fn two_threads(criterion: &mut Criterion) {
    let mutex = Arc::new(Mutex::new(0));
    let ended = Arc::new(AtomicBool::new(false));
    let other = {
        let (mutex, ended) = (mutex.clone(), ended.clone());
        thread::spawn(move || {
            AioContext::new().unwrap().block_on(|| {
                while !ended.load(Ordering::Relaxed) {
                    *mutex.lock() += 1;
                }
            });
        })
    };
    criterion.bench_function("mutex, 2 threads", |bencher| {
        AioContext::new().unwrap().block_on(|| bencher.iter(|| *mutex.lock() += 1));
    });
    ended.store(true, Ordering::Relaxed);
    other.join().unwrap();
}

/// From one coroutine to another.
fn messages(criterion: &mut Criterion) {
    criterion.bench_function("channel", |bencher| {
        bencher.iter_custom(|times| {
            let context = AioContext::new().unwrap();
            let (sender, receiver) = channel(64);
            let sending = context.spawn(move || (0..times).for_each(|n| sender.send(n).unwrap())).unwrap();
            let start = Instant::now();
            context.block_on(|| receiver.iter().for_each(drop));
            sending.join().unwrap();
            start.elapsed()
        });
    });
}

/// A threshold that somebody waits for, far away.
fn completions(criterion: &mut Criterion) {
    criterion.bench_function("threshold, advance", |bencher| {
        let context = AioContext::new().unwrap();
        let threshold = Rc::new(Threshold::new());
        let waiter = threshold.clone();
        let waiter = context.spawn_local(move || waiter.wait(u64::MAX >> 1)).unwrap();
        context.block_on(|| {
            yield_now();
            bencher.iter(|| threshold.advance(1));
        });
        waiter.cancel();
    });
}

/// Eight empty coroutines at a time.
fn groups(criterion: &mut Criterion) {
    criterion.bench_function("task group of 64, 8 at a time", |bencher| {
        AioContext::new().unwrap().block_on(|| {
            bencher.iter(|| {
                task_group(8, |group| {
                    for _ in 0..MANY {
                        group.spawn(|| Ok(()))?;
                    }
                    std::io::Result::Ok(())
                })
            });
        });
    });
}
