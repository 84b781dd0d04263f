//! What the pool of coroutines does to their lives: bursts that fit a thread's own lists and such that don't, threads
//! that compete for it, and threads of which one makes what another ends.

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use aioco::Coroutine;
use aioco::coroutine::{Builder, Unstarted};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn coroutine() -> Coroutine {
    Coroutine::new(|| ()).expect("a stack")
}

/// So many coroutines at a time on one thread: a thread keeps up to 128 idle ones for itself, and gives batches of 64
/// to the others.
fn bursts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("burst");
    for burst in [1, 100, 1000] {
        group.throughput(Throughput::Elements(burst));
        group.bench_with_input(BenchmarkId::from_parameter(burst), &burst, |bencher, &burst| {
            let mut coroutines = Vec::with_capacity(burst as usize);
            bencher.iter(|| {
                coroutines.extend((0..burst).map(|_| coroutine()));
                coroutines.drain(..).for_each(|co| co.enter());
            });
        });
    }
}

/// Two threads with bursts of their own, both of which go through the shared stack.
fn two_threads(criterion: &mut Criterion) {
    const BURST: u64 = 256;

    /// The time that the slower one takes.
    fn race(bursts: u64) -> Duration {
        let start_line = Barrier::new(2);
        let run = || {
            let mut coroutines = Vec::with_capacity(BURST as usize);
            start_line.wait();
            let start = Instant::now();
            for _ in 0..bursts {
                coroutines.extend((0..BURST).map(|_| coroutine()));
                coroutines.drain(..).for_each(|co: Coroutine| co.enter());
            }
            start.elapsed()
        };
        thread::scope(|scope| {
            let other = scope.spawn(run);
            run().max(other.join().expect("it doesn't panic"))
        })
    }

    let mut group = criterion.benchmark_group("two_threads");
    group.throughput(Throughput::Elements(BURST));
    group.bench_function("burst_each", |bencher| bencher.iter_custom(race));
}

/// One thread makes a burst, another one runs and ends it: all stacks travel, and none is mapped.
fn handed_over(criterion: &mut Criterion) {
    const BURST: u64 = 512;

    let mut group = criterion.benchmark_group("handed_over");
    group.throughput(Throughput::Elements(BURST));
    group.bench_function("burst", |bencher| {
        let (to_finisher, made) = mpsc::sync_channel::<Vec<Unstarted>>(1);
        let (to_maker, finished) = mpsc::sync_channel(1);
        let finisher = thread::spawn(move || {
            for mut burst in made {
                burst.drain(..).for_each(|unstarted| unstarted.bind().enter());
                if to_maker.send(burst).is_err() {
                    break;
                }
            }
        });
        let mut burst = Vec::with_capacity(BURST as usize);
        let unstarted = || Builder::new().create_unstarted(|| ()).expect("a stack");
        bencher.iter(|| {
            let mut full = std::mem::take(&mut burst);
            full.extend((0..BURST).map(|_| unstarted()));
            to_finisher.send(full).expect("the finisher waits");
            burst = finished.recv().expect("the finisher sends it back");
        });
        drop(to_finisher);
        finisher.join().expect("it doesn't panic");
    });
}

criterion_group!(benches, bursts, two_threads, handed_over);
criterion_main!(benches);
