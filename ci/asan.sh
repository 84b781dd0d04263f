#!/bin/bash
# Runs the tests under AddressSanitizer. It needs a nightly compiler, whichever is installed.
set -euo pipefail
source "$(dirname "$0")/common.sh"

if ! cargo +nightly --version >/dev/null 2>&1; then
    skip "there is no nightly toolchain (rustup toolchain install nightly --profile minimal)"
    exit
fi

# No leaks: what only a suspended coroutine points to seems lost, as its stack isn't one that the leak detector knows. The
# tests count what they drop.
export ASAN_OPTIONS=detect_leaks=0

# With --target, build scripts and procedural macros are built without the sanitizer.
host="$(rustc -vV | sed -n 's/^host: //p')"
RUSTFLAGS="-Zsanitizer=address" toolchain=+nightly \
    unit_and_integration_tests --target-dir target/asan --target "$host" --features sanitizer
