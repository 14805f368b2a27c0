#!/usr/bin/env bash
# lint.sh: checks C++ with clang-format, and with clang-tidy the fuzz targets and the files of tamis/ that include neither
# torch nor omp.h (CONTRIBUTING.md says why). Warns about files of more than 500 lines. Changes nothing; fails when a check fails.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files '*.cc' '*.h' >"$work/sources"

if ! xargs clang-format --dry-run -Werror <"$work/sources"; then
  echo "lint: run 'make format'" >&2
  exit 1
fi
echo "lint: clang-format, $(wc -l <"$work/sources") files: ok"

scripts/configure.sh lint
python3 scripts/clang_database.py build/lint "$work" >"$work/tidied"
if ! xargs -P "$(nproc)" -n 2 clang-tidy --quiet -p "$work" <"$work/tidied" 2>"$work/clang-tidy.log"; then
  grep -vE '^[0-9]+ warnings? |^Suppressed |^Use -header-filter' "$work/clang-tidy.log" >&2 || true
  echo "lint: clang-tidy found the above; .clang-tidy names its checks" >&2
  exit 1
fi
echo "lint: clang-tidy, $(wc -l <"$work/tidied") files: ok"

git ls-files '*.cc' '*.h' '*.py' '*.js' '*.sh' | xargs awk 'FNR == 501 { print "lint: warning: " FILENAME " has more than 500 lines" }'
