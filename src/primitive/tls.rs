//! The crate's one thread-local: a pointer to the calling thread's record.
//!
//! # Why one, and why not `thread_local!`
//!
//! A compiler may compute a thread-local's address once and keep it in a register or a stack slot across a stack
//! switch. Code that is then resumed by another thread reads the first thread's variable. Safe code of this crate can't
//! move a started coroutine, but a wrong address would be silent corruption, so no address is ever kept: each access is
//! an `asm!` block that the compiler can neither foresee nor leave out. `clippy.toml` bans `thread_local!` everywhere
//! else.
//!
//! On x86-64 and aarch64 Linux the slot is defined in assembly and read by one load relative to the thread pointer
//! (initial-exec model): two instructions, which a linker that makes a program turns into constants. In a shared
//! library that is loaded at run time, the slot takes 8 bytes of the room that the C library reserves for this (glibc:
//! 512 bytes and more, musl: as needed). Elsewhere, and where the crate's portable switch was asked for, it is std's
//! thread-local behind a call that is never inlined.
//!
//! The slot has neither a destructor nor a lazy initialiser, so it can be read at any time in a thread's life, also
//! while other thread-locals are being destroyed.
//!
//! # Safety
//!
//! The assembly reads and writes the 8 bytes that it defines, nothing else.
#![allow(unsafe_code)]

#[cfg(jump_switch)]
mod imp {
    use std::arch::{asm, global_asm};

    // The version is a part of the name: two versions of the crate in one program have a slot each.
    macro_rules! slot {
        () => {
            concat!("aioco_thread_", env!("CARGO_PKG_VERSION_MAJOR"), "_", env!("CARGO_PKG_VERSION_MINOR"))
        };
    }

    global_asm!(
        ".pushsection .tbss.aioco, \"awT\", %nobits",
        ".p2align 3",
        concat!(".globl ", slot!()),
        concat!(".type ", slot!(), ", %object"),
        concat!(".size ", slot!(), ", 8"),
        concat!(slot!(), ":"),
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub(crate) fn get() -> *const () {
        let record;
        // SAFETY: reads the slot, which is this thread's.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!(
                concat!("mov {record}, qword ptr [rip + ", slot!(), "@GOTTPOFF]"),
                "mov {record}, qword ptr fs:[{record}]",
                record = out(reg) record,
                options(readonly, nostack, preserves_flags),
            );
            #[cfg(target_arch = "aarch64")]
            asm!(
                "mrs {thread}, tpidr_el0",
                concat!("adrp {record}, :gottprel:", slot!()),
                concat!("ldr {record}, [{record}, :gottprel_lo12:", slot!(), "]"),
                "ldr {record}, [{thread}, {record}]",
                thread = out(reg) _,
                record = out(reg) record,
                options(readonly, nostack, preserves_flags),
            );
        }
        record
    }

    #[inline(never)]
    pub(crate) fn set(record: *const ()) {
        // SAFETY: writes the slot, which is this thread's.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!(
                concat!("mov {offset}, qword ptr [rip + ", slot!(), "@GOTTPOFF]"),
                "mov qword ptr fs:[{offset}], {record}",
                offset = out(reg) _,
                record = in(reg) record,
                options(nostack, preserves_flags),
            );
            #[cfg(target_arch = "aarch64")]
            asm!(
                "mrs {thread}, tpidr_el0",
                concat!("adrp {offset}, :gottprel:", slot!()),
                concat!("ldr {offset}, [{offset}, :gottprel_lo12:", slot!(), "]"),
                "str {record}, [{thread}, {offset}]",
                thread = out(reg) _,
                offset = out(reg) _,
                record = in(reg) record,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(jump_switch))]
#[allow(clippy::disallowed_types, reason = "this is the one place")]
mod imp {
    use std::cell::Cell;

    std::thread_local! {
        static SLOT: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
    }

    #[inline(never)]
    pub(crate) fn get() -> *const () {
        std::hint::black_box(SLOT.get())
    }

    #[inline(never)]
    pub(crate) fn set(record: *const ()) {
        SLOT.set(record);
    }
}

/// The pointer that [`set`] stored in this thread, or null.
#[inline(always)]
pub(crate) fn get() -> *const () {
    imp::get()
}

/// Stores this thread's pointer.
pub(crate) fn set(record: *const ()) {
    imp::set(record);
}
