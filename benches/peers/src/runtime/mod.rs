//! The runtimes that are compared, one a file, behind one trait, so that the loops are written once and inlined into
//! each. tokio has no way to enter a task by hand and brings loops of its own.

mod aioco;
mod async_boxed;
mod corosensei;
mod fcontext;
mod generator;
mod naive_pool;
pub mod tokio;

use std::io;

pub use self::aioco::Aioco;
pub use self::async_boxed::AsyncBoxed;
pub use self::corosensei::Corosensei;
pub use self::fcontext::Fcontext;
pub use self::generator::Generator;
pub use self::naive_pool::NaivePool;

use crate::body::{Body, YieldOnce};

/// A runtime whose coroutines are entered by hand.
pub trait Runtime: Sized + 'static {
    /// The name in reports.
    const NAME: &'static str;

    /// What the next coroutine is made from: a stack, or a finished coroutine that can be used again. `()` for a
    /// runtime that does its own recycling.
    type Spare: 'static;

    /// A coroutine that has not been given up yet.
    type Coroutine;

    /// Makes a new spare, at full cost.
    fn spare() -> io::Result<Self::Spare>;

    /// Makes a coroutine that will run `body`.
    fn create<B: Body>(spare: Self::Spare, body: B) -> Self::Coroutine;

    /// Runs `coroutine` until it suspends or ends.
    fn enter(coroutine: &mut Self::Coroutine);

    /// Gives up a coroutine that has ended.
    ///
    /// # Panics
    ///
    /// May panic if it has not.
    fn reclaim(coroutine: Self::Coroutine) -> Self::Spare;

    /// Makes a coroutine that suspends once, in the way that suits a great many of them.
    fn create_parked() -> io::Result<Self::Coroutine> {
        Ok(Self::create(Self::spare()?, YieldOnce))
    }
}

/// A runtime whose coroutines may be created on one thread and run on another.
pub trait CrossThread: Runtime<Spare: Send> {
    /// A coroutine on its way to the thread that will enter it.
    type Unstarted: Send + 'static;

    /// Whether spares have to be sent back to the creating thread by hand.
    const SENDS_SPARES_BACK: bool;

    /// Makes an empty coroutine, to be bound by another thread.
    fn create_unstarted(spare: Self::Spare) -> Self::Unstarted;

    /// Makes the coroutine one of this thread.
    fn bind(unstarted: Self::Unstarted) -> Self::Coroutine;
}
