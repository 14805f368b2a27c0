"""Recipes of small studies, and what the tests read of their results."""

import json
import sys

from program import environment

BASE = """
[study]
title = "Two small Transformers"
seeds = [1, 2, 3]

[choose]
values = [0.001, 0.01]

[model]
model_type = "transformer"
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2

[data.sources.copy]
kind = "copy"

[train]
steps = 6
length = 32
batch_tokens = 128
warmup_steps = 2
validate_tokens = 128
precision = "float32"
log_every = 1

[[variants]]
name = "rope"

[[variants]]
name = "window"
model = {pattern = "w", window = 8}

[[evaluations]]
task = "copy"
multiples = [1, 2]
instances = 4
"""

CLAIMS = """
[[claims]]
id = "size"
text = "The models have the same size"
paper = "section 3"
metric = "parameters_without_embedding"
statistic = "ratio"
of = {variant = "window"}
than = {variant = "rope"}
at_least = 1
at_most = 1

[[claims]]
id = "solved"
text = "Six steps suffice"
metric = "validation_loss"
of = {variant = "rope"}
at_most = 0.1

[[claims]]
id = "few"
text = "Two seeds decide"
metric = "validation_loss"
of = {variant = "rope", seed = [1, 2]}
at_most = 100

[[claims]]
id = "better"
needs = ["solved"]
text = "Windows solve it no better"
metric = "validation_loss"
statistic = "ratio"
of = {variant = "window"}
than = {variant = "rope"}
at_least = 0.01
"""

FIGURES = """
[[figures]]
id = "curves"
metric = "training_loss"
x = "step"

[[figures]]
id = "sizes"
title = "Loss & size"
kind = "scatter"
marginals = true
metric = "validation_loss"
x = "parameters"
x_scale = "log"

[[figures]]
id = "scores"
kind = "bars"
metric = "score"
x = "length"

[[figures]]
id = "map"
kind = "heatmap"
metric = "score"
x = "length"
y = "variant"

[[figures]]
id = "empty"
metric = "score"
where = {length = 7}
x = "length"

[[figures]]
id = "impossible"
metric = "score"
x = "variant"
x_scale = "log"

[[tables]]
metric = "validation_loss"
"""

FUNCTION = """
[study]
title = "A function"
seconds = 1

[[evaluations]]
kind = "function"
name = "tanh_norm"
settings = {norm = [0, 1, 2]}

[[claims]]
text = "The norm stays below one"
metric = "tanh_norm"
at_most = 1
"""

ONE_RUN = BASE.replace("seeds = [1, 2, 3]", "seeds = [1]").replace("[choose]\nvalues = [0.001, 0.01]\n", "")


def recipe(tamis, name, text):
    path = tamis.directory / f"{name}.toml"
    path.write_text(text)
    return path


def study(tamis, name, text, *arguments, code=0, **options):
    """Runs a study in runs/NAME."""
    options = {"env": environment(TAMIS_PYTHON=sys.executable), **options}
    done = tamis("study", recipe(tamis, name, text), "--threads", 1, *arguments, **options)
    assert done.returncode == code, done
    return done


def directory(tamis, name):
    return tamis.directory / "runs" / name


def summary(tamis, name):
    return json.loads((directory(tamis, name) / "study.json").read_text())


def rows(tamis, name, **columns):
    found = json.loads((directory(tamis, name) / "results.json").read_text())
    return [row for row in found if all(row.get(key) == value for key, value in columns.items())]


def losses(tamis, name):
    return {(row["variant"], row["seed"]): row["value"] for row in rows(tamis, name, metric="validation_loss")}


def checkpoints(tamis, name):
    return {path: path.stat().st_mtime_ns for path in directory(tamis, name).rglob("checkpoints/*/*")}


def last_line(messages):
    return messages.splitlines(keepends=True)[-1]
