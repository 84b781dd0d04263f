//! Stackful coroutines and an AioContext for block-layer code.
#![deny(unsafe_code)]

mod lockfree;
mod pool;
mod primitive;

pub mod aio;
pub mod coroutine;
pub mod fd;
pub mod park;
mod sys;
pub mod task;

pub use aio::{AioContext, Remote};
pub use coroutine::{Coroutine, current, in_coroutine, yield_now};
pub use task::JoinHandle;
