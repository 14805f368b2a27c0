#!/usr/bin/env bash
# aarch64.sh configure | build | test: cross-compiling for 64-bit Arm, and its tests under qemu-user.
# `configure` fetches Debian's arm64 libraries and LibTorch's aarch64 wheel (1.2 GB on disk) into build/aarch64 and runs
# CMake. `test` runs the built tests on emulated processors: with NEON alone, and with SVE vectors of several lengths; with
# QUICK=1 those of kernels and a few shapes of every operator. SVE_BITS=128 builds kernels for SVE2 vectors of 128 bits in
# place of those for SVE vectors of 256, into build/aarch64-sve128.
set -euo pipefail
cd "$(dirname "$0")/.."
sysroot=build/aarch64/sysroot wheels=build/aarch64/wheels
bits=${SVE_BITS:-256}
case $bits in
  256) preset=aarch64 ;;
  128) preset=aarch64-sve128 ;;
  *)
    echo "aarch64.sh: SVE_BITS must be 128 or 256, or unset, but is '$bits'" >&2
    exit 2
    ;;
esac
folder=build/$preset

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
    mkdir -p build/aarch64
    if [ ! -e "$sysroot/.complete" ]; then
      echo "tamis: fetching Debian's arm64 libraries into $sysroot"
      # shellcheck source=/dev/null
      suite=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME" || echo bookworm)
      packages=libc6-dev,libhwy-dev,libcli11-dev,libfmt-dev,nlohmann-json3-dev,libtomlplusplus-dev,libssl-dev
      packages+=,libgtest-dev,libgmock-dev,libpng-dev,zlib1g-dev,libzstd-dev,libxxhash-dev,libgomp1,libstdc++6
      twice fetch_sysroot
      touch "$sysroot/.complete"
    fi
    if ! cmp -s requirements/libtorch.txt "$wheels/.installed"; then
      echo "tamis: installing LibTorch for aarch64 into $wheels"
      twice fetch_libtorch
      cp requirements/libtorch.txt "$wheels/.installed"
    fi
    TAMIS_TORCH=$PWD/$wheels/torch scripts/configure.sh $preset
    ;;
  build) ninja -C "$folder" tamis tamis_base_test tamis_kernels_test tamis_ops_test tamis_nn_test ;;
  test)
    fake_system
    run() { qemu-aarch64 -L "$sysroot" "$folder/$1" --gtest_brief=1 "${@:2}"; }
    on() { # on PROCESSOR: of the commands that follow; "max" has everything that qemu emulates
      echo "tests: 64-bit Arm, emulated processor $1${TAMIS_MAX_ISA:+, at most $TAMIS_MAX_ISA}"
      export QEMU_CPU=$1
    }
    # Small shapes of every operator that has kernels; fewer for SVE, whose emulation is many times slower.
    accurate=IsAsAccurateAsPlainTorch
    shape() { echo ":Lengths/ScreeningShapes.$accurate*/$1:Shapes/LinearCrossEntropyTest.$accurate*/$1:Shapes/SoftmaxAttentionTest.$accurate*/$1"; }
    quick_sve="ScreeningLayer.$accurate:EntmaxAttention/SelectionTest/0.SelectsWhatIsAboveTheExactThreshold"
    quick_sve+=":Shapes/MlstmTest.$accurate*/B?_T1_*:Shapes/MlstmTest.$accurate/B1_T100_*chunk7"
    quick_sve+=":Shapes/StickBreakingTest.$accurate*/B?_T?_*:Shapes/StickBreakingTest.$accurate/B2_T65*$(shape 0)$(shape 1)"
    quick="$quick_sve$(shape 2):SieveAttention/SelectionTest/0.SelectsWhatIsAboveTheExactThreshold"
    quick+=":Shapes/MlstmTest.$accurate*/B1_T1*:Shapes/StickBreakingTest.$accurate*/B2_T6*"
    for processor in cortex-a76 "max,sve$bits=on"; do
      on "$processor"
      run tamis_base_test
      run tamis_kernels_test
      # Blocked forms are plain torch; the others left out take minutes here and test no kernel that these do not.
      operators='-*Blocked*:*Memory*:*LongSequences*:LinearCrossEntropy.*'
      # The emulation of SVE is slower than that of NEON, so only accuracy is tested there.
      [ "$processor" = cortex-a76 ] || operators='*Accura*-*Blocked*:*Part.*:SieveAlgorithm1.*'
      if [ -n "${QUICK:-}" ]; then
        operators=$quick_sve
        [ "$processor" != cortex-a76 ] || operators=$quick
      fi
      run tamis_ops_test --gtest_filter="$operators"
      run tamis_nn_test --gtest_filter='*StreamedMatrix*'
    done
    # The choice of kernels: NEON for vectors of another length, and where TAMIS_MAX_ISA says so.
    for processor in max,sve128=on max,sve256=on max,sve512=on; do
      on "$processor"
      run tamis_kernels_test --gtest_filter='Targets.*:MultiplyRows.*'
      TAMIS_MAX_ISA=neon on "$processor"
      TAMIS_MAX_ISA=neon run tamis_kernels_test --gtest_filter='Targets.*'
    done
    ;;
  *)
    echo "aarch64.sh configure | build | test" >&2
    exit 2
    ;;
esac
