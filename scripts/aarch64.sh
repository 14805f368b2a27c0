#!/usr/bin/env bash
# aarch64.sh configure | build | test: cross-compiling for 64-bit Arm, and its tests under qemu-user.
# `configure` fetches Debian's arm64 libraries and LibTorch's aarch64 wheel (1.2 GB on disk) into build/aarch64 and runs
# CMake. With QUICK=1 only what does not use LibTorch is built, so CMake gets that of .venv in its place. `test` runs the
# built tests on an emulated processor with NEON alone, and on one that has SVE, too.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=build/aarch64 sysroot=build/aarch64/sysroot wheels=build/aarch64/wheels

# Runs a download, and once more if it fails.
twice() {
  "$@" && return
  echo "tamis: once more" >&2
  "$@"
}
fetch_sysroot() {
  rm -rf "$sysroot"
  mmdebstrap --quiet --architectures=arm64 --variant=extract --include="$packages" "$suite" "$sysroot"
}
fetch_libtorch() {
  rm -rf "$wheels"
  # shellcheck disable=SC2046
  .venv/bin/pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --target "$wheels" \
    --platform manylinux2014_aarch64 $(printf -- '--platform manylinux_2_%s_aarch64 ' {17..28}) \
    -r requirements/libtorch.txt
}

# What LibTorch reads of the processor and qemu-user takes from this machine instead.
fake_system() {
  local cpu identification
  mkdir -p "$sysroot/proc"
  for cpu in $(seq 0 $(($(nproc --all) - 1))); do
    printf 'processor\t: %d\nFeatures\t: fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimdrdm asimddp\n' $cpu
    printf 'CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x4\nCPU part\t: 0xd0b\nCPU revision\t: 1\n\n'
    identification=$sysroot/sys/devices/system/cpu/cpu$cpu/regs/identification
    mkdir -p "$identification"
    echo 0x00000000414fd0b1 >"$identification/midr_el1"
  done >"$sysroot/proc/cpuinfo"
}

case ${1:-} in
  configure)
    mkdir -p "$folder"
    if [ ! -e "$sysroot/.complete" ]; then
      echo "tamis: fetching Debian's arm64 libraries into $sysroot"
      # shellcheck source=/dev/null
      suite=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME" || echo bookworm)
      packages=libc6-dev,libhwy-dev,libcli11-dev,libfmt-dev,nlohmann-json3-dev,libtomlplusplus-dev,libssl-dev
      packages+=,libgtest-dev,libgmock-dev,libpng-dev,zlib1g-dev,libzstd-dev,libxxhash-dev,libgomp1,libstdc++6
      twice fetch_sysroot
      touch "$sysroot/.complete"
    fi
    if [ -n "${QUICK:-}" ]; then
      TAMIS_TORCH=${TAMIS_TORCH:-$(echo "$PWD"/.venv/lib/python3*/site-packages/torch)} scripts/configure.sh aarch64
      exit
    fi
    if ! cmp -s requirements/libtorch.txt "$wheels/.installed"; then
      echo "tamis: installing LibTorch for aarch64 into $wheels"
      twice fetch_libtorch
      cp requirements/libtorch.txt "$wheels/.installed"
    fi
    TAMIS_TORCH=$PWD/$wheels/torch scripts/configure.sh aarch64
    ;;
  build)
    if [ -n "${QUICK:-}" ]; then
      ninja -C "$folder" tamis_base_test tamis_kernels_test
    else
      ninja -C "$folder" tamis tamis_base_test tamis_kernels_test tamis_ops_test
    fi
    ;;
  test)
    fake_system
    run() { qemu-aarch64 -L "$sysroot" "$folder/$1" --gtest_brief=1 "${@:2}"; }
    for processor in cortex-a76 max; do
      echo "tests: 64-bit Arm, emulated processor $processor"
      export QEMU_CPU=$processor
      run tamis_base_test
      run tamis_kernels_test
      # Blocked forms are plain torch; the others left out take minutes here and test no kernel that these do not.
      [ -n "${QUICK:-}" ] || run tamis_ops_test --gtest_filter='-*Blocked*:*Memory*:*LongSequences*:LinearCrossEntropy.*'
    done
    ;;
  *)
    echo "aarch64.sh configure | build | test" >&2
    exit 2
    ;;
esac
