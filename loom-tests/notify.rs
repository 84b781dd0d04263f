//! The handshake of a loop that is about to sleep with threads that have work for it.

use std::cell::Cell;
use std::rc::Rc;

use loom::sync::{Condvar, Mutex};

use super::race;
use crate::aio::notify::Notify;
use crate::primitive::atomic::{AtomicUsize, Ordering, fence};

models! {
    a_loop_sleeps_until_its_work_is_done catches
        notify_without_fence, announce_without_fence, sleep_without_look, all_signal;
    a_loop_ends_while_it_is_given_work catches notify_without_fence;
}

struct Loop {
    notify: Notify,
    /// Work that was published and not taken. Relaxed: the handshake orders it.
    work: AtomicUsize,
    /// The eventfd: a count, and who waits for it.
    signals: Mutex<usize>,
    signalled: Condvar,
    ended: AtomicUsize,
    /// Observers, unknown to loom.
    announced: Cell<usize>,
    signals_sent: Cell<usize>,
}

impl Loop {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            notify: Notify::new(),
            work: AtomicUsize::new(0),
            signals: Mutex::new(0),
            signalled: Condvar::new(),
            ended: AtomicUsize::new(0),
            announced: Cell::new(0),
            signals_sent: Cell::new(0),
        })
    }

    /// Another thread's side.
    fn give_work(&self) {
        self.work.fetch_add(1, Ordering::Relaxed);
        if self.notify.must_signal() {
            self.signals_sent.set(self.signals_sent.get() + 1);
            *self.signals.lock().unwrap() += 1;
            self.signalled.notify_one();
        }
    }

    /// One turn of the loop; returns how much work it did. `timer`: a deadline passes, so that it doesn't sleep for
    /// long.
    fn turn(&self, timer: bool) -> usize {
        let may_sleep = self.notify.announce_sleep(|| self.work.load(Ordering::Relaxed) > 0);
        self.announced.set(self.announced.get() + 1);
        if may_sleep && !timer {
            // If no signal comes, this is a deadlock, which loom reports.
            let mut signals = self.signals.lock().unwrap();
            while *signals == 0 {
                signals = self.signalled.wait(signals).unwrap();
            }
        }
        self.notify.awake();
        *self.signals.lock().unwrap() = 0;
        self.work.swap(0, Ordering::Relaxed)
    }
}

/// A loop that sleeps whenever it finds nothing to do does all that it is given, also when a timer wakes it first, so
/// that a signal for the one sleep comes during the next; and nobody signals it more often than it announced a sleep.
fn a_loop_sleeps_until_its_work_is_done() {
    let shared = Loop::new();

    race::three(&shared, Loop::give_work, Loop::give_work, |shared| {
        let mut done = shared.turn(true);
        while done < 2 {
            done += shared.turn(false);
        }
    });

    assert!(shared.signals_sent.get() <= shared.announced.get(), "a signal too many");
}

/// Work that is given to a loop that ends is found by its last look, or else the giver finds that it has ended and
/// takes it back (`AioContext`'s drop against `Home::schedule`).
fn a_loop_ends_while_it_is_given_work() {
    let shared = Loop::new();

    let (taken_back, found) = race::two(
        &shared,
        |shared| {
            shared.give_work();
            if shared.ended.load(Ordering::Relaxed) != 0 { shared.work.swap(0, Ordering::Relaxed) } else { 0 }
        },
        |shared| {
            shared.ended.store(1, Ordering::Relaxed);
            // Pairs with the fence in `must_signal`.
            fence(Ordering::SeqCst);
            // As `PushStack::take_all` does: a swap would find it in any case.
            if shared.work.load(Ordering::Relaxed) > 0 { shared.work.swap(0, Ordering::Relaxed) } else { 0 }
        },
    );

    assert_eq!(taken_back + found, 1);
}
