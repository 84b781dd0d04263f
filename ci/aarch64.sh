#!/bin/bash
# Runs the tests on 64-bit Arm, under user-mode emulation: Debian has a compiler, a standard library and a C library for
# it. Emulation runs the other architecture's instructions, not its memory model, and it has neither io_uring, Linux AIO
# nor guard markers: tests say what they skip.
set -euo pipefail
source "$(dirname "$0")/common.sh"

arm64_packages() {
    [[ -d /usr/lib/rustlib/aarch64-unknown-linux-gnu && -e /lib/ld-linux-aarch64.so.1 ]] &&
        command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64-static >/dev/null && return
    as_root dpkg --add-architecture arm64 &&
        packages rustc-web libstd-rust-web-dev:arm64 libc6:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
}

if ! arm64_packages; then
    skip "Debian's packages for an emulated 64-bit Arm can't be had here"
    exit
fi

# Without its security updates, Debian has a compiler that is too old for the crate.
needed="$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' Cargo.toml)"
found="$(/usr/bin/rustc --version | cut -d' ' -f2)"
if [[ "$(printf '%s\n' "$needed" "$found" | sort -V | head -n 1)" != "$needed" ]]; then
    skip "Debian's compiler for 64-bit Arm is $found, and the crate needs $needed"
    exit
fi

# Without -L: with it, starting a thread spins for ever.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64-static
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# What the tests start their children by.
export AIOCO_TEST_RUNNER=qemu-aarch64-static
export RUSTC=/usr/bin/rustc

# Left out are the stress tests of wakes and of the pool, which take minutes under emulation and prove nothing of its memory
# model; what needs a debugger, or filters of system calls; `polling`, which counts on threads that are quick; and the examples.
tests=(--lib)
for name in bottom_half context coroutine crash ends fd_handlers foreign_home fork io_thread main_thread nested \
    qemu_loop registers sleeping_loop thread_local time timers waits; do
    tests+=(--test "$name")
done
cargo test --target aarch64-unknown-linux-gnu --target-dir target/aarch64 "${tests[@]}"
