//! What a turn of the loop costs with each monitor: `cargo bench --bench monitors`.

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use aioco::aio::MonitorKind;
use aioco::coroutine::Interest;
use aioco::{AioContext, fd, park};
use criterion::{Criterion, criterion_group, criterion_main};

const MONITORS: [MonitorKind; 3] = [MonitorKind::Poll, MonitorKind::Epoll, MonitorKind::IoUring];

fn each(c: &mut Criterion, name: &str, mut bench: impl FnMut(&mut criterion::Bencher<'_>, &AioContext)) {
    let mut group = c.benchmark_group(name);
    for kind in MONITORS {
        match AioContext::builder().monitor(kind).build() {
            Ok(context) => drop(group.bench_function(kind.to_string(), |b| bench(b, &context))),
            Err(error) => eprintln!("{name}/{kind} skipped: {error}"),
        }
    }
}

/// A coroutine parks for a descriptor, another one of the same loop makes it readable: there and back.
fn round_trip(c: &mut Criterion) {
    each(c, "round_trip", |b, context| {
        b.iter_custom(|n| {
            let (ours, theirs) = UnixStream::pair().expect("sockets");
            let echo = move |mut socket: UnixStream, first: bool| {
                let mut byte = [0];
                if first {
                    socket.write_all(&byte).expect("room");
                }
                for _ in 0..n {
                    fd::wait_readable(&socket).expect("a wait");
                    socket.read_exact(&mut byte).expect("a byte");
                    let _ = socket.write_all(&byte);
                }
            };
            let start = Instant::now();
            context.block_on(|| {
                let other = context.spawn(move || echo(theirs, false)).expect("a stack");
                echo(ours, true);
                other.join().expect("no panic");
            });
            start.elapsed() / 2
        });
    });
}

/// 64 coroutines park, each for a descriptor of its own; all become readable at once.
fn burst(c: &mut Criterion) {
    each(c, "burst_of_64", |b, context| {
        b.iter_custom(|n| {
            let (ours, theirs): (Vec<_>, Vec<_>) = (0..64).map(|_| UnixStream::pair().expect("sockets")).unzip();
            let waiting: Vec<_> = ours
                .into_iter()
                .map(|mut socket| {
                    let wait = move || {
                        for _ in 0..n {
                            fd::wait_readable(&socket).expect("a wait");
                            socket.read_exact(&mut [0]).expect("a byte");
                        }
                    };
                    context.spawn(wait).expect("a stack")
                })
                .collect();
            let mut total = Duration::ZERO;
            for _ in 0..n {
                while context.poll(false) {}
                theirs.iter().for_each(|mut socket| socket.write_all(&[0]).expect("room"));
                let start = Instant::now();
                while context.poll(false) {}
                total += start.elapsed();
            }
            waiting.into_iter().for_each(|handle| handle.join().expect("no panic"));
            total / 64
        });
    });
}

/// Another thread wakes a loop that sleeps; the time until its coroutine runs.
fn wake(c: &mut Criterion) {
    each(c, "wake_of_a_sleeping_loop", |b, context| {
        b.iter_custom(|n| {
            let asleep = Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
            let epoch = Instant::now();
            let mut total = Duration::ZERO;
            context.block_on(|| {
                let (state, waker) = (asleep.clone(), park::waker());
                let thread = thread::spawn(move || {
                    for _ in 0..n {
                        while !state.0.swap(false, Ordering::AcqRel) {
                            thread::yield_now();
                        }
                        // Time to fall asleep.
                        thread::sleep(Duration::from_micros(60));
                        state.1.store(epoch.elapsed().as_nanos() as u64, Ordering::Release);
                        waker.wake_by_ref();
                    }
                });
                for _ in 0..n {
                    asleep.0.store(true, Ordering::Release);
                    let woken = loop {
                        park::park();
                        match asleep.1.swap(0, Ordering::AcqRel) {
                            0 => {}
                            woken => break woken,
                        }
                    };
                    total += epoch.elapsed().saturating_sub(Duration::from_nanos(woken));
                }
                thread.join().expect("no panic");
            });
            total
        });
    });
}

/// A turn that finds nothing, and one that finds one descriptor ready, while 10 000 others are watched.
fn idle(c: &mut Criterion) {
    raise_limit();
    const IDLE: usize = 10_000;
    for (name, ready) in [("empty_turn_of_10_000", false), ("one_ready_of_10_000", true)] {
        each(c, name, |b, context| {
            let home = context.home();
            let idle: Vec<_> = (0..IDLE / 2).map(|_| UnixStream::pair().expect("descriptors")).collect();
            let watches: Vec<_> = idle
                .iter()
                .flat_map(|(one, other)| [one, other])
                .map(|socket| {
                    home.watch_fd(socket.as_fd(), Interest::Readable, Waker::noop().clone()).expect("a watch")
                })
                .collect();
            let (mut ours, mut theirs) = UnixStream::pair().expect("sockets");
            context.poll(false);
            b.iter(|| {
                if !ready {
                    return black_box(context.poll(false));
                }
                theirs.write_all(&[0]).expect("room");
                let watch = home.watch_fd(ours.as_fd(), Interest::Readable, Waker::noop().clone()).expect("a watch");
                assert!(context.poll(true));
                home.unwatch(watch);
                ours.read_exact(&mut [0]).expect("a byte");
                true
            });
            for watch in watches {
                home.unwatch(watch);
            }
            context.poll(false);
        });
    }
}

/// Lets this process open as many files as it may.
fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the result, and a valid argument.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}

criterion_group!(benches, round_trip, burst, wake, idle);
criterion_main!(benches);
