# make demo | test | install | package | python | bench | peers | ruler | fuzz | lint | format: `make help` describes them.
PRESET ?= release
PREFIX ?= /usr/local
BUILD := build/$(PRESET)
VENV := .venv
NINJA := env -u MAKEFLAGS flock $(BUILD)/.lock ninja -C $(BUILD)
export TAMIS_TORCH ?=
export QUICK ?=
export SVE_BITS ?=

.PHONY: help setup setup-test configure build demo install install-test package test test-aarch64 python plots bench peers ruler fuzz lint format clean

help:                ## this text
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 22

setup:               ## install what the build needs (Debian and Ubuntu packages; LibTorch in .venv)
	@scripts/setup.sh build

configure: setup
	@scripts/configure.sh $(PRESET)

build: configure     ## build the program, the operators and the tests
	@$(NINJA)

demo: configure      ## train a Multiscreen that retrieves, evaluate it, write report.html (FULL=1: 100 instances per cell; ISA=avx2 or avx512: at most these instructions)
	@$(NINJA) tamis
	@$(if $(ISA),TAMIS_MAX_ISA=$(ISA)) scripts/demo.sh $(BUILD)/tamis $(if $(FULL),--full)

install: configure   ## install the program, the operators and their headers into PREFIX (/usr/local; DESTDIR too)
	@$(NINJA) tamis tamis_ops tamis_documents
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD) --prefix $(abspath $(PREFIX))

install-test: setup-test configure ## install into a temporary directory, build a program against it, run both
	@$(NINJA) tamis tamis_ops tamis_documents
	@$(VENV)/bin/python -m pytest -q tests/install_test.py --program $(BUILD)/tamis --consumer

package: setup-test   ## build a Debian package with LibTorch and a wheel into dist/, and try both
	@scripts/setup.sh package
	@scripts/setup.sh python
	@scripts/package.sh

test: setup          ## build and run every test (QUICK=1: without the slow ones, under a minute of processor time; PRESET=asan or tsan for the sanitizers; ISA=avx2, avx512 or, on 64-bit Arm, neon: at most these instructions)
	@scripts/setup.sh cargo
	@$(MAKE) --no-print-directory -j2 setup-test build
	@scripts/test.sh $(BUILD) $(ISA)

test-aarch64: setup   ## cross-compile for 64-bit Arm, run the tests of kernels and operators under qemu-user (QUICK=1: fewer of operators; SVE_BITS=128)
	@scripts/setup.sh aarch64
	@scripts/aarch64.sh configure
	@scripts/aarch64.sh build
	@scripts/aarch64.sh test

setup-test: setup
	@scripts/setup.sh cargo
	@scripts/setup.sh test

python: setup-test configure ## the package in PyTorch: install torch in .venv (5 GB), run the tests of python/
	@scripts/setup.sh python
	@$(NINJA) tamis_ops tamis
	@TAMIS_PROGRAM=$(BUILD)/tamis $(VENV)/bin/python -m pytest -q python/tests --program $(BUILD)/tamis

plots: configure     ## draw the figures of docs/mechanisms and bench/results again (needs torch, as `make python`)
	@scripts/setup.sh python
	@scripts/setup.sh plot
	@$(NINJA) tamis_ops
	@$(VENV)/bin/python docs/images/mechanisms.py
	@for results in bench/results/*.json; do $(VENV)/bin/python bench/plot.py $$results; done

bench: configure     ## micro-benchmarks of the operators and the model; FILTER=REGEX: those whose names have it
	@$(NINJA) tamis_ops_bench tamis_models_bench
	@$(BUILD)/tamis_ops_bench $(if $(FILTER),--benchmark_filter='$(FILTER)')
	@$(BUILD)/tamis_models_bench $(if $(FILTER),--benchmark_filter='$(FILTER)')

peers: configure     ## compare with peers in PyTorch, one hour; PEERS="--quick" and other options: bench/README.md
	@scripts/setup.sh bench
	@$(NINJA) tamis tamis_ops tamis_ops_bench
	@$(VENV)/bin/python bench/peers.py $(PEERS)

ruler: configure     ## compare the RULER tasks with lm-evaluation-harness, which it installs in .venv-ruler
	@scripts/setup.sh ruler
	@$(NINJA) tamis
	@.venv-ruler/bin/python scripts/compare_ruler.py $(BUILD)/tamis

fuzz:                ## fuzz every reader of files with libFuzzer and AddressSanitizer: SECONDS=60 each, TARGETS="config trainer"
	@scripts/setup.sh build
	@scripts/setup.sh fuzz
	@scripts/configure.sh fuzz
	@ninja -C build/fuzz tamis_fuzz
	@scripts/fuzz.sh build/fuzz/tamis_fuzz $(or $(SECONDS),60) $(TARGETS)

lint: setup          ## clang-format and clang-tidy, changing nothing
	@scripts/setup.sh lint
	@scripts/lint.sh

format:              ## clang-format every source file
	@scripts/setup.sh lint
	@git ls-files -co --exclude-standard '*.cc' '*.h' | xargs clang-format -i

clean:               ## remove the builds (not .venv)
	rm -rf build
