//! Who holds a lock, and where it was taken: what it takes to report a coroutine that waits for itself.
//!
//! Two Relaxed stores at each lock and one at each unlock, of words that are at hand. They were measured beside the two
//! compare-exchanges of an uncontended lock and unlock: 10.0 ns instead of 9.3. So they are there in release builds too,
//! where a recursive lock is as hard to find as anywhere else.
//!
//! Nobody but the holder itself can rely on them, and that is enough: a runner that finds its own name here has written
//! it, and would have cleared it had it unlocked since. (A name that was another one's before is handed over through the
//! pool, or the list of threads, and with it the knowledge of what the other one cleared.) A guard may be given to another coroutine of the thread (as
//! [`timeout`](crate::aio::timeout) does with the result of its closure); until the unlock, the one that locked still
//! counts as the holder.
//!
//! # Safety
//!
//! The two words are only ever written here: 0, or what their types say.
#![allow(unsafe_code)]

use std::fmt;
use std::panic::Location;
use std::ptr;

use crate::park::{Runner, in_coroutine};
use crate::primitive::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::primitive::const_unless_model;

/// Where a lock was taken.
pub(crate) type Site = &'static Location<'static>;

/// Room for the name of a runner. In a model nobody has one: what locks do with names is no part of a protocol.
pub(super) struct Name(AtomicU64);

impl Name {
    const_unless_model! {
        /// Nobody's.
        pub(super) fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    #[inline(always)]
    pub(super) fn set(&self, runner: Runner) {
        if cfg!(not(all(test, loom))) {
            self.0.store(runner.to_word(), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(super) fn clear(&self) {
        if cfg!(not(all(test, loom))) {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self) -> Option<Runner> {
        let word = if cfg!(not(all(test, loom))) { self.0.load(Ordering::Relaxed) } else { 0 };
        // SAFETY: only `set` and `clear` write it.
        unsafe { Runner::from_word(word) }
    }
}

/// The holder of a lock that has one at a time.
pub(super) struct Holder {
    runner: Name,
    site: AtomicPtr<Location<'static>>,
}

impl Holder {
    const_unless_model! {
        /// Nobody.
        pub(super) fn new() -> Self {
            Self { runner: Name::new(), site: AtomicPtr::new(ptr::null_mut()) }
        }
    }

    /// The caller has taken the lock.
    #[inline(always)]
    pub(super) fn set(&self, site: Site) {
        self.runner.set(Runner::current());
        self.site.store(ptr::from_ref(site).cast_mut(), Ordering::Relaxed);
    }

    /// The caller is about to give the lock back.
    #[inline(always)]
    pub(super) fn clear(&self) {
        self.runner.clear();
    }

    /// Who it is; nobody in the moment after the lock has been taken, and before it is given back.
    pub(super) fn runner(&self) -> Option<Runner> {
        self.runner.get()
    }

    pub(super) fn name(&self) -> &Name {
        &self.runner
    }

    /// Where the lock was taken the last time.
    pub(super) fn site(&self) -> Option<Site> {
        let site = self.site.load(Ordering::Relaxed);
        // SAFETY: null, or from a reference to what lives for ever.
        unsafe { site.as_ref() }
    }

    /// Panics if the caller, which is about to wait for the holder, waits for itself: with a sentence about
    /// `what`.
    pub(super) fn refuse_deadlock(&self, what: &str, site: Site) {
        if let Some(runner) = self.runner() {
            if runner == Runner::current() {
                refuse_recursion(what, self.site(), site);
            }
            if !in_coroutine() && runner.is_driven_here() {
                let message = "would block the thread that a coroutine of it needs, which holds";
                refuse(format_args!("{message} {what} that was locked at {}", At(self.site())), site);
            }
        }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_held = self.runner().is_some();
        f.debug_struct("Holder").field("is_held", &is_held).field("site", &self.site()).finish()
    }
}

/// Panics because the caller locks what it holds.
#[cold]
pub(super) fn refuse_recursion(what: &str, first: Option<Site>, site: Site) -> ! {
    refuse(format_args!("locks {what} that it has locked at {} already", At(first)), site)
}

#[cold]
fn refuse(message: fmt::Arguments<'_>, site: Site) -> ! {
    panic!("{} {message}: now at {site}", Runner::describe_current())
}

struct At(Option<Site>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(site) => site.fmt(f),
            None => f.write_str("an unknown place"),
        }
    }
}
