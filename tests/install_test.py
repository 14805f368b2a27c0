#!/usr/bin/env python3
"""`make install` into a clean directory: what is there, and that it works without the build directory.

install_test.py PROGRAM [--consumer]. With --consumer a small program of its own is built against the package, too: it
includes every installed header and calls operators. That compiles LibTorch's headers, for a minute or more.
Exit code 77: skipped.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

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

build = pathlib.Path()
work = pathlib.Path()


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def run(*command, **options):
    outcome = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=1200, **options)
    expect(outcome.returncode == 0, f"{command}: {outcome.returncode}\n{outcome.stdout}{outcome.stderr}")
    return outcome.stdout


def install(prefix, destination=None):
    environment = {**os.environ, "DESTDIR": str(destination)} if destination else dict(os.environ)
    run("cmake", "--install", build, "--prefix", prefix, env=environment)


def run_installed(program, *arguments, **environment):
    """As a user does who has nothing but a PATH."""
    return run(program, *arguments, env={"PATH": "/usr/bin:/bin", **environment}, cwd="/")


def check_a_clean_prefix():
    prefix = work / "prefix"
    install(prefix)
    files = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}
    wanted = {
        "bin/tamis", "lib/libtamis_ops.so", "lib/cmake/tamis/tamis-config.cmake",
        "include/tamis/ops/screening/screening.h", "include/tamis/ops/mlstm/mlstm.h", "share/man/man1/tamis.1",
        "share/man/man1/tamis-eval-loss.1", "share/bash-completion/completions/tamis",
        "share/zsh/site-functions/_tamis", "share/fish/vendor_completions.d/tamis.fish",
        "share/tamis/recipes/demo.toml",
    }  # fmt: skip
    expect(wanted <= files, wanted - files)
    strangers = [file for file in files if re.search(r"test|kernel-inl|gtest|\.a$", file)]
    expect(not strangers, strangers)
    program = prefix / "bin/tamis"
    expect("parameters" in run_installed(program, "inspect", "--psi", "2"), "the installed program runs")
    recipe = prefix / "share/tamis/recipes/demo.toml"
    expect("training takes about" in run_installed(program, "inspect", recipe), "a recipe that is installed")
    link = work / "link"
    link.symlink_to(program)
    expect("parameters" in run_installed(link, "inspect", "--psi", "2"), "through a symbolic link")


def check_that_the_build_directory_is_not_needed():
    program = work / "prefix/bin/tamis"
    traces = work / "traces"
    traces.mkdir()
    run_installed(program, "inspect", "--psi", "2", LD_DEBUG="files", LD_DEBUG_OUTPUT=str(traces / "trace"))
    loaded = set(re.findall(r"file=(\S*tamis\S*|\S*libtorch_cpu\S*)", "".join(
        file.read_text(errors="replace") for file in traces.iterdir())))
    expect(any("libtamis_ops" in name for name in loaded), loaded)
    expect(not [name for name in loaded if name.startswith(str(build))], loaded)
    for library in ("lib/libtamis_ops.so", "bin/tamis"):
        header = run("readelf", "-d", work / "prefix" / library)
        expect(str(build) not in header, f"{library} looks into the build directory: {header}")


def check_a_staged_root():
    """DESTDIR: files for /usr land under another root, and hold no path of it."""
    root = work / "root"
    install("/usr", root)
    expect({path.name for path in root.iterdir()} == {"usr"}, list(root.iterdir()))
    expect("parameters" in run_installed(root / "usr/bin/tamis", "inspect", "--psi", "2"), "moved with its libraries")
    configuration = next(root.rglob("tamis-config.cmake")).read_text()
    expect(str(root) not in configuration and str(work) not in configuration, configuration)


def check_a_consumer():
    headers = sorted(path.relative_to(work / "prefix/include") for path in (work / "prefix/include").rglob("*.h"))
    expect(len(headers) > 8, headers)
    source = work / "consumer"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(CONSUMER_CMAKE)
    (source / "consumer.cc").write_text(CONSUMER % "\n".join(f'#include "{header}"' for header in headers))
    run("cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={work / 'prefix'}")
    run("cmake", "--build", source / "build")
    print("        consumer:", run(source / "build/consumer", env={"PATH": "/usr/bin:/bin"}).strip())
    missing = subprocess.run(["cmake", "-S", source, "-B", work / "missing", "-DTAMIS_TORCH=/nowhere",
                              f"-DCMAKE_PREFIX_PATH={work / 'prefix'}"], capture_output=True, text=True)
    expect(missing.returncode != 0 and "TAMIS_TORCH" in missing.stderr, missing.stderr)


def main():
    global build, work
    if len(sys.argv) not in (2, 3):
        print(__doc__)
        return 2
    build = pathlib.Path(sys.argv[1]).resolve().parent
    if not (build / "documents/made").exists():
        print(f"SKIPPED: {build} holds no documents; build the target tamis_documents first")
        return 77
    checks = [check_a_clean_prefix, check_that_the_build_directory_is_not_needed, check_a_staged_root]
    if sys.argv[2:] == ["--consumer"]:
        checks.append(check_a_consumer)
    work = pathlib.Path(tempfile.mkdtemp(prefix="tamis-install-"))
    try:
        for check in checks:
            check()
            print(f"ok      {check.__name__}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
