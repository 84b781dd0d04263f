//! What may end the process, and what must not: overflows, panics and backtraces on small stacks, suspension while
//! unwinding. Each in a child.

mod common;

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{mem, panic, ptr, thread};

use aioco::coroutine::{Builder, pool};
use aioco::{Coroutine, fd, park, yield_now};
use common::{OnDrop, child, child_with, context, coroutine, dirty_stack, message_of, page_size, sockets};

/// The smallest size that the builder accepts.
const SMALLEST: usize = 1;

fn small(f: impl FnOnce() + 'static) -> Coroutine {
    Builder::new().name("guarded").stack_size(SMALLEST).create(f).expect("a stack")
}

// ---- overflow -------------------------------------------------------------------------------------------------------

const CANARY: u8 = 0xC5;

/// Where the neighbours' canaries are, and how long each is.
static CANARIES: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
const CANARY_LEN: usize = 2048;
/// Where the overflowing coroutine's stack is.
static OVERFLOWING: AtomicUsize = AtomicUsize::new(0);

/// Says whether the canaries are intact and whether the fault was close below the stack, then dies as without a
/// handler.
extern "C" fn report(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let intact = CANARIES.iter().all(|canary| {
        let canary = canary.load(Ordering::Relaxed);
        // SAFETY: the canaries live on the stacks of suspended coroutines.
        (0..CANARY_LEN).all(|i| unsafe { canary.add(i).read_volatile() } == CANARY)
    });
    // SAFETY: the kernel passes a valid siginfo for a SIGSEGV.
    let address = unsafe { (*info).si_addr() }.addr();
    let stack = OVERFLOWING.load(Ordering::Relaxed);
    let inside = address < stack && stack - address <= (256 << 10) + page_size();
    let message = match (intact, inside) {
        (true, true) => "canaries intact, fault inside of the slot\n",
        (true, false) => "canaries intact, fault elsewhere\n",
        (false, _) => "canaries damaged\n",
    };
    // SAFETY: a valid buffer; write and signal may be called in a handler.
    unsafe {
        libc::write(2, message.as_ptr().cast(), message.len());
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
    }
}

fn report_faults() {
    // SAFETY: a valid action; the handler calls what a handler may.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = report as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut());
    }
}

/// Recurses until something stops it.
#[inline(never)]
fn overflow(depth: u64) -> u64 {
    let frame = black_box([depth; 32]);
    let below = if black_box(true) { overflow(depth + 1) } else { 0 };
    below + black_box(frame)[1]
}

/// A suspended coroutine with a canary near the start of its stack.
fn with_canary(index: usize) -> Coroutine {
    let co = coroutine(move || {
        let mut canary = black_box([CANARY; CANARY_LEN]);
        CANARIES[index].store(canary.as_mut_ptr(), Ordering::Relaxed);
        yield_now();
        black_box(&canary);
    });
    co.enter();
    co
}

#[test]
fn a_stack_overflow_dies_on_the_guard_and_leaves_the_neighbours_alone() {
    for history in ["fresh", "1000 trips through the pool", "trimmed", "its neighbours trimmed"] {
        let exit = child(history, |history| {
            report_faults();
            match history {
                "1000 trips through the pool" => {
                    for _ in 0..1000 {
                        let three = [(); 3].map(|()| coroutine(|| dirty_stack(100)));
                        three.iter().for_each(Coroutine::enter);
                    }
                }
                "trimmed" => {
                    let three = [(); 3].map(|()| coroutine(|| dirty_stack(100)));
                    // One more keeps the slab, so that the slots are used again.
                    let fourth = coroutine(yield_now);
                    fourth.enter();
                    three.iter().for_each(Coroutine::enter);
                    pool::trim();
                    mem::forget(fourth);
                }
                "its neighbours trimmed" => {
                    let three = [(); 3].map(|()| coroutine(yield_now));
                    three.iter().for_each(Coroutine::enter);
                    let [below, middle, above] = three;
                    below.enter();
                    above.enter();
                    pool::trim();
                    middle.enter();
                }
                _ => {}
            }
            let below = with_canary(0);
            let middle = coroutine(|| {
                let here = 0u8;
                OVERFLOWING.store((&raw const here).addr(), Ordering::Relaxed);
                overflow(0);
            });
            // Its stack lies between the two others', whichever way they were handed out.
            let above = with_canary(1);
            middle.enter();
            drop((below, above));
        });
        exit.assert_killed_by(libc::SIGSEGV);
        exit.assert_says("canaries intact, fault inside of the slot");
    }
}

#[test]
fn a_stack_overflow_dies_alike_on_a_std_thread_and_on_a_raw_one() {
    for from in ["the thread of a test", "a std thread", "a raw thread", "a nested coroutine", "a context"] {
        let exit = child(from, |from| {
            extern "C" fn raw(_: *mut c_void) -> *mut c_void {
                coroutine(|| _ = overflow(0)).enter();
                ptr::null_mut()
            }
            match from {
                "a std thread" => {
                    let _ = thread::spawn(|| coroutine(|| _ = overflow(0)).enter()).join();
                }
                "a raw thread" => {
                    let mut id = 0;
                    // SAFETY: valid arguments; the thread uses nothing of ours.
                    unsafe {
                        libc::pthread_create(&mut id, ptr::null(), raw, ptr::null_mut());
                        libc::pthread_join(id, ptr::null_mut());
                    }
                }
                "a nested coroutine" => coroutine(|| coroutine(|| _ = overflow(0)).enter()).enter(),
                "a context" => context().block_on(|| _ = overflow(0)),
                _ => coroutine(|| _ = overflow(0)).enter(),
            }
            unreachable!("it went on after an overflow");
        });
        exit.assert_killed_by(libc::SIGSEGV);
    }
}

#[test]
fn a_frame_larger_than_the_stack_faults_and_jumps_over_no_guard() {
    let exit = child("", |_| {
        #[inline(never)]
        fn large_frame() -> u8 {
            let frame = black_box([1u8; 256 << 10]);
            frame[black_box(7)]
        }
        report_faults();
        let below = with_canary(0);
        let middle = Builder::new().stack_size(64 << 10).create(|| {
            let here = 0u8;
            OVERFLOWING.store((&raw const here).addr(), Ordering::Relaxed);
            black_box(large_frame());
        });
        let above = with_canary(1);
        middle.expect("a stack").enter();
        drop((below, above));
    });
    exit.assert_killed_by(libc::SIGSEGV);
    exit.assert_says("canaries intact, fault inside of the slot");
}

#[test]
fn the_page_below_every_stack_faults_also_after_trims() {
    // Asks the kernel, by a system call that reads from the page, instead of dying.
    let faults = |address: usize| {
        let mut pipe = [0; 2];
        // SAFETY: a valid place for the result; the kernel checks the address of the buffer.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let written = libc::write(pipe[1], ptr::without_provenance(address), 1);
            let error = std::io::Error::last_os_error().raw_os_error();
            pipe.into_iter().for_each(|fd| assert_eq!(libc::close(fd), 0));
            assert!(written == 1 || error == Some(libc::EFAULT));
            written != 1
        }
    };
    const SIZE: usize = 64 << 10;
    for _ in 0..3 {
        let bases: Rc<Cell<usize>> = Rc::default();
        let mut all = Vec::new();
        for _ in 0..100 {
            let base = bases.clone();
            let co = Builder::new().stack_size(SIZE).create(move || {
                let here = 0u8;
                base.set((&raw const here).addr());
                yield_now();
            });
            let co = co.expect("a stack");
            co.enter();
            // Downwards from the coroutine's frame the pages can be read, up to the guard, within the slot.
            let top = bases.get() & !(page_size() - 1);
            let readable = (0..).take_while(|n| !faults(top - n * page_size())).count();
            assert!(readable <= SIZE / page_size(), "{readable} pages");
            assert!(readable >= SIZE / page_size() - 1, "{readable} pages");
            all.push(co);
        }
        drop(all.split_off(50));
        pool::trim();
    }
}

// ---- panics and backtraces ------------------------------------------------------------------------------------------

#[test]
fn a_panic_with_a_backtrace_and_formatted_output_fits_on_the_smallest_stack() {
    for backtrace in ["1", "full"] {
        let exit = child_with(backtrace, &[("RUST_BACKTRACE", backtrace)], |_| {
            for how in 0..3 {
                let caught = Rc::new(Cell::new(false));
                let inside = caught.clone();
                let co = small(move || {
                    println!("{:.3} {:>20} {:?}", black_box(1.0f64 / 3.0), black_box("text"), black_box([1.5f32; 3]));
                    let panics = || {
                        let pi = black_box(std::f64::consts::PI);
                        panic!("a panic with {pi:.17} and {:?}", Some(how));
                    };
                    if how == 0 {
                        panics();
                    }
                    inside.set(message_of(panics).starts_with("a panic with 3.14"));
                    if how == 2 {
                        yield_now();
                        panics();
                    }
                });
                if how == 2 {
                    co.enter();
                }
                let result = catch_unwind(AssertUnwindSafe(|| co.enter()));
                assert_eq!((result.is_err(), caught.get()), (how != 1, how != 0));
            }
        });
        exit.assert_success();
        exit.assert_says("stack backtrace:");
        exit.assert_says("0.333");
    }
}

#[inline(never)]
fn a_frame_that_a_backtrace_shows(depth: usize) -> String {
    let text =
        if depth == 0 { Backtrace::force_capture().to_string() } else { a_frame_that_a_backtrace_shows(depth - 1) };
    black_box(text)
}

#[test]
fn a_backtrace_from_inside_ends_and_shows_the_caller() {
    for stack in ["fresh", "full of rubbish"] {
        let exit = child(stack, |stack| {
            if stack == "full of rubbish" {
                let all: Vec<_> = (0..3).map(|_| small(|| dirty_stack(50))).collect();
                all.iter().for_each(Coroutine::enter);
            }
            for depth in [0, 5] {
                let shared = Rc::new(Cell::new(String::new()));
                let inside = shared.clone();
                let co = small(move || {
                    let first = a_frame_that_a_backtrace_shows(depth);
                    yield_now();
                    inside.set(first + "second:\n" + &a_frame_that_a_backtrace_shows(depth));
                });
                co.enter();
                co.enter();
                let text = shared.take();
                let (first, second) = text.split_once("second:").expect("two of them");
                for trace in [first, second] {
                    let shown = trace.matches("a_frame_that_a_backtrace_shows").count();
                    assert!(shown > depth, "{trace}");
                    let frames = trace.lines().filter(|line| line.contains(": ")).count();
                    assert!(frames < 150, "{trace}");
                }
                // A panic at that depth walks the same frames.
                let co = small(|| panic!("at depth one"));
                assert_eq!(message_of(|| co.enter()), "at depth one");
            }
        });
        exit.assert_success();
    }
}

#[test]
fn backtraces_work_in_nested_coroutines_in_woken_ones_and_in_contexts() {
    let exit = child("", |_| {
        let shown = |text: &str| text.contains("a_frame_that_a_backtrace_shows");
        let seen = Rc::new(Cell::new(0));
        let inside = seen.clone();
        coroutine(move || {
            let count = inside.clone();
            let inner = coroutine(move || {
                park::park();
                count.set(count.get() + u32::from(shown(&a_frame_that_a_backtrace_shows(2))));
            });
            inner.enter();
            inner.waker().wake();
            yield_now();
        })
        .enter();
        assert_eq!(seen.get(), 1);
        let context = context();
        let text = context.spawn(|| a_frame_that_a_backtrace_shows(1)).expect("a stack").join().expect("no panic");
        assert!(shown(&text), "{text}");
        let text = context.block_on(|| a_frame_that_a_backtrace_shows(1));
        assert!(shown(&text), "{text}");
    });
    exit.assert_success();
}

#[test]
fn the_panic_hook_runs_on_the_coroutine_and_sees_its_frames() {
    let exit = child_with("", &[("RUST_BACKTRACE", "1")], |_| {
        #[inline(never)]
        fn culprit(n: u32) {
            assert!(black_box(n) != 3, "number {n}");
        }
        let co = small(|| (0..5).for_each(culprit));
        assert_eq!(message_of(|| co.enter()), "number 3");
    });
    exit.assert_success();
    exit.assert_says("crash::the_panic_hook_runs_on_the_coroutine_and_sees_its_frames");
    exit.assert_says("culprit");
}

// ---- suspending while unwinding -------------------------------------------------------------------------------------

#[test]
fn suspending_in_a_drop_guard_while_unwinding_is_refused_by_name_and_aborts() {
    let unwound_by = ["a panic", "the drop of its handle", "the end of its context", "a cancel"];
    let suspends_by = ["yield_now", "park", "park_until", "join", "join at once", "wait_readable"];
    let combinations = unwound_by.iter().flat_map(|by| suspends_by.iter().map(move |how| format!("{by}, {how}")));
    for combination in combinations {
        let exit = child(&combination, |combination| {
            let (unwound_by, how) = combination.split_once(", ").expect("two parts");
            let how = how.to_owned();
            let context = context();
            let home = context.home();
            let suspend = move || match how.as_str() {
                "yield_now" => yield_now(),
                "park" => park::park(),
                "park_until" => park::park_until(Instant::now() + Duration::from_secs(1)),
                "join" => {
                    let other = aioco::task::spawn_on(&home, Builder::new(), park::park);
                    let _ = other.expect("a stack").join();
                }
                "join at once" => {
                    let other = aioco::task::spawn_on(&home, Builder::new(), || ());
                    let _ = other.expect("a stack").join();
                }
                _ => {
                    let (ours, _theirs) = sockets();
                    fd::wait_readable(ours).expect("a wait");
                }
            };
            let builder = Builder::new().name("guarded");
            match unwound_by {
                "a panic" => {
                    let body = move || {
                        let _guard = OnDrop(suspend);
                        panic!("on purpose");
                    };
                    let _ = context.spawn_with(builder, body).expect("a stack").join();
                }
                "the drop of its handle" => {
                    let _home = aioco::coroutine::enter_home(context.home());
                    let body = move || {
                        let _guard = OnDrop(suspend);
                        park::park();
                    };
                    let co = builder.create(body).expect("a stack");
                    co.enter();
                    drop(co);
                }
                _ => {
                    let body = move || {
                        let _guard = OnDrop(suspend);
                        park::park();
                    };
                    let handle = context.spawn_with(builder, body).expect("a stack");
                    context.poll(false);
                    if unwound_by == "a cancel" {
                        handle.cancel();
                        let _ = handle.join();
                    }
                    drop(context);
                }
            }
            unreachable!("it suspended");
        });
        exit.assert_killed_by(libc::SIGABRT);
        exit.assert_says("coroutine \"guarded\" (created at tests/crash.rs:");
        exit.assert_says("tried to suspend while it is unwinding");
    }
}

#[test]
fn nobody_else_is_panicking_while_or_after_a_coroutine_panics() {
    let exit = child("", |_| {
        static LOCK: Mutex<u32> = Mutex::new(0);
        let seen = Rc::new(Cell::new(0));
        let inside = seen.clone();
        let other = Rc::new(coroutine(move || {
            loop {
                park::park();
                assert!(!thread::panicking());
                *LOCK.lock().expect("not poisoned") += 1;
                let own = catch_unwind(|| panic!("its own"));
                assert!(own.is_err());
                inside.set(inside.get() + 1);
            }
        }));
        other.enter();
        // Woken by a drop guard, it runs when the unwinding is over.
        let waker = other.waker();
        let panics = coroutine(move || {
            let _wake = OnDrop(|| waker.wake_by_ref());
            panic!("on purpose");
        });
        assert_eq!(message_of(|| panics.enter()), "on purpose");
        assert_eq!(seen.get(), 1);
        other.enter();
        assert_eq!((seen.get(), *LOCK.lock().expect("not poisoned")), (2, 2));
        // And it may be unwound while something else unwinds.
        let suspended = coroutine(yield_now);
        suspended.enter();
        let last = OnDrop(|| ());
        let result = catch_unwind(AssertUnwindSafe(move || {
            let _both = (suspended, last);
            panic!("outer");
        }));
        assert!(result.is_err() && !thread::panicking());
    });
    exit.assert_success();
}

#[test]
fn a_coroutine_that_is_entered_from_a_drop_guard_may_suspend() {
    let exit = child("", |_| {
        let count = Rc::new(Cell::new(0));
        let inside = count.clone();
        let co = Rc::new(coroutine(move || {
            for _ in 0..3 {
                inside.set(inside.get() + 1);
                yield_now();
            }
            // A panic of its own, which it catches, is no obstacle.
            assert!(catch_unwind(|| panic!("its own")).is_err());
            inside.set(10);
        }));
        let entered = co.clone();
        let result = catch_unwind(AssertUnwindSafe(move || {
            let _guard = OnDrop(|| (0..2).for_each(|_| entered.enter()));
            panic!("outer");
        }));
        assert!(result.is_err() && !thread::panicking());
        assert_eq!(count.get(), 2);
        // It goes on outside of the unwinding.
        co.enter();
        co.enter();
        assert_eq!(count.get(), 10);
        // The same from a coroutine that unwinds.
        let (count, inner_count) = (count.clone(), count.clone());
        let outer = coroutine(move || {
            let inner = coroutine(move || {
                inner_count.set(20);
                yield_now();
                inner_count.set(21);
            });
            let _guard = OnDrop(|| inner.enter());
            panic!("outer");
        });
        assert_eq!(message_of(|| outer.enter()), "outer");
        assert_eq!(count.get(), 20);
    });
    exit.assert_success();
}

#[test]
fn a_coroutine_with_borrows_that_refuses_to_be_unwound_aborts_with_a_message() {
    let exit = child("", |_| {
        let context = context();
        let home = aioco::coroutine::enter_home(context.home());
        let bad = coroutine(|| {
            park::park();
            panic!("in the loop");
        });
        bad.enter();
        drop(home);
        let waker = bad.waker();
        let borrowed = [1, 2, 3];
        context.block_on(|| {
            waker.wake();
            loop {
                let _ = catch_unwind(park::park);
                black_box(&borrowed);
            }
        });
    });
    exit.assert_killed_by(libc::SIGABRT);
    exit.assert_says("refuses to be unwound");
    exit.assert_says("tests/crash.rs:");
}

// ---- regressions ----------------------------------------------------------------------------------------------------

#[test]
fn a_coroutine_that_is_given_up_while_it_stands_in_a_queue_is_not_used_again() {
    for last in ["runs", "is dropped"] {
        let exit = child(last, |last| {
            let context = context();
            let home = aioco::coroutine::enter_home(context.home());
            let stubborn = coroutine(|| {
                loop {
                    let _ = catch_unwind(park::park);
                }
            });
            stubborn.enter();
            stubborn.waker().wake();
            drop(stubborn);
            assert_eq!(pool::stats().leaked, 1);
            drop(home);
            // The queue's entry is all that is left of it.
            if last == "runs" {
                context.poll(false);
            } else {
                drop(context);
            }
            let ran = Rc::new(Cell::new(0));
            for n in 1..=200 {
                let inside = ran.clone();
                coroutine(move || inside.set(inside.get() + 1)).enter();
                assert_eq!(ran.get(), n);
            }
            assert_eq!((pool::stats().leaked, pool::stats().live), (1, 0));
        });
        exit.assert_success();
    }
}

#[test]
fn a_coroutine_that_ends_the_one_it_borrows_from_sees_no_dangling_borrow() {
    let exit = child("", |_| {
        let context = context();
        let this: Rc<Cell<Option<Coroutine>>> = Rc::default();
        let own = this.clone();
        let co = coroutine(move || {
            let borrowed = [7u64; 64];
            let _ = aioco::aio::timeout(Duration::from_secs(1000), || {
                let alive = black_box(&borrowed);
                // The coroutine whose frame this is ends here, while this one runs.
                drop(own.take());
                dirty_stack(1);
                assert!(alive.iter().all(|&word| word == 7), "a dangling borrow");
                eprintln!("the borrow is intact");
            });
        });
        let home = aioco::coroutine::enter_home(context.home());
        co.enter();
        this.set(Some(co));
        drop(home);
        while context.poll(false) {}
    });
    // There is no way out but to abort, or to keep the frame for ever.
    if exit.status.success() {
        exit.assert_says("the borrow is intact");
    } else {
        exit.assert_killed_by(libc::SIGABRT);
        exit.assert_says("coroutine");
    }
}
