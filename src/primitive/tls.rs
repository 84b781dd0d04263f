//! The crate's one thread-local: a pointer to the calling thread's record.
//!
//! # Why one, and why behind a call
//!
//! A compiler may compute a thread-local's address once and keep it in a register or a stack slot across a stack
//! switch. Code that is then resumed by another thread reads the first thread's variable. Safe code of this crate can't
//! move a started coroutine, but a wrong address would be silent corruption, so no address is ever kept: the accessor
//! is never inlined, and what it returns passes through an `asm!` block whose result the compiler can't foresee.
//! `clippy.toml` bans `thread_local!` everywhere else.
//!
//! The slot has neither a destructor nor a lazy initialiser, so it can be read at any time in a thread's life, also
//! while other thread-locals are being destroyed.

use std::cell::Cell;

#[allow(clippy::disallowed_macros, reason = "this is the one place")]
mod slot {
    use super::Cell;

    std::thread_local! {
        pub(super) static SLOT: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
    }
}

/// The pointer that [`set`] stored in this thread, or null.
#[inline(never)]
pub(crate) fn get() -> *const () {
    std::hint::black_box(slot::SLOT.get())
}

/// Stores this thread's pointer.
#[inline(never)]
pub(crate) fn set(record: *const ()) {
    slot::SLOT.set(record);
}
