#!/usr/bin/env bash
# package.sh: builds the Debian package and the Python wheel into dist/, and tries both on a clean Debian, and the wheel
# also in an environment of its own; with the torch of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/package
scripts/configure.sh package
ninja -C "$build" tamis tamis_ops tamis_documents
mkdir -p dist
rm -f dist/tamis_*.deb dist/tamis-*.whl
(cd "$build" && rm -f tamis_*.deb && cpack)
cp "$build"/tamis_*.deb dist/
.venv/bin/python -m pip wheel --quiet --no-build-isolation --no-deps --disable-pip-version-check -w dist .
.venv/bin/python -m pytest -q tests/package_test.py --package dist/tamis_*.deb --wheel dist/tamis-*.whl
TAMIS_WHEEL=$(realpath dist/tamis-*.whl) .venv/bin/python -m pytest -q python/tests/wheel_test.py --program "$build/tamis"
ls -l dist
