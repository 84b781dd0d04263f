#!/bin/bash
# Runs the tests under AddressSanitizer.
set -euo pipefail
source "$(dirname "$0")/common.sh"

# What can't pass:
without=(
    # The sanitizer answers a fault with a report and exit code 1, where the tests expect a signal.
    a_frame_larger_than_the_stack_faults_and_jumps_over_no_guard
    a_stack_overflow_dies_alike_on_a_std_thread_and_on_a_raw_one
    a_stack_overflow_dies_on_the_guard_and_leaves_the_neighbours_alone
    a_stack_overflow_on_the_first_thread_dies_like_on_any_other
    the_page_below_every_stack_faults_also_after_trims
    # It maps memory of its own, for each stack too: figures of resident memory mean nothing, and limits hit it first.
    a_burst_of_10000_gives_its_memory_back_when_trimmed
    a_shallow_coroutine_touches_only_the_top_of_its_stack
    memory_of_idle_stacks_comes_back_also_from_slabs_that_are_in_use
    memory_that_deep_coroutines_touched_comes_back_when_trimmed
    running_out_of_address_space_is_an_error_that_loses_nothing_and_passes
    running_out_of_mappings_is_an_error_that_names_the_limit_and_passes
)
skip "under AddressSanitizer, for reasons given in $0: ${without[*]}"

# No search for leaks: it doesn't know the stacks of suspended coroutines, and what only these point to seems lost. The tests
# count what they drop.
export ASAN_OPTIONS=detect_leaks=0

# The sanitizer is for nightly compilers, but other ones have it too.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address"

# With --target, build scripts and procedural macros are built without the sanitizer.
host="$(rustc -vV | sed -n 's/^host: //p')"
tests_of_the_crate --target-dir target/asan --target "$host" --features sanitizer
