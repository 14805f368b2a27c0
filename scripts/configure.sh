#!/usr/bin/env bash
# configure.sh PRESET: runs CMake for the preset unless it is configured already; ninja runs it again when a CMake file
# changes.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
wanted="${TAMIS_TORCH:-}"
cargo=$(command -v cargo || true)  # once it is installed, Hugging Face's tokenizers are built
# The directory of the preset lint is never built, so ninja does not update its configuration.
if [ "$preset" != lint ] && [ -f "build/$preset/build.ninja" ] && [ "$(cat "build/$preset/.torch" 2>/dev/null)" = "$wanted" ] &&
  [ "$(cat "build/$preset/.cargo" 2>/dev/null)" = "$cargo" ]; then exit 0; fi
mkdir -p "build/$preset"
cmake --preset "$preset" -DTAMIS_TORCH="$wanted" >"build/$preset/configure.log" 2>&1 || {
  cat "build/$preset/configure.log" >&2
  exit 1
}
printf '%s' "$wanted" >"build/$preset/.torch"
printf '%s' "$cargo" >"build/$preset/.cargo"
