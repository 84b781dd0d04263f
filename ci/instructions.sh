#!/usr/bin/env bash
# Instructions of one coroutine's life and of one switch pair, counted by callgrind: the same for the same compiler.
# The module docs of src/coroutine/switch/jump.rs quote them.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind >/dev/null || { apt-get update -q && apt-get install -qy valgrind; }
program=$(cargo bench --no-run --bench instructions --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*instructions-[^"]*\)".*/\1/p' | tail -n 1)

count() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

for case in lifecycle switch; do
    few=$(count "$case" 10000)
    many=$(count "$case" 110000)
    echo "$case: $(((many - few) / 100000)) instructions"
done
