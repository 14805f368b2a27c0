"""Starts a command in several processes, as torchrun does."""

import os
import pathlib
import signal
import socket
import subprocess
import time

from program import Program, environment

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Processes:
    """`size` processes of one command. `also`: further arguments of single processes, by rank."""

    def __init__(self, program: Program, size: int, *arguments, also=None, port: int | None = None, **variables: str):
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
            # The same arithmetic in every run, whatever the load: see program.same_bits.
            env = environment(**{"TAMIS_MAX_ISA": "avx2", **place, **variables})
            self.all.append(program.start(*arguments, *(also or {}).get(rank, ()), env=env))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()

    def wait(self, seconds: float = 120) -> list[subprocess.CompletedProcess]:
        """How they ended; the messages are read one process after another."""
        deadline = time.monotonic() + seconds
        done = []
        for process in self.all:
            out, messages = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            done.append(subprocess.CompletedProcess(process.args, process.returncode, out, messages))
        return done


def weights(run: pathlib.Path, step: int) -> bytes:
    return (run / f"checkpoints/step-{step}/model.safetensors").read_bytes()


def checkpoint_files(run: pathlib.Path, step: int) -> dict[str, bytes]:
    """The tensors of a checkpoint, by file."""
    directory = run / f"checkpoints/step-{step}"
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.safetensors"))}


def left_over(run: pathlib.Path) -> list[str]:
    return [name for name in os.listdir(run / "checkpoints") if name.startswith(".unfinished-")]
