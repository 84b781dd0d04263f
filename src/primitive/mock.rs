//! The model's twin of `std.rs`: loom's atomics and cells.

pub(crate) use loom::cell::UnsafeCell;
pub(crate) use loom::sync::atomic;
