//! Thread-locals and suspensions: addresses stay right, each thread sees its own, and a borrow that is held over a
//! suspension is a clean panic for others.
#![allow(clippy::disallowed_types, reason = "a user's thread-locals are what some of this is about")]

mod common;

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Barrier, Mutex, TryLockError};
use std::thread;

use aioco::{Coroutine, current, in_coroutine, park, yield_now};
use common::{LIMIT, context, coroutine, message_of, scaled, within};

thread_local! {
    static PLAIN: Cell<usize> = const { Cell::new(0) };
    /// Has a destructor and a lazy initialiser.
    static LAZY: RefCell<Vec<usize>> = RefCell::new(vec![0]);
}

#[inline(always)]
fn addresses() -> [usize; 3] {
    let plain = PLAIN.with(|plain| std::ptr::from_ref(plain).addr());
    let lazy = LAZY.with(|lazy| std::ptr::from_ref(lazy).addr());
    // SAFETY: has no preconditions.
    let errno = unsafe { libc::__errno_location() }.addr();
    [plain, lazy, errno]
}

#[inline(never)]
fn addresses_afresh() -> [usize; 3] {
    black_box(addresses())
}

/// Reads addresses and values over many suspensions; `suspend` suspends.
fn check_over_suspensions(number: usize, mut suspend: impl FnMut(usize)) {
    let before = addresses();
    assert_eq!(before, addresses_afresh());
    let me = current();
    for round in 0..scaled(2000) {
        // No other coroutine of this thread leaves a value of its own behind.
        let base = PLAIN.get();
        PLAIN.set(base + number);
        LAZY.with_borrow_mut(|lazy| lazy[0] += number);
        // SAFETY: the kernel refuses a descriptor of -1.
        unsafe { libc::close(-1) };
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
        PLAIN.set(PLAIN.get() - number);
        LAZY.with_borrow_mut(|lazy| lazy[0] -= number);
        suspend(round);
        assert_eq!(addresses(), before);
        assert_eq!(addresses_afresh(), before);
        assert_eq!((PLAIN.get(), LAZY.with_borrow(|lazy| lazy[0])), (0, 0));
        assert!(in_coroutine() && current() == me);
    }
}

#[test]
fn addresses_of_thread_locals_and_errno_stay_right_over_suspensions_on_two_threads_at_once() {
    within(LIMIT, || {
        let start = Arc::new(Barrier::new(2));
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let start = start.clone();
                thread::spawn(move || {
                    start.wait();
                    let outside = addresses();
                    let all: Vec<_> = (1..5)
                        .map(|n| coroutine(move || check_over_suspensions(10 * thread + n, |_| yield_now())))
                        .collect();
                    while !all.iter().all(Coroutine::is_finished) {
                        all.iter().filter(|co| !co.is_finished()).for_each(Coroutine::enter);
                        assert_eq!(addresses(), outside);
                        assert!(!in_coroutine());
                    }
                    outside
                })
            })
            .collect();
        let [a, b] = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()[..] else {
            unreachable!()
        };
        assert!(a.iter().zip(b).all(|(a, b)| *a != b), "two threads have two of each");
    });
}

#[test]
fn addresses_of_thread_locals_stay_right_when_the_wakes_come_from_another_threads_coroutine() {
    within(LIMIT, || {
        // Two contexts on two threads; a coroutine of each wakes the other's, and parks.
        let start = Arc::new(Barrier::new(2));
        let wakers: Arc<Mutex<[Option<std::task::Waker>; 2]>> = Arc::default();
        let turns: Arc<[std::sync::atomic::AtomicUsize; 2]> = Arc::default();
        let threads: Vec<_> = (0..2)
            .map(|me| {
                let (start, wakers, turns) = (start.clone(), wakers.clone(), turns.clone());
                thread::spawn(move || {
                    use std::sync::atomic::Ordering::{Acquire, Release};
                    let context = context();
                    context.block_on(|| {
                        wakers.lock().expect("not poisoned")[me] = Some(park::waker());
                        start.wait();
                        let other = wakers.lock().expect("not poisoned")[1 - me].clone().expect("given");
                        check_over_suspensions(me + 1, |round| {
                            turns[me].store(round + 1, Release);
                            other.wake_by_ref();
                            while turns[1 - me].load(Acquire) <= round {
                                park::park();
                            }
                        });
                    });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn the_current_coroutine_is_each_threads_own() {
    within(LIMIT, || {
        let both_inside = Arc::new(Barrier::new(2));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let both_inside = both_inside.clone();
                thread::spawn(move || {
                    let seen = Rc::new(Cell::new(None));
                    let inside = seen.clone();
                    let co = coroutine(move || {
                        both_inside.wait();
                        inside.set(current());
                        both_inside.wait();
                    });
                    co.enter();
                    assert_eq!(seen.get(), Some(co.as_ref()));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn a_borrow_of_a_thread_local_that_is_held_over_a_suspension_is_a_clean_panic_for_others() {
    let holder = coroutine(|| {
        LAZY.with_borrow_mut(|lazy| {
            lazy.push(1);
            yield_now();
            lazy.push(2);
        });
    });
    holder.enter();
    let other = coroutine(|| LAZY.with_borrow_mut(|lazy| lazy.push(3)));
    let message = message_of(|| other.enter());
    assert!(message.contains("borrow"), "{message}");
    assert!(LAZY.with(|lazy| lazy.try_borrow_mut().is_err()));
    holder.enter();
    assert_eq!(LAZY.take(), [0, 1, 2]);
    // An unwind gives the borrow back as well.
    LAZY.set(vec![0]);
    let holder = coroutine(|| LAZY.with_borrow_mut(|_| yield_now()));
    holder.enter();
    assert!(LAZY.with(|lazy| lazy.try_borrow().is_err()));
    drop(holder);
    assert_eq!(LAZY.take(), [0]);
}

#[test]
fn a_lock_that_is_held_over_a_suspension_is_held_for_others_and_not_poisoned_by_an_ordinary_end() {
    let lock = Rc::new(Mutex::new(0));
    let held = lock.clone();
    let holder = coroutine(move || {
        let mut guard = held.lock().expect("not poisoned");
        yield_now();
        *guard += 1;
    });
    holder.enter();
    let tried = lock.clone();
    coroutine(move || assert!(matches!(tried.try_lock(), Err(TryLockError::WouldBlock)))).enter();
    holder.enter();
    assert_eq!(*lock.lock().expect("not poisoned"), 1);
}
