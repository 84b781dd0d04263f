//! This project's coroutines, through their public interface only.

use std::io;

use ::aioco::Coroutine;
use ::aioco::coroutine::Unstarted;

use super::{CrossThread, Runtime};
use crate::body::{Body, Empty, Pause, YieldOnce};

/// Address space for each of a great many parked coroutines. It is far more than a suspended request of the block layer
/// needs, and a million of them still fit into 64 GiB of address space.
const PARKED_STACK_SIZE: usize = 64 * 1024;

/// aioco with its default stacks and its default pool.
pub struct Aioco;

struct YieldNow;

impl Pause for YieldNow {
    #[inline(always)]
    fn pause(&mut self) {
        ::aioco::yield_now();
    }
}

impl Runtime for Aioco {
    const NAME: &'static str = "aioco";
    type Spare = ();
    type Coroutine = Coroutine;

    fn spare() -> io::Result<()> {
        Ok(())
    }

    #[inline(always)]
    fn create<B: Body>((): (), body: B) -> Coroutine {
        Coroutine::new(move || body.run(&mut YieldNow)).expect("a stack can be mapped")
    }

    #[inline(always)]
    fn enter(coroutine: &mut Coroutine) {
        coroutine.enter();
    }

    #[inline(always)]
    fn reclaim(_: Coroutine) {}

    fn create_parked() -> io::Result<Coroutine> {
        Coroutine::builder().stack_size(PARKED_STACK_SIZE).create(|| YieldOnce.run(&mut YieldNow))
    }
}

impl CrossThread for Aioco {
    type Unstarted = Unstarted;
    const SENDS_SPARES_BACK: bool = false;

    #[inline(always)]
    fn create_unstarted((): ()) -> Unstarted {
        Coroutine::builder().create_unstarted(|| Empty.run(&mut YieldNow)).expect("a stack can be mapped")
    }

    #[inline(always)]
    fn bind(unstarted: Unstarted) -> Coroutine {
        unstarted.bind()
    }
}
