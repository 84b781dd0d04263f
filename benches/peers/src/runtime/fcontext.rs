//! Boost's fcontext, by way of the `context` crate: the bare switch, with the least bookkeeping that runs a closure.
//!
//! fcontext saves MXCSR and the x87 control word. Where their sticky flags differ between a coroutine and whoever
//! enters it, a switch costs ten times as much. A coroutine starts with the flags of its creator, so the loops create
//! theirs within the measurement and use no floating point in it.

use std::io;
use std::marker::PhantomData;
use std::mem;

use ::fcontext::stack::{ProtectedFixedSizeStack, Stack};
use ::fcontext::{Context, Transfer};

use super::{CrossThread, Runtime};
use crate::body::{Body, Empty, Pause};

/// What a coroutine passes to whoever entered it.
const SUSPENDED: usize = 0;
const ENDED: usize = 1;

/// Stacks must start aligned to this; bodies may need no more.
const STACK_ALIGNMENT: usize = 16;

/// fcontext on the crate's default stack: eight pages and a guard.
pub struct Fcontext;

/// A context, its stack, and the body at the top of that stack.
pub struct Coroutine {
    /// Where to go on; taken only while the coroutine runs.
    context: Option<Context>,
    /// The address of the body, passed at each entry and read at the first.
    body: usize,
    ended: bool,
    stack: ProtectedFixedSizeStack,
    /// The body and the stack's values need not be `Send`.
    not_send: PhantomData<*mut ()>,
}

/// Whoever entered the coroutine.
struct Caller(Option<Context>);

impl Pause for Caller {
    #[inline(always)]
    fn pause(&mut self) {
        let caller = self.0.take().expect("a running coroutine has a caller");
        // SAFETY: the caller waits in `enter`, on a stack that outlives its wait.
        let transfer = unsafe { caller.resume(SUSPENDED) };
        self.0 = Some(transfer.context);
    }
}

/// The root frame of a coroutine that runs a `B`.
extern "C" fn root<B: Body>(transfer: Transfer) -> ! {
    // SAFETY: `enter` passes the address where `create` wrote the body, which is read here once.
    let body = unsafe { (transfer.data as *mut B).read() };
    let mut caller = Caller(Some(transfer.context));
    body.run(&mut caller);
    let caller = caller.0.take().expect("a running coroutine has a caller");
    // SAFETY: as in `pause`; nothing is left on this stack that needs to be dropped.
    unsafe { caller.resume(ENDED) };
    unreachable!("entered after its end");
}

impl Runtime for Fcontext {
    const NAME: &'static str = "fcontext";
    type Spare = ProtectedFixedSizeStack;
    type Coroutine = Coroutine;

    fn spare() -> io::Result<ProtectedFixedSizeStack> {
        ProtectedFixedSizeStack::new(Stack::default_size()).map_err(io::Error::other)
    }

    #[inline(always)]
    fn create<B: Body>(stack: ProtectedFixedSizeStack, body: B) -> Coroutine {
        const { assert!(mem::align_of::<B>() <= STACK_ALIGNMENT) };
        let reserved = mem::size_of::<B>().next_multiple_of(STACK_ALIGNMENT);
        assert!(reserved < stack.len());
        // SAFETY: the top is page-aligned and the stack larger than the body, so the place is in the stack and aligned.
        let place = unsafe { stack.top().byte_sub(reserved) };
        // SAFETY: as above, and no coroutine uses the stack: it is new or comes from one that has ended.
        unsafe { place.cast::<B>().write(body) };
        // SAFETY: both addresses bound a part of one writable mapping.
        let below = unsafe { Stack::new(place, stack.bottom()) };
        // SAFETY: the mapping lives in the coroutine, beside the context that uses it.
        let context = unsafe { Context::new(&below, root::<B>) };
        Coroutine { context: Some(context), body: place as usize, ended: false, stack, not_send: PhantomData }
    }

    #[inline(always)]
    fn enter(coroutine: &mut Coroutine) {
        assert!(!coroutine.ended, "entered after its end");
        let context = coroutine.context.take().expect("not running");
        // SAFETY: the context is a new or suspended coroutine's, whose stack `coroutine` keeps alive.
        let transfer = unsafe { context.resume(coroutine.body) };
        coroutine.context = Some(transfer.context);
        coroutine.ended = transfer.data == ENDED;
    }

    #[inline(always)]
    fn reclaim(coroutine: Coroutine) -> ProtectedFixedSizeStack {
        assert!(coroutine.ended, "reclaimed before its end");
        coroutine.stack
    }
}

impl CrossThread for Fcontext {
    type Unstarted = Unstarted;
    const SENDS_SPARES_BACK: bool = true;

    #[inline(always)]
    fn create_unstarted(stack: ProtectedFixedSizeStack) -> Unstarted {
        Unstarted(Self::create(stack, Empty))
    }

    #[inline(always)]
    fn bind(unstarted: Unstarted) -> Coroutine {
        unstarted.0
    }
}

/// An empty coroutine that has not run yet.
pub struct Unstarted(Coroutine);

// SAFETY: the coroutine has never been entered (`create_unstarted` makes it, and only `bind` takes it out), so its
// stack holds only its body, the zero-sized `Empty`. The stack itself is a private mapping, not tied to a thread.
unsafe impl Send for Unstarted {}
