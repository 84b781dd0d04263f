//! aarch64, AAPCS64. The head of [`super`] explains what happens.
#![allow(unsafe_code)] // # Safety: contracts on the functions; the pictures are in the head of `jump`.

use std::arch::{asm, naked_asm};

use super::super::super::block::{Action, Block, Entry};

/// Exchanges the stack pointer with the block's `other`, and goes on where the other side left off. Returns, with the
/// block's address, when that side does the same.
///
/// # Safety
///
/// `other` is the stack pointer that an `exchange` or `start` on the other side left.
#[inline(always)]
pub(super) unsafe fn exchange(block: *const Block) -> *const Block {
    let back;
    // SAFETY: the contract; all registers but x19, x29 and sp are declared clobbered, and those come back as they were,
    // because whoever goes on here does so by the same instructions, or by those of `leave`.
    unsafe {
        asm!(
            "adr x9, 2f",
            "stp x19, x29, [sp, #-32]!",
            "str x9, [sp, #16]",
            "mov x9, sp",
            "ldr x10, [x0]",
            "str x9, [x0]",
            "mov sp, x10",
            "ldr x9, [sp, #16]",
            "br x9",
            "2:",
            "ldp x19, x29, [sp], #32",
            inout("x0") block => back,
            out("x20") _, out("x21") _, out("x22") _, out("x23") _, out("x24") _,
            out("x25") _, out("x26") _, out("x27") _, out("x28") _,
            // The ABI keeps the low halves of these over a call; here nothing is kept.
            out("v8") _, out("v9") _, out("v10") _, out("v11") _,
            out("v12") _, out("v13") _, out("v14") _, out("v15") _,
            clobber_abi("C"),
        );
    }
    back
}

/// Leaves the stack pointer in the block's `other`, and calls `entry` at the top of the fiber's stack. Returns, with
/// the block's address, when that side leaves or exchanges.
///
/// # Safety
///
/// - `stack` is where the stack starts.
/// - `entry` may be called with the block, and doesn't return.
#[inline(always)]
pub(super) unsafe fn start(block: *const Block, entry: Entry, stack: *mut u8) -> *const Block {
    let back;
    // SAFETY: as in `exchange`.
    unsafe {
        asm!(
            "adr x9, 2f",
            "stp x19, x29, [sp, #-32]!",
            "str x9, [sp, #16]",
            "mov x9, sp",
            "str x9, [x0]",
            "mov sp, x3",
            "mov x29, xzr", // the end of the chain of frame pointers
            "br x2",        // returns to `bottom`: see x30
            "2:",
            "ldp x19, x29, [sp], #32",
            inout("x0") block => back,
            in("w1") Action::Run as u32,
            in("x2") entry,
            in("x3") stack,
            // One instruction into `bottom`: unwinders look up the instruction before a return address.
            inout("x30") bottom as *const () as usize + 4 => _,
            out("x20") _, out("x21") _, out("x22") _, out("x23") _, out("x24") _,
            out("x25") _, out("x26") _, out("x27") _, out("x28") _,
            out("v8") _, out("v9") _, out("v10") _, out("v11") _,
            out("v12") _, out("v13") _, out("v14") _, out("v15") _,
            clobber_abi("C"),
        );
    }
    back
}

/// Goes on where the other side left off, and never comes back.
///
/// # Safety
///
/// As for [`exchange`].
#[inline(always)]
pub(super) unsafe fn leave(block: *const Block) -> ! {
    // SAFETY: contract.
    unsafe {
        asm!(
            "ldr x9, [x0]",
            "mov sp, x9",
            "ldr x9, [sp, #16]",
            "br x9",
            in("x0") block,
            options(noreturn),
        );
    }
}

/// Nothing to lay: the return address of the first frame is passed in a register.
///
/// # Safety
///
/// None; the other architecture's has a contract.
pub(super) unsafe fn lay_bottom(_: *mut u8) {}

/// The outermost frame of every fiber.
#[unsafe(naked)]
unsafe extern "C" fn bottom() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined x30", // there is no caller: unwinders and debuggers stop here
        "nop",
        "brk #1",
        ".cfi_endproc",
    )
}
