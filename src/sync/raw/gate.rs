//! What mutex, rwlock and semaphore have in common: a word that says who is in, and a queue of those who aren't.
//!
//! A [`Rule`] says what the word means and who may enter. The gate sees to the rest: whoever may enter and finds no
//! queue does so by one compare-exchange; all others queue, and enter in the order in which they came. Nobody overtakes
//! (no barging), also when the first in the queue has to wait for more than those behind it would; but see below.
//!
//! Whoever leaves lets in the first in the queue *on its behalf*, as many as the rule allows: when a waiter is woken it
//! is in. So a woken waiter never competes, and how long each waits is bounded by those before it.
//!
//! # Calls
//!
//! A rule may say that a waiter that sleeps on another thread is only *called*: woken, without being let in. Until it
//! comes, those who run may pass it. When it runs, it enters if there is room; else it closes the queue again, and is let
//! in by the next one that leaves. So all that it can lose is the time that it takes to wake up, in which a gate that was
//! held for it would stand empty. Nobody starves: a called waiter is overtaken by nobody once it has run, which takes no
//! more than its thread's next turn; and those behind it are overtaken only together with it.
//!
//! # The word
//!
//! The topmost bits are [`QUEUED`] and [`CALLED`]; the rest is the rule's.
//!
//! | `QUEUED` | `CALLED` | who changes the word |
//! |---|---|---|
//! | 0 | 0 | anybody, by a compare-exchange: entering, leaving, or (under the lock of the list) setting `QUEUED` |
//! | 1 | 0 | whoever holds the lock of the list |
//! | 1 | 1 | anybody, by a compare-exchange: entering, leaving, or (under the lock) clearing `CALLED` |
//!
//! 1. `QUEUED` is set if and only if the list isn't empty (as seen under its lock). `CALLED` is set only with it, and
//!    under the lock; then it is the first in the queue that has been called, and it will look.
//! 2. Whoever changes the word or the list under the lock sees to it, before or right after giving the lock back, that
//!    the first in the queue has been called, or may not enter by the rule. So no waiter sleeps that could be in.
//!
//! There is no window between "the word says that I have to wait" and "I am in the list": both happen under the lock,
//! and a leaver that finds `QUEUED` takes that lock before it looks at the list.
//!
//! # Ordering
//!
//! What was done by whoever left is visible to whoever enters in the room that it made: leaving is a Release of the
//! word, entering an Acquire. All changes without the lock are read-modify-writes, so releases add up. Under the lock it
//! is like this: whoever sets `QUEUED` acquires what was released until then, by a read-modify-write; what is released
//! while it is set, and what is done by those who change the word meanwhile by plain loads and stores, is passed on by
//! the lock; and whoever clears it releases all of that once more. A waiter that is let in has it by the lock and by
//! `turn`. Setting `CALLED` is like clearing `QUEUED` in this, and clearing it is like setting `QUEUED`. Checked by the
//! models `mutex`, `rwlock` and `semaphore` of `loom-tests/`.
#![allow(unsafe_code)] // # Safety: a waiter that joins stays in its frame until `Waiting` has taken it out.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::task::Waker;
use std::time::Instant;

use super::awake;
use super::holder::Name;
use super::wait::{Queue, Waiting};
use super::wait_list::{Turn, WaitList, Waiter, wake_each};
use crate::park::Runner;
use crate::primitive::atomic::{AtomicUsize, Ordering};
use crate::primitive::mutant::{mutant, ordering};
use crate::primitive::{ShortLock, const_unless_model};

/// Somebody waits.
const QUEUED: usize = 1 << (usize::BITS - 1);
/// The first of those who wait has been called, and hasn't come yet.
const CALLED: usize = 1 << (usize::BITS - 2);
/// What is left for the rule.
pub(super) const WORD: usize = CALLED - 1;

/// What the word means. Words are without `QUEUED` and `CALLED` here.
pub(crate) trait Rule {
    /// Whether one that sleeps on another thread is called, instead of being let in.
    const CALLS: bool;

    /// The word after somebody has entered that takes `need`, if there is room.
    fn enter(word: usize, need: usize) -> Option<usize>;

    /// The word after `need` has been given back.
    fn leave(word: usize, need: usize) -> usize;
}

/// A word and a queue.
pub(crate) struct Gate<R> {
    word: AtomicUsize,
    /// A hint for those who think of waiting awake: who has been let in and hasn't noticed yet.
    let_in: Name,
    waiters: ShortLock<WaitList<Entrant>>,
    rule: PhantomData<fn() -> R>,
}

/// Who queues.
struct Entrant {
    need: usize,
    runner: Runner,
    /// It has come when it was called, and found no room. Under the lock.
    has_come: Cell<bool>,
}

impl Entrant {
    /// The caller.
    fn new(need: usize) -> Self {
        Self { need, runner: Runner::current(), has_come: Cell::new(false) }
    }
}

/// A turn that was given under the lock.
struct Given {
    /// Whom to wake, without the lock.
    waker: Waker,
    /// Whether the next one may enter as well.
    more: bool,
}

impl<R: Rule> Gate<R> {
    const_unless_model! {
        /// A gate with this word, and nobody waiting.
        pub(super) fn new(word: usize) -> Self {
            Self {
                word: AtomicUsize::new(word),
                let_in: Name::new(),
                waiters: ShortLock::new(WaitList::new()),
                rule: PhantomData,
            }
        }
    }

    /// The word at this moment.
    pub(super) fn word(&self) -> usize {
        self.word.load(Ordering::Relaxed) & WORD
    }

    /// Whether whoever comes now has to queue.
    pub(super) fn is_closed(&self) -> bool {
        self.word.load(Ordering::Relaxed) & (QUEUED | CALLED) == QUEUED
    }

    /// Who has been let in and hasn't noticed yet. A hint.
    pub(super) fn let_in(&self) -> &Name {
        &self.let_in
    }

    /// Enters by turning one word into another, if it is that. For rules whose free word is known.
    #[inline(always)]
    pub(super) fn enter_from(&self, from: usize, to: usize) -> bool {
        // Acquire: pairs with the Releases of the leavers.
        let acquire = ordering!(Acquire, "enter_from_not_acquired" => Relaxed);
        self.word.compare_exchange(from, to, acquire, Ordering::Relaxed).is_ok()
    }

    /// Leaves by turning one word into another, if it is that.
    #[inline(always)]
    pub(super) fn leave_from(&self, from: usize, to: usize) -> bool {
        // Release: pairs with the Acquires of those who enter.
        let release = ordering!(Release, "leave_from_not_released" => Relaxed);
        // Looking first costs nothing beside the exchange, and saves one that would fail.
        self.word.load(Ordering::Relaxed) == from
            && self.word.compare_exchange(from, to, release, Ordering::Relaxed).is_ok()
    }

    /// Enters if there is room and nobody waits, or only such as have been called.
    #[inline]
    pub(super) fn try_enter(&self, need: usize) -> bool {
        self.update(ordering!(Acquire, "try_enter_not_acquired" => Relaxed), |word| R::enter(word, need))
    }

    /// Exchanges what the caller has taken for something else, if there is room and nobody waits.
    #[inline]
    pub(super) fn try_exchange(&self, have: usize, need: usize) -> bool {
        // Acquire and Release: it leaves and enters.
        let order = ordering!(AcqRel, "exchange_not_acquired" => Release, "exchange_not_released" => Acquire);
        self.update(order, |word| R::enter(R::leave(word, have), need))
    }

    /// Gives back what the caller has taken, and lets those in who fit then.
    #[inline]
    pub(super) fn leave(&self, need: usize) {
        let release = ordering!(Release, "leave_not_released" => Relaxed);
        if !self.update(release, |word| Some(R::leave(word, need))) {
            self.leave_slow(need);
        }
    }

    /// Changes the word without the lock, if nobody waits, or only such as have been called.
    #[inline(always)]
    fn update(&self, order: Ordering, change: impl Fn(usize) -> Option<usize>) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let flags = word & (QUEUED | CALLED);
            if flags == QUEUED && !mutant!("overtake_the_queue") {
                return false;
            }
            let Some(next) = change(word & WORD) else { return false };
            match self.word.compare_exchange_weak(word, next | flags, order, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Enters, after those who came before. Returns whether it has; not if the deadline passed first.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()), if it has to wait; then it hasn't entered.
    #[cold]
    pub(super) fn enter_slow(&self, need: usize, deadline: Option<Instant>) -> bool {
        let waiter = Waiter::new(Entrant::new(need));
        {
            let mut list = self.waiters.lock();
            if self.enter_or_announce(need) {
                return true;
            }
            // SAFETY: the waiter stays in this frame until `waiting` has taken it out.
            unsafe { list.push_back(&waiter) };
        }
        let waiting = Waiting::new(self, &waiter);
        let entered = waiting.wait(deadline);
        waiting.use_turn();
        self.let_in.clear();
        entered
    }

    /// Under the lock: enters if nobody waits and there is room, else sets `QUEUED`.
    fn enter_or_announce(&self, need: usize) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & QUEUED != 0 {
                return false;
            }
            let (next, entered) = match R::enter(word, need) {
                Some(next) => (next, true),
                None => (word | QUEUED, false),
            };
            // Acquire: pairs with the Releases of the leavers.
            let acquire = ordering!(Acquire, "enter_slow_not_acquired" => Relaxed);
            match self.word.compare_exchange_weak(word, next, acquire, Ordering::Relaxed) {
                Ok(_) => return entered,
                Err(now) => word = now,
            }
        }
    }

    /// Gives back what the caller has taken when somebody waits.
    #[cold]
    pub(super) fn leave_slow(&self, need: usize) {
        let given = {
            let mut list = self.waiters.lock();
            self.change(|word| R::leave(word, need));
            self.give_next(&mut list)
        };
        self.wake_and_go_on(given);
    }

    /// Gives back what the caller has taken and queues, as the last, for something else.
    #[cold]
    pub(super) fn exchange_slow(&self, have: usize, need: usize, deadline: Option<Instant>) -> bool {
        let waiter = Waiter::new(Entrant::new(need));
        let given = {
            let mut list = self.waiters.lock();
            self.change(|word| R::leave(word, have));
            if self.enter_or_announce(need) {
                return true;
            }
            // SAFETY: the waiter stays in this frame until `waiting` has taken it out.
            unsafe { list.push_back(&waiter) };
            if mutant!("exchange_lets_nobody_in") { None } else { self.give_next(&mut list) }
        };
        let waiting = Waiting::new(self, &waiter);
        self.wake_and_go_on(given);
        let entered = waiting.wait(deadline);
        waiting.use_turn();
        entered
    }

    /// Under the lock: gives back what the caller has taken and takes something that needs no more room.
    #[cold]
    pub(super) fn shrink_slow(&self, have: usize, need: usize) {
        let given = {
            let mut list = self.waiters.lock();
            self.change(|word| {
                let word = R::leave(word, have);
                R::enter(word, need).expect("it needs no more room than it had")
            });
            self.give_next(&mut list)
        };
        self.wake_and_go_on(given);
    }

    /// Under the lock: changes the word.
    fn change(&self, change: impl Fn(usize) -> usize) {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let flags = word & (QUEUED | CALLED);
            let next = change(word & WORD) | flags;
            if flags == QUEUED {
                return self.word.store(next, Ordering::Relaxed);
            }
            // Acquire and Release: it leaves, and may enter.
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Under the lock: lets in the first in the queue if there is room, or calls it. Keeps rule 1.
    fn give_next(&self, list: &mut WaitList<Entrant>) -> Option<Given> {
        let word = self.word.load(Ordering::Relaxed);
        if word & CALLED != 0 {
            return None;
        }
        let word = word & WORD;
        let first = &list.front()?.payload;
        let next = R::enter(word, first.need)?;
        if R::CALLS && !first.has_come.get() && first.runner.is_elsewhere() {
            // Release: pairs with the Acquires of those who enter.
            self.word.store(word | QUEUED | CALLED, ordering!(Release, "call_not_released" => Relaxed));
            return Some(Given { waker: list.front_waker()?, more: false });
        }
        self.let_in.set(first.runner);
        let waker = list.give_front(Turn::Own)?;
        let fits = |waiter: &Waiter<Entrant>| R::enter(next, waiter.payload.need).is_some();
        let more = list.front().is_some_and(fits);
        let queued = if list.is_empty() { 0 } else { QUEUED };
        // Release: pairs with the Acquires of those who enter, if this clears `QUEUED`.
        self.word.store(next | queued, ordering!(Release, "give_not_released" => Relaxed));
        Some(Given { waker, more })
    }

    /// Without the lock: wakes, and lets in those who fit as well.
    fn wake_and_go_on(&self, mut given: Option<Given>) {
        wake_each(|| {
            let Given { waker, more } = given.take()?;
            if more && !mutant!("let_in_only_one") {
                given = self.give_next(&mut self.waiters.lock());
            }
            Some(waker)
        });
    }
}

/// What a waiter that has been called found.
enum Found {
    NoCall,
    Room,
    NoRoom,
}

impl<R: Rule> Gate<R> {
    /// Under the lock: the waiter is there. If it has been called, it enters if there is room; else it closes the queue,
    /// so that it is let in by whoever leaves.
    fn come(&self, list: &mut WaitList<Entrant>, waiter: &Waiter<Entrant>) -> Found {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & CALLED == 0 || !list.is_front(waiter) {
                return Found::NoCall;
            }
            let (next, found) = match R::enter(word & WORD, waiter.payload.need) {
                Some(next) if list.is_last(waiter) => (next, Found::Room),
                Some(next) => (next | QUEUED, Found::Room),
                None if mutant!("called_one_leaves_the_queue_open") => (word, Found::NoRoom),
                None => (word & !CALLED, Found::NoRoom),
            };
            // Acquire: pairs with the Releases of those who left since the call, and of the call.
            let acquire = ordering!(Acquire, "come_not_acquired" => Relaxed);
            match self.word.compare_exchange_weak(word, next, acquire, Ordering::Relaxed) {
                Ok(_) => {
                    match found {
                        Found::Room => _ = list.remove(waiter),
                        _ => waiter.payload.has_come.set(true),
                    }
                    return found;
                }
                Err(now) => word = now,
            }
        }
    }
}

impl<R: Rule> Queue<Entrant> for Gate<R> {
    fn answer(&self, waiter: &Waiter<Entrant>) -> bool {
        if !R::CALLS || self.word.load(Ordering::Relaxed) & CALLED == 0 || mutant!("called_one_does_not_look") {
            return false;
        }
        let found = self.come(&mut self.waiters.lock(), waiter);
        if let Found::NoRoom = found {
            // It is the next one, and whoever is in may leave at any moment.
            let attempt = || waiter.turn().map(|_| true);
            return awake::wait_awake(attempt, || awake::FOR_ONE_THAT_RUNS);
        }
        matches!(found, Found::Room)
    }

    fn withdraw(&self, waiter: &Waiter<Entrant>) -> bool {
        let given = {
            let mut list = self.waiters.lock();
            let is_front = list.is_front(waiter);
            if !list.remove(waiter) {
                return false;
            }
            if R::CALLS && is_front && !mutant!("withdrawn_call_stays") {
                // So that the next one is called. Acquire: pairs with the Releases of those who left meanwhile.
                self.word.fetch_and(!CALLED, ordering!(Acquire, "withdrawn_call_not_acquired" => Relaxed));
            }
            if list.is_empty() {
                // Release: as in `give_next`.
                self.word.fetch_and(WORD, ordering!(Release, "withdraw_not_released" => Relaxed));
            }
            if mutant!("withdrawn_waiter_lets_nobody_in") { None } else { self.give_next(&mut list) }
        };
        self.wake_and_go_on(given);
        true
    }

    fn hand_on(&self, waiter: &Waiter<Entrant>, _: Turn) {
        self.leave(waiter.payload.need);
    }
}

impl<R: Rule> fmt::Debug for Gate<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        let has = |flag| word & flag != 0;
        f.debug_struct("Gate")
            .field("word", &(word & WORD))
            .field("queued", &has(QUEUED))
            .field("called", &has(CALLED))
            .finish()
    }
}
