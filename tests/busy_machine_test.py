"""Training while other programs use every core gives the same bytes, and the program's own threads compute them.

bench/busy.py measures how fast it is then: a test with a time limit would fail on a slow machine.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
from program import environment, wait_until

RECIPE = """
[model]
model_type = "transformer"
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
[data.sources.abc_digits]
kind = "abc_digits"
[train]
steps = {steps}
length = 128
batch_size = 4
threads = 2
log_every = 10
save_every = {steps}
sample_every = {steps}
validate_every = {steps}
validate_tokens = 256
"""
STEPS = 20
# Runs until its parent ends.
COMPUTE = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1 << 20): pass"


def start(tamis, run, steps=STEPS, **variables):
    recipe = run.with_suffix(".toml")
    recipe.write_text(RECIPE.format(steps=steps))
    openmp = [name for name in os.environ if name.startswith(("OMP_", "GOMP_"))]
    return tamis.start("train", recipe, "--set", f"run.dir={run}", env=environment(openmp, **variables))


def trained(tamis, run, **variables):
    """The weights after training, and the matmul backends."""
    process = start(tamis, run, **variables)
    _, messages = process.communicate(timeout=600)
    assert process.returncode == 0, messages
    backends = json.loads((run / "run.json").read_text())["machine"]["matmul"]
    return (run / "checkpoints" / f"step-{STEPS}" / "model.safetensors").read_bytes(), backends


@contextlib.contextmanager
def busy_cores():
    """Four programs that compute without a pause for every core."""
    loops = [
        subprocess.Popen([sys.executable, "-c", COMPUTE], start_new_session=True) for _ in range(4 * (os.cpu_count() or 1))
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def names_of_threads(tamis, run, **variables):
    """The threads of a process that trains, after its first steps."""
    process = start(tamis, run, steps=100000, **variables)
    log = run / "log.jsonl"
    try:
        wait_until(lambda: log.exists() and '"loss"' in log.read_text(), process, "loss in the log", seconds=120)
        return [name.read_text().strip() for name in pathlib.Path(f"/proc/{process.pid}/task").glob("*/comm")]
    finally:
        process.kill()
        process.communicate()


def test_a_load_on_every_core_changes_no_bit(tamis, tmp_path):
    quiet = trained(tamis, tmp_path / "quiet")
    with busy_cores():
        assert trained(tamis, tmp_path / "busy") == quiet


def test_libgomp_computes_the_same_bits(tamis, tmp_path):
    assert trained(tamis, tmp_path / "team") == trained(tamis, tmp_path / "libgomp", GOMP_SPINCOUNT="0")


@pytest.mark.parametrize(
    ("variables", "ours"), [({}, True), ({"OMP_NUM_THREADS": "2"}, True), ({"GOMP_SPINCOUNT": "0"}, False)]
)
def test_threads_are_the_teams_unless_the_user_sets_openmp_up(tamis, run, variables, ours):
    assert ("tamis-team" in names_of_threads(tamis, run, **variables)) == ours
