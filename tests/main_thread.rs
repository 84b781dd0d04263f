//! What concerns a process's first thread: how it ends with coroutines alive, and overflows on it. (libtest runs its
//! tests on other threads, so this file brings its own `main`.)
#![allow(clippy::disallowed_types, reason = "a user's thread-locals are what some of this is about")]

mod common;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::hint::black_box;
use std::panic::catch_unwind;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, mem, process, thread};

use aioco::{AioContext, Coroutine, JoinHandle, fd, park, yield_now};
use common::{Exit, child_argument, context, coroutine, start};

/// A name, what the child does, and what becomes of it.
type Test = (&'static str, fn(), fn(&Exit));

const TESTS: &[Test] = &[
    ("a_stack_overflow_on_the_first_thread_dies_like_on_any_other", overflow_on_main, |exit| {
        exit.assert_killed_by(libc::SIGSEGV);
    }),
    ("main_returns_with_coroutines_in_every_state", return_with_all_kinds, Exit::assert_success),
    ("main_returns_while_other_threads_wake_and_spawn", return_while_others_work, Exit::assert_success),
    ("destructors_of_the_first_thread_run_coroutines", destructors, |exit| {
        exit.assert_success();
        exit.assert_says("before: ran 2\n");
        exit.assert_says("after: ran 2\n");
        exit.assert_says("kept: dropped\n");
    }),
    ("main_panics_with_coroutines_alive", panic_in_main, |exit| {
        assert_eq!(exit.status.code(), Some(101));
        exit.assert_says("on purpose");
    }),
    ("a_coroutine_ends_the_process", exit_inside, |exit| assert_eq!(exit.status.code(), Some(7))),
    ("a_coroutine_aborts_the_process", process_abort_inside, |exit| exit.assert_killed_by(libc::SIGABRT)),
];

fn main() {
    if let Some(name) = child_argument() {
        let (_, run, _) = TESTS.iter().find(|(test, _, _)| *test == name).expect("a known test");
        return run();
    }
    let (mut filters, mut skipped, mut exact, mut list) = (Vec::new(), Vec::new(), false, false);
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--skip" => skipped.extend(arguments.next()),
            "--exact" => exact = true,
            "--list" => list = true,
            // What else libtest knows makes no difference here.
            flag if flag.starts_with('-') => {}
            _ => filters.push(argument),
        }
    }
    let named_by = |filter: &String, name: &str| if exact { name == filter } else { name.contains(filter.as_str()) };
    let selected = |name: &str| {
        (filters.is_empty() || filters.iter().any(|filter| named_by(filter, name)))
            && !skipped.iter().any(|skip| named_by(skip, name))
    };
    let mut failures = 0;
    for (name, _, check) in TESTS.iter().filter(|(name, _, _)| selected(name)) {
        if list {
            println!("{name}: test");
            continue;
        }
        let passed = catch_unwind(|| check(&start(name, &[], &[]))).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failures += i32::from(!passed);
    }
    process::exit(if failures > 0 { 101 } else { 0 });
}

fn overflow_on_main() {
    #[inline(never)]
    fn overflow(depth: u64) -> u64 {
        let frame = black_box([depth; 32]);
        let below = if black_box(true) { overflow(depth + 1) } else { 0 };
        below + black_box(frame)[1]
    }
    coroutine(|| _ = overflow(0)).enter();
}

thread_local! {
    static COROUTINES: RefCell<Vec<Coroutine>> = const { RefCell::new(Vec::new()) };
    static CONTEXT: RefCell<Option<AioContext>> = const { RefCell::new(None) };
}

fn return_with_all_kinds() {
    let context = context();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let far = Instant::now() + Duration::from_secs(1000);
    let handles = [
        context.spawn(park::park),
        context.spawn(move || park::park_until(far)),
        context.spawn(move || fd::wait_readable(ours).expect("a wait")),
        context.spawn(|| {
            loop {
                yield_now();
            }
        }),
    ];
    let all: Vec<_> = [yield_now as fn(), park::park].into_iter().map(coroutine).collect();
    all.iter().for_each(Coroutine::enter);
    (0..3).for_each(|_| _ = context.poll(false));
    // One that waits for its first turn, spawned here, and one from elsewhere.
    let unstarted = context.spawn(|| ());
    let remote = context.remote();
    let from_elsewhere = thread::spawn(move || remote.spawn(|| ())).join().expect("no panic");
    // Some are kept by thread-locals, whose destructors run after main; some are lost; some are dropped by main.
    COROUTINES.set(all);
    CONTEXT.set(Some(context));
    mem::forget((handles, theirs));
    let lost = coroutine(yield_now);
    lost.enter();
    mem::forget(lost);
    let dropped = coroutine(yield_now);
    dropped.enter();
    drop((unstarted, from_elsewhere));
}

fn return_while_others_work() {
    let context = context();
    let (give, take) = mpsc::channel();
    let parked = context.spawn(move || {
        give.send(park::waker()).expect("main waits");
        loop {
            park::park();
        }
    });
    mem::forget(parked);
    context.poll(false);
    let waker = take.recv().expect("the coroutine has started");
    for _ in 0..2 {
        let (waker, remote) = (waker.clone(), context.remote());
        thread::spawn(move || {
            // At most so many ahead: the loop would never get through what it is given otherwise.
            let mut ahead = VecDeque::new();
            loop {
                waker.wake_by_ref();
                ahead.extend(remote.spawn(|| coroutine(|| ()).enter()));
                if ahead.len() > 64 {
                    let _ = ahead.pop_front().map(JoinHandle::join);
                }
                coroutine(yield_now).enter();
            }
        });
    }
    for _ in 0..100 {
        context.poll(true);
    }
    CONTEXT.set(Some(context));
}

fn destructors() {
    struct AtExit(&'static str);
    impl Drop for AtExit {
        fn drop(&mut self) {
            let count = Rc::new(Cell::new(0));
            let inside = count.clone();
            let co = coroutine(move || {
                inside.set(inside.get() + 1);
                yield_now();
                inside.set(inside.get() + 1);
            });
            co.enter();
            co.enter();
            eprintln!("{}: ran {}", self.0, count.get());
        }
    }
    struct Says(&'static str);
    impl Drop for Says {
        fn drop(&mut self) {
            eprintln!("{}", self.0);
        }
    }
    thread_local! {
        static BEFORE: RefCell<Option<AtExit>> = const { RefCell::new(None) };
        static AFTER: RefCell<Option<AtExit>> = const { RefCell::new(None) };
    }
    BEFORE.set(Some(AtExit("before")));
    let kept = coroutine(|| {
        let _says = Says("kept: dropped");
        yield_now();
    });
    kept.enter();
    COROUTINES.set(vec![kept]);
    AFTER.set(Some(AtExit("after")));
}

fn panic_in_main() {
    return_with_all_kinds();
    let context = context();
    let suspended = coroutine(yield_now);
    suspended.enter();
    let parked = context.spawn(park::park).expect("a stack");
    context.poll(false);
    panic!("on purpose, with {suspended:?}, {parked:?}, {context:?}");
}

fn exit_inside() {
    return_with_all_kinds();
    coroutine(|| coroutine(|| process::exit(7)).enter()).enter();
}

fn process_abort_inside() {
    coroutine(|| process::abort()).enter();
}
