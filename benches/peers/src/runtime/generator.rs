//! generator, a finished one re-initialised for the next body.

use std::io;

use ::generator::{Gn, LocalGenerator, Scope};

use super::{CrossThread, Runtime};
use crate::body::{Body, Empty, Pause};

/// generator, re-initialised through `scoped_init`.
pub struct Generator;

type Coroutine = LocalGenerator<'static, (), ()>;

/// A generator that can be given a body: it has ended, or would end at once.
pub struct Finished(Coroutine);

// SAFETY: a generator is not `Send` because of its body's captures and locals. This one has ended (`reclaim` checks
// that) or has never been entered and has an empty body (`spare`), so there are none. What the crate itself keeps there
// is made to move with the generator: with a `Send` body, it is `Send`.
unsafe impl Send for Finished {}

impl Pause for Scope<'_, 'static, (), ()> {
    #[inline(always)]
    fn pause(&mut self) {
        self.yield_with(());
    }
}

impl Runtime for Generator {
    const NAME: &'static str = "generator";
    type Spare = Finished;
    type Coroutine = Coroutine;

    /// Makes a generator whose empty body will be replaced.
    ///
    /// # Panics
    ///
    /// Panics if no stack can be mapped: the crate has no constructor that returns an error.
    fn spare() -> io::Result<Finished> {
        Ok(Finished(Gn::new_scoped_local(|_| ())))
    }

    #[inline(always)]
    fn create<B: Body>(Finished(mut generator): Finished, body: B) -> Coroutine {
        generator.scoped_init(move |mut scope| body.run(&mut scope));
        generator
    }

    #[inline(always)]
    fn enter(coroutine: &mut Coroutine) {
        coroutine.resume();
    }

    #[inline(always)]
    fn reclaim(coroutine: Coroutine) -> Finished {
        assert!(coroutine.is_done(), "reclaimed before its end");
        Finished(coroutine)
    }
}

impl CrossThread for Generator {
    type Unstarted = Unstarted;
    const SENDS_SPARES_BACK: bool = true;

    #[inline(always)]
    fn create_unstarted(finished: Finished) -> Unstarted {
        Unstarted(Self::create(finished, Empty))
    }

    #[inline(always)]
    fn bind(unstarted: Unstarted) -> Coroutine {
        unstarted.0
    }
}

/// An empty coroutine that has not run yet.
pub struct Unstarted(Coroutine);

// SAFETY: the generator has never been entered since it got its body (`create_unstarted` makes it, and only `bind`
// takes it out), and that is the zero-sized `Empty`. For the rest see `Finished`.
unsafe impl Send for Unstarted {}
