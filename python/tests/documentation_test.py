"""The code of docs/python.md runs."""

import os
import re
import subprocess
import sys

from conftest import ROOT
from safetensors.torch import load_file

import tamis

PAGE = (ROOT / "docs" / "python.md").read_text()


def run(code: str, directory) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=directory, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_training_loop(program, tmp_path):
    """It learns, and the program reads what it saves."""
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line]) <= 41
    printed = run(code, tmp_path)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert losses[-1] < losses[0] - 1 and "equal True" in printed
    assert len(program.logprobs(tmp_path / "trained", [49, 50, 32, 43], tmp_path)) == 3


def test_the_optimizer_state_of_a_run(program, tmp_path):
    trained = program.train(tmp_path, "run", "psi = 2\nmax_position_embeddings = 64")
    code = re.search(r"```\n(from safetensors.*?)```", PAGE, re.DOTALL).group(1)
    assert len(code.splitlines()) == 3
    newest = trained / "checkpoints" / "step-4"
    run(re.sub(r"runs/demo/checkpoints/step-\d+", str(newest), code), tmp_path)
    moments, names = load_file(newest / "optimizer.safetensors"), set(tamis.load(trained).state_dict())
    for kind in ["exp_avg.", "exp_avg_sq."]:
        assert {name.removeprefix(kind) for name in moments if name.startswith(kind)} == names


def test_names_of_the_page_exist():
    for name in re.findall(r"`tamis\.((?:\w+\.)*\w+)", PAGE):
        found = tamis
        for part in name.split("."):
            found = getattr(found, part)
