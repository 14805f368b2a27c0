"""Runs the program under test and checks how it ends."""

import contextlib
import os
import platform
import pathlib
import re
import resource
import shutil
import subprocess
import time

import pytest
from fork_server import ForkedProcess, ForkServers


class Program:
    """The program under test, run in a directory of the test's own."""

    forks: ForkServers | None = None  # of all programs of this process; conftest.py starts it

    def __init__(self, path: pathlib.Path, directory: pathlib.Path):
        self.path, self.directory = path, directory

    def __call__(self, *arguments, anew: bool = False, **options) -> subprocess.CompletedProcess:
        """Runs to the end. Options as for subprocess.run; output is captured as text, standard input is empty.

        anew: as a process that loads its libraries itself. A fork has less of them in its resident memory, the
        addresses of other forks, and the command line of the program that was forked.
        """
        if not options.keys() & {"input", "stdin"}:
            options["stdin"] = subprocess.DEVNULL
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 600, **self._common(), **options}
        arguments = [str(argument) for argument in arguments]
        if self.forks and not anew and (server := self.forks.server_for(self.path, arguments, options)):
            return server.run(arguments, **options)
        return subprocess.run([self.path, *arguments], **options)

    def out(self, *arguments, code: int = 0, **options) -> str:
        """What it prints when it ends with this exit code: results, or messages of a failure."""
        done = self(*arguments, **options)
        assert done.returncode == code, done
        return done.stderr if code else done.stdout

    def start(self, *arguments, anew: bool = False, **options) -> "subprocess.Popen | ForkedProcess":
        """Starts it, with options as for subprocess.Popen; `anew` as above."""
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **self._common(), **options}
        arguments = [str(argument) for argument in arguments]
        if self.forks and not anew and (server := self.forks.server_for(self.path, arguments, options)):
            return server.start(arguments, **options)
        return subprocess.Popen([self.path, *arguments], **options)

    def _common(self) -> dict:
        return {"cwd": self.directory, "encoding": "utf-8", "errors": "surrogateescape"}


def finished(process: subprocess.Popen) -> subprocess.CompletedProcess:
    """Waits until a started process ends."""
    out, messages = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, messages)


def one_line(messages: str) -> bool:
    """True when the messages are one line of error."""
    return messages.startswith("tamis: ") and messages.count("\n") == 1 and messages.endswith("\n")


def expect_refused(done: subprocess.CompletedProcess, code: int, *texts: str) -> None:
    """One line of error with these texts, nothing on standard output."""
    assert done.returncode == code and not done.stdout and one_line(done.stderr), done
    for text in texts:
        assert text in done.stderr, done


def wait_until(condition, process: subprocess.Popen, what: str, seconds: float = 180) -> None:
    """Waits for `condition()` while the process runs."""
    deadline = time.monotonic() + seconds
    while True:
        ended = process.poll() is not None  # before the condition, which it may have made true at its end
        if condition():
            return
        assert not ended, f"the process ended with {process.returncode} before there was {what}"
        assert time.monotonic() < deadline, f"after {seconds} s there is no {what}"
        time.sleep(0.0002)  # a save takes a few milliseconds


def limited(kind: int, value: int):
    """A preexec_fn that limits a resource of the process, such as resource.RLIMIT_AS."""
    return lambda: resource.setrlimit(kind, (value, value))


def saved_steps(run):
    names = [entry.name for entry in (run / "checkpoints").iterdir()] if (run / "checkpoints").is_dir() else []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))


def address_space_is_limitable(tamis):
    """False under AddressSanitizer and ThreadSanitizer, which reserve terabytes."""
    return tamis("--help", preexec_fn=limited(resource.RLIMIT_AS, 1 << 30)).returncode == 0


def limited_memory(tamis, size: int):
    """A preexec_fn that limits the address space to `size` bytes; None where that is not possible."""
    return limited(resource.RLIMIT_AS, size) if address_space_is_limitable(tamis) else None


@contextlib.contextmanager
def small_disk(path: pathlib.Path, size: str):
    """A small real file system at `path`; the function that is yielded mounts it again with other options."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        yield lambda options: subprocess.run(["mount", "-o", f"remount,{options}", path], check=True)
    finally:
        subprocess.run(["umount", path], check=True)


def need(name: str) -> str:
    """The path of an installed program; skips the test without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def environment(without=(), **variables: str) -> dict[str, str]:
    """The environment of this process with variables set or left out."""
    return {**{key: value for key, value in os.environ.items() if key not in without}, **variables}


# What TAMIS_MAX_ISA may name on this processor; the first is the least.
INSTRUCTION_SETS = ("neon",) if platform.machine() in ("aarch64", "arm64") else ("avx2", "avx512")
