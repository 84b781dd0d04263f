#!/bin/bash
# Measures the example `nbd_server` beside nbdkit's file plugin and qemu-nbd, with the same clients: fio's random reads of
# 4 KiB at depth 64 with one connection and with four, and nbdcopy from and to the server.
#
#   benches/nbd.sh [--rounds N] [--seconds N] [--size MIB] [FOLDER...]
#
# The servers take turns, in each of the rounds (5), for each folder: without any, /dev/shm and target, which is a disk as
# a rule, whose pages are in the cache. Prints, tab-separated, the best and the median of each server, and how much aioco is
# ahead (medians; CPU: behind, if above 1): I/O operations per second, or MiB per second with nbdcopy, and the server's
# processor time in microseconds per operation, or per MiB.
set -euo pipefail
source "$(dirname "$0")/../ci/common.sh"

rounds=5 seconds=2 size=256 folders=()
while (($#)); do
    case "$1" in
        --rounds) rounds="$2" && shift 2 ;;
        --seconds) seconds="$2" && shift 2 ;;
        --size) size="$2" && shift 2 ;;
        -*) sed -n '2,5s/^# \?//p' "$0" >&2 && exit 2 ;;
        *) folders+=("$1") && shift ;;
    esac
done
[[ ${#folders[@]} -gt 0 ]] || folders=(/dev/shm target)

type -P fio nbdcopy nbdkit qemu-nbd >/dev/null || packages fio libnbd-bin nbdkit qemu-utils ||
    { echo "fio, nbdcopy, nbdkit or qemu-nbd is missing and cannot be installed" >&2 && exit 1; }
cargo build --release --quiet --example nbd_server

work="$(mktemp -d)"
server=
cleanup() {
    [[ -z $server ]] || kill "$server" 2>/dev/null || true
    rm -rf "$work" "${folders[@]/%//nbd-bench.img}"
}
trap cleanup EXIT
socket="$work/socket" uri="nbd+unix:///?socket=$work/socket" results="$work/results"

# Starts a server in the background: serve NAME IMAGE
serve() {
    rm -f "$socket"
    case "$1" in
        aioco) target/release/examples/nbd_server --socket "$socket" "$2" >/dev/null 2>&1 & ;;
        nbdkit) nbdkit --foreground --unix "$socket" file "$2" >/dev/null 2>&1 & ;;
        qemu-nbd) qemu-nbd --persistent --shared 16 --format raw --aio io_uring --cache writeback --socket "$socket" "$2" \
            >/dev/null 2>&1 & ;;
    esac
    server=$!
    for _ in {1..500}; do
        [[ -S $socket ]] && return
        sleep 0.01
    done
    echo "$1 doesn't start" >&2 && exit 1
}

stop() {
    kill "$server" && wait "$server" 2>/dev/null || true
    server=
}

# Processor time of the server, in microseconds.
cpu() {
    awk -v hertz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); printf "%d\n", ($12 + $13) * 1e6 / hertz }' "/proc/$server/stat"
}

# Operations per second of one run: random_reads CONNECTIONS
random_reads() {
    fio --name=reads --ioengine=nbd --uri="$uri" --rw=randread --bs=4k --iodepth=64 --numjobs="$1" --thread \
        --group_reporting --time_based --runtime="$seconds" --size="${size}M" --output-format=terse --terse-version=3 |
        awk -F';' '$1 == 3 { print $8 }'
}

# MiB per second of one run: copy FROM TO
copy() {
    local start end
    start=$(date +%s%N)
    nbdcopy --flush "$1" "$2"
    end=$(date +%s%N)
    awk -v size="$size" -v nanos=$((end - start)) 'BEGIN { printf "%.1f\n", size * 1e9 / nanos }'
}

# Runs a case once, and notes rate and processor time per unit: measure FOLDER CASE SERVER
measure() {
    local image="$1/nbd-bench.img" before after rate units
    serve "$3" "$image"
    before=$(cpu)
    case "$2" in
        read-1) rate=$(random_reads 1) units=$((rate * seconds)) ;;
        read-4) rate=$(random_reads 4) units=$((rate * seconds)) ;;
        copy-from) rate=$(copy "$uri" null:) units=$size ;;
        copy-to) rate=$(copy "$source" "$uri") units=$size ;;
    esac
    after=$(cpu)
    stop
    awk -v OFS='\t' -v key="$1	$2	$3" -v rate="$rate" -v cpu=$((after - before)) -v units="$units" \
        'BEGIN { print key, rate, cpu / units }' >>"$results"
}

# The same noise for all: nobody can tell that it is zeroes.
source="$work/source"
head -c "${size}M" /dev/urandom >"$source"
for folder in "${folders[@]}"; do
    cp "$source" "$folder/nbd-bench.img"
    for ((round = 0; round < rounds; round++)); do
        for case in read-1 read-4 copy-from copy-to; do
            for name in aioco nbdkit qemu-nbd; do measure "$folder" "$case" "$name"; done
        done
    done
    rm "$folder/nbd-bench.img"
done

awk -F'\t' -v OFS='\t' '
    function median(values, count,    i, j, value) {
        for (i = 2; i <= count; i++) {
            value = values[i]
            for (j = i - 1; j > 0 && values[j] > value; j--) values[j + 1] = values[j]
            values[j + 1] = value
        }
        return count % 2 ? values[(count + 1) / 2] : (values[count / 2] + values[count / 2 + 1]) / 2
    }
    {
        key = $1 OFS $2 OFS $3
        if (!(key in count)) keys[++keyCount] = key
        n = ++count[key]
        rate[key, n] = $4
        cpu[key, n] = $5
        if ($4 > best[key]) best[key] = $4
    }
    END {
        print "folder", "case", "server", "best", "median", "cpu_us", "ahead", "cpu"
        for (k = 1; k <= keyCount; k++) {
            key = keys[k]
            n = count[key]
            for (i = 1; i <= n; i++) { rates[i] = rate[key, i]; cpus[i] = cpu[key, i] }
            middle = median(rates, n)
            time = median(cpus, n)
            if (key ~ /aioco$/) { own = middle; ownTime = time }
            printf "%s\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\n", key, best[key], middle, time, own / middle, ownTime / time
        }
    }' "$results"
