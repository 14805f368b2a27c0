#!/usr/bin/env bash
# test.sh BUILD_DIRECTORY: runs every test of a build.
set -euo pipefail
cd "$(dirname "$0")/.."
suppressions=$PWD/tests/sanitizers
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0:strict_string_checks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-suppressions=$suppressions/tsan.txt:ignore_noninstrumented_modules=1}"
# On a busy machine the default spinning of libgomp's waiting threads burns the time of the working ones.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-10000}"
ctest --test-dir "$1" --output-on-failure
