"""The CUDA sources compile for several generations of GPUs: with NVRTC, which the program uses, and with nvcc."""

import ctypes
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "tamis/ops").glob("*/*.cu"))
# As in screening_cuda.cc: every input, K of one and two chunks, V that is and is no multiple of 32, every shape.
MACROS = {
    "screening_cuda_kernel.cu": [
        {"INPUT": 0, "CHUNKS": 1, "VALUE": 64, "POWER": 2, "MASK": 1},
        {"INPUT": 1, "CHUNKS": 2, "VALUE": 33, "POWER": 3, "MASK": 2},
        {"INPUT": 2, "CHUNKS": 1, "VALUE": 128, "POWER": 1, "MASK": 0},
    ]
}
ARCHITECTURES = ["sm_80", "sm_90a", "sm_100"]


def of_nvidia(name: str) -> Path:
    """A file of NVIDIA's wheels."""
    found = sorted((Path(sysconfig.get_paths()["purelib"]) / "nvidia").glob(name))
    if not found:
        pytest.skip(f"no {name} in site-packages/nvidia; `make python` installs it")
    return found[0]


@pytest.fixture(scope="module")
def nvrtc():
    return ctypes.CDLL(str(of_nvidia("*/lib/libnvrtc.so.*")))


def messages(nvrtc, source: Path, options: list[str]) -> str | None:
    """What the compiler says when it refuses, or warns about, a source."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None) == 0
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode() or (f"error {failed}" if failed else None)


def test_all_sources_are_known():
    assert [source.name for source in SOURCES] == sorted(MACROS)


def definitions(macros: dict[str, int]) -> list[str]:
    return [f"-D{name}={value}" for name, value in macros.items()]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles(nvrtc, architecture):
    for source in SOURCES:
        for macros in MACROS[source.name]:
            said = messages(nvrtc, source, ["--std=c++17", f"--gpu-architecture={architecture}", *definitions(macros)])
            assert said is None, f"{source.name} with {macros}: {said}"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvcc_compiles(tmp_path, architecture):
    nvcc, cubin = of_nvidia("*/bin/nvcc"), tmp_path / "kernel.cubin"
    for source in SOURCES:
        for macros in MACROS[source.name]:
            options = ["-std=c++17", f"-arch={architecture}", "-Werror=all-warnings", "-cubin", "-o", cubin]
            done = subprocess.run([nvcc, *options, *definitions(macros), source], capture_output=True, text=True)
            assert done.returncode == 0, f"{source.name} with {macros}: {done.stdout}{done.stderr}"
            assert cubin.stat().st_size > 0
            cubin.unlink()
