//! What reading 4 KiB costs: `cargo bench --bench block_io`. The yardsticks are a ring written by hand, with registered
//! files and buffers, Linux AIO by hand, and pread.

#[path = "../examples/img_bench/raw/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "the bench uses a part of it")]
mod raw;

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use aioco::aio::{self, Local};
use aioco::block::{self, AlignedBuf};
use aioco::{AioContext, park};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use raw::{Completion, RawAio, RawQueue, RawRing};

const BLOCK: usize = 4096;
/// Large enough to be no matter of the CPU's first caches.
const BLOCKS: u64 = 8192;
const DEPTHS: [usize; 3] = [1, 8, 64];

/// Files of each kind that this machine has.
fn targets() -> Vec<(&'static str, File)> {
    // In the build folder, which is rarely on tmpfs, as /tmp may be.
    let disk = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target");
    let places = [("page_cache", disk.clone(), 0), ("tmpfs", "/dev/shm".into(), 0), ("direct", disk, libc::O_DIRECT)];
    let mut targets = Vec::new();
    for (name, folder, flags) in places {
        let file = tempfile::Builder::new().tempfile_in(&folder).and_then(|file| {
            (0..BLOCKS)
                .try_for_each(|block| file.as_file().write_all_at(&[block as u8; BLOCK], block * BLOCK as u64))?;
            file.as_file().sync_all()?;
            let file = OpenOptions::new().read(true).custom_flags(flags).open(file.path())?;
            file.read_at(&mut AlignedBuf::new(BLOCK, BLOCK), 0)?;
            Ok(file)
        });
        match file {
            Ok(file) => targets.push((name, file)),
            Err(error) => eprintln!("{name} skipped: {} {error}", folder.display()),
        }
    }
    targets
}

/// Offsets in an order that no read-ahead guesses, the same for all.
struct Offsets(u64);

impl Offsets {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % BLOCKS * BLOCK as u64
    }
}

/// `n` reads by `depth` coroutines; returns how long they take.
fn coroutines(context: &AioContext, file: &Rc<block::File<File>>, depth: usize, n: u64) -> Duration {
    context.block_on(|| {
        let local = aio::current().expect("a context");
        let left = Rc::new(Cell::new(n));
        let start = Instant::now();
        let slots: Vec<_> = (0..depth as u64)
            .map(|slot| {
                let (file, left) = (file.clone(), left.clone());
                let read = move || {
                    let mut block = AlignedBuf::new(BLOCK, BLOCK);
                    let mut offsets = Offsets(slot);
                    while let Some(rest) = left.get().checked_sub(1) {
                        left.set(rest);
                        assert_eq!(file.read_at(&mut block, offsets.next()).expect("a read"), BLOCK);
                    }
                };
                local.spawn_local(read).expect("a stack")
            })
            .collect();
        slots.into_iter().for_each(|slot| slot.join().expect("no panic"));
        start.elapsed()
    })
}

/// A chain of callbacks.
struct Chain {
    context: Local,
    file: Rc<block::File<File>>,
    left: Cell<u64>,
    live: Cell<usize>,
    done: std::task::Waker,
}

impl Chain {
    fn go_on(self: Rc<Self>, block: AlignedBuf, mut offsets: Offsets) {
        let Some(rest) = self.left.get().checked_sub(1) else {
            self.live.set(self.live.get() - 1);
            if self.live.get() == 0 {
                self.done.wake_by_ref();
            }
            return;
        };
        self.left.set(rest);
        let this = self.clone();
        let offset = offsets.next();
        let then = move |result: std::io::Result<usize>, block| {
            assert_eq!(result.expect("a read"), BLOCK);
            this.go_on(block, offsets);
        };
        block::read_then(&self.context, self.file.clone(), block, offset, then).expect("a context");
    }
}

/// `n` reads by `depth` chains of callbacks; returns how long they take.
fn callbacks(context: &AioContext, file: &Rc<block::File<File>>, depth: usize, n: u64) -> Duration {
    context.block_on(|| {
        let chain = Rc::new(Chain {
            context: aio::current().expect("a context"),
            file: file.clone(),
            left: Cell::new(n),
            live: Cell::new(depth),
            done: park::waker(),
        });
        let start = Instant::now();
        (0..depth as u64).for_each(|slot| chain.clone().go_on(AlignedBuf::new(BLOCK, BLOCK), Offsets(slot)));
        while chain.live.get() > 0 {
            park::park();
        }
        start.elapsed()
    })
}

/// `n` reads by hand; returns how long they take.
fn raw(queue: &mut impl RawQueue, depth: usize, n: u64) -> Duration {
    let mut offsets: Vec<_> = (0..depth as u64).map(Offsets).collect();
    let start = Instant::now();
    let first = n.min(depth as u64);
    (0..first as usize).for_each(|slot| queue.read(slot, 0, offsets[slot].next()));
    let mut left = n - first;
    while queue.in_flight() > 0 {
        queue.enter(None).expect("a wait");
        while let Some(completion) = queue.next_completion() {
            let Completion::Transfer { slot, result } = completion else { unreachable!("no flush was submitted") };
            assert_eq!(result, BLOCK as i32);
            if left > 0 {
                left -= 1;
                queue.read(slot, 0, offsets[slot].next());
            }
        }
    }
    start.elapsed()
}

/// `n` reads, one after the other.
fn pread(file: &File, n: u64) -> Duration {
    let mut block = AlignedBuf::new(BLOCK, BLOCK);
    let mut offsets = Offsets(0);
    let start = Instant::now();
    for _ in 0..n {
        assert_eq!(file.read_at(&mut block, offsets.next()).expect("a read"), BLOCK);
    }
    start.elapsed()
}

fn read_4k(c: &mut Criterion) {
    let context = AioContext::new().expect("a context");
    for (name, file) in targets() {
        let mut group = c.benchmark_group(format!("read_4k_{name}"));
        group.throughput(Throughput::Elements(1));
        let block_file = Rc::new(block::File::new(file.try_clone().expect("a descriptor")).expect("a file"));
        for depth in DEPTHS {
            group.bench_function(format!("coroutine/{depth}"), |b| {
                b.iter_custom(|n| coroutines(&context, &block_file, depth, n));
            });
            group.bench_function(format!("bypass/{depth}"), |b| {
                b.iter_custom(|n| callbacks(&context, &block_file, depth, n));
            });
            match RawRing::new(&[file.as_fd()], depth, BLOCK) {
                Ok(mut ring) => {
                    group.bench_function(format!("raw_ring/{depth}"), |b| {
                        b.iter_custom(|n| raw(&mut ring, depth, n));
                    });
                }
                Err(error) => eprintln!("raw_ring/{depth} skipped: {error}"),
            }
            match RawAio::new(&[file.as_fd()], depth, BLOCK) {
                Ok(mut aio) => {
                    group.bench_function(format!("raw_aio/{depth}"), |b| {
                        b.iter_custom(|n| raw(&mut aio, depth, n));
                    });
                }
                Err(error) => eprintln!("raw_aio/{depth} skipped: {error}"),
            }
        }
        group.bench_function("pread/1", |b| b.iter_custom(|n| pread(&file, n)));
    }
}

criterion_group!(benches, read_4k);
criterion_main!(benches);
