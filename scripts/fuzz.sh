#!/usr/bin/env bash
# fuzz.sh PROGRAM SECONDS [TARGET...]: fuzzes each target (default: all) for that many seconds, starting from its corpus in
# the tree and from the inputs that earlier runs added to build/fuzz/found. A finding is stored there as NAME-crash-... and
# ends the script.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1 seconds=$2
shift 2
corpora=tests/fuzz/corpus
if [ $# -eq 0 ]; then set -- $(ls $corpora); fi
# Small inputs must not make a reader allocate gigabytes.
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0:allocator_may_return_null=0}"
for target in "$@"; do
  [ -d "$corpora/$target" ] || { echo "fuzz.sh: no target $target; known: $(ls $corpora | xargs)" >&2; exit 2; }
  mkdir -p "build/fuzz/found/$target"
  echo "== $target, $seconds s"
  "$program" --target="$target" "build/fuzz/found/$target" "$corpora/$target" -max_total_time="$seconds" \
    -max_len=65536 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz/found/$target-"
done
