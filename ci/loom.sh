#!/bin/bash
# Checks the models of loom-tests/ and that they catch the planted faults.
#
#   ci/loom.sh          all of them
#   ci/loom.sh state    those of the state word
set -euo pipefail
source "$(dirname "$0")/common.sh"

# How often an execution may take the processor away from a thread that could go on. On one core of a 2.6 GHz Xeon: with 2
# the models take 2 minutes; with 3, which `ci/test.sh --soak` uses, several times that.
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}"

# The caught faults' backtraces would take longer than the models.
export RUST_BACKTRACE=0

# Debug assertions are on so that loom and the protocols check themselves.
RUSTFLAGS="--cfg loom -C debug-assertions" \
    cargo test --target-dir target/loom --lib --release "loom_tests::${1:-}"
