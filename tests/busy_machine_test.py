#!/usr/bin/env python3
"""Training while other programs use every core: the same bytes, by the team of threads: busy_machine_test.py PROGRAM

How fast it is then is measured by bench/busy.py: a test with a limit of time would fail on somebody's machine.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time

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
# Without a pause, and no longer than who started it lives.
COMPUTE = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1 << 20): pass"

program = ""
work = pathlib.Path()


def start(name, steps=STEPS, **environment):
    recipe = work / f"{name}.toml"
    recipe.write_text(RECIPE.format(steps=steps))
    command = [program, "train", recipe, "--set", f"run.dir={work / name}"]
    unset = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**unset, **environment})


def trained(name, **environment):
    """The weights after training."""
    process = start(name, **environment)
    _, messages = process.communicate(timeout=600)
    assert process.returncode == 0, messages
    return (work / name / "checkpoints" / f"step-{STEPS}" / "model.safetensors").read_bytes()


@contextlib.contextmanager
def busy_cores():
    """A program that computes without a pause for every core."""
    loops = [
        subprocess.Popen([sys.executable, "-c", COMPUTE], start_new_session=True)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def names_of_threads(name, **environment):
    """Of a process that trains, after its first steps."""
    process = start(name, steps=100000, **environment)
    log = work / name / "log.jsonl"
    try:
        for _ in range(6000):
            if log.exists() and '"loss"' in log.read_text():
                return [name.read_text().strip() for name in pathlib.Path(f"/proc/{process.pid}/task").glob("*/comm")]
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        raise AssertionError("it never trained")
    finally:
        process.kill()
        process.communicate()


def test_a_load_on_every_core_changes_no_bit():
    quiet = trained("quiet")
    with busy_cores():
        assert trained("busy") == quiet


def test_libgomp_computes_the_same_bits():
    assert trained("team") == trained("libgomp", GOMP_SPINCOUNT="0")


def test_threads_are_the_teams_unless_the_user_sets_openmp_up():
    assert "tamis-team" in names_of_threads("ours")
    assert "tamis-team" in names_of_threads("number", OMP_NUM_THREADS="2")
    assert "tamis-team" not in names_of_threads("theirs", GOMP_SPINCOUNT="0")


def main():
    global program, work
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    program = os.path.abspath(sys.argv[1])
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        with tempfile.TemporaryDirectory() as directory:
            work = pathlib.Path(directory)
            try:
                test()
                print(f"ok      {name}")
            except Exception as error:  # noqa: BLE001: a time-out must not end the other tests
                failed += 1
                print(f"FAILED  {name}: {type(error).__name__}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
