"""The wheel of `pip install .`, installed into an environment of its own and used without the source tree.

Building it compiles the operators, which takes minutes. TAMIS_WHEEL names a wheel that was built before.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed (scripts/setup.sh python)")

STORED = ROOT / "tests/data/version-0.1/swax"
TASK = """
task: small_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{{metric: bits_per_byte}}]
"""


def run(*command, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1700, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    if built := os.environ.get("TAMIS_WHEEL"):
        return Path(built)
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index",
        "--disable-pip-version-check", "-w", directory, ROOT, cwd=directory)  # fmt: skip
    (file,) = directory.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The Python of a new environment with the wheel; torch and the rest are those of the calling one."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False, symlinks=True)
    interpreter = directory / "bin/python"
    run(sys.executable, "-m", "pip", "--python", interpreter, "install", "--no-deps", "--no-index",
        "--disable-pip-version-check", wheel)  # fmt: skip
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def clean(**environment) -> dict[str, str]:
    """An environment without any path into the source tree."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "TAMIS_OPS_LIBRARY")}
    return {**kept, **environment}


def test_what_it_contains(wheel):
    assert re.fullmatch(r"tamis-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)
    assert wheel.stat().st_size < 10 << 20
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        content = {name: files.read(name) for name in names}
    sources = {f"tamis/{path.relative_to(ROOT / 'python/tamis')}" for path in (ROOT / "python/tamis").rglob("*.py")}
    expected = sources | {"tamis/py.typed", "tamis/libtamis_ops.so", "tamis_lm_eval.pth", "tamis_lm_eval_hook.py"}
    metadata = {name for name in names if ".dist-info/" in name}
    others = {name for name in set(names) - expected - metadata if not re.fullmatch(r"tamis/libhwy\.so\.\d+", name)}
    assert expected <= set(names) and not others
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)
    (description,) = (content[name].decode() for name in metadata if name.endswith("/METADATA"))
    assert "License-Expression: Apache-2.0" in description and "Requires-Dist: torch" in description
    machine = [str(ROOT), str(ROOT.resolve()), str(Path.home()), str(Path(sys.prefix).resolve())]
    found = [(name, path) for name in names for path in machine if path.encode() in content[name]]
    assert not found, "paths of this machine"


def test_its_libraries_are_next_to_it_or_in_torch(python):
    (library,) = python.parent.parent.glob("lib/python*/site-packages/tamis/libtamis_ops.so")
    header = run("readelf", "-d", library)
    assert re.findall(r"R(?:UN)?PATH.*\[(.*)\]", header) == ["$ORIGIN:$ORIGIN/../torch/lib"]
    code = "import tamis; print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libhwy.so' in line})"
    if "libhwy.so" in header:
        loaded = run(python, "-c", code, env=clean(), cwd="/").strip()
        assert Path(loaded).resolve().parent == library.resolve().parent


OPERATORS = """
import sys, torch, tamis
assert "site-packages" in tamis.__file__ and tamis.__file__.startswith(sys.prefix), tamis.__file__
q, k = torch.randn(2, 1, 40, 4, 16, requires_grad=True).unbind()
u = tamis.screening(q, k, torch.randn(1, 40, 4, 8), torch.full((4,), 3.0), torch.zeros(4))
u.sum().backward()
model = tamis.load(sys.argv[1])
tokens = torch.arange(9)[None] % model.config.vocab_size
assert model(tokens).isfinite().all() and model.generate(tokens, 3).shape == (1, 3)
model.save(sys.argv[2])
assert torch.equal(tamis.load(sys.argv[2])(tokens), model(tokens))
"""


def test_operators_and_checkpoints(python, tmp_path):
    run(python, "-c", OPERATORS, STORED, tmp_path / "copy", env=clean(), cwd="/")


def test_the_harness_finds_the_model(python, program, tmp_path):
    """`lm_eval --model tamis`, as docs/python.md says."""
    pytest.importorskip("lm_eval", reason="lm_eval is not installed (scripts/setup.sh python)")
    model = program.train(tmp_path, "run", 'hidden_size = 16\nnum_hidden_layers = 1\nnum_attention_heads = 2')
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "Line 5 of a small text."}) + "\n")
    (tmp_path / "small.yaml").write_text(TASK.format(file=tmp_path / "texts.jsonl"))
    offline = clean(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(tmp_path / "cache"))
    printed = run(python, "-m", "lm_eval", "--model", "tamis", "--model_args", f"path={model}", "--tasks", "small_text",
                  "--include_path", tmp_path, "--batch_size", "8", env=offline, cwd=tmp_path)  # fmt: skip
    assert "bits_per_byte" in printed


def test_another_torch_is_named(python, tmp_path):
    """The library next to the package is for one version of torch."""
    code = "import torch; torch.__version__ = '2.11.0'\nimport tamis"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=clean(), cwd="/")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "was built for torch" in last and "this is torch 2.11.0" in last
    assert "pip install --no-build-isolation" in last
