//! The pool: nothing is mapped in the steady state, whoever creates and whoever ends; memory comes back; limits are
//! errors.
//!
//! Statistics, mappings and memory belong to the process, so each test runs in one of its own.
#![allow(clippy::disallowed_types, reason = "a user's thread-locals are what some of this is about")]

mod common;

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::hint::black_box;
use std::io::ErrorKind;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use aioco::coroutine::pool::{self, Stats};
use aioco::coroutine::{Builder, Unstarted};
use aioco::{Coroutine, park, yield_now};
use common::{
    LIMIT, child, context, coroutine, dirty_stack, has_guard_markers, mappings, page_size, proc_number, resident,
    scaled, within,
};

/// Idle coroutines that the shared part of the pool keeps.
const CAP: u64 = 1024;
/// Idle coroutines that a thread keeps at most.
const LOCAL: u64 = 6 * 64;
/// Coroutines that travel together.
const BATCH: u64 = 64;

/// Runs a scenario in a process in which nothing else happens.
#[track_caller]
fn alone(scenario: impl FnOnce() + Send + 'static) {
    child("", |_| within(LIMIT, scenario)).assert_success();
}

/// So many coroutines, suspended.
fn suspended(n: usize) -> Vec<Coroutine> {
    let all: Vec<_> = (0..n).map(|_| coroutine(yield_now)).collect();
    all.iter().for_each(Coroutine::enter);
    all
}

/// Ends all of them by running them to their end.
fn finish(all: Vec<Coroutine>) {
    all.iter().for_each(Coroutine::enter);
    assert!(all.iter().all(Coroutine::is_finished));
}

/// Coroutines that no pool had.
fn made(stats: &Stats) -> u64 {
    stats.created - stats.hits
}

#[test]
fn the_figures_add_up_in_a_quiet_process() {
    alone(|| {
        let start = pool::stats();
        assert_eq!((start.created, start.live, start.idle), (0, 0, 0));
        let all = suspended(100);
        let unstarted: Vec<_> = (0..20).map(|_| coroutine(|| ())).collect();
        let stats = pool::stats();
        assert_eq!((stats.created, stats.hits, stats.live, stats.idle), (120, 0, 120, 0));
        // One page is mapped to try a guard on it, and unmapped.
        assert!(stats.mappings > 1 && stats.unmappings <= 1);
        drop(unstarted);
        finish(all);
        let stats = pool::stats();
        assert_eq!((stats.live, stats.idle, stats.trimmed), (0, 120, 0));
        drop(suspended(50));
        let after = pool::stats();
        assert_eq!((after.created, after.hits, after.live, after.idle), (170, 50, 0, 120));
        assert_eq!(after.mappings, stats.mappings);
        pool::trim();
        let stats = pool::stats();
        assert_eq!((stats.live, stats.idle, stats.trimmed, stats.leaked), (0, 0, 120, 0));
        coroutine(|| ()).enter();
        assert_eq!((pool::stats().created, pool::stats().hits), (171, 50));
    });
}

#[test]
fn bursts_that_move_between_threads_leave_a_bounded_number_of_mappings_and_idle_coroutines() {
    alone(|| {
        const THREADS: usize = 8;
        const BURST: usize = 5000;
        let before = mappings();
        let turn = Arc::new(Barrier::new(THREADS));
        let over = Arc::new(Barrier::new(THREADS + 1));
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                let (turn, over) = (turn.clone(), over.clone());
                thread::spawn(move || {
                    for now in 0..THREADS {
                        turn.wait();
                        if now == me {
                            let all = suspended(BURST);
                            assert!(pool::stats().live >= BURST as u64);
                            finish(all);
                        }
                    }
                    over.wait();
                    over.wait();
                })
            })
            .collect();
        // All threads are still there, and their pools are as full as they get.
        over.wait();
        let stats = pool::stats();
        assert_eq!((stats.created, stats.live), ((THREADS * BURST) as u64, 0));
        let idle_limit = CAP + THREADS as u64 * (LOCAL + BATCH);
        assert!(stats.idle <= idle_limit, "{stats:?}");
        assert!(stats.trimmed > 0, "{stats:?}");
        let limit = 2 * idle_limit as usize + 500;
        assert!(mappings() <= before + limit, "{} mappings more", mappings() - before);
        over.wait();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn creating_here_and_ending_there_maps_nothing_in_the_steady_state() {
    alone(|| {
        const WINDOW: usize = 64;
        let rounds = scaled(200_000);
        // Each thread creates while the other runs, then the other way round, several times.
        let work = move |creates: bool, give: &mpsc::SyncSender<Unstarted>, take: &mpsc::Receiver<Unstarted>| {
            for _ in 0..rounds / 10 {
                if creates {
                    let unstarted = Builder::new().create_unstarted(|| {
                        black_box(0);
                    });
                    give.send(unstarted.expect("a stack")).expect("the other thread is there");
                } else {
                    take.recv().expect("the other thread is there").bind().enter();
                }
            }
        };
        let (give_b, take_b) = mpsc::sync_channel(WINDOW);
        let (give_a, take_a) = mpsc::sync_channel(WINDOW);
        let both = Arc::new(Barrier::new(2));
        let their_both = both.clone();
        let other = thread::spawn(move || {
            for phase in 0..10 {
                work(phase % 2 == 1, &give_a, &take_b);
                their_both.wait();
            }
        });
        let mut after_warm_up = None;
        for phase in 0..10 {
            work(phase % 2 == 0, &give_b, &take_a);
            both.wait();
            if phase == 3 {
                after_warm_up = Some(pool::stats());
            }
        }
        other.join().expect("no panic");
        let (warm, end) = (after_warm_up.expect("four phases"), pool::stats());
        assert_eq!(end.mappings, warm.mappings, "{warm:?} {end:?}");
        let plateau = WINDOW as u64 + 2 * 3 * BATCH;
        assert!(made(&end) <= plateau + BATCH, "{end:?}");
        assert!(made(&end) - made(&warm) <= BATCH, "{warm:?} {end:?}");
        assert_eq!(end.live, 0);
        assert!(end.refills > 0);
    });
}

#[test]
fn a_burst_of_10000_gives_its_memory_back_when_trimmed() {
    alone(|| {
        let one_thread_used = |n| finish(suspended(n));
        one_thread_used(1);
        pool::trim();
        let (before, mapped_before) = (resident(), mappings());
        let all = suspended(10_000);
        let at_peak = resident();
        assert!(at_peak - before >= 10_000 * page_size(), "the burst took memory");
        finish(all);
        assert!(pool::stats().idle <= CAP + LOCAL + 2 * BATCH, "{:?}", pool::stats());
        let after_burst = resident();
        pool::trim();
        let stats = pool::stats();
        assert_eq!((stats.idle, stats.live), (0, 0));
        assert_eq!(stats.trimmed, made(&stats));
        let after_trim = resident();
        // Control blocks stay: 10 000 of 256 bytes, and what the slabs keep about their slots.
        let floor = before + (8 << 20);
        assert!(after_burst < at_peak && after_trim < floor, "{before} {at_peak} {after_burst} {after_trim}");
        assert!(mappings() <= mapped_before + 10, "{} {mapped_before}", mappings());
        // Slabs of stacks are gone; the table of control blocks stays.
        assert!(stats.mappings - stats.unmappings <= 1 + 10_000u64.div_ceil(4096), "{stats:?}");
        one_thread_used(1000);
    });
}

#[test]
fn memory_that_deep_coroutines_touched_comes_back_when_trimmed() {
    alone(|| {
        let before = resident();
        let all: Vec<_> = (0..200)
            .map(|_| {
                let co = Builder::new().stack_size(1 << 20).create(|| {
                    dirty_stack(512);
                    yield_now();
                });
                let co = co.expect("a stack");
                co.enter();
                co
            })
            .collect();
        assert!(resident() - before >= 200 * (512 << 10));
        finish(all);
        pool::trim();
        assert!(resident() < before + (8 << 20));
    });
}

#[test]
fn memory_of_idle_stacks_comes_back_also_from_slabs_that_are_in_use() {
    alone(|| {
        let before = resident();
        // A coroutine here and there stays, so that no slab is without one.
        let (stay, go): (Vec<_>, Vec<_>) = (0..1000)
            .map(|n| {
                let co = coroutine(|| {
                    dirty_stack(128);
                    yield_now();
                });
                co.enter();
                (n, co)
            })
            .partition(|(n, _)| n % 50 == 0);
        assert!(resident() - before >= 1000 * (128 << 10));
        finish(go.into_iter().map(|(_, co)| co).collect());
        pool::trim();
        assert_eq!((pool::stats().live, pool::stats().idle), (20, 0));
        assert!(resident() < before + 20 * (256 << 10) + (8 << 20));
        finish(stay.into_iter().map(|(_, co)| co).collect());
    });
}

#[test]
fn a_shallow_coroutine_touches_only_the_top_of_its_stack() {
    alone(|| {
        finish(suspended(1));
        let before = resident();
        let all = suspended(2000);
        let each = (resident() - before) / 2000;
        // One page in an optimised build, for the stack; a control block; a handle.
        let pages = if cfg!(debug_assertions) { 3 } else { 2 };
        assert!(each <= pages * page_size() + 512, "{each} bytes each");
        finish(all);
    });
}

#[test]
fn size_classes_are_never_mixed_under_load_from_four_threads() {
    alone(|| {
        // A stack that is too small ends the process.
        let sizes = [(64, 40), (128, 100), (256, 230), (1024, 900)];
        let queue: Arc<Mutex<VecDeque<Unstarted>>> = Arc::default();
        let threads: Vec<_> = (0..4usize)
            .map(|me| {
                let queue = queue.clone();
                thread::spawn(move || {
                    for round in 0..scaled(4000) {
                        let (size, usable) = sizes[(round * 7 + me) % sizes.len()];
                        let unstarted = Builder::new().stack_size(size << 10).create_unstarted(move || {
                            dirty_stack(usable);
                        });
                        queue.lock().expect("not poisoned").push_back(unstarted.expect("a stack"));
                        if round % 300 == 299 {
                            pool::trim();
                        }
                        let due = queue.lock().expect("not poisoned").len() > 100;
                        if due || round % 2 == 1 {
                            let next = queue.lock().expect("not poisoned").pop_front();
                            next.into_iter().for_each(|unstarted| unstarted.bind().enter());
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        queue.lock().expect("not poisoned").drain(..).for_each(|unstarted| unstarted.bind().enter());
        assert_eq!(pool::stats().live, 0);
    });
}

#[test]
fn a_pool_full_of_small_stacks_serves_no_larger_request_and_the_reverse() {
    alone(|| {
        let fill = |kilobytes: usize, usable: usize| {
            let all: Vec<_> = (0..300)
                .map(|_| {
                    let co = Builder::new().stack_size(kilobytes << 10).create(move || {
                        dirty_stack(usable);
                        yield_now();
                    });
                    let co = co.expect("a stack");
                    co.enter();
                    co
                })
                .collect();
            finish(all);
        };
        fill(64, 40);
        let small = pool::stats();
        fill(1024, 1000);
        let large = pool::stats();
        assert_eq!(large.hits, small.hits, "none of them came from the pool");
        fill(64, 40);
        fill(1024, 1000);
        assert_eq!(pool::stats().hits, large.hits + 600, "now all of them did");
    });
}

#[test]
fn every_stack_has_one_owner_at_a_time_under_load_from_eight_threads() {
    alone(|| {
        const SHARDS: usize = 64;
        let owned: Arc<Vec<Mutex<HashSet<usize>>>> = Arc::new((0..SHARDS).map(|_| Mutex::default()).collect());
        let queue: Arc<Mutex<VecDeque<Unstarted>>> = Arc::default();
        let ran = Arc::new(AtomicUsize::new(0));
        let create = {
            let (owned, ran) = (owned.clone(), ran.clone());
            move || {
                let (owned, ran) = (owned.clone(), ran.clone());
                Builder::new().create_unstarted(move || {
                    // The same variable of the same body: its address names the stack.
                    let mut here = 0usize;
                    let address = (&raw const here).addr();
                    let shard = &owned[address / 4096 % SHARDS];
                    assert!(shard.lock().expect("not poisoned").insert(address), "two owners");
                    for mark in 1..4 {
                        // SAFETY: a local variable.
                        unsafe { ptr::write_volatile(&mut here, mark) };
                        yield_now();
                        // SAFETY: as above.
                        assert_eq!(unsafe { ptr::read_volatile(&here) }, mark, "someone else wrote here");
                    }
                    assert!(shard.lock().expect("not poisoned").remove(&address));
                    ran.fetch_add(1, Ordering::Relaxed);
                })
            }
        };
        let rounds = scaled(24_000);
        let threads: Vec<_> = (0..8usize)
            .map(|me| {
                let (queue, create) = (queue.clone(), create.clone());
                thread::spawn(move || {
                    let mut mine: VecDeque<Coroutine> = VecDeque::new();
                    for round in 0..rounds {
                        // Bursts of creations, and bursts of runs, out of step with the other threads.
                        if (round / 100 + me).is_multiple_of(2) {
                            let unstarted = create().expect("a stack");
                            queue.lock().expect("not poisoned").push_back(unstarted);
                        } else if let Some(unstarted) = queue.lock().expect("not poisoned").pop_front() {
                            mine.push_back(unstarted.bind());
                        }
                        if mine.len() > 20 || round + 1 == rounds {
                            mine.retain(|co| {
                                co.enter();
                                !co.is_finished()
                            });
                        }
                    }
                    while !mine.is_empty() {
                        mine.retain(|co| {
                            co.enter();
                            !co.is_finished()
                        });
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let rest = std::mem::take(&mut *queue.lock().expect("not poisoned"));
        let (unrun, stats) = (rest.len(), pool::stats());
        assert_eq!(stats.live, unrun as u64);
        drop(rest);
        let stats = pool::stats();
        assert_eq!(ran.load(Ordering::Relaxed) + unrun, stats.created as usize);
        assert_eq!((stats.live, stats.idle), (0, made(&stats) - stats.trimmed), "none is lost");
    });
}

#[test]
fn a_pool_that_is_emptied_by_one_thread_while_another_fills_it_makes_a_bounded_number() {
    alone(|| {
        // Takers may find the shared part empty for a moment: each such moment costs a new coroutine, and no more.
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..4usize)
            .map(|me| {
                let stop = stop.clone();
                thread::spawn(move || {
                    let n = if me % 2 == 0 { 150 } else { 70 };
                    while !stop.load(Ordering::Relaxed) {
                        finish(suspended(n));
                        thread::yield_now();
                    }
                })
            })
            .collect();
        while pool::stats().created < scaled(400_000) as u64 {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let stats = pool::stats();
        assert!(stats.idle <= CAP + 5 * BATCH, "threads that end donate: {stats:?}");
        assert!(made(&stats) <= CAP + 4 * LOCAL + 4 * 150, "{stats:?}");
    });
}

#[test]
fn statistics_make_sense_at_any_time_while_threads_run() {
    alone(|| {
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..3usize)
            .map(|me| {
                let stop = stop.clone();
                thread::spawn(move || {
                    let mut round = 0;
                    while !stop.load(Ordering::Relaxed) {
                        round += 1;
                        match (round + me) % 4 {
                            0 => finish(suspended(200)),
                            1 => drop(suspended(100)),
                            2 => thread::spawn(|| finish(suspended(10))).join().expect("no panic"),
                            _ => pool::trim(),
                        }
                    }
                })
            })
            .collect();
        let mut last = pool::stats();
        for _ in 0..scaled(20_000) {
            let stats = pool::stats();
            // No more than 3 × 200 + 3 × 10 live at a time; the rest is what moves while the sums are taken.
            assert!(stats.live < 100_000 && stats.idle < 100_000, "{stats:?}");
            assert!(stats.hits <= stats.created && stats.unmappings <= stats.mappings, "{stats:?}");
            assert_eq!(stats.leaked, 0);
            for (now, before) in [
                (stats.created, last.created),
                (stats.refills, last.refills),
                (stats.trimmed, last.trimmed),
                (stats.mappings, last.mappings),
                (stats.unmappings, last.unmappings),
            ] {
                assert!(now >= before, "{last:?} {stats:?}");
            }
            last = stats;
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let stats = pool::stats();
        assert_eq!((stats.live, stats.idle), (0, made(&stats) - stats.trimmed));
    });
}

#[test]
fn a_reservation_keeps_what_a_queue_needs_and_its_end_trims_the_rest() {
    alone(|| {
        const DEPTH: usize = 6000;
        let reservations = [pool::reserve(DEPTH / 2), pool::reserve(DEPTH / 2)];
        finish(suspended(DEPTH));
        let warm = pool::stats();
        assert_eq!((warm.idle, warm.trimmed), (DEPTH as u64, 0));
        finish(suspended(DEPTH));
        let again = pool::stats();
        assert_eq!(again.hits - warm.hits, DEPTH as u64, "all of them came from the pool");
        assert_eq!(again.mappings, warm.mappings);
        let [one, other] = reservations;
        drop(one);
        let half = pool::stats();
        assert!(half.idle <= CAP + DEPTH as u64 / 2 + LOCAL + BATCH, "{half:?}");
        assert!(half.idle >= DEPTH as u64 / 2, "{half:?}");
        drop(other);
        let none = pool::stats();
        assert!(none.idle <= CAP + LOCAL + BATCH, "{none:?}");
        assert_eq!(none.idle + none.trimmed, made(&none));
        // The cap is what it was.
        finish(suspended(DEPTH));
        assert!(pool::stats().idle <= CAP + LOCAL + BATCH, "{:?}", pool::stats());
    });
}

// ---- threads that end -----------------------------------------------------------------------------------------------

/// Creates and runs coroutines when it is dropped.
struct AtExit(&'static AtomicUsize);

impl Drop for AtExit {
    fn drop(&mut self) {
        let count = Rc::new(Cell::new(0));
        for _ in 0..100 {
            let inside = count.clone();
            let co = coroutine(move || {
                inside.set(inside.get() + 1);
                yield_now();
                inside.set(inside.get() + 1);
            });
            co.enter();
            co.enter();
        }
        drop(suspended(10));
        assert_eq!(count.get(), 200);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn destructors_of_thread_locals_may_create_and_run_coroutines() {
    alone(|| {
        static RAN: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static BEFORE: RefCell<Option<AtExit>> = const { RefCell::new(None) };
            static AFTER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
            static KEPT: RefCell<Vec<Coroutine>> = const { RefCell::new(Vec::new()) };
        }
        for uses_pool in [true, false] {
            for _ in 0..50 {
                let thread = thread::spawn(move || {
                    BEFORE.set(Some(AtExit(&RAN)));
                    if uses_pool {
                        finish(suspended(10));
                        // Suspended ones that the thread leaves to its destructors.
                        KEPT.set(suspended(3));
                    }
                    AFTER.set(Some(AtExit(&RAN)));
                });
                thread.join().expect("no panic");
            }
        }
        assert_eq!(RAN.load(Ordering::Relaxed), 200);
        let stats = pool::stats();
        assert_eq!((stats.live, stats.leaked), (0, 0));
        assert!(made(&stats) <= 200, "threads that end donate: {stats:?}");
    });
}

#[test]
fn a_thousand_short_threads_leave_mappings_and_pool_as_they_were() {
    alone(|| {
        let round = || {
            let thread = thread::spawn(|| finish(suspended(200)));
            thread.join().expect("no panic");
        };
        (0..10).for_each(|_| round());
        let (before, mapped) = (pool::stats(), mappings());
        for _ in 0..scaled(1000) {
            round();
        }
        let after = pool::stats();
        assert_eq!((after.mappings, made(&after)), (before.mappings, made(&before)));
        assert_eq!((after.live, after.idle), (0, before.idle));
        assert!(mappings() <= mapped + 4, "{mapped} {}", mappings());
    });
}

#[test]
fn a_thread_that_ends_leaves_its_idle_coroutines_to_the_others() {
    alone(|| {
        finish(suspended(1));
        let thread = thread::spawn(|| finish(suspended(300)));
        thread.join().expect("no panic");
        let before = pool::stats();
        assert_eq!(before.idle, 301);
        finish(suspended(300));
        let after = pool::stats();
        assert_eq!((after.hits - before.hits, made(&after)), (300, made(&before)));
        assert!(after.refills > before.refills);
    });
}

#[test]
fn a_thread_that_ends_leaves_its_number_to_no_later_one() {
    alone(|| {
        // The home of a context is a thread, also when a later thread has inherited all that the runtime kept for it.
        let home = thread::spawn(|| {
            let context = context();
            context.block_on(|| ());
            context.home()
        });
        let home = home.join().expect("no panic");
        assert!(!home.is_current());
        let later = thread::spawn(move || {
            finish(suspended(1));
            home.is_current()
        });
        assert!(!later.join().expect("no panic"));
    });
}

// ---- limits ---------------------------------------------------------------------------------------------------------

#[test]
fn two_hundred_thousand_coroutines_park_under_the_default_limit_of_mappings() {
    let limit = proc_number("/proc/sys/vm/max_map_count").unwrap_or(65530);
    if !has_guard_markers() || cfg!(aioco_force_mprotect) {
        eprintln!("skipped: each guard page costs mappings here, and the limit is {limit}");
        return;
    }
    let available = std::fs::read_to_string("/proc/meminfo").expect("/proc is mounted");
    let available = available.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let available: usize = available.and_then(|kilobytes| kilobytes.parse().ok()).expect("the format of meminfo");
    if available < 4 << 20 {
        eprintln!("skipped: {available} KiB of memory are too few");
        return;
    }
    alone(|| {
        const N: usize = 200_000;
        let before = mappings();
        let count = Rc::new(Cell::new(0));
        let all: Vec<_> = (0..N)
            .map(|_| {
                let inside = count.clone();
                let co = coroutine(move || {
                    park::park();
                    inside.set(inside.get() + 1);
                });
                co.enter();
                co
            })
            .collect();
        assert_eq!(pool::stats().live, N as u64);
        assert!(mappings() < before + 10_000, "{} mappings", mappings());
        for co in all.iter().step_by(2) {
            co.enter();
        }
        assert_eq!(count.get(), N / 2);
        drop(all);
        assert_eq!((pool::stats().live, count.get()), (0, N / 2));
        pool::trim();
    });
}

/// Creates suspended coroutines until there is an error, which must leave everything as it was.
fn exhaust() -> (Vec<Coroutine>, std::io::Error) {
    let mut all = Vec::with_capacity(1 << 20);
    loop {
        let before = pool::stats();
        match Coroutine::new(yield_now) {
            Ok(co) => {
                co.enter();
                all.push(co);
            }
            Err(error) => {
                let after = pool::stats();
                assert_eq!((after.live, after.idle), (before.live, before.idle), "{error}");
                assert_eq!((after.created, after.live), (all.len() as u64, all.len() as u64));
                return (all, error);
            }
        }
    }
}

/// After an exhaustion: freed coroutines can be had again, and all goes well when the limit is gone.
fn recover(mut all: Vec<Coroutine>, raise_limit: impl FnOnce()) {
    for _ in 0..3 {
        assert!(Coroutine::new(|| ()).is_err(), "the limit still holds");
        finish(all.drain(..100).collect());
        let more: Vec<_> = (0..100).map(|_| coroutine(yield_now)).collect();
        more.iter().for_each(Coroutine::enter);
        all.extend(more);
    }
    let context = context();
    let dropped = Arc::new(());
    let captured = dropped.clone();
    assert!(context.spawn(move || drop(captured)).is_err());
    assert_eq!(Arc::strong_count(&dropped), 1, "the closure was dropped");
    assert!(!context.poll(false));
    raise_limit();
    let n = all.len();
    all.extend(suspended(n));
    finish(all);
    pool::trim();
    let stats = pool::stats();
    assert_eq!((stats.live, stats.idle, stats.trimmed), (0, 0, made(&stats)));
    assert_eq!(context.spawn(|| 5).expect("a stack").join().expect("no panic"), 5);
}

#[test]
fn running_out_of_address_space_is_an_error_that_loses_nothing_and_passes() {
    alone(|| {
        let page = page_size();
        let used = proc_number("/proc/self/statm").expect("/proc is mounted") * page;
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid place for the result.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) }, 0);
        let unlimited = limit;
        limit.rlim_cur = (used + (400 << 20)) as libc::rlim_t;
        // SAFETY: a valid argument.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let (all, error) = exhaust();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(error.to_string().contains("coroutine stack"), "{error}");
        assert!(!error.to_string().contains("max_map_count"), "that isn't the cause: {error}");
        assert!(all.len() >= 256, "a slab's worth: {}", all.len());
        // SAFETY: as above.
        recover(all, || assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &unlimited) }, 0));
    });
}

#[test]
fn running_out_of_mappings_is_an_error_that_names_the_limit_and_passes() {
    let limit = proc_number("/proc/sys/vm/max_map_count").unwrap_or(65530);
    if limit > 1 << 20 {
        eprintln!("skipped: vm.max_map_count is {limit}, too many to use up");
        return;
    }
    alone(move || {
        let page = page_size();
        let len = (2 * limit + 2) * page;
        // Every other page is made unreadable, until the kernel refuses to split the mapping again.
        // SAFETY: a new mapping of our own.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let mut splits = 0;
        // SAFETY: inside of the mapping, which nobody uses.
        while unsafe { libc::mprotect(base.byte_add((2 * splits + 1) * page), page, libc::PROT_NONE) } == 0 {
            splits += 1;
        }
        assert!(splits > limit / 4, "{splits} of {limit}");
        let (all, error) = exhaust();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(error.to_string().contains("vm.max_map_count"), "{error}");
        assert!(error.to_string().contains(&limit.to_string()), "{error}");
        assert!(all.len() < 1000);
        // SAFETY: the mapping is ours, and nobody uses it.
        assert_eq!(unsafe { libc::munmap(base, len) }, 0);
        let more = suspended(1000);
        finish(all);
        finish(more);
    });
}

#[test]
fn where_guards_cost_mappings_the_pool_runs_into_the_limit_with_an_error_and_comes_back() {
    let limit = proc_number("/proc/sys/vm/max_map_count").unwrap_or(65530);
    if has_guard_markers() && !cfg!(aioco_force_mprotect) {
        eprintln!("skipped: guards cost no mappings here (--cfg aioco_force_mprotect makes them)");
        return;
    }
    if limit > 1 << 18 {
        eprintln!("skipped: vm.max_map_count is {limit}, too many to use up");
        return;
    }
    alone(move || {
        let (all, error) = exhaust();
        assert!(error.to_string().contains("vm.max_map_count"), "{error}");
        assert!(all.len() >= limit / 2 - 1000, "{} of {limit}", all.len());
        let mut all = all;
        finish(all.drain(..100).collect());
        let more: Vec<_> = (0..100).map(|_| coroutine(yield_now)).collect();
        more.iter().for_each(Coroutine::enter);
        finish(more);
        finish(all);
        pool::trim();
        assert_eq!(pool::stats().idle, 0);
        finish(suspended(1000));
    });
}

// ---- regressions ----------------------------------------------------------------------------------------------------

#[test]
fn an_absurd_reservation_is_as_good_as_none_is_needed_and_ends_well() {
    alone(|| {
        let reservations = [pool::reserve(usize::MAX), pool::reserve(usize::MAX)];
        finish(suspended(3000));
        assert_eq!((pool::stats().idle, pool::stats().trimmed), (3000, 0));
        drop(reservations);
        assert!(pool::stats().idle <= CAP + LOCAL + BATCH, "{:?}", pool::stats());
        finish(suspended(3000));
        assert!(pool::stats().idle <= CAP + LOCAL + BATCH, "{:?}", pool::stats());
    });
}
