"""How long a user waits before Tamis does anything: whole processes, from the call to their end."""

import functools
import pathlib
import subprocess
import tempfile
from typing import Iterator

from peers.effort import Effort
from peers.timing import measure

RECIPE = """
[model]
psi = {psi}
[data.sources.abc_digits]
kind = "abc_digits"
[run]
dir = "{run}"
[train]
steps = 1
warmup_steps = 0
length = 128
batch_tokens = 128
validate_tokens = 128
"""


def start(effort: Effort, tamis: str, model: bool) -> Iterator[dict]:
    """`tamis --help`, or one token of `tamis generate` on a model of Psi 16 as it was saved after a step."""
    with tempfile.TemporaryDirectory() as directory:
        run = pathlib.Path(directory, "run")
        arguments = ["--help"]
        if model:
            recipe = pathlib.Path(directory, "recipe.toml")
            recipe.write_text(RECIPE.format(psi=effort.sizes.psi, run=run))
            subprocess.run([tamis, "train", str(recipe)], check=True, capture_output=True)
            arguments = ["generate", str(run), "--prompt", "A=", "--max-new-tokens", "1"]
        call = functools.partial(subprocess.run, [tamis, *arguments], check=True, capture_output=True, text=True)
        if not call().stdout:
            raise RuntimeError(f"tamis {arguments[0]} says nothing")
        yield {**measure(call, effort), "per_call": 1, "check": "says something"}
