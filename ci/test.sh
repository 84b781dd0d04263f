#!/bin/bash
# Tests everything. Run it before a commit; from a clean clone it takes some 20 minutes on two cores.
#
#   ci/test.sh           what has to pass
#   ci/test.sh --soak    and the slow tests as well
#
# What this machine can't do (a toolchain or a kernel feature is missing) is left out, and says so: look for SKIPPED.
set -euo pipefail
source "$(dirname "$0")/common.sh"

case "${1:-}" in
    '') soak= ;;
    --soak) soak=1 ;;
    *) echo "usage: $0 [--soak]" >&2 && exit 2 ;;
esac

step "Format"
cargo fmt --all --check

step "Lints"
cargo clippy --workspace --all-targets -- -D warnings

step "Documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps

command -v gdb >/dev/null || packages gdb || skip "gdb is missing and cannot be installed: no test of backtraces"
type -P nbdinfo nbdcopy qemu-img qemu-io fio >/dev/null || packages libnbd-bin qemu-utils fio ||
    skip "libnbd-bin, qemu-utils or fio is missing and cannot be installed: fewer clients of the NBD server"

step "Tests, debug build"
cargo test
cargo test --examples

# Most tests of contexts take the best monitor; `monitors`, `sleeping_loop` and some others try each by themselves.
for monitor in poll epoll; do
    step "Tests, debug build, $monitor"
    AIOCO_TEST_MONITOR="$monitor" cargo test \
        --test context --test foreign_home --test io_thread --test time --test waits --test wake
done

step "Tests, debug build, portable switch"
tests_of_the_crate --features portable-switch

step "Tests, release build"
tests_of_the_crate --release

# Those in which the optimiser may see across a switch; each binary takes half a minute to build.
step "Tests, release build with fat LTO"
cargo test --profile release-lto --lib --test block --test coroutine --test thread_local

# Each change of RUSTFLAGS builds everything anew, so these have target directories of their own.
step "Tests, guard pages by mprotect"
RUSTFLAGS="--cfg aioco_force_mprotect" \
    cargo test --target-dir target/mprotect --lib --test coroutine --test crash --test pool

step "Tests, panic = abort"
RUSTFLAGS="-C panic=abort" cargo test --target-dir target/abort --test panic_abort

step "Models"
ci/loom.sh

step "AddressSanitizer"
ci/asan.sh

step "Examples"
for example in examples/*; do
    name="$(basename "$example" .rs)"
    case "$name" in
        img_bench) arguments=(--compare --rounds 1 --seconds 0.05 --depth 8 --size 4M --verify --format tsv) ;;
        block_layer) arguments=(--filter throttle=100000 --writes 10 --requests 2000 --rounds 1 --size 4) ;;
        nbd_server) arguments=(--help) ;; # it would serve for ever; its tests start it
        *) arguments=() ;;
    esac
    echo "$name ${arguments[*]}"
    cargo run --release --quiet --example "$name" -- "${arguments[@]}"
done

step "Benchmarks, once each"
cargo test --release --benches
cargo run --release --quiet -p peers -- --case call --rounds 3

step "64-bit Arm"
ci/aarch64.sh

if [[ $soak ]]; then
    step "Soaks"
    cargo test --release --lib --tests -- --ignored
    LOOM_MAX_PREEMPTIONS=3 ci/loom.sh
fi

step "Passed"
