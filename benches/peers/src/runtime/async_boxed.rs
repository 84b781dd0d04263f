//! A boxed future polled by hand: what Rust offers without a runtime, and without a stack.

use std::hint;
use std::io;
use std::pin::Pin;
use std::task::{Context, Waker};

use super::{CrossThread, Runtime};
use crate::body::{Body, Empty};

/// A boxed `async fn`.
pub struct AsyncBoxed;

impl Runtime for AsyncBoxed {
    const NAME: &'static str = "async-boxed";
    type Spare = ();
    type Coroutine = Pin<Box<dyn Future<Output = ()>>>;

    fn spare() -> io::Result<()> {
        Ok(())
    }

    #[inline(always)]
    fn create<B: Body>((): (), body: B) -> Self::Coroutine {
        // Without the black box the compiler sees through the allocation and removes it.
        hint::black_box(Box::pin(body.run_async()))
    }

    #[inline(always)]
    fn enter(coroutine: &mut Self::Coroutine) {
        let mut context = Context::from_waker(Waker::noop());
        // Whether it is pending or ready is known to the loop.
        let _ = coroutine.as_mut().poll(&mut context);
    }

    #[inline(always)]
    fn reclaim(_: Self::Coroutine) {}
}

impl CrossThread for AsyncBoxed {
    type Unstarted = Pin<Box<dyn Future<Output = ()> + Send>>;
    const SENDS_SPARES_BACK: bool = false;

    #[inline(always)]
    fn create_unstarted((): ()) -> Self::Unstarted {
        hint::black_box(Box::pin(Empty.run_async()))
    }

    #[inline(always)]
    fn bind(unstarted: Self::Unstarted) -> Self::Coroutine {
        unstarted
    }
}
