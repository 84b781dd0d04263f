//! Coroutines that their owner drives: the life of one, the order in which woken ones run, panics, misuse, unwinding.

mod common;

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::io::ErrorKind;
use std::panic::{self, AssertUnwindSafe, Location, catch_unwind, panic_any};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;

use aioco::coroutine::{Builder, Cancelled, Unstarted, pool};
use aioco::{Coroutine, current, in_coroutine, park, yield_now};
use common::{Count, LIMIT, assert_order, child, coroutine, dirty_stack, message_of, within};

/// A coroutine's handle that the coroutine itself can reach.
type Shared = Rc<RefCell<Option<Coroutine>>>;

#[test]
fn a_new_coroutine_runs_at_its_first_enter_and_a_recycled_one_has_no_memory_of_the_last() {
    for _ in 0..2 {
        let done = Rc::new(Cell::new(false));
        let inside = done.clone();
        let co = coroutine(move || inside.set(true));
        assert!(!done.get());
        co.enter();
        assert!(done.get());
        assert!(co.is_finished());
    }
}

#[test]
fn five_yields_take_exactly_six_enters() {
    let (yields, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (inside, end) = (yields.clone(), done.clone());
    let co = coroutine(move || {
        for _ in 0..5 {
            inside.set(inside.get() + 1);
            yield_now();
        }
        end.set(true);
    });
    let mut enters = 0;
    while !done.get() {
        co.enter();
        enters += 1;
    }
    assert_eq!((enters, yields.get()), (6, 5));
    assert!(co.is_finished());
}

#[test]
fn coroutines_nest_128_deep() {
    fn nest(left: u32, entered: &Rc<Cell<u32>>, returned: &Rc<Cell<u32>>) {
        entered.set(entered.get() + 1);
        if left > 1 {
            let (inner_entered, inner_returned) = (entered.clone(), returned.clone());
            coroutine(move || nest(left - 1, &inner_entered, &inner_returned)).enter();
        }
        returned.set(returned.get() + 1);
    }
    let (entered, returned) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (inside_entered, inside_returned) = (entered.clone(), returned.clone());
    coroutine(move || nest(128, &inside_entered, &inside_returned)).enter();
    assert_eq!((entered.get(), returned.get()), (128, 128));
}

#[test]
fn current_is_the_innermost_coroutine_before_and_after_a_suspension() {
    assert_eq!(current(), None);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let outer_seen = seen.clone();
    let outer = coroutine(move || {
        let me = current();
        outer_seen.borrow_mut().push(me);
        let inner_seen = outer_seen.clone();
        let inner = coroutine(move || {
            inner_seen.borrow_mut().push(current());
            yield_now();
            inner_seen.borrow_mut().push(current());
        });
        inner.enter();
        assert_eq!(current(), me);
        yield_now();
        assert_eq!(current(), me);
        inner.enter();
        assert_eq!(current(), me);
        assert_ne!(Some(inner.as_ref()), me);
    });
    outer.enter();
    assert_eq!(current(), None);
    outer.enter();
    assert_eq!(current(), None);
    let seen = seen.borrow();
    assert_eq!(seen[0], Some(outer.as_ref()));
    assert_eq!(seen[1], seen[2]);
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn entered_holds_from_enter_to_suspension_also_while_a_nested_coroutine_runs() {
    let (this, child): (Shared, Shared) = Default::default();
    let is_entered = |co: &Shared| co.borrow().as_ref().expect("made").is_entered();
    let (inside_this, inside_child) = (this.clone(), child.clone());
    let co = coroutine(move || {
        assert!(is_entered(&inside_this));
        let (parent, own) = (inside_this.clone(), inside_child.clone());
        let inner = coroutine(move || {
            assert!(is_entered(&parent));
            assert!(is_entered(&own));
            yield_now();
            assert!(is_entered(&parent));
            assert!(is_entered(&own));
        });
        *inside_child.borrow_mut() = Some(inner);
        assert!(!is_entered(&inside_child));
        enter_shared(&inside_child);
        assert!(!is_entered(&inside_child));
        assert!(is_entered(&inside_this));
        enter_shared(&inside_child);
        assert!(!is_entered(&inside_child));
        assert!(inside_child.borrow().as_ref().expect("made").is_finished());
        yield_now();
        assert!(is_entered(&inside_this));
    });
    assert!(!co.is_entered());
    *this.borrow_mut() = Some(co);
    enter_shared(&this);
    assert!(!is_entered(&this));
    enter_shared(&this);
    assert!(!is_entered(&this));
    // The coroutines have ended, but their captures went with them; this breaks the cycles of the handles.
    drop((this.take(), child.take()));
}

/// Enters a shared handle; what runs inside may borrow it as well.
fn enter_shared(co: &Shared) {
    co.borrow().as_ref().expect("made").enter();
}

#[test]
fn state_queries_follow_the_life_of_a_coroutine() {
    let co = coroutine(|| {
        yield_now();
        park::park();
    });
    let states = |co: &Coroutine| (co.is_started(), co.is_entered(), co.is_finished());
    assert_eq!(states(&co), (false, false, false));
    co.enter();
    assert_eq!(states(&co), (true, false, false), "yielded");
    co.enter();
    assert_eq!(states(&co), (true, false, false), "parked");
    co.enter();
    assert_eq!(states(&co), (true, false, true));
    // The block has a new tenant now, which the old handle doesn't mistake for its own.
    let next = coroutine(yield_now);
    next.enter();
    assert_eq!(states(&co), (true, false, true));
    assert_ne!(co.as_ref(), next.as_ref());
}

#[test]
fn in_coroutine_is_true_inside_only() {
    assert!(!in_coroutine());
    let co = coroutine(|| {
        assert!(in_coroutine());
        yield_now();
        assert!(in_coroutine());
    });
    co.enter();
    assert!(!in_coroutine());
    co.enter();
    assert!(!in_coroutine());
}

#[test]
fn enterer_and_coroutine_take_turns() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let inside = log.clone();
    let co = coroutine(move || {
        inside.borrow_mut().push(("co 1", in_coroutine()));
        yield_now();
        inside.borrow_mut().push(("co 2", in_coroutine()));
    });
    let say = |what| log.borrow_mut().push((what, in_coroutine()));
    say("main 1");
    co.enter();
    say("main 2");
    co.enter();
    say("main 3");
    let want = [("main 1", false), ("co 1", true), ("main 2", false), ("co 2", true), ("main 3", false)];
    assert_order(&log.borrow(), &want);
}

#[test]
fn a_suspended_coroutine_holds_nothing_of_an_enterer_that_has_ended() {
    let inner: Shared = Rc::default();
    let done = Rc::new(Cell::new(false));
    let inside = done.clone();
    *inner.borrow_mut() = Some(coroutine(move || {
        yield_now();
        inside.set(true);
    }));
    let entered = inner.clone();
    let outer = coroutine(move || enter_shared(&entered));
    outer.enter();
    assert!(outer.is_finished());
    // Its stack and block go to another coroutine, which fills the stack with rubbish and stays there.
    let rubbish: Vec<_> = (0..8)
        .map(|_| {
            let co = coroutine(|| {
                dirty_stack(32);
                yield_now();
            });
            co.enter();
            co
        })
        .collect();
    assert!(!done.get());
    enter_shared(&inner);
    assert!(done.get());
    drop(rubbish);
}

#[test]
fn a_coroutine_is_entered_from_frames_of_any_depth() {
    #[inline(never)]
    fn enter_deep(co: &Coroutine, depth: usize) -> usize {
        let here = black_box([depth; 16]);
        if depth == 0 {
            co.enter();
        } else {
            enter_deep(co, depth - 1);
        }
        black_box(here)[depth % 16]
    }
    let count = Rc::new(Cell::new(0));
    let inside = count.clone();
    let co = coroutine(move || {
        for _ in 0..1000 {
            inside.set(inside.get() + 1);
            yield_now();
        }
    });
    for round in 0..1000 {
        let depth = round * 7 % 40;
        assert_eq!(enter_deep(&co, depth), depth);
    }
    assert_eq!(count.get(), 1000);
    co.enter();
    assert!(co.is_finished());
}

/// Yields at the bottom of a recursion whose every frame must come back unharmed.
#[inline(never)]
fn yield_deep(depth: u64, mut seed: u64) -> u64 {
    let mut sum = seed;
    let mut fraction = seed as f64;
    let locals: [u64; 8] = std::array::from_fn(|i| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(i as u64);
        seed
    });
    let locals = black_box(locals);
    let [a, b, c, d, e, f, g, h] = locals;
    let (x, y) = (black_box(a as f64 / 3.0), black_box(b as f64 / 7.0));
    sum = sum.wrapping_add(if depth == 0 {
        yield_now();
        black_box(1)
    } else {
        yield_deep(depth - 1, seed)
    });
    fraction += x * y;
    for value in [a, b, c, d, e, f, g, h, fraction.to_bits(), x.to_bits(), y.to_bits()] {
        sum = sum.rotate_left(7) ^ value;
    }
    black_box(locals).iter().fold(sum, |sum, &value| sum.wrapping_mul(31).wrapping_add(value))
}

#[test]
fn integers_and_floats_in_flight_survive_suspensions_among_many_coroutines() {
    const N: u64 = 64;
    // Each alone, first: what the sums are to be.
    let results: Rc<RefCell<Vec<u64>>> = Rc::new(RefCell::new(vec![0; N as usize]));
    let make = |i: u64| {
        let results = results.clone();
        coroutine(move || {
            let mut sum = 0;
            for round in 0..20 {
                sum ^= yield_deep((i + round) % 23, i * 1000 + round);
            }
            results.borrow_mut()[i as usize] = sum;
        })
    };
    for i in 0..N {
        let co = make(i);
        while !co.is_finished() {
            co.enter();
        }
    }
    let want = results.replace(vec![0; N as usize]);
    // Then all in turn, in a different order each time.
    let all: Vec<_> = (0..N).map(make).collect();
    for round in 0..=20 {
        for i in 0..N {
            all[((i * 37 + round * 11) % N) as usize].enter();
        }
    }
    assert!(all.iter().all(Coroutine::is_finished));
    assert_eq!(*results.borrow(), want);
}

#[test]
fn stacks_are_aligned_at_the_start_and_after_a_suspension() {
    #[repr(align(16))]
    struct Sixteen([u8; 16]);
    #[repr(align(64))]
    struct Line([u8; 64]);
    // Its frame is aligned as the ABI promises: this function doesn't align it anew, as one with a larger alignment
    // does.
    #[inline(never)]
    fn check() {
        let sixteen = black_box(Sixteen([1; 16]));
        assert!((black_box(&raw const sixteen).addr()).is_multiple_of(16));
        assert_eq!(sixteen.0[15], 1);
    }
    #[inline(never)]
    fn check_more() {
        let line = black_box(Line([2; 64]));
        assert!((black_box(&raw const line).addr()).is_multiple_of(64));
        assert_eq!(line.0[63], 2);
        // Formatting a float goes through code that the compiler vectorises.
        assert_eq!(format!("{:.3}", black_box(2.5f64)), "2.500");
    }
    // Enough of them for every colour of a stack.
    let all: Vec<_> = (0..100)
        .map(|_| {
            coroutine(|| {
                check();
                check_more();
                yield_now();
                check();
                check_more();
            })
        })
        .collect();
    for _ in 0..2 {
        all.iter().for_each(Coroutine::enter);
    }
    assert!(all.iter().all(Coroutine::is_finished));
}

#[test]
fn small_large_and_overaligned_closures_arrive_whole() {
    #[repr(align(256))]
    struct Aligned(u64);
    let sum = Rc::new(Cell::new(0u64));
    let (small, exact, large, aligned) = (sum.clone(), sum.clone(), sum.clone(), sum.clone());
    let (words, bytes, line) = ([1u64, 2, 3], [7u8; 4096], Aligned(1_000_000));
    let all = [
        coroutine(move || small.set(small.get() + 1)),
        coroutine(move || exact.set(exact.get() + words.iter().sum::<u64>())),
        coroutine(move || large.set(large.get() + bytes.iter().map(|&b| u64::from(b)).sum::<u64>())),
        coroutine(move || {
            let line = black_box(line);
            assert!((&raw const line).addr().is_multiple_of(256));
            aligned.set(aligned.get() + line.0);
        }),
    ];
    all.iter().for_each(Coroutine::enter);
    assert_eq!(sum.get(), 1 + 6 + 7 * 4096 + 1_000_000);
}

// ---- wakes ----------------------------------------------------------------------------------------------------------

/// A parked coroutine that logs its name when it is woken, and then does something.
fn parked(log: &Rc<RefCell<Vec<&'static str>>>, name: &'static str, then: impl FnOnce() + 'static) -> Coroutine {
    let log = log.clone();
    let co = coroutine(move || {
        park::park();
        log.borrow_mut().push(name);
        then();
    });
    co.enter();
    co
}

#[test]
fn woken_coroutines_run_in_order_of_the_wakes_and_children_first() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let d = parked(&log, "D", || {});
    let wake_d = d.waker();
    let b = parked(&log, "B", move || {
        wake_d.wake();
        yield_now();
    });
    let c = parked(&log, "C", || {});
    let (wake_b, wake_c, said) = (b.waker(), c.waker(), log.clone());
    let x = coroutine(move || {
        wake_b.wake();
        wake_c.wake();
        said.borrow_mut().push("X goes on");
        yield_now();
    });
    x.enter();
    assert_order(&log.borrow(), &["X goes on", "B", "D", "C"]);
    assert!(!x.is_finished() && !b.is_finished() && c.is_finished() && d.is_finished());
}

#[test]
fn what_a_coroutine_woke_runs_also_when_it_ends_parks_or_panics() {
    for how in ["ends", "parks", "panics"] {
        let log = Rc::new(RefCell::new(Vec::new()));
        let woken = parked(&log, "woken", || {});
        let waker = woken.waker();
        let co = coroutine(move || {
            waker.wake();
            match how {
                "ends" => {}
                "parks" => park::park(),
                _ => panic!("on purpose"),
            }
        });
        let result = catch_unwind(AssertUnwindSafe(|| co.enter()));
        assert_eq!(result.is_err(), how == "panics");
        assert!(woken.is_finished(), "{how}");
    }
}

#[test]
fn a_coroutine_that_is_woken_twice_runs_once() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let woken = parked(&log, "woken", park::park);
    let waker = woken.waker();
    coroutine(move || {
        waker.wake_by_ref();
        waker.wake_by_ref();
        waker.wake();
    })
    .enter();
    assert_order(&log.borrow(), &["woken"]);
    assert!(!woken.is_finished());
}

#[test]
fn two_coroutines_that_wake_each_other_25000_times_need_constant_stack() {
    // A loop that recursed would need megabytes.
    let worker = thread::Builder::new().stack_size(64 << 10).spawn(|| {
        const ROUNDS: u32 = 25_000;
        let wakers: Rc<RefCell<[Option<Waker>; 2]>> = Rc::default();
        let counts: Rc<[Cell<u32>; 2]> = Rc::default();
        let make = |me: usize| {
            let (wakers, counts) = (wakers.clone(), counts.clone());
            coroutine(move || {
                for _ in 0..ROUNDS {
                    counts[me].set(counts[me].get() + 1);
                    park::park();
                    let other = wakers.borrow()[1 - me].clone().expect("made");
                    other.wake();
                }
            })
        };
        let (a, b) = (make(0), make(1));
        *wakers.borrow_mut() = [Some(a.waker()), Some(b.waker())];
        a.enter();
        b.enter();
        assert_eq!([counts[0].get(), counts[1].get()], [1, 1]);
        // One enter runs the whole conversation.
        a.enter();
        assert_eq!([counts[0].get(), counts[1].get()], [ROUNDS, ROUNDS]);
        assert!(a.is_finished() && b.is_finished());
    });
    worker.expect("a thread").join().expect("no overflow");
}

#[test]
fn a_chain_of_10000_wakes_needs_constant_stack() {
    let worker = thread::Builder::new().stack_size(64 << 10).spawn(|| {
        let mut next: Option<Waker> = None;
        let mut all = Vec::new();
        for _ in 0..10_000 {
            let waker = next.take();
            let co = Builder::new().stack_size(1).create(move || {
                park::park();
                waker.inspect(Waker::wake_by_ref);
            });
            let co = co.expect("a stack");
            co.enter();
            next = Some(co.waker());
            all.push(co);
        }
        all.last().expect("many").enter();
        assert!(all.iter().all(Coroutine::is_finished));
    });
    worker.expect("a thread").join().expect("no overflow");
}

// ---- panics ---------------------------------------------------------------------------------------------------------

#[test]
fn a_panic_resurfaces_at_enter_with_its_payload_and_the_thread_goes_on() {
    let co = coroutine(|| {
        yield_now();
        panic_any(42u32);
    });
    co.enter();
    let payload = catch_unwind(AssertUnwindSafe(|| co.enter())).expect_err("panics");
    assert_eq!(payload.downcast_ref(), Some(&42u32));
    assert!(co.is_finished());
    assert!(!in_coroutine() && !thread::panicking());
    a_new_coroutine_runs_at_its_first_enter_and_a_recycled_one_has_no_memory_of_the_last();
}

#[test]
fn a_panic_passes_through_nested_coroutines_to_whoever_catches_it() {
    let caught = Rc::new(Cell::new(0));
    let inside = caught.clone();
    let outer = coroutine(move || {
        let middle = coroutine(|| {
            let inner = coroutine(|| panic_any(7i64));
            inner.enter();
        });
        let payload = catch_unwind(AssertUnwindSafe(|| middle.enter())).expect_err("panics");
        inside.set(*payload.downcast::<i64>().expect("the payload of the innermost"));
        yield_now();
    });
    outer.enter();
    assert_eq!(caught.get(), 7);
    assert!(!outer.is_finished());
}

#[test]
fn the_panic_of_a_woken_coroutine_resurfaces_at_the_enter_that_ran_it_after_all_have_run() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let b = parked(&log, "B", || panic_any("B's"));
    let c = parked(&log, "C", || panic_any("C's"));
    let d = parked(&log, "D", || {});
    let wakers = [b.waker(), c.waker(), d.waker()];
    let x = coroutine(move || {
        wakers.iter().for_each(Waker::wake_by_ref);
        yield_now();
    });
    let payload = catch_unwind(AssertUnwindSafe(|| x.enter())).expect_err("panics");
    assert_eq!(payload.downcast_ref(), Some(&"B's"), "the first one's");
    assert_order(&log.borrow(), &["B", "C", "D"]);
    assert!(b.is_finished() && c.is_finished() && d.is_finished());
    x.enter();
    assert!(x.is_finished());
}

#[test]
fn a_panic_after_a_suspension_inside_of_catch_unwind_is_caught_there() {
    let caught = Rc::new(Cell::new(0));
    let inside = caught.clone();
    let co = coroutine(move || {
        for round in 0..3 {
            let result = catch_unwind(|| {
                yield_now();
                panic_any(round);
            });
            let payload: Box<i32> = result.expect_err("panics").downcast().expect("a number");
            inside.set(inside.get() + *payload + 1);
            yield_now();
        }
    });
    while !co.is_finished() {
        co.enter();
    }
    assert_eq!(caught.get(), 1 + 2 + 3);
}

#[test]
fn panics_of_many_interleaved_coroutines_go_to_the_right_enters() {
    let all: Vec<_> = (0..100usize)
        .map(|i| {
            coroutine(move || {
                for _ in 0..i % 5 {
                    yield_now();
                }
                panic_any(i);
            })
        })
        .collect();
    let mut ended = 0;
    for _ in 0..5 {
        for (i, co) in all.iter().enumerate().filter(|(_, co)| !co.is_finished()) {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| co.enter())) {
                assert_eq!(payload.downcast_ref(), Some(&i));
                ended += 1;
            }
        }
    }
    assert_eq!(ended, all.len());
}

// ---- misuse ---------------------------------------------------------------------------------------------------------

/// Asserts that a message names the coroutine, where it was created, and what was wrong.
fn assert_names(message: &str, location: &Location<'_>, what: &str) {
    assert!(message.contains("coroutine \"the culprit\""), "{message}");
    assert!(message.contains(&format!("{}:{}", location.file(), location.line())), "{message}");
    assert!(message.contains(what), "{message}");
}

/// A named coroutine, and where it was created.
#[track_caller]
fn culprit(f: impl FnOnce() + 'static) -> (Coroutine, &'static Location<'static>) {
    let co = Builder::new().name("the culprit").create(f).expect("a stack");
    (co, Location::caller())
}

#[test]
fn entering_a_coroutine_from_within_is_refused_by_name_and_it_goes_on() {
    let this: Shared = Rc::default();
    let message = Rc::new(RefCell::new(String::new()));
    let (inside, heard) = (this.clone(), message.clone());
    let (co, location) = culprit(move || {
        *heard.borrow_mut() = message_of(|| enter_shared(&inside));
        yield_now();
    });
    *this.borrow_mut() = Some(co);
    enter_shared(&this);
    assert_names(&message.borrow(), location, "was entered while it is entered already");
    enter_shared(&this);
    assert!(this.take().expect("made").is_finished());
}

#[test]
fn entering_a_coroutine_further_up_the_chain_is_refused_by_name() {
    let this: Shared = Rc::default();
    let message = Rc::new(RefCell::new(String::new()));
    let (inside, heard) = (this.clone(), message.clone());
    let (co, location) = culprit(move || {
        let inner = coroutine(move || *heard.borrow_mut() = message_of(|| enter_shared(&inside)));
        coroutine(move || inner.enter()).enter();
    });
    *this.borrow_mut() = Some(co);
    enter_shared(&this);
    assert_names(&message.borrow(), location, "was entered while it is entered already");
    assert!(this.take().expect("made").is_finished());
}

#[test]
fn entering_a_coroutine_after_its_end_is_refused_by_name_also_when_its_block_is_in_use_again() {
    let (co, location) = culprit(|| {});
    co.enter();
    assert_names(&message_of(|| co.enter()), location, "was entered after its end");
    let others: Vec<_> = (0..4).map(|_| coroutine(yield_now)).collect();
    others.iter().for_each(Coroutine::enter);
    assert_names(&message_of(|| co.enter()), location, "was entered after its end");
    assert!(others.iter().all(|other| !other.is_finished()), "no stranger was entered");
}

#[test]
fn entering_a_coroutine_after_its_panic_is_refused_by_name() {
    let (co, location) = culprit(|| panic!("on purpose"));
    assert_eq!(message_of(|| co.enter()), "on purpose");
    assert_names(&message_of(|| co.enter()), location, "was entered after its end");
}

#[test]
fn an_unnamed_coroutine_is_called_by_its_place_of_creation() {
    let (co, location) = (coroutine_here(|| {}), Location::caller());
    #[track_caller]
    fn coroutine_here(f: impl FnOnce() + 'static) -> Coroutine {
        Coroutine::new(f).expect("a stack")
    }
    co.enter();
    let message = message_of(|| co.enter());
    assert!(message.starts_with("unnamed coroutine (created at tests/coroutine.rs:"), "{message}");
    assert_eq!(location.file(), file!());
}

#[test]
fn yielding_outside_of_a_coroutine_is_refused() {
    assert_eq!(message_of(yield_now), "yield_now called outside of a coroutine");
    let elsewhere = thread::spawn(|| message_of(yield_now)).join().expect("caught");
    assert_eq!(elsewhere, "yield_now called outside of a coroutine");
    let co = coroutine(yield_now);
    co.enter();
    assert_eq!(message_of(yield_now), "yield_now called outside of a coroutine");
}

// ---- ends before time -----------------------------------------------------------------------------------------------

#[test]
fn what_a_coroutine_owns_is_dropped_once_however_it_ends() {
    for how in ["never started", "suspended", "parked", "finished", "panicked"] {
        let (captured, local) = (Count::default(), Count::default());
        let (capture, make_local) = (captured.guard(), local.clone());
        let co = coroutine(move || {
            let _capture = capture;
            let _local = make_local.guard();
            match how {
                "suspended" => yield_now(),
                "parked" => park::park(),
                "panicked" => panic!("on purpose"),
                _ => {}
            }
        });
        if how != "never started" {
            let _ = catch_unwind(AssertUnwindSafe(|| co.enter()));
        }
        let suspended = ["suspended", "parked"].contains(&how);
        assert_eq!(co.is_finished(), !suspended && how != "never started", "{how}");
        let early = u32::from(co.is_finished());
        assert_eq!(captured.get(), early, "{how}, before the drop of the handle");
        drop(co);
        assert_eq!(captured.get(), 1, "{how}");
        assert_eq!(local.get(), u32::from(how != "never started"), "{how}");
    }
}

#[test]
fn a_forced_unwind_has_its_own_payload_and_other_ends_unwind_nothing() {
    let seen = Rc::new(Cell::new(false));
    let inside = seen.clone();
    let co = coroutine(move || {
        let payload = catch_unwind(yield_now).expect_err("is dropped while suspended");
        inside.set(payload.is::<Cancelled>());
        panic::resume_unwind(payload);
    });
    co.enter();
    drop(co);
    assert!(seen.get());

    struct Unwinding(Rc<Cell<Option<bool>>>);
    impl Drop for Unwinding {
        fn drop(&mut self) {
            self.0.set(Some(thread::panicking()));
        }
    }
    for start in [false, true] {
        let unwinding = Rc::new(Cell::new(None));
        let guard = Unwinding(unwinding.clone());
        let co = coroutine(move || drop(guard));
        if start {
            co.enter();
        }
        drop(co);
        assert_eq!(unwinding.get(), Some(false));
    }
}

#[test]
fn no_forced_unwind_and_no_ordinary_end_calls_the_panic_hook() {
    // In a child, since the hook belongs to the whole process.
    let exit = child("", |_| {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        panic::set_hook(Box::new(|_| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        }));
        drop(coroutine(|| {}));
        let finished = coroutine(|| {});
        finished.enter();
        drop(finished);
        let suspended = coroutine(yield_now);
        suspended.enter();
        drop(suspended);
        let stubborn = coroutine(|| {
            for _ in 0..50 {
                let _ = catch_unwind(park::park);
            }
        });
        stubborn.enter();
        drop(stubborn);
        let calls = CALLS.load(Ordering::Relaxed);
        let _ = panic::take_hook();
        assert_eq!(calls, 0);
    });
    exit.assert_success();
}

#[test]
fn a_body_that_swallows_its_unwind_and_returns_has_ended() {
    let swallowed = Rc::new(Cell::new(0));
    let inside = swallowed.clone();
    let drops = Count::default();
    let guard = drops.guard();
    let co = coroutine(move || {
        let _guard = guard;
        // Fewer than the hundred at which it would be given up.
        for _ in 0..99 {
            if catch_unwind(yield_now).is_err() {
                inside.set(inside.get() + 1);
            }
        }
    });
    co.enter();
    co.enter();
    drop(co);
    assert_eq!(swallowed.get(), 98);
    assert_eq!(drops.get(), 1);
}

#[test]
fn a_new_panic_during_a_forced_unwind_resurfaces_at_the_drop_of_the_handle() {
    let drops = Count::default();
    let guard = drops.guard();
    let co = coroutine(move || {
        let _guard = guard;
        let _ = catch_unwind(yield_now);
        panic!("anew");
    });
    co.enter();
    assert_eq!(message_of(|| drop(co)), "anew");
    assert_eq!(drops.get(), 1);
    a_new_coroutine_runs_at_its_first_enter_and_a_recycled_one_has_no_memory_of_the_last();
}

#[test]
fn a_body_that_swallows_every_unwind_is_given_up_and_counted_as_leaked() {
    let exit = child("", |_| {
        within(LIMIT, || {
            let before = pool::stats();
            for n in 1..=3 {
                let swallowed = Rc::new(Cell::new(0u32));
                let inside = swallowed.clone();
                let co = coroutine(move || {
                    loop {
                        let _ = catch_unwind(if n == 2 { park::park } else { yield_now });
                        inside.set(inside.get() + 1);
                    }
                });
                co.enter();
                drop(co);
                assert_eq!(swallowed.get(), 100);
                let after = pool::stats();
                assert_eq!(after.leaked - before.leaked, n);
                assert_eq!(after.live, before.live, "it counts as ended");
            }
            // Its stack is not used again.
            let ran = Rc::new(Cell::new(0));
            for _ in 0..200 {
                let inside = ran.clone();
                coroutine(move || {
                    dirty_stack(16);
                    inside.set(inside.get() + 1);
                })
                .enter();
            }
            assert_eq!(ran.get(), 200);
        });
    });
    exit.assert_success();
}

#[test]
fn a_handle_that_is_dropped_from_within_unwinds_its_coroutine_at_the_next_suspension() {
    for how in ["yield", "park"] {
        let this: Shared = Rc::default();
        let drops = Count::default();
        let (inside, guard) = (this.clone(), drops.guard());
        let reached = Rc::new(Cell::new(0));
        let at = reached.clone();
        let co = coroutine(move || {
            let _guard = guard;
            park::park();
            drop(inside.take());
            at.set(1);
            if how == "yield" {
                yield_now()
            } else {
                park::park()
            }
            at.set(2);
        });
        co.enter();
        let waker = co.waker();
        *this.borrow_mut() = Some(co);
        // It is entered as one that another coroutine woke, so that no one else holds on to the handle.
        coroutine(move || waker.wake()).enter();
        assert!(this.borrow().is_none());
        assert_eq!((reached.get(), drops.get()), (1, 1), "{how}");
    }
}

#[test]
fn drop_guards_of_an_unwound_coroutine_may_run_coroutines_of_their_own() {
    struct Nested(Rc<Cell<u32>>);
    impl Drop for Nested {
        fn drop(&mut self) {
            let count = self.0.clone();
            let co = coroutine(move || {
                count.set(count.get() + 1);
                yield_now();
                count.set(count.get() + 1);
            });
            co.enter();
            co.enter();
            assert!(co.is_finished());
            let suspended = coroutine(yield_now);
            suspended.enter();
        }
    }
    let count = Rc::new(Cell::new(0));
    let guard = Nested(count.clone());
    let co = coroutine(move || {
        let _guard = guard;
        yield_now();
    });
    co.enter();
    drop(co);
    assert_eq!(count.get(), 2);
    assert!(!thread::panicking());
}

/// Enters `left` coroutines, each from within the one before, and suspends the innermost first, then all on the way
/// out.
fn descend(left: usize, depth: &Rc<Cell<usize>>, drops: &Count) {
    let _guard = drops.guard();
    depth.set(depth.get() + 1);
    if left > 1 {
        let (inner_depth, inner_drops) = (depth.clone(), drops.clone());
        let inner = Builder::new().stack_size(1).create(move || descend(left - 1, &inner_depth, &inner_drops));
        let inner = inner.expect("a stack");
        inner.enter();
        yield_now();
        inner.enter();
        assert!(inner.is_finished());
    } else {
        yield_now();
    }
    depth.set(depth.get() - 1);
}

#[test]
fn coroutines_nest_10000_deep_and_come_back() {
    let (depth, drops) = (Rc::new(Cell::new(0)), Count::default());
    let (inside, guards) = (depth.clone(), drops.clone());
    let co = coroutine(move || descend(10_000, &inside, &guards));
    co.enter();
    assert_eq!((depth.get(), drops.get()), (10_000, 0));
    co.enter();
    assert_eq!((depth.get(), drops.get()), (0, 10_000));
    assert!(co.is_finished());
}

#[test]
fn a_suspended_chain_of_10000_nested_coroutines_is_dropped_in_constant_stack() {
    let worker = thread::Builder::new().stack_size(128 << 10).spawn(|| {
        let (depth, drops) = (Rc::new(Cell::new(0)), Count::default());
        let (inside, guards) = (depth.clone(), drops.clone());
        let co = coroutine(move || descend(10_000, &inside, &guards));
        co.enter();
        assert_eq!((depth.get(), drops.get()), (10_000, 0));
        drop(co);
        assert_eq!(drops.get(), 10_000);
        assert!(!thread::panicking());
    });
    worker.expect("a thread").join().expect("no overflow");
}

// ---- builder --------------------------------------------------------------------------------------------------------

#[test]
fn nonsense_stack_sizes_are_errors_and_small_ones_are_rounded_up() {
    for size in [0, (1 << 30) + 1, isize::MAX as usize, usize::MAX] {
        let error = Builder::new().stack_size(size).create(|| ()).expect_err("too small or too large");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{size}: {error}");
        assert!(error.to_string().contains(&size.to_string()), "{error}");
        let unstarted: Result<Unstarted, _> = Builder::new().stack_size(size).create_unstarted(|| ());
        assert_eq!(unstarted.expect_err("as above").kind(), ErrorKind::InvalidInput);
    }
    let page = common::page_size();
    for size in [1, page - 1, page, page + 1, 65536, 65537] {
        let co = Builder::new().stack_size(size).create(|| {
            dirty_stack(32);
            println!("printed on a small stack: {:.2} {:?}", black_box(0.1f64), black_box("text"));
        });
        co.expect("a small stack").enter();
    }
}

#[test]
fn a_stack_has_the_size_that_was_asked_for() {
    for (size, usable) in [(128 << 10, 110), (1 << 20, 1000), (8 << 20, 8100)] {
        let co = Builder::new().stack_size(size).create(move || dirty_stack(usable)).expect("a stack");
        co.enter();
        assert!(co.is_finished());
    }
    // The default: 256 KiB.
    coroutine(|| dirty_stack(235)).enter();
}

#[test]
fn the_largest_stack_is_to_be_had() {
    let co = Builder::new().stack_size(1 << 30).create(|| dirty_stack(2000)).expect("address space");
    co.enter();
    drop(co);
    pool::trim();
}

#[test]
fn names_and_debug_output_tell_coroutines_apart() {
    let co = Builder::new().name("flush").create(yield_now).expect("a stack");
    assert_eq!(co.name(), Some("flush"));
    let text = format!("{co:?}");
    assert!(text.contains("flush") && text.contains("coroutine.rs"), "{text}");
    co.enter();
    co.enter();
    assert_eq!(co.name(), Some("flush"), "also after its end");
    assert_eq!(coroutine(|| ()).name(), None);
    let builder = Coroutine::builder().name("twice").stack_size(1);
    let twins = [builder.clone().create(|| ()), builder.create(|| ())];
    for twin in twins {
        assert_eq!(twin.expect("a stack").name(), Some("twice"));
    }
}

// ---- threads --------------------------------------------------------------------------------------------------------

#[test]
fn an_unstarted_coroutine_runs_on_the_thread_that_binds_it() {
    let ran_on = Arc::new(Mutex::new(Vec::new()));
    let inside = ran_on.clone();
    let unstarted = Builder::new().name("traveller").create_unstarted(move || {
        inside.lock().expect("not poisoned").push(thread::current().id());
        yield_now();
        inside.lock().expect("not poisoned").push(thread::current().id());
    });
    let unstarted = unstarted.expect("a stack");
    let there = thread::spawn(move || {
        let co = unstarted.bind();
        assert!(!co.is_started());
        assert_eq!(co.name(), Some("traveller"));
        co.enter();
        co.enter();
        assert!(co.is_finished());
        thread::current().id()
    });
    let there = there.join().expect("no panic");
    assert_eq!(*ran_on.lock().expect("not poisoned"), [there, there]);
}

#[test]
fn an_unstarted_coroutine_is_dropped_with_its_closure_on_whatever_thread() {
    struct DroppedOn(Arc<Mutex<Option<thread::ThreadId>>>);
    impl Drop for DroppedOn {
        fn drop(&mut self) {
            *self.0.lock().expect("not poisoned") = Some(thread::current().id());
        }
    }
    let dropped_on = Arc::new(Mutex::new(None));
    let guard = DroppedOn(dropped_on.clone());
    let unstarted = Builder::new().create_unstarted(move || drop(guard)).expect("a stack");
    let there = thread::spawn(move || {
        drop(unstarted);
        thread::current().id()
    });
    let there = there.join().expect("no panic");
    assert_eq!(*dropped_on.lock().expect("not poisoned"), Some(there));
}

#[test]
fn unstarted_coroutines_cross_threads_both_ways_under_load() {
    within(LIMIT, || {
        let ran = Arc::new(AtomicUsize::new(0));
        let make = |n: usize| {
            let ran = ran.clone();
            let unstarted = Builder::new().create_unstarted(move || {
                ran.fetch_add(1, Ordering::Relaxed);
                if n.is_multiple_of(3) {
                    yield_now();
                    ran.fetch_add(1, Ordering::Relaxed);
                }
            });
            unstarted.expect("a stack")
        };
        let run = |unstarted: Unstarted| {
            let co = unstarted.bind();
            while !co.is_finished() {
                co.enter();
            }
        };
        let (to_b, at_b) = std::sync::mpsc::sync_channel::<Unstarted>(64);
        let (to_a, at_a) = std::sync::mpsc::sync_channel::<Unstarted>(64);
        thread::scope(|scope| {
            scope.spawn(move || {
                for unstarted in at_b {
                    run(unstarted);
                    let _ = to_a.send(make(1));
                }
            });
            scope.spawn(move || at_a.into_iter().for_each(run));
            for n in 0..9000 {
                to_b.send(make(n)).expect("the other thread is there");
            }
            drop(to_b);
        });
        assert_eq!(ran.load(Ordering::Relaxed), 9000 + 3000 + 9000);
    });
}

#[test]
fn a_payload_of_a_cancel_that_was_for_somebody_else_is_passed_on_like_any_other() {
    let context = aioco::AioContext::new().unwrap();
    let handle = context.spawn(park::park).unwrap();
    handle.cancel();
    let payload = handle.join().unwrap_err();
    let co = Coroutine::new(|| panic::resume_unwind(payload)).unwrap();
    let payload = catch_unwind(AssertUnwindSafe(|| co.enter())).unwrap_err();
    assert!(payload.is::<Cancelled>());
}
