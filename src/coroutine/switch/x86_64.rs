//! x86-64, System V ABI. The head of [`super`] explains what happens.
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
    // SAFETY: the contract; all registers but rbx, rbp and rsp are declared clobbered, and those come back as they
    // were, because whoever goes on here does so by the same instructions, or by those of `leave`.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "lea rax, [rip + 2f]",
            "push rax",
            "mov rax, rsp",
            "mov rsp, [rdi]",
            "mov [rdi], rax",
            "pop rax",
            "jmp rax",
            "2:",
            "pop rbx",
            "pop rbp",
            inout("rdi") block => back,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            clobber_abi("sysv64"),
        );
    }
    back
}

/// Leaves the stack pointer in the block's `other`, and calls `entry` at the top of the fiber's stack. Returns, with
/// the block's address, when that side leaves or exchanges.
///
/// # Safety
///
/// - `stack` is where the stack starts, and [`lay_bottom`] has been called for it.
/// - `entry` may be called with the block, and doesn't return.
#[inline(always)]
pub(super) unsafe fn start(block: *const Block, entry: Entry, stack: *mut u8) -> *const Block {
    let back;
    // SAFETY: as in `exchange`. At the entry the stack pointer is 8 below a multiple of 16, as after a call.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "lea rax, [rip + 2f]",
            "push rax",
            "mov [rdi], rsp",
            "lea rsp, [rcx - 8]", // where `lay_bottom` put the return address
            "xor ebp, ebp",       // the end of the chain of frame pointers
            "jmp rdx",
            "2:",
            "pop rbx",
            "pop rbp",
            inout("rdi") block => back,
            in("esi") Action::Run as u32,
            in("rdx") entry,
            in("rcx") stack,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            clobber_abi("sysv64"),
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
            "mov rsp, [rdi]",
            "pop rax",
            "jmp rax",
            in("rdi") block,
            options(noreturn),
        );
    }
}

/// Writes what every frame at the top of this stack returns to.
///
/// # Safety
///
/// `stack` is where the stack starts.
pub(super) unsafe fn lay_bottom(stack: *mut u8) {
    // One byte into `bottom`: unwinders look up the instruction before a return address.
    let address = bottom as *const () as usize + 1;
    // SAFETY: the word lies on the stack, which is 16-byte aligned.
    unsafe { stack.cast::<usize>().sub(1).write(address) };
}

/// The outermost frame of every fiber.
#[unsafe(naked)]
unsafe extern "C" fn bottom() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined rip", // there is no caller: unwinders and debuggers stop here
        "nop",
        "ud2",
        ".cfi_endproc",
    )
}
