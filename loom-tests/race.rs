//! The threads of a model.
//!
//! loom finds interleavings by exchanging, in an execution that it has seen, two operations that depend on one another.
//! It remembers only one access of an atomic for this. So a thread that loads and then exchanges, as every loop around
//! a compare-exchange does, hides from it that another thread had loaded before, and the execution in which the
//! exchange comes first is never tried (loom issues 166 and 392). If the exchange comes first to begin with, both are
//! tried. Hence each model is checked once for each order in which its threads may start, and a thread that polls [lets
//! others go first](let_others_go_first).

use std::cell::Cell;
use std::rc::Rc;

use loom::thread;

#[allow(clippy::disallowed_types, reason = "loom runs the threads of a model on the OS thread of the test")]
mod slot {
    use super::Cell;

    std::thread_local! {
        /// Which of the orders, and of how many.
        pub(super) static ORDER: Cell<(usize, usize)> = const { Cell::new((0, 1)) };
    }
}
use slot::ORDER;

/// Runs two threads until both have ended; returns what they returned.
pub(super) fn two<S, A, B>(
    shared: &Rc<S>,
    first: impl FnOnce(&S) -> A + 'static,
    second: impl FnOnce(&S) -> B + 'static,
) -> (A, B)
where
    S: 'static,
    A: 'static,
    B: 'static,
{
    let (first, a) = racer(shared, first);
    let (second, b) = racer(shared, second);
    run([first, second]);
    (a.take().expect("it ran"), b.take().expect("it ran"))
}

/// Runs three threads until all have ended; returns what they returned.
pub(super) fn three<S, A, B, C>(
    shared: &Rc<S>,
    first: impl FnOnce(&S) -> A + 'static,
    second: impl FnOnce(&S) -> B + 'static,
    third: impl FnOnce(&S) -> C + 'static,
) -> (A, B, C)
where
    S: 'static,
    A: 'static,
    B: 'static,
    C: 'static,
{
    let (first, a) = racer(shared, first);
    let (second, b) = racer(shared, second);
    let (third, c) = racer(shared, third);
    run([first, second, third]);
    (a.take().expect("it ran"), b.take().expect("it ran"), c.take().expect("it ran"))
}

type Racer = Box<dyn FnOnce()>;

/// A thread, and where it puts its result. (An `Rc`, as loom's threads are one thread to the compiler and to std.)
fn racer<S: 'static, T: 'static>(shared: &Rc<S>, f: impl FnOnce(&S) -> T + 'static) -> (Racer, Rc<Cell<Option<T>>>) {
    let shared = shared.clone();
    let result = Rc::new(Cell::new(None));
    let place = result.clone();
    (Box::new(move || place.set(Some(f(&shared)))), result)
}

fn run<const N: usize>(racers: [Racer; N]) {
    let (order, _) = ORDER.get();
    ORDER.set((order, (1..=N).product()));
    let mut waiting = racers.map(Some);
    let running = permutation::<N>(order).map(|place| waiting[place].take().map(thread::spawn));
    for racer in running.into_iter().flatten() {
        racer.join().expect("a panic ends the model");
    }
}

/// Lets the other threads run until they end or do the same, in the first execution that loom tries.
pub(super) fn let_others_go_first() {
    thread::yield_now();
}

/// Checks a model once for each order in which its race may start.
pub(super) fn in_each_order(check: impl Fn()) {
    let mut order = 0;
    loop {
        ORDER.set((order, 1));
        check();
        order += 1;
        if order >= ORDER.get().1 {
            return;
        }
    }
}

fn permutation<const N: usize>(mut number: usize) -> [usize; N] {
    let mut left: Vec<usize> = (0..N).collect();
    std::array::from_fn(|_| {
        let choice = number % left.len();
        number /= left.len();
        left.remove(choice)
    })
}
