#!/usr/bin/env python3
"""clang_database.py BUILD_DIRECTORY OUTPUT_DIRECTORY: a compile database for clang-tidy, from that of a GCC build.

Leaves out GCC's precompiled header, the options clang does not know, tests/ without the fuzz targets, and the files of
tamis/ that see torch, whose headers take clang 15 to 30 seconds a file, an hour in all, or GCC's omp.h. Prints the files
that are left.
"""

import json
import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUZZ_TARGETS = ROOT / "tests/fuzz/targets.cc"
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"(tamis/[^"]+)"|[<"](torch/|ATen/|c10/|omp\.h))', re.MULTILINE)
GCC_ONLY = {"-Winvalid-pch", "-fpch-preprocess", "-Wno-restrict"}


def sees_torch(path, seen):
    """Whether a file includes torch directly or through our headers; `seen` collects the visited files."""
    if path in seen or not path.exists():
        return False
    seen.add(path)
    return any(torch or sees_torch(ROOT / own, seen) for own, torch in INCLUDE.findall(path.read_text()))


def is_checked(path):
    if path == FUZZ_TARGETS:
        return True
    return path.is_relative_to(ROOT / "tamis") and not sees_torch(path, set())


def for_clang(entry):
    words = shlex.split(entry["command"])
    kept = []
    while words:
        word = words.pop(0)
        if word == "-include":
            words.pop(0)
        elif word not in GCC_ONLY:
            kept.append(word)
    return {"directory": entry["directory"], "file": entry["file"], "arguments": kept}


def main(build, output):
    entries = json.loads(pathlib.Path(build, "compile_commands.json").read_text())
    kept = [for_clang(entry) for entry in entries if is_checked(pathlib.Path(entry["file"]))]
    if str(FUZZ_TARGETS) not in {entry["file"] for entry in kept}:
        raise SystemExit(f"clang_database.py: {build} does not compile {FUZZ_TARGETS}; configure it with TAMIS_TESTS=ON")
    pathlib.Path(output, "compile_commands.json").write_text(json.dumps(kept, indent=1))
    print("\n".join(entry["file"] for entry in kept))


main(*sys.argv[1:])
