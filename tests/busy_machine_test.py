"""Training while other programs use every core gives the same bytes, is computed by the program's own threads, and is at
least a third as fast as with one thread.

Speeds are compared within one test, so that the machine does not matter; bench/busy.py compares more kinds of work.
"""

import contextlib
import json
import os
import pathlib
import statistics
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


def start(tamis, run, *settings, steps=STEPS, **variables):
    recipe = run.with_suffix(".toml")
    recipe.write_text(RECIPE.format(steps=steps))
    words = [word for setting in (f"run.dir={run}", *settings) for word in ("--set", setting)]
    openmp = [name for name in os.environ if name.startswith(("OMP_", "GOMP_"))]
    return tamis.start("train", recipe, *words, env=environment(openmp, **variables))


def trained(tamis, run, **variables):
    """The weights after training, and the matmul backends."""
    process = start(tamis, run, **variables)
    _, messages = process.communicate(timeout=600)
    assert process.returncode == 0, messages
    backends = json.loads((run / "run.json").read_text())["machine"]["matmul"]
    return (run / "checkpoints" / f"step-{STEPS}" / "model.safetensors").read_bytes(), backends


def cores():
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def busy_cores(programs):
    """`programs` programs per core that compute without pause."""
    loops = [
        subprocess.Popen([sys.executable, "-c", COMPUTE], start_new_session=True) for _ in range(programs * cores())
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
    with busy_cores(programs=4):
        assert trained(tamis, tmp_path / "busy") == quiet


def speed(tamis, run, threads):
    """Tokens/s after the first steps, of a small Transformer."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    settings = [f"model.{key}={size}" for key, size in sizes.items()]
    settings += ["train.batch_size=8", "train.precision=float32", f"train.threads={threads}"]
    process = start(tamis, run, *settings, steps=40)
    _, messages = process.communicate(timeout=600)
    assert process.returncode == 0, messages
    records = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    speeds = [record["tokens_per_second"] for record in records if record["type"] == "train"]
    return statistics.harmonic_mean(speeds[1:])


def test_a_load_on_every_core_does_not_make_more_threads_slower_than_one(tamis, tmp_path):
    """With libgomp, whose threads spin for milliseconds while they wait, the default reaches 0.02 to 0.17 of the speed of
    one thread. It reaches 0.6 to 1 with the program's own, and 0.49 where the kernel gives one thread a core of its own
    in two of three runs, and the default half of one."""
    if cores() < 2:
        pytest.skip("a single core computes with one thread by default")
    speeds = {"default": [], "one thread": []}
    with busy_cores(programs=1):
        for i in range(3):
            for threads, (name, values) in enumerate(speeds.items()):  # 0 is the default
                values.append(speed(tamis, tmp_path / f"{name} {i}", threads))
    default, one = map(statistics.median, speeds.values())
    assert default >= 0.35 * one, speeds


def test_libgomp_computes_the_same_bits(tamis, tmp_path):
    assert trained(tamis, tmp_path / "team") == trained(tamis, tmp_path / "libgomp", GOMP_SPINCOUNT="0")


@pytest.mark.parametrize(
    ("variables", "ours"), [({}, True), ({"OMP_NUM_THREADS": "2"}, True), ({"GOMP_SPINCOUNT": "0"}, False)]
)
def test_threads_are_the_teams_unless_the_user_sets_openmp_up(tamis, run, variables, ours):
    assert ("tamis-team" in names_of_threads(tamis, run, **variables)) == ours
