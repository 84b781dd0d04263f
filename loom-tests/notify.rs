//! The handshake of a loop that is about to sleep with threads that have something for it.

use std::cell::Cell;
use std::rc::Rc;

use loom::sync::{Condvar, Mutex};

use super::race;
use crate::aio::notify::{Notify, Reason, Sleep};
use crate::primitive::atomic::{AtomicUsize, Ordering};

models! {
    a_loop_sleeps_until_its_work_is_done catches
        tell_not_released, accept_not_acquired, sleep_without_look, all_signal;
    // (That the word says that it may is looked at again by the kernel.)
    a_loop_rests_until_its_work_is_done catches tell_not_released, accept_not_acquired, all_signal;
    a_loop_hears_of_new_parameters_and_of_work catches tell_not_released, accept_not_acquired, sleep_without_look;
    a_loop_ends_while_it_is_given_work catches
        tell_not_released, tell_not_acquired, close_not_released, close_not_acquired;
}

struct Loop {
    notify: Notify,
    /// Work that was published and not taken. Relaxed: the handshake orders it.
    work: AtomicUsize,
    parameters: AtomicUsize,
    /// The eventfd: a count, and who waits for it. For a loop that rests, what the kernel does to make the look at the
    /// word and the sleep one step.
    signals: Mutex<usize>,
    signalled: Condvar,
    ended: AtomicUsize,
    /// Observers, unknown to loom.
    announced: Cell<usize>,
    signals_sent: Cell<usize>,
}

/// What a turn has found.
#[derive(Default)]
struct Found {
    work: usize,
    parameters: usize,
}

impl Loop {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            notify: Notify::new(),
            work: AtomicUsize::new(0),
            parameters: AtomicUsize::new(0),
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
        self.tell(Reason::Work);
    }

    fn change_parameters(&self) {
        self.parameters.store(1, Ordering::Relaxed);
        self.tell(Reason::Parameters);
    }

    fn tell(&self, reason: Reason) {
        if let Some(sleep) = self.notify.tell(reason) {
            self.signals_sent.set(self.signals_sent.get() + 1);
            let mut signals = self.signals.lock().unwrap();
            if sleep == Sleep::Watching {
                *signals += 1;
            }
            self.signalled.notify_one();
        }
    }

    /// One turn of the loop. `timer`: a deadline passes, so that it doesn't sleep for long.
    fn turn(&self, sleep: Sleep, timer: bool) -> Found {
        let may_sleep = self.notify.announce_sleep(sleep);
        self.announced.set(self.announced.get() + usize::from(may_sleep));
        if may_sleep && !timer {
            // If no signal comes, this is a deadlock, which loom reports.
            let mut signals = self.signals.lock().unwrap();
            match sleep {
                Sleep::Watching => {
                    while *signals == 0 {
                        signals = self.signalled.wait(signals).unwrap();
                    }
                }
                Sleep::Resting if self.notify.word().load(Ordering::Relaxed) == sleep as u32 => {
                    drop(self.signalled.wait(signals).unwrap());
                }
                Sleep::Resting => {}
            }
        }
        let reasons = self.notify.accept();
        *self.signals.lock().unwrap() = 0;
        let mut found = Found::default();
        if reasons.has(Reason::Work) {
            // As `PushStack::take_all` does: a swap would find it in any case.
            if self.work.load(Ordering::Relaxed) > 0 {
                found.work = self.work.swap(0, Ordering::Relaxed);
            }
        }
        if reasons.has(Reason::Parameters) {
            found.parameters = self.parameters.load(Ordering::Relaxed);
        }
        found
    }
}

/// A loop that sleeps whenever it has been told nothing does all that it is given, also when a timer wakes it first, so
/// that a signal for the one sleep comes during the next; and nobody signals it more often than it went to sleep.
fn work_is_done(sleep: Sleep) {
    let shared = Loop::new();

    race::three(&shared, Loop::give_work, Loop::give_work, move |shared| {
        let mut done = shared.turn(sleep, true).work;
        while done < 2 {
            done += shared.turn(sleep, false).work;
        }
    });

    assert!(shared.signals_sent.get() <= shared.announced.get(), "a signal too many");
}

fn a_loop_sleeps_until_its_work_is_done() {
    work_is_done(Sleep::Watching);
}

fn a_loop_rests_until_its_work_is_done() {
    work_is_done(Sleep::Resting);
}

/// The reasons don't hide each other, whichever comes first.
fn a_loop_hears_of_new_parameters_and_of_work() {
    let shared = Loop::new();

    race::three(&shared, Loop::give_work, Loop::change_parameters, |shared| {
        let mut found = Found::default();
        while found.work + found.parameters < 2 {
            let more = shared.turn(Sleep::Watching, false);
            found.work += more.work;
            found.parameters += more.parameters;
        }
    });
}

/// Work that is given to a loop that ends is found by its last look, or else the giver finds that it has ended and
/// takes it back (`AioContext`'s drop against `Home::schedule`).
fn a_loop_ends_while_it_is_given_work() {
    let shared = Loop::new();

    let (has_ended, found) = race::two(
        &shared,
        |shared| {
            shared.give_work();
            shared.ended.load(Ordering::Relaxed)
        },
        |shared| {
            shared.ended.store(1, Ordering::Relaxed);
            shared.notify.close();
            // As `PushStack::take_all` does: a swap would find it in any case.
            shared.work.load(Ordering::Relaxed)
        },
    );

    assert!(has_ended + found > 0, "work was left behind");
}
