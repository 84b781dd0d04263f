//! Ground floor: every atomic, cell, lock and thread-local of the crate comes from here.
//!
//! The names below are std's (and parking_lot's locks) in an ordinary build and loom's in a model build
//! (`cfg(all(test, loom))`), so a file that carries a protocol is compiled unchanged into the models of `loom-tests/`.
//! Items that loom doesn't know take loom's shape here: [`UnsafeCell`] is used through `with` and `with_mut`.

#[cfg(not(all(test, loom)))]
#[path = "std.rs"]
mod imp;
#[cfg(all(test, loom))]
#[path = "mock.rs"]
mod imp;

pub(crate) mod mutant;
#[cfg(not(all(test, loom)))]
pub(crate) mod tls;

pub(crate) use imp::{Overwrite, UnsafeCell, atomic};
#[cfg(not(all(test, loom)))]
pub(crate) use parking_lot::Mutex;
