//! The timed loops, written once and compiled for each runtime.
//!
//! Each function does its work the given number of times and returns how long that took, without what it did before
//! (creating long-lived coroutines, mapping stacks) and after. One time's worth is what a case's table entry says.

use std::array;
use std::cell::RefCell;
use std::hint;
use std::rc::Rc;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rtrb::{Consumer, PopError, Producer, PushError, RingBuffer};

use crate::body::{Body, Empty, Pause, YieldOnce, YieldOnceDeep, YieldTimes, YieldTimesDeep};
use crate::measure::Loop;
use crate::runtime::{CrossThread, Runtime};

/// How many coroutines [`deep_batch`] has in flight.
pub const BATCH: u32 = 8;

/// How many coroutines [`nesting`] has on top of each other.
pub const NESTED: u32 = 1000;

/// How many coroutines [`cross_thread`] lets one thread be ahead of the other.
pub const WINDOW: usize = 64;

/// How many coroutines the loops with two threads run before the clock starts.
pub const THREAD_WARM_UP: u64 = 1024;

fn spare<R: Runtime>() -> R::Spare {
    R::spare().expect("a stack can be mapped")
}

fn spares<R: Runtime>(count: usize) -> Vec<R::Spare> {
    (0..count).map(|_| spare::<R>()).collect()
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// A call of an empty function through a pointer.
pub fn call(times: u64) -> Duration {
    fn callee() {}
    let callee: fn() = hint::black_box(callee);
    timed(|| {
        for _ in 0..times {
            callee();
        }
    })
}

/// A switch into a coroutine that suspends in a loop, and back.
pub fn switch<R: Runtime>(times: u64) -> Duration {
    switch_into::<R, _>(times, YieldTimes(times + 1))
}

/// [`switch`], where the coroutine suspends five calls down.
pub fn switch_deep<R: Runtime>(times: u64) -> Duration {
    switch_into::<R, _>(times, YieldTimesDeep(times + 1))
}

/// Enters a coroutine with the given body, which suspends once more than is timed.
fn switch_into<R: Runtime, B: Body>(times: u64, body: B) -> Duration {
    let mut coroutine = R::create(spare::<R>(), body);
    R::enter(&mut coroutine);
    let elapsed = timed(|| {
        for _ in 0..times {
            R::enter(&mut coroutine);
        }
    });
    R::enter(&mut coroutine);
    R::reclaim(coroutine);
    elapsed
}

/// A switch into each of `N` coroutines in turn.
pub fn round_robin<R: Runtime, const N: usize>(times: u64) -> Duration {
    let mut coroutines: Vec<_> =
        spares::<R>(N).into_iter().map(|spare| R::create(spare, YieldTimes(times + 1))).collect();
    coroutines.iter_mut().for_each(R::enter);
    let elapsed = timed(|| {
        for _ in 0..times {
            coroutines.iter_mut().for_each(R::enter);
        }
    });
    coroutines.iter_mut().for_each(R::enter);
    for coroutine in coroutines {
        R::reclaim(coroutine);
    }
    elapsed
}

/// The life of an empty coroutine: created, entered, ended.
pub fn lifecycle<R: Runtime>(times: u64) -> Duration {
    let mut spare = spare::<R>();
    timed(|| {
        for _ in 0..times {
            let mut coroutine = R::create(spare, Empty);
            R::enter(&mut coroutine);
            spare = R::reclaim(coroutine);
        }
    })
}

/// [`lifecycle`] without reuse: each coroutine on a stack that was mapped for it.
pub fn new_stack<R: Runtime>(times: u64) -> Duration {
    timed(|| {
        for _ in 0..times {
            let mut coroutine = R::create(spare::<R>(), Empty);
            R::enter(&mut coroutine);
            R::reclaim(coroutine);
        }
    })
}

/// The life of a coroutine that suspends once.
pub fn cost<R: Runtime>(times: u64) -> Duration {
    let mut spare = spare::<R>();
    timed(|| {
        for _ in 0..times {
            let mut coroutine = R::create(spare, YieldOnce);
            R::enter(&mut coroutine);
            R::enter(&mut coroutine);
            spare = R::reclaim(coroutine);
        }
    })
}

/// [`cost`], where a real call lies between the loop and each entry.
pub fn cost_behind_call<R: Runtime>(times: u64) -> Duration {
    #[inline(never)]
    fn enter<R: Runtime>(coroutine: &mut R::Coroutine) {
        R::enter(coroutine);
    }
    let mut spare = spare::<R>();
    timed(|| {
        for _ in 0..times {
            let mut coroutine = R::create(spare, YieldOnce);
            enter::<R>(&mut coroutine);
            enter::<R>(&mut coroutine);
            spare = R::reclaim(coroutine);
        }
    })
}

/// The lives of [`BATCH`] coroutines at once, each suspending five calls down before the first is entered again: what a
/// block driver with as many requests in flight does.
pub fn deep_batch<R: Runtime>(times: u64) -> Duration {
    let mut spares = array::from_fn::<_, { BATCH as usize }, _>(|_| spare::<R>());
    timed(|| {
        for _ in 0..times {
            let mut coroutines = spares.map(|spare| R::create(spare, YieldOnceDeep));
            coroutines.iter_mut().for_each(R::enter);
            coroutines.iter_mut().for_each(R::enter);
            spares = coroutines.map(R::reclaim);
        }
    })
}

/// [`NESTED`] coroutines, each of which creates and enters the next.
pub fn nesting<R: Runtime>(times: u64) -> Duration {
    let spares = Rc::new(RefCell::new(spares::<R>(NESTED as usize)));
    let descend = || {
        let spares = Rc::clone(&spares);
        Nest::<R> { spares, levels: NESTED }.descend();
    };
    descend();
    timed(|| {
        for _ in 0..times {
            descend();
        }
    })
}

/// A body that nests so many coroutines within itself.
struct Nest<R: Runtime> {
    spares: Rc<RefCell<Vec<R::Spare>>>,
    levels: u32,
}

impl<R: Runtime> Nest<R> {
    #[inline(always)]
    fn descend(self) {
        let Some(levels) = self.levels.checked_sub(1) else {
            return;
        };
        let spare = self.spares.borrow_mut().pop().expect("a spare for each level");
        let spares = Rc::clone(&self.spares);
        let mut coroutine = R::create(spare, Self { spares, levels });
        R::enter(&mut coroutine);
        self.spares.borrow_mut().push(R::reclaim(coroutine));
    }
}

impl<R: Runtime> Body for Nest<R> {
    #[inline(always)]
    fn run(self, _: &mut impl Pause) {
        self.descend();
    }

    async fn run_async(self) {
        self.descend();
    }
}

/// [`lifecycle`] on two threads at the same time.
pub fn two_threads<R: Runtime>(times: u64) -> Duration {
    on_two_threads(lifecycle::<R>, times)
}

/// Runs a loop on two threads at the same time and returns the time of the slower.
pub fn on_two_threads(run: Loop, times: u64) -> Duration {
    let start = Barrier::new(2);
    let work = || {
        run(THREAD_WARM_UP);
        start.wait();
        run(times)
    };
    thread::scope(|scope| {
        let other = scope.spawn(work);
        let here = work();
        here.max(other.join().expect("the other thread does not panic"))
    })
}

/// One thread creates empty coroutines, another enters and ends them, at most [`WINDOW`] behind.
pub fn cross_thread<R: CrossThread>(times: u64) -> Duration {
    let (mut to_runner, mut unstarted) = RingBuffer::<R::Unstarted>::new(WINDOW);
    let (mut to_creator, mut returned) = RingBuffer::<R::Spare>::new(WINDOW);

    let create = move || {
        let mut fresh = spares::<R>(WINDOW);
        for _ in 0..THREAD_WARM_UP + times {
            let spare =
                if R::SENDS_SPARES_BACK { fresh.pop().unwrap_or_else(|| pop(&mut returned)) } else { spare::<R>() };
            push(&mut to_runner, R::create_unstarted(spare));
        }
    };
    let mut run = move |count| {
        for _ in 0..count {
            let mut coroutine = R::bind(pop(&mut unstarted));
            R::enter(&mut coroutine);
            let spare = R::reclaim(coroutine);
            if R::SENDS_SPARES_BACK {
                push(&mut to_creator, spare);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(create);
        run(THREAD_WARM_UP);
        timed(|| run(times))
    })
}

/// Sends a value, spinning while the ring is full.
#[inline]
fn push<T>(ring: &mut Producer<T>, mut value: T) {
    while let Err(PushError::Full(refused)) = ring.push(value) {
        value = refused;
        hint::spin_loop();
    }
}

/// Receives a value, spinning while the ring is empty.
#[inline]
fn pop<T>(ring: &mut Consumer<T>) -> T {
    loop {
        match ring.pop() {
            Ok(value) => return value,
            Err(PopError::Empty) => hint::spin_loop(),
        }
    }
}
