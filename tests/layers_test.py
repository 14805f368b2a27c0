"""The order of the layers: every file includes only its own layer and those before it.

Test files, benchmarks and testing.h may include anything. Kernels, the layers below them and every options.h and
options.cc never include torch, not even through another header.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = "base threads kernels ops nn distributed models text data infer eval train report study bench cli".split()
WITHOUT_TORCH = {"base", "threads", "kernels"}
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"(tamis/[^"]+)"|[<"]((?:torch|ATen|c10)/[^>"]+)[>"])', re.MULTILINE)
CMAKE_LAYER = re.compile(r"^tamis_(?:(?:threads_|kernel_|operator_)?layer\((\w+)|(program)\()", re.MULTILINE)


def layer_of(path):
    """The layer of a path like tamis/ops/screening/screening.h; None when it lies in no known layer."""
    parts = pathlib.PurePosixPath(path).parts
    if parts[1] == "ops" and "_kernel" in parts[-1]:
        return "kernels"
    return parts[1] if parts[1] in LAYERS else None


def is_for_tests(path):
    return path.endswith(("_test.cc", "_bench.cc")) or path.endswith("/testing.h")


def torch_seen(root, path, seen):
    """How a file sees torch, as [header of ours, ..., header of torch]; None when it does not. `seen`: looked at."""
    file = root / path
    if path in seen or not file.exists():
        return None
    seen.add(path)
    for own, torch in INCLUDE.findall(file.read_text()):
        way = [torch] if torch else torch_seen(root, own, seen)
        if way:
            return [own, *way] if own else way
    return None


def violations(root):
    """One line for every #include below root/tamis that breaks the order, and the number of includes read."""
    found, read = [], 0
    for file in sorted((root / "tamis").rglob("*")):
        path = file.relative_to(root).as_posix()
        if file.suffix not in (".cc", ".h") or is_for_tests(path):
            continue
        layer = layer_of(path)
        if layer is None:
            found.append(f"{path}: lies in no layer; expected tamis/LAYER/ with LAYER one of {', '.join(LAYERS)}")
            continue
        options = file.name in ("options.h", "options.cc")
        way = torch_seen(root, path, set()) if options or layer in WITHOUT_TORCH else None
        if way:
            found.append(f"{path}: {'options' if options else layer} never sees torch, but includes {', which includes '.join(way)}")
        for own, torch in INCLUDE.findall(file.read_text()):
            read += 1
            if torch:
                continue
            if is_for_tests(own):
                found.append(f"{path}: only tests include {own}")
            elif layer_of(own) is None or LAYERS.index(layer_of(own)) > LAYERS.index(layer):
                found.append(f"{path}: {layer} includes {own}, which belongs to {layer_of(own) or 'no layer'}")
    return found, read


def order_in_cmake(text):
    """The layers that CMakeLists.txt builds, in its order; the program is the layer cli."""
    return [layer or "cli" for layer, _ in CMAKE_LAYER.findall(text)]


def test_tree_keeps_the_order():
    found, read = violations(ROOT)
    assert not found, "\n" + "\n".join(found)
    assert read > 100, f"only {read} includes found: is the pattern still right?"


def test_cmake_lists_the_layers_in_order():
    order = order_in_cmake((ROOT / "CMakeLists.txt").read_text())
    assert order == [layer for layer in LAYERS if layer in order], f"CMakeLists.txt builds {order}, expected {LAYERS}"
    folders = {folder.name for folder in (ROOT / "tamis").iterdir() if any(folder.rglob("*.cc"))}
    assert folders <= set(order), f"not built by CMakeLists.txt: {folders - set(order)}"


def test_a_violation_is_found(tmp_path):
    files = {
        "tamis/base/up.h": '#include "tamis/nn/rows.h"\n',
        "tamis/base/fine.h": '#include <vector>\n#include "tamis/base/up.h"\n// #include "tamis/cli/x.h"\n',
        "tamis/ops/a/a_kernel.cc": '#include <ATen/ATen.h>\n#include "tamis/ops/a/a_kernel.h"\n',
        "tamis/kernels/rows.h": '#include "tamis/ops/a/a.h"\n  #  include "c10/util/x.h"\n',
        "tamis/ops/a/a.cc": '#include <torch/library.h>\n#include "tamis/ops/a/a_kernel.h"\n#include "tamis/ops/testing.h"\n',
        "tamis/ops/a/a_test.cc": '#include "tamis/cli/commands.h"\n',
        "tamis/ops/testing.h": '#include "tamis/train/train.h"\n',
        "tamis/nn/lost.cc": '#include "tamis/elsewhere/x.h"\n',
        "tamis/elsewhere/x.h": "",
        "tamis/infer/options.h": '#include "tamis/infer/decode.h"\n',
        "tamis/infer/decode.h": '#include <ATen/ATen.h>\n',
        "tamis/cli/main.cc": '#include "tamis/infer/options.h"\n#include <c10/core/Device.h>\n',
    }
    expected = {
        "tamis/base/up.h: base includes tamis/nn/rows.h, which belongs to nn",
        "tamis/ops/a/a_kernel.cc: kernels never sees torch, but includes ATen/ATen.h",
        "tamis/kernels/rows.h: kernels includes tamis/ops/a/a.h, which belongs to ops",
        "tamis/kernels/rows.h: kernels never sees torch, but includes c10/util/x.h",
        "tamis/ops/a/a.cc: only tests include tamis/ops/testing.h",
        "tamis/nn/lost.cc: nn includes tamis/elsewhere/x.h, which belongs to no layer",
        "tamis/infer/options.h: options never sees torch, but includes tamis/infer/decode.h, "
        "which includes ATen/ATen.h",
        f"tamis/elsewhere/x.h: lies in no layer; expected tamis/LAYER/ with LAYER one of {', '.join(LAYERS)}",
    }
    for path, text in files.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found, _ = violations(tmp_path)
    assert set(found) == expected, f"\nmissing: {expected - set(found)}\nunexpected: {set(found) - expected}"


def test_a_wrong_cmake_order_is_found():
    text = "tamis_layer(base LINK fmt)\ntamis_operator_layer(ops USES base)\ntamis_kernel_layer(kernels)\n"
    text += "tamis_threads_layer(threads)\ntamis_program(tamis)\n"
    assert order_in_cmake(text) == ["base", "ops", "kernels", "threads", "cli"]
