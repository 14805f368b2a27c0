"""Starts a command in several processes, as torchrun does."""

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import time

from program import Program, environment, expect_refused, saved_steps, wait_until
from safetensors_files import read_tensors

# What the tests of training with several processes train.
RECIPE = """
[model]
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 4
key_dim = 8
value_dim = 16

[data.sources.digits]
kind = "abc_digits"

[train]
steps = 12
length = 48
batch_size = 12
accumulation = 12
reduction = "ordered"
clip = 0.5
weight_decay = 0.1
precision = "float32"
threads = 1
lr = 0.01
warmup_steps = 4
save_every = 4
log_every = 1
validate_every = 6
validate_tokens = 960
sample_every = 6
sample_prompt = "A=12\\nA="
sample_tokens = 4
"""

LOST = 21  # the exit code when another process is lost
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def free_port() -> int:
    """A random port that nobody listens on, below those that the kernel gives to connections: no other socket gets it
    between this call and the start of the processes."""
    first_ephemeral = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(1024, first_ephemeral) if first_ephemeral > 2048 else range(1024, 65536)
    chance = random.SystemRandom()  # tests that run at the same time have other ports
    while True:
        port = chance.choice(ports)
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("0.0.0.0", port))  # every address, as c10d
            return port


class Processes:
    """`size` processes of one command. Of single processes, by rank, `also` has further arguments and `options` those
    of Popen."""

    def __init__(
        self, program: Program, size: int, *arguments, also=None, options=None, port: int | None = None, **variables: str
    ):
        port = port or free_port()
        self.all = []
        for rank in range(size):
            place = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            env = environment(**{**place, **variables})
            single = {"env": env, **(options or {}).get(rank, {})}
            self.all.append(program.start(*arguments, *(also or {}).get(rank, ()), **single))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()

    def wait(self, seconds: float = 300) -> list[subprocess.CompletedProcess]:
        """How they ended; the messages are read one process after another."""
        deadline = time.monotonic() + seconds
        done = []
        for process in self.all:
            out, messages = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            done.append(subprocess.CompletedProcess(process.args, process.returncode, out, messages))
        return done


def weights(run: pathlib.Path, step: int) -> dict[str, tuple[str, list[int], bytes]]:
    """The dtype, shape and bytes of each tensor of a model, which several processes save in shards."""
    files = list((run / f"checkpoints/step-{step}").glob("model*.safetensors"))
    result = {name: tensor for file in files for name, tensor in read_tensors(file).items()}
    assert result, f"{run} has no weights of step {step}"
    return result


def checkpoint_files(run: pathlib.Path, step: int) -> dict[str, bytes]:
    """The tensors of a checkpoint, by file."""
    directory = run / f"checkpoints/step-{step}"
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.safetensors"))}


def left_over(run: pathlib.Path) -> list[str]:
    return [name for name in os.listdir(run / "checkpoints") if name.startswith(".unfinished-")]


def arguments(run, *settings, timeout=60):
    changes = [f"--set={setting}" for setting in (f"run.dir={run}", *settings)]
    return ["train", "recipe.toml", "--timeout", str(timeout), *changes]


def alone(tamis, run, *settings, **options):
    done = tamis(*arguments(run, *settings), **options)
    assert done.returncode == 0, done


def together(tamis, size, run, *settings, codes=None, also=None, seconds=300, **variables):
    """Trains with `size` processes; the messages of each."""
    with Processes(tamis, size, *arguments(run, *settings), also=also, **variables) as processes:
        done = processes.wait(seconds)
    assert [each.returncode for each in done] == (codes or [0] * size), done
    return [each.stderr for each in done]


def records(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def losses(run):
    return [record["loss"] for record in records(run) if "loss" in record]


def overflows(run):
    """The steps of float16 that all processes have skipped, and the loss scale after each."""
    return [(record["step"], record["loss_scale"]) for record in records(run) if record["type"] == "overflow"]


def start(tamis, size, run, *settings, timeout=60, **options):
    return Processes(tamis, size, *arguments(run, *settings, timeout=timeout), **options)


def refused(tamis, run, code, *texts, size=2, settings=(), **options):
    with start(tamis, size, run, *settings, **options) as processes:
        done = processes.wait()
    for each in done:
        each.stdout = each.stdout or ""
        expect_refused(each, code, *texts)


def wait_for_step(processes, run, step):
    """Until there is a checkpoint of this step or a later one: single checkpoints exist for a moment only."""
    wait_until(lambda: any(saved >= step for saved in saved_steps(run)), processes.all[0], f"step {step}")
