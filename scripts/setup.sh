#!/usr/bin/env bash
# setup.sh build | cargo | test | parquet | python | plot | package | aarch64 | bench | ruler | fuzz | lint: installs the missing dependencies of a target.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-build}

apt_build="cmake ninja-build ccache g++ python3 python3-venv libhwy-dev libcli11-dev libfmt-dev
  nlohmann-json3-dev libtomlplusplus-dev libssl-dev libgtest-dev libgmock-dev libbenchmark-dev libpng-dev
  zlib1g-dev libzstd-dev libxxhash-dev"
apt_test="zsh fish mandoc man-db groff openmpi-bin"
apt_browser="chromium"
apt_lint="clang-format clang-tidy"

install_packages() {  # installs the Debian packages among "$@" that are missing
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      echo "tamis: these packages are missing; run: sudo apt-get install -y ${missing[*]}" >&2
      return 1
    fi
    as_root="sudo"
  fi
  echo "tamis: installing ${missing[*]}"
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

install_cargo() {  # for Hugging Face's tokenizers; without it the byte tokenizer works. Versions as in cmake/TamisRust.cmake
  local version
  version=$(cargo --version 2>/dev/null | cut -d' ' -f2) || version=""
  [ -n "$version" ] && printf '1.85\n%s\n' "$version" | sort -CV && return 0
  install_packages cargo-web ||
    echo "tamis: without cargo 1.85 or newer there are no Hugging Face tokenizers (Debian: apt-get install cargo-web)" >&2
}

install_wheels() {  # install_wheels FILE [pip options]: installs FILE into $venv unless the same FILE was installed before
  local file=$1 stamp="$venv/.installed-$(basename "$1")"
  shift
  cmp -s "$file" "$stamp" && return 0
  if [ ! -x "$venv/bin/pip" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
  fi
  echo "tamis: installing $file into $venv"
  # pip complains that torch, which is installed without its dependencies, lacks them: shown only if pip fails.
  local messages
  messages=$("$venv/bin/pip" install --quiet --disable-pip-version-check "$@" -r "$file" 2>&1) || {
    echo "$messages" >&2
    return 1
  }
  cp "$file" "$stamp"
}

venv=.venv
case $what in
  build)
    install_packages $apt_build
    # Without the wheel's dependencies (5 GB of CUDA libraries); libtorch_cpu needs only these.
    [ -n "${TAMIS_TORCH:-}" ] || install_wheels requirements/libtorch.txt --no-deps
    install_wheels requirements/web.txt --no-deps
    ;;
  cargo) install_cargo ;;
  test)
    # The page tests need a browser; without a package for it (Ubuntu has only a snap) they are skipped.
    install_packages $apt_browser || echo "tamis: chromium could not be installed; the page tests will be skipped" >&2
    install_packages $apt_test || echo "tamis: some tests of completion, manual pages and mpirun will be skipped" >&2
    install_wheels requirements/plot.txt
    install_wheels requirements/test.txt
    ;;
  parquet) install_wheels requirements/parquet.txt ;;  # optional: Arrow, which reads Parquet
  python)
    install_wheels requirements/python.txt
    install_wheels requirements/lm_eval.txt
    install_wheels requirements/exchange.txt
    install_wheels requirements/cuda.txt
    ;;
  package) install_packages dpkg-dev mmdebstrap ;;
  aarch64) install_packages g++-aarch64-linux-gnu qemu-user mmdebstrap debian-archive-keyring ;;
  plot) install_wheels requirements/plot.txt ;;
  bench)
    # g++ and Python's headers for torch.compile; tcmalloc, which keeps the memory of large tensors for reuse.
    install_packages g++ python3-dev
    ls /usr/lib/*/libtcmalloc*.so.* >/dev/null 2>&1 || install_packages libtcmalloc-minimal4 ||
      echo "tamis: without tcmalloc the peers use glibc's malloc, configured to keep released memory" >&2
    install_wheels requirements/python.txt
    install_wheels requirements/plot.txt
    install_wheels requirements/bench.txt
    ;;
  ruler) # in an environment of its own, because it has many packages
    venv=.venv-ruler
    install_wheels requirements/ruler.txt
    ;;
  fuzz)
    install_packages clang
    # libFuzzer and clang's omp.h; the package names contain clang's version.
    version=$(clang -dumpversion | cut -d. -f1)
    install_packages "libclang-rt-$version-dev" "libomp-$version-dev"
    ;;
  lint) install_packages $apt_lint ;;
  *) echo "setup.sh: expected build, cargo, test, parquet, python, plot, package, aarch64, bench, ruler, fuzz or lint, got '$what'" >&2; exit 2 ;;
esac
