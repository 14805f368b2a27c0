#!/usr/bin/env bash
# configure.sh PRESET: runs CMake for the preset unless it is configured already for this LibTorch and this cargo; ninja
# runs it again when a CMake file changes.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
torch="${TAMIS_TORCH:-}"
wanted="$torch $(command -v cargo || true) $(ls -d .venv/lib/python3*/site-packages/pyarrow 2>/dev/null || true)"
# The directory of the preset lint is never built, so ninja does not update its configuration.
if [ "$preset" != lint ] && [ -f "build/$preset/build.ninja" ] && [ "$(cat "build/$preset/.configured" 2>/dev/null)" = "$wanted" ]; then exit 0; fi
mkdir -p "build/$preset"
cmake --preset "$preset" -DTAMIS_TORCH="$torch" >"build/$preset/configure.log" 2>&1 || {
  cat "build/$preset/configure.log" >&2
  exit 1
}
printf '%s' "$wanted" >"build/$preset/.configured"
