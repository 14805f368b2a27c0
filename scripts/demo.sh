#!/usr/bin/env bash
# demo.sh PROGRAM [--full]: trains the small Multiscreen of recipes/demo.toml and a Transformer of the same size, evaluates
# their retrieval, and writes the report of both.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1
instances=20
[ "${2:-}" = --full ] && instances=100

"$program" train recipes/demo.toml
"$program" eval abc_digits runs/demo --lengths 256,512,1024,2048,4096,16384 --instances "$instances"
"$program" report runs/demo
echo "demo: the report of the Multiscreen is $PWD/runs/demo/report.html; now training the Transformer for comparison"
"$program" train recipes/demo_transformer.toml
# A wrong digit has at most half of the probability, so it costs ln 2 nats at least, and a number has up to digits_max digits.
awk '
  FNR == NR { if ($1 == "digits_max") digits = $3; else if ($1 == "length") tokens = $3; next }
  /"type":"validation"/ { split($0, field, /"loss":/); loss = field[2] + 0 }
  END {
    wrong = 100 * digits * loss / log(2)  # %
    printf "demo: at its training length, %d tokens, the Transformer has a validation loss of %.2g nats a digit: ", tokens, loss
    printf "at most %.2f%% of its numbers are wrong there\n", wrong < 100 ? int(wrong * 100) / 100 + 0.01 : 100
  }' runs/demo_transformer/config.toml runs/demo_transformer/log.jsonl
# At 16,384 tokens, softmax attention would take as long as everything else together. Beyond its training length the
# Transformer finds more numbers with a larger theta.
"$program" eval abc_digits runs/demo_transformer --lengths 256,512,1024,2048,4096 --instances "$instances"
echo "demo: the same with rope_theta = 5000000 at test instead of 10000"
"$program" eval abc_digits runs/demo_transformer --lengths 256,512,1024,2048,4096 --instances "$instances" \
  --set-model rope_theta=5000000
"$program" report runs/demo --compare runs/demo_transformer
echo "demo: open $PWD/runs/demo/report.html; it took $((SECONDS / 60)) min $((SECONDS % 60)) s"
