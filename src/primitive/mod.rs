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
pub(crate) mod short_lock;
#[cfg(not(all(test, loom)))]
pub(crate) mod tls;

pub(crate) use imp::{Mutex, Overwrite, ShortLock, UnsafeCell, atomic};

/// A function that is const, except in a model: loom's items register themselves when they are made.
macro_rules! const_unless_model {
    ($(#[$meta:meta])* $vis:vis fn $($rest:tt)*) => {
        #[cfg(all(test, loom))]
        $(#[$meta])*
        $vis fn $($rest)*
        #[cfg(not(all(test, loom)))]
        $(#[$meta])*
        $vis const fn $($rest)*
    };
}
pub(crate) use const_unless_model;
