#!/usr/bin/env bash
# test.sh BUILD_DIRECTORY [avx2|avx512|neon]: runs all tests of a build, optionally with at most the given instruction
# set; neon on 64-bit Arm, the others on x86.
# With QUICK=1 in the environment it leaves out the tests labelled `slow`.
set -euo pipefail
cd "$(dirname "$0")/.."
suppressions=$PWD/tests/sanitizers
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0:strict_string_checks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-suppressions=$suppressions/tsan.txt:ignore_noninstrumented_modules=1}"
selected=()
if [ -n "${2:-}" ]; then
  # The quickest command that says which instruction set Tamis uses without a limit.
  newest=$(env -u TAMIS_MAX_ISA "$1/tamis" bench decode --quick --json --dtypes float32 2>/dev/null |
    sed -n 's/.*"instruction_set":"\([^"]*\)".*/\1/p') || true
  same=
  case $2/$newest in
    avx2/baseline | avx2/avx2 | avx512/baseline | avx512/avx2 | avx512/avx512) same=1 ;;
    neon/neon) grep -qw sve /proc/cpuinfo || same=1 ;;  # LibTorch uses SVE where Tamis has no kernels for it
  esac
  if [ -n "$same" ] && [ "$2" = avx512 ] && grep -qwE 'avx512_bf16|avx512_fp16' /proc/cpuinfo; then
    echo "tests: without ISA=$2 only oneDNN uses newer instructions on this processor, so only its users are tested"
    selected=(-R '^(ops|nn|models|train|infer|device_test|non_finite_test)$')
  elif [ -n "$same" ]; then
    echo "tests: Tamis uses $newest on this processor, so ISA=$2 would run the same kernels again"
    exit 0
  fi
  export TAMIS_MAX_ISA=$2
  [ -n "$same" ] || echo "tests: with $2; without it Tamis uses ${newest:-what the processor has}"
fi
status=0
# Two more at a time than there are cores, because tests also wait for processes; at most 8, and 2 GB of memory for each.
kilobytes=$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)
limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
[ "$limit" = max ] || [ $((limit / 1024)) -ge "$kilobytes" ] || kilobytes=$((limit / 1024))
at_once=$(printf '%s\n' $(($(nproc) + 2)) $(((kilobytes + 1000000) / 2000000)) 8 | sort -n | head -n 1)
ctest --test-dir "$1" --output-on-failure --parallel $((at_once > 1 ? at_once : 1)) ${QUICK:+-LE slow} "${selected[@]}" \
  || status=$?
# The Python tests that were skipped, with the reason.
grep -h '^SKIPPED \[' "$1/Testing/Temporary/LastTest.log" || true
exit $status
