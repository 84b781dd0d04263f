//! Stackful coroutines and an AioContext for block-layer code.
//!
//! A coroutine is straight-line code that can be left in the middle: it waits for a descriptor, a timer or another
//! coroutine, and its thread goes on with the others. Block-layer code that serves many requests at once is written as
//! one coroutine per request.
//!
//! ```
//! use aioco::{AioContext, yield_now};
//!
//! let context = AioContext::new()?;
//! let sum = context.block_on(|| {
//!     let parts: Vec<_> = (0..4)
//!         .map(|part| {
//!             context.spawn(move || {
//!                 yield_now(); // the others have their turn
//!                 part * 10
//!             })
//!         })
//!         .collect::<Result<_, _>>()?;
//!     Ok::<i32, std::io::Error>(parts.into_iter().map(|part| part.join().unwrap()).sum())
//! })?;
//! assert_eq!(sum, 60);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Where to start
//!
//! - [`AioContext`] is an event loop: spawn coroutines on it, and let it run. [`JoinHandle`] waits for one, or cancels
//!   it.
//! - [`sync`] has locks, channels and task groups.
//! - [`block`] reads and writes files and block devices. [`fd`] has sockets and pipes that park; [`park`] is the primitive
//!   under everything that waits.
//! - [`task`] joins coroutines and async code: a coroutine waits for a future, and async code for a coroutine.
//! - [`Coroutine`] is a coroutine that you enter yourself, without an event loop. The [module](coroutine) tells the
//!   rules.
//! - [`coroutine::Home`] lets coroutines live on an event loop of your own, or of somebody else's.
//! - [`coroutine::pool`] has the statistics and limits of stacks.
//! - The [guide] leads from callback code, or from async Rust, to coroutines.
//!
//! # What it does not do
//!
//! - It moves no started coroutine to another thread: what is on its stack needn't be `Send`.
//! - It doesn't preempt: a coroutine that computes for long, or blocks its thread, delays the others.
//! - It doesn't grow stacks. A coroutine that overflows its stack runs into a guard page, and the process dies of
//!   `SIGSEGV`. A frame larger than a page that was compiled without stack probes (C code may be) can jump over the
//!   guard.
//! - It runs on Linux only.
//!
//! # Features
//!
//! - `portable-switch`: switch stacks by corosensei, also where the crate has a [faster switch](coroutine#the-switch)
//!   of its own.
//! - `sanitizer`: tell AddressSanitizer about stack switches. Of use only with a nightly compiler and
//!   `-Zsanitizer=address`; includes `portable-switch`.
#![deny(unsafe_code)]
// A model build has the protocols without their users.
#![cfg_attr(all(test, loom), allow(dead_code, unused_imports))]

#[cfg(not(all(test, loom)))]
pub mod aio;
#[cfg(not(all(test, loom)))]
mod arena;
#[cfg(not(all(test, loom)))]
pub mod block;
#[cfg(not(all(test, loom)))]
pub mod coroutine;
#[cfg(not(all(test, loom)))]
pub mod fd;
#[cfg(not(all(test, loom)))]
#[doc = include_str!("guide.md")]
pub mod guide {}
mod lockfree;
#[cfg(not(all(test, loom)))]
pub mod park;
mod pool;
mod primitive;
#[cfg(not(all(test, loom)))]
pub mod sync;
#[cfg(not(all(test, loom)))]
mod sys;
#[cfg(not(all(test, loom)))]
pub mod task;

#[cfg(not(all(test, loom)))]
pub use crate::{
    aio::{AioContext, Remote},
    coroutine::{Coroutine, current, in_coroutine, yield_now},
    task::JoinHandle,
};

#[cfg(all(test, loom))]
mod aio {
    pub(crate) mod bh_state;
    pub(crate) mod notify;
    pub(crate) mod request_state;
}
#[cfg(all(test, loom))]
mod coroutine {
    pub(crate) mod state;
}
#[cfg(all(test, loom))]
mod sync {
    pub(crate) mod raw;
}
#[cfg(all(test, loom))]
mod task {
    pub(crate) mod oneshot;
}
#[cfg(all(test, loom))]
#[path = "../loom-tests/mod.rs"]
mod loom_tests;
#[cfg(all(test, loom))]
#[path = "../loom-tests/park.rs"]
mod park;
