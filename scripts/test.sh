#!/usr/bin/env bash
# test.sh BUILD_DIRECTORY [avx2|avx512]: runs every test of a build, on no newer instructions than those named.
set -euo pipefail
cd "$(dirname "$0")/.."
suppressions=$PWD/tests/sanitizers
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0:strict_string_checks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-suppressions=$suppressions/tsan.txt:ignore_noninstrumented_modules=1}"
if [ -n "${2:-}" ]; then
  # What the processor has: kernels name it as Linux does.
  newest=avx2
  grep -qw avx512f /proc/cpuinfo && newest=avx512
  grep -qw avx512_bf16 /proc/cpuinfo && newest=avx512_bf16
  if [ "$2" = "$newest" ] || { [ "$2" = avx512 ] && [ "$newest" = avx2 ]; }; then
    echo "tests: this processor's newest instructions are $newest: ISA=$2 would repeat the run without it"
    exit 0
  fi
  export TAMIS_MAX_ISA=$2
  echo "tests: on $2, of $newest"
fi
ctest --test-dir "$1" --output-on-failure
