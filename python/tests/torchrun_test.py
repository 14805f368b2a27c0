"""torchrun starts `tamis train`, also again after a process was lost."""

import contextlib
import os
import pathlib
import platform
import signal
import subprocess
import sys

import pytest
from processes import free_port
from program import saved_steps, wait_until

import tamis

TORCHRUN = pathlib.Path(sys.executable).with_name("torchrun")
LEAST_ISA = "neon" if platform.machine() in ("aarch64", "arm64") else "avx2"
RECIPE = """
[model]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
key_dim = 4
value_dim = 8

[data.sources.digits]
kind = "abc_digits"

[train]
steps = {steps}
length = 48
batch_size = 4
accumulation = 4
reduction = "ordered"
precision = "float32"
threads = 1
lr = 0.01
warmup_steps = 4
save_every = 2
keep = 2
validate_tokens = 0
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE.format(steps=400))
    return tmp_path


def torchrun(directory, program, *options, run="run", timeout=60, machines=("--standalone", "--nproc-per-node", "2")):
    command = [TORCHRUN, *machines, "--no-python", *options, program.path, "train"]
    command += ["recipe.toml", "--set", f"run.dir={run}", "--timeout", str(timeout)]
    # The bits of a run that is started several times depend on no measurement.
    environment = {**os.environ, "TAMIS_MAX_ISA": LEAST_ISA}
    return subprocess.Popen(
        list(map(str, command)), cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def weights(directory, run, step=400):
    """The bytes of each tensor, as the package reads it."""
    model = tamis.load(directory / run / f"checkpoints/step-{step}")
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


def alone(directory, program):
    environment = {**os.environ, "TAMIS_MAX_ISA": LEAST_ISA}
    command = [program.path, "train", "recipe.toml", "--set", "run.dir=alone"]
    subprocess.run(list(map(str, command)), cwd=directory, env=environment, check=True, capture_output=True)


def processes_of(run, directory):
    """The ids of the processes that train this run, by rank."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if f"run.dir={run}".encode() in command and (entry / "cwd").resolve() == directory.resolve():
                variables = dict(line.split(b"=", 1) for line in (entry / "environ").read_bytes().split(b"\0") if b"=" in line)
                if b"RANK" in variables:
                    found[int(variables[b"RANK"])] = int(entry.name)
        except (OSError, ValueError):
            continue
    return found


def wait_for_steps(directory, steps, process):
    """Until the run has a checkpoint so many steps after its newest one: single checkpoints exist for a moment only."""
    wanted = max(saved_steps(directory / "run"), default=0) + steps
    wait_until(lambda: max(saved_steps(directory / "run"), default=0) >= wanted, process, f"step {wanted}")


def test_torchrun_trains_the_same_model(directory, program):
    alone(directory, program)
    out, messages = (process := torchrun(directory, program)).communicate(timeout=600)
    assert process.returncode == 0, (out, messages)
    assert "2 processes with 1 thread" in messages
    assert len(list((directory / "run/checkpoints/step-400").glob("model-*.safetensors"))) == 2
    assert weights(directory, "run") == weights(directory, "alone")


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_starts_again_after_the_loss_of_a_process(directory, program, rank):
    alone(directory, program)
    with torchrun(directory, program, "--max-restarts", "2") as process:
        wait_for_steps(directory, 20, process)
        os.kill(processes_of("run", directory)[rank], signal.SIGKILL)
        out, messages = process.communicate(timeout=600)
    assert process.returncode == 0, (out, messages)
    assert "resuming after step" in messages
    assert weights(directory, "run") == weights(directory, "alone")


def is_to_end(process):
    """Whether this process, which is stopped, has been sent SIGTERM."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(signals >> (signal.SIGTERM - 1) & 1 for signals in pending)


def test_torchrun_on_two_machines_starts_again_after_the_loss_of_a_process(directory, program):
    """An agent restarts its processes when the other one does. If they were still running, it does not count that, so
    that the two count differently. The start after that must not fail, which would cost a restart."""
    alone(directory, program)
    machines = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d")
    options = ("--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "test", "--local-addr", "127.0.0.1")
    agents = [torchrun(directory, program, *options, "--max-restarts", "1", machines=machines) for _ in range(2)]
    try:
        processes = {}
        for victim in (1, 0):
            before = set(processes.values())
            wait_until(lambda: len(set(processes_of("run", directory).values()) - before) == 2, agents[0], "two processes")
            processes = processes_of("run", directory)
            wait_for_steps(directory, 20, agents[0])
            os.kill(processes[1 - victim], signal.SIGSTOP)
            os.kill(processes[victim], signal.SIGKILL)
            wait_until(lambda: is_to_end(processes[1 - victim]), agents[0], "the end of the other process")  # noqa: B023
            os.kill(processes[1 - victim], signal.SIGCONT)
        for agent in agents:
            out, messages = agent.communicate(timeout=240)
            assert agent.returncode == 0, (out, messages)
    finally:
        for process in (*agents, *processes_of("run", directory).values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(getattr(process, "pid", process), signal.SIGKILL)
        for agent in agents:
            agent.communicate()
    assert weights(directory, "run") == weights(directory, "alone")
