#!/usr/bin/env bash
# configure.sh PRESET: runs CMake for the preset, once; ninja re-runs it by itself when a CMake file changes.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
wanted="${TAMIS_TORCH:-}"
# A configured directory re-configures itself when it is built; the one of lint is never built.
if [ "$preset" != lint ] && [ -f "build/$preset/build.ninja" ] && [ "$(cat "build/$preset/.torch" 2>/dev/null)" = "$wanted" ]; then exit 0; fi
mkdir -p "build/$preset"
cmake --preset "$preset" -DTAMIS_TORCH="$wanted" >"build/$preset/configure.log" 2>&1 || {
  cat "build/$preset/configure.log" >&2
  exit 1
}
printf '%s' "$wanted" >"build/$preset/.torch"
