#!/usr/bin/env bash
# demo.sh PROGRAM [--full]: trains the small Multiscreen of recipes/demo.toml and a Transformer of its size, measures what
# each retrieves, writes the report with both grids.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1
instances=20
[ "${2:-}" = --full ] && instances=100
# On a busy machine the default spinning of libgomp's waiting threads burns the time of the working ones.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-10000}"

for run in demo demo_transformer; do
  "$program" train "recipes/$run.toml"
  "$program" eval abc_digits "runs/$run" --lengths 256,512,1024,2048,4096,16384 --instances "$instances"
done
"$program" report runs/demo --beside runs/demo_transformer
echo "demo: open $PWD/runs/demo/report.html; it took $((SECONDS / 60)) min $((SECONDS % 60)) s"
