//! corosensei used bare: whoever finishes a coroutine keeps its stack for the next.

use std::io;

use ::corosensei::stack::DefaultStack;
use ::corosensei::{Coroutine, Yielder};

use super::{CrossThread, Runtime};
use crate::body::{Body, Empty, Pause};

/// The size of [`DefaultStack::default`], which panics where `new` returns an error.
const STACK_SIZE: usize = 1024 * 1024;

/// corosensei, the stack reused through `into_stack`.
pub struct Corosensei;

impl Pause for &Yielder<(), ()> {
    #[inline(always)]
    fn pause(&mut self) {
        self.suspend(());
    }
}

impl Runtime for Corosensei {
    const NAME: &'static str = "corosensei";
    type Spare = DefaultStack;
    type Coroutine = Coroutine<(), (), ()>;

    fn spare() -> io::Result<DefaultStack> {
        DefaultStack::new(STACK_SIZE)
    }

    #[inline(always)]
    fn create<B: Body>(stack: DefaultStack, body: B) -> Self::Coroutine {
        Coroutine::with_stack(stack, move |mut yielder, ()| body.run(&mut yielder))
    }

    #[inline(always)]
    fn enter(coroutine: &mut Self::Coroutine) {
        coroutine.resume(());
    }

    #[inline(always)]
    fn reclaim(coroutine: Self::Coroutine) -> DefaultStack {
        coroutine.into_stack()
    }
}

impl CrossThread for Corosensei {
    type Unstarted = Unstarted;
    const SENDS_SPARES_BACK: bool = true;

    #[inline(always)]
    fn create_unstarted(stack: DefaultStack) -> Unstarted {
        Unstarted::new(stack)
    }

    #[inline(always)]
    fn bind(unstarted: Unstarted) -> Self::Coroutine {
        unstarted.into_coroutine()
    }
}

/// An empty coroutine that has not run yet.
pub struct Unstarted(Coroutine<(), (), ()>);

// SAFETY: a coroutine is not `Send` because its stack may hold values that are not. This one has never been entered
// (`new` is the only constructor and only the thread that will enter it takes it out), so its stack holds only its
// body, the zero-sized `Empty`. The stack itself is a private mapping, not tied to a thread.
unsafe impl Send for Unstarted {}

impl Unstarted {
    #[inline(always)]
    pub fn new(stack: DefaultStack) -> Self {
        Self(Corosensei::create(stack, Empty))
    }

    #[inline(always)]
    pub fn into_coroutine(self) -> Coroutine<(), (), ()> {
        self.0
    }
}
