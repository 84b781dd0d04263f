//! The pool everyone writes first: corosensei's stacks in a vector behind a mutex.

use std::io;
use std::sync::{Mutex, PoisonError};

use ::corosensei::Coroutine;
use ::corosensei::stack::DefaultStack;

use super::corosensei::{Corosensei, Unstarted};
use super::{CrossThread, Runtime};
use crate::body::Body;

static STACKS: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());

/// corosensei with one pool of stacks for all threads.
pub struct NaivePool;

#[inline(always)]
fn take() -> DefaultStack {
    let pooled = STACKS.lock().unwrap_or_else(PoisonError::into_inner).pop();
    pooled.unwrap_or_else(|| Corosensei::spare().expect("a stack can be mapped"))
}

impl Runtime for NaivePool {
    const NAME: &'static str = "naive-pool";
    type Spare = ();
    type Coroutine = Coroutine<(), (), ()>;

    fn spare() -> io::Result<()> {
        Ok(())
    }

    #[inline(always)]
    fn create<B: Body>((): (), body: B) -> Self::Coroutine {
        Corosensei::create(take(), body)
    }

    #[inline(always)]
    fn enter(coroutine: &mut Self::Coroutine) {
        Corosensei::enter(coroutine);
    }

    #[inline(always)]
    fn reclaim(coroutine: Self::Coroutine) {
        let stack = Corosensei::reclaim(coroutine);
        STACKS.lock().unwrap_or_else(PoisonError::into_inner).push(stack);
    }
}

impl CrossThread for NaivePool {
    type Unstarted = Unstarted;
    const SENDS_SPARES_BACK: bool = false;

    #[inline(always)]
    fn create_unstarted((): ()) -> Unstarted {
        Unstarted::new(take())
    }

    #[inline(always)]
    fn bind(unstarted: Unstarted) -> Self::Coroutine {
        unstarted.into_coroutine()
    }
}
