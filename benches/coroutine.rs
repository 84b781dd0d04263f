//! What a coroutine costs its user: to make and end one, to switch to it and back, to nest them.

use aioco::{Coroutine, yield_now};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Create, enter, end.
fn lifecycle(criterion: &mut Criterion) {
    criterion.bench_function("lifecycle", |bencher| {
        bencher.iter(|| Coroutine::new(|| ()).expect("a stack").enter());
    });
}

/// Create, enter, yield, enter again, end.
fn cost(criterion: &mut Criterion) {
    criterion.bench_function("cost", |bencher| {
        bencher.iter(|| {
            let co = Coroutine::new(yield_now).expect("a stack");
            co.enter();
            co.enter();
        });
    });
}

/// Enter, and back by a yield: with one coroutine, and with many in turn, whose stacks compete for the caches.
fn switch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("switch");
    for coroutines in [1, 64, 1024] {
        group.throughput(Throughput::Elements(coroutines));
        group.bench_with_input(BenchmarkId::from_parameter(coroutines), &coroutines, |bencher, &coroutines| {
            let yielding = || {
                Coroutine::new(|| {
                    loop {
                        yield_now()
                    }
                })
                .expect("a stack")
            };
            let coroutines: Vec<_> = (0..coroutines).map(|_| yielding()).collect();
            bencher.iter(|| coroutines.iter().for_each(Coroutine::enter));
        });
    }
}

/// Each coroutine makes and enters the next one.
fn nesting(criterion: &mut Criterion) {
    fn nest(depth: u64) {
        if depth > 0 {
            Coroutine::new(move || nest(depth - 1)).expect("a stack").enter();
        }
    }
    let mut group = criterion.benchmark_group("nesting");
    for depth in [10, 1000] {
        group.throughput(Throughput::Elements(depth));
        group.bench_with_input(BenchmarkId::from_parameter(depth), &depth, |bencher, &depth| {
            bencher.iter(|| nest(depth));
        });
    }
}

criterion_group!(benches, lifecycle, cost, switch, nesting);
criterion_main!(benches);
