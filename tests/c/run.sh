#!/usr/bin/env bash
# Builds and runs the C programs of this folder against csrc/core alone, those named test_host_* against csrc/host too; called by
# .ci/run, by test_c.py and by hand.
#   run.sh check            every test_*.c under AddressSanitizer and UBSan, assertions on ($CC, default cc)
#   run.sh plain            the same without sanitizers, as optimised as the module
#   run.sh fuzz SECONDS     libFuzzer on tests/fuzz/fuzz_router.c (clang)
#   run.sh fuzz-ring SECONDS    the same on tests/fuzz/fuzz_ring.c
#   run.sh tsan SECONDS     64 threads hammering the ring under ThreadSanitizer
#   run.sh callgrind        instruction counts against budgets.txt (valgrind)
#   run.sh callgrind-hook PYTHON    of a wrapped call, in an interpreter that has the module, against budgets_hook.txt
# Invariant: the first program that fails ends the run with its status.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
CC=${CC:-cc}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
flags=(-std=c11 -D_POSIX_C_SOURCE=200809L -pthread -g -Wall -Wextra -Wno-missing-field-initializers -Werror -Icsrc -Itests/c)
host=(-D_GNU_SOURCE=1)
sanitize=(-O1 -UNDEBUG -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all)

# build_core FLAGS...: every file of the core once, as objects in $out
build_core() {
    local file
    for file in csrc/core/*.c; do
        "$CC" "${flags[@]}" "$@" -c "$file" -o "$out/core_$(basename "$file" .c).o"
    done
}

# build_host FLAGS...: the same for csrc/host, which needs Linux's own calls
build_host() {
    local file
    for file in csrc/host/*.c; do
        "$CC" "${flags[@]}" "${host[@]}" "$@" -c "$file" -o "$out/host_$(basename "$file" .c).o"
    done
}

run_tests() {
    build_core "$@"
    build_host "$@"
    local file
    for file in tests/c/test_*.c; do
        case $file in
        */test_host_*) "$CC" "${flags[@]}" "${host[@]}" "$@" "$file" "$out"/host_*.o "$out"/core_*.o -lm -o "$out/program" ;;
        *) "$CC" "${flags[@]}" "$@" "$file" "$out"/core_*.o -o "$out/program" ;;
        esac
        "$out/program"
    done
}

# run_fuzz NAME SECONDS [OPTIONS]: on tests/fuzz/fuzz_NAME.c, from its corpus where it has one
run_fuzz() {
    local name=$1 seconds=$2 corpus=$out/corpus
    shift 2
    mkdir "$corpus"
    clang "${flags[@]}" -O1 -UNDEBUG -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        csrc/core/*.c "tests/fuzz/fuzz_$name.c" -o "$out/fuzz"
    "$out/fuzz" -max_total_time="$seconds" -max_len=4096 -print_final_stats=1 -artifact_prefix="$PWD/" "$corpus" "$@" \
        2>"$out/log" || { cat "$out/log" >&2; return 1; }
    grep -E '^(stat::number_of_executed_units|stat::average_exec_per_sec|#[0-9]+\s+DONE)' "$out/log"
}

# Only what it hammers: what is compiled for several processors is chosen before the sanitizer has started.
run_tsan() {
    "$CC" "${flags[@]}" -O1 -UNDEBUG -fsanitize=thread csrc/core/ring*.c csrc/core/status.c csrc/core/deadline.c tests/c/test_ring.c \
        -o "$out/program"
    RING_THREADS=64 RING_SECONDS=$1 RING_KILLS=10 "$out/program"
}

# Instructions do not depend on the machine's mood, only on the compiler: a budget has a tenth to spare.
run_callgrind() {
    "$CC" "${flags[@]}" -O3 -DNDEBUG csrc/core/*.c tests/c/callgrind.c -o "$out/program"
    count_all tests/c/budgets.txt count_NAME "$out/program"
}

# The module is the one that PYTHON finds; its symbols are not stripped. The exchange table stands in for torch's.
run_callgrind_hook() {
    "$CC" "${flags[@]}" -O2 -shared -fPIC tests/c/exchange_table.c -o "$out/table.so"
    count_all tests/c/budgets_hook.txt sp_hook_call "$1" tests/c/hook_calls_counted.py "$out/table.so"
}

# count_all BUDGETS FUNCTION COMMAND...: instructions inside of FUNCTION, in which NAME is the line's, of COMMAND NAME CALLS
count_all() {
    local budgets=$1 function=$2 name calls budget count each failed=0
    shift 2
    while read -r name calls budget; do
        case $name in '' | '#'*) continue ;; esac
        valgrind --tool=callgrind --callgrind-out-file="$out/$name" --collect-atstart=no "--toggle-collect=${function/NAME/$name}" \
            "$@" "$name" "$calls" >"$out/log" 2>&1 </dev/null || { cat "$out/log" >&2; return 1; }
        count=$(awk '/^(summary|totals):/ { print $2; exit }' "$out/$name")
        [ "${count:-0}" -gt 0 ] || { echo "$name: callgrind counted nothing" >&2; return 1; }
        each=$(((count + calls - 1) / calls))
        printf '%-16s %8d instructions a call, budget %8d\n' "$name" "$each" "$budget"
        if [ "$each" -gt "$budget" ]; then
            echo "$name is over its budget" >&2
            failed=1
        fi
    done <"$budgets"
    return $failed
}

case ${1:-check} in
check) run_tests "${sanitize[@]}" ;;
plain) run_tests -O3 -UNDEBUG ;;
fuzz) run_fuzz router "${2:-20}" -dict=tests/fuzz/router.dict tests/fuzz/corpus ;;
fuzz-ring) run_fuzz ring "${2:-20}" ;;
tsan) run_tsan "${2:-5}" ;;
callgrind) run_callgrind ;;
callgrind-hook) run_callgrind_hook "${2:-python3}" ;;
*) sed -n '2,12p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
