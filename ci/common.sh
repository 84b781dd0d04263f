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

# Runs a command as root.
as_root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

# Installs Debian packages: install PACKAGE...
install_packages() {
    as_root apt-get update -qq &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$@" >/dev/null
}

# Installs Debian packages if a command is missing: packages COMMAND PACKAGE...
packages() {
    command -v "$1" >/dev/null || install_packages "${@:2}"
}

# Runs the unit and integration tests, with the given options of cargo.
unit_and_integration_tests() {
    # Some tests run an example, which cargo builds only if it isn't told what to test.
    cargo ${toolchain:-} build --examples "$@"
    cargo ${toolchain:-} test --lib --tests --examples "$@"
}
