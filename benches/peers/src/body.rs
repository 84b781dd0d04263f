//! What the coroutines of the loops do: nothing, or suspend.
//!
//! Each body is written twice, for a stack and for a future. Both forms end on their own, so no loop has to destroy a
//! suspended coroutine, and both hold the same few words of state.

use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll};

/// How many calls lie between a coroutine's body and the suspension in the "deep" bodies.
const DEPTH: u32 = 5;

/// Suspends the coroutine that calls it.
pub trait Pause {
    /// Goes back to whoever entered the coroutine; returns when it is entered again.
    fn pause(&mut self);
}

/// A coroutine's body.
pub trait Body: 'static {
    /// Runs on a stack of its own.
    fn run(self, pause: &mut impl Pause);

    /// Runs as a future, polled by hand.
    fn run_async(self) -> impl Future<Output = ()>;
}

/// Ends at once.
pub struct Empty;

impl Body for Empty {
    #[inline(always)]
    fn run(self, _: &mut impl Pause) {}

    async fn run_async(self) {}
}

/// Suspends once, then ends.
pub struct YieldOnce;

impl Body for YieldOnce {
    #[inline(always)]
    fn run(self, pause: &mut impl Pause) {
        pause.pause();
    }

    async fn run_async(self) {
        PauseOnce::default().await;
    }
}

/// Suspends the given number of times, then ends.
pub struct YieldTimes(pub u64);

impl Body for YieldTimes {
    #[inline(always)]
    fn run(self, pause: &mut impl Pause) {
        for _ in 0..self.0 {
            pause.pause();
        }
    }

    async fn run_async(self) {
        for _ in 0..self.0 {
            PauseOnce::default().await;
        }
    }
}

/// [`YieldOnce`], five calls down.
pub struct YieldOnceDeep;

impl Body for YieldOnceDeep {
    #[inline(always)]
    fn run(self, pause: &mut impl Pause) {
        pause_below(pause, DEPTH);
    }

    async fn run_async(self) {
        five_calls(PauseOnce::default()).await;
    }
}

/// [`YieldTimes`], each time by five calls down and, once entered again, five returns up.
pub struct YieldTimesDeep(pub u64);

impl Body for YieldTimesDeep {
    #[inline(always)]
    fn run(self, pause: &mut impl Pause) {
        for _ in 0..self.0 {
            pause_below(pause, DEPTH);
        }
    }

    async fn run_async(self) {
        for _ in 0..self.0 {
            five_calls(PauseOnce::default()).await;
        }
    }
}

/// Suspends `depth` frames below the caller.
#[inline(never)]
fn pause_below(pause: &mut impl Pause, depth: u32) {
    if depth > 1 {
        pause_below(pause, depth - 1);
    } else {
        pause.pause();
    }
    // Something is left to do after the call, so it can't become a jump.
    black_box(());
}

/// Awaits `leaf` through [`DEPTH`] futures, each polled by a real call.
pub fn five_calls<F: Future<Output = ()>>(leaf: F) -> impl Future<Output = ()> {
    Call(Call(Call(Call(Call(leaf)))))
}

/// A future whose poll is a real call: neither inlined nor made a jump.
struct Call<F>(F);

impl<F: Future<Output = ()>> Future for Call<F> {
    type Output = ();

    #[inline(never)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the inner future is pinned with the outer one: no other code reaches the field, and `Call` has
        // neither a `Drop` nor an `Unpin` of its own.
        let inner = unsafe { self.map_unchecked_mut(|call| &mut call.0) };
        let poll = inner.poll(context);
        // As in `pause_below`.
        black_box(());
        poll
    }
}

/// A future that is pending the first time it is polled.
#[derive(Default)]
struct PauseOnce {
    paused: bool,
}

impl Future for PauseOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.paused {
            Poll::Ready(())
        } else {
            self.paused = true;
            Poll::Pending
        }
    }
}
