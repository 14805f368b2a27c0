"""Puts the package on the path, and runs the program `tamis` for comparisons."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.append(str(ROOT / "tests"))  # what tests of the program share
# Everything here is small: one thread is fastest, above all with other work on the machine.
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_addoption(parser):
    parser.addoption(
        "--program", type=pathlib.Path, default=ROOT / "build/release/tamis", help="tamis; default: build/release/tamis"
    )


class Program:
    """The program `tamis`."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def __call__(self, *arguments, code: int = 0, **options) -> str:
        """Runs it and returns what it prints: results, or messages of a failure."""
        done = subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True, timeout=600, **options)
        assert done.returncode == code, done
        return done.stderr if code else done.stdout

    def json(self, *arguments, **options):
        return json.loads(self(*arguments, "--json", **options))

    def logprobs(self, checkpoint, ids, directory: pathlib.Path) -> list[float]:
        """ln p of every token but the first."""
        file = directory / "ids.json"
        file.write_text(json.dumps(ids))
        return self.json("score", checkpoint, "--ids", file)["logprobs"][1:]

    def train(self, directory: pathlib.Path, name: str, model: str) -> pathlib.Path:
        """A run of a few steps on a small text, with this [model] table."""
        text = directory / "text.txt"
        text.write_text("".join(f"Line {i} of a small text: {i * i % 97}, \u00e9 and {i % 7}.\n" for i in range(400)))
        recipe = directory / f"{name}.toml"
        recipe.write_text(RECIPE.format(model=model, text=text))
        run = directory / name
        self("train", recipe, "--set", f"run.dir={run}", "--threads", 1)
        return run


RECIPE = """
[model]
{model}
[data.sources.small]
kind = "text"
files = ["{text}"]
validation_fraction = 0.1
[train]
steps = 4
length = 64
batch_tokens = 256
lr = 0.02
warmup_steps = 1
save_every = 2
validate_every = 4
validate_tokens = 128
sample_every = 0
"""


@pytest.fixture(scope="session")
def program(pytestconfig) -> Program:
    path = pytestconfig.getoption("program").resolve()
    if not path.is_file():
        pytest.skip(f"{path} is missing; build it with `make build`, or name it with --program")
    return Program(path)
