"""`make install` into a clean directory: what is there, and that it works without the build directory.

With --consumer a small program of its own is built against the package, too: it includes every installed header and
calls operators. That compiles LibTorch's headers, which takes 15 seconds or more.
"""

import os
import re
import subprocess

import pytest

CONSUMER_CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(tamis 0.1 REQUIRED)
add_executable(consumer consumer.cc)
target_link_libraries(consumer PRIVATE tamis::ops)
"""

CONSUMER = """
#include <ATen/ATen.h>

#include <cstdio>

%s

int main() {
  const at::Tensor q = at::randn({1, 32, 2, 16}), k = at::randn({1, 32, 2, 16}), v = at::randn({1, 32, 2, 16});
  const at::Tensor found = tamis::ops::softmax_attention(q, k, v);
  const auto heads = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const at::Tensor expected =
      heads(at::scaled_dot_product_attention(heads(q), heads(k), heads(v), {}, 0.0, /*is_causal=*/true));
  const double error = (found - expected).abs().max().item<double>();
  std::printf("error %%.1e\\n", error);
  return error < 1e-5 ? 0 : 1;
}
"""


def run(*command, **options):
    outcome = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=1200, **options)
    assert outcome.returncode == 0, f"{command}: {outcome.returncode}\n{outcome.stdout}{outcome.stderr}"
    return outcome.stdout


def run_installed(program, *arguments, **environment):
    """Runs it with nothing in the environment but a PATH."""
    return run(program, *arguments, env={"PATH": "/usr/bin:/bin", **environment}, cwd="/")


@pytest.fixture(scope="module")
def build(program):
    if not (program.parent / "documents/made").exists():
        pytest.skip(f"{program.parent} holds no documents; build the target tamis_documents first")
    return program.parent


def install(build, prefix, destination=None):
    environment = {**os.environ, "DESTDIR": str(destination)} if destination else dict(os.environ)
    run("cmake", "--install", build, "--prefix", prefix, env=environment)


@pytest.fixture(scope="module")
def prefix(build, tmp_path_factory):
    """A clean directory with an installation."""
    prefix = tmp_path_factory.mktemp("install") / "prefix"
    install(build, prefix)
    return prefix


def test_a_clean_prefix(prefix, tmp_path):
    files = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}
    wanted = {
        "bin/tamis", "lib/libtamis_ops.so", "lib/cmake/tamis/tamis-config.cmake",
        "include/tamis/ops/screening/screening.h", "include/tamis/ops/mlstm/mlstm.h", "share/man/man1/tamis.1",
        "share/man/man1/tamis-eval-loss.1", "share/bash-completion/completions/tamis",
        "share/zsh/site-functions/_tamis", "share/fish/vendor_completions.d/tamis.fish",
        "share/tamis/recipes/demo.toml",
    }  # fmt: skip
    assert wanted <= files, wanted - files
    unexpected = [file for file in files if re.search(r"test|kernel-inl|gtest|\.a$", file)]
    assert not unexpected, unexpected
    program = prefix / "bin/tamis"
    assert "parameters" in run_installed(program, "inspect", "--psi", "2"), "the installed program runs"
    recipe = prefix / "share/tamis/recipes/demo.toml"
    assert "training takes about" in run_installed(program, "inspect", recipe), "a recipe that is installed"
    link = tmp_path / "link"
    link.symlink_to(program)
    assert "parameters" in run_installed(link, "inspect", "--psi", "2"), "through a symbolic link"


def test_installed_headers_include_only_installed_ones(prefix):
    include = prefix / "include"
    headers = sorted(include.rglob("*.h"))
    assert len(headers) > 8, headers
    for header in headers:
        for name in re.findall(r'#include "(.+)"', header.read_text()):
            assert (include / name).is_file(), f"{header.relative_to(include)} includes {name}"


def test_the_build_directory_is_not_needed(build, prefix, tmp_path):
    run_installed(
        prefix / "bin/tamis", "inspect", "--psi", "2", LD_DEBUG="files", LD_DEBUG_OUTPUT=str(tmp_path / "trace")
    )
    traces = "".join(file.read_text(errors="replace") for file in tmp_path.iterdir())
    loaded = set(re.findall(r"file=(\S*tamis\S*|\S*libtorch_cpu\S*)", traces))
    assert any("libtamis_ops" in name for name in loaded), loaded
    assert not [name for name in loaded if name.startswith(str(build))], loaded
    for library in ("lib/libtamis_ops.so", "bin/tamis"):
        header = run("readelf", "-d", prefix / library)
        assert str(build) not in header, f"{library} looks into the build directory: {header}"


def test_a_staged_root(build, tmp_path):
    """DESTDIR: files for /usr land under another root, and hold no path of it."""
    root = tmp_path / "root"
    install(build, "/usr", root)
    assert {path.name for path in root.iterdir()} == {"usr"}, list(root.iterdir())
    assert "parameters" in run_installed(root / "usr/bin/tamis", "inspect", "--psi", "2"), "moved with its libraries"
    configuration = next(root.rglob("tamis-config.cmake")).read_text()
    assert str(root) not in configuration and str(tmp_path) not in configuration, configuration


def test_a_consumer(prefix, tmp_path, pytestconfig):
    if not pytestconfig.getoption("consumer"):
        pytest.skip("compiles LibTorch's headers; `make install-test` runs it with --consumer")
    headers = sorted(path.relative_to(prefix / "include") for path in (prefix / "include").rglob("*.h"))
    assert len(headers) > 8, headers
    source = tmp_path / "consumer"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(CONSUMER_CMAKE)
    (source / "consumer.cc").write_text(CONSUMER % "\n".join(f'#include "{header}"' for header in headers))
    run("cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", source / "build")
    print("consumer:", run(source / "build/consumer", env={"PATH": "/usr/bin:/bin"}).strip())
    configure = ["cmake", "-S", source, "-B", tmp_path / "missing", "-DTAMIS_TORCH=/nowhere"]
    missing = subprocess.run([*configure, f"-DCMAKE_PREFIX_PATH={prefix}"], capture_output=True, text=True)
    assert missing.returncode != 0 and "TAMIS_TORCH" in missing.stderr, missing.stderr
