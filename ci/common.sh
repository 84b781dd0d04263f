# Sourced by the other scripts, which run in the crate's folder.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Prints a heading, and how long the script has run.
step() {
    printf '\n\e[1m== %s\e[0m (after %d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60))
}

# Says that something is left out, and why.
skip() {
    printf 'SKIPPED: %s\n' "$1"
}

# Runs a command as root, which may fail.
as_root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

# Installs Debian packages, which may fail: packages PACKAGE...
packages() {
    as_root apt-get update -qq &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$@" >/dev/null
}

# Runs the unit and integration tests, but for those of examples and those in the array `without`, with the given options
# of cargo.
without=()
tests_of_the_crate() {
    local file test tests=() skips=()
    for file in tests/*.rs tests/*/main.rs; do
        test="${file#tests/}" test="${test%.rs}" test="${test%/main}"
        case "$test" in
            block_layer | img_bench | nbd_server | layering) ;;
            *) tests+=(--test "$test") ;;
        esac
    done
    for test in "${without[@]}"; do skips+=(--skip "$test"); done
    cargo test --lib "${tests[@]}" "$@" -- "${skips[@]}"
}
