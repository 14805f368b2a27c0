"""`tamis train --trace` writes a Chrome trace with the names of layers and operators; the run itself stays the same."""

import json
import re
import resource

import pytest
from program import expect_refused, limited

RECIPE = """
[model]
model_type = "swax"
pattern = "sa"
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2

[data.sources.digits]
kind = "abc_digits"

[train]
steps = 8
length = 64
batch_size = 4
accumulation = 2
precision = "float32"
lr = 0.001
save_every = 8
validate_tokens = 0
"""


@pytest.fixture(scope="module")
def recipe(tamis):
    path = tamis.directory / "recipe.toml"
    path.write_text(RECIPE)
    return path


def spans(trace):
    """(name, begin, end) of every event with a duration, in microseconds."""
    return [
        (event["name"], float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in trace["traceEvents"]
        if event.get("ph") == "X"
    ]


def named(trace, name):
    return [span for span in spans(trace) if span[0] == name]


def is_within(inner, outer):
    return outer[1] <= inner[1] and inner[2] <= outer[2]


def test_a_trace_has_the_steps_the_layers_and_the_operators(tamis, recipe, run):
    trace_file = tamis.directory / "trace.json"
    done = tamis("train", recipe, "--set", f"run.dir={run}", "--trace", trace_file, "--trace-steps", 2)
    assert done.returncode == 0 and f"{trace_file}: 2 traced steps" in done.stderr, done
    trace = json.loads(trace_file.read_text())
    steps = [name for name, _, _ in spans(trace) if re.fullmatch(r"step \d+", name)]
    assert steps == ["step 4", "step 5"], "two steps after the first three"
    wanted = {"layers.0": 4, "layers.1": 4, "screening": 4, "MLP": 4, "backward": 4, "optimizer": 2}
    traced = [span for step in steps for span in named(trace, step)]
    for name, times in wanted.items():
        found = named(trace, name)
        assert len(found) >= times, f"{name} occurs {len(found)} times, expected {times}"
        assert all(any(is_within(span, step) for step in traced) for span in found), name
    names = {name for name, _, _ in spans(trace)}
    operators = {name for name in names if name.startswith(("tamis::", "aten::"))}
    expected = {"screening", "_softmax_attention", "_softmax_attention_backward", "linear_cross_entropy"}
    assert {f"tamis::{name}" for name in expected} <= operators, sorted(operators)
    for scope, operator in (("layers.0", "tamis::screening"), ("layers.1", "tamis::_softmax_attention")):
        inside = [any(is_within(span, layer) for layer in named(trace, scope)) for span in named(trace, operator)]
        assert inside and all(inside), f"{operator} lies outside {scope}"
    assert "USDT" not in done.stderr and "INFO" not in done.stderr, "messages of the profiler"


def test_a_traced_run_has_the_same_weights_and_no_other_files(tamis, recipe, run, tmp_path):
    runs = [run, tmp_path / "traced"]
    for directory, more in zip(runs, ((), ("--trace", tmp_path / "trace.json")), strict=True):
        assert tamis("train", recipe, "--set", f"run.dir={directory}", *more).returncode == 0
    weights = [(directory / "checkpoints/step-8/model.safetensors").read_bytes() for directory in runs]
    assert weights[0] == weights[1], "tracing changed the results"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "trace.json", "traced"]


def test_a_run_with_fewer_steps_writes_what_there_is(tamis, recipe, run, tmp_path):
    trace_file = tmp_path / "trace.json"
    done = tamis("train", recipe, "--set", f"run.dir={run}", "--set", "train.steps=5", "--trace", trace_file)
    assert done.returncode == 0 and "2 traced steps" in done.stderr, done
    assert named(json.loads(trace_file.read_text()), "step 5"), "the last step is missing"


def test_a_run_with_no_steps_to_trace_says_so(tamis, recipe, run, tmp_path):
    trace_file = tmp_path / "trace.json"
    for steps in ("warms up", "is finished"):
        done = tamis("train", recipe, "--set", f"run.dir={run}", "--set", "train.steps=3", "--trace", trace_file)
        assert done.returncode == 0 and not trace_file.exists(), (steps, done)
        assert done.stderr.count(f"{trace_file}: not written: the first 3 steps") == 1, (steps, done)


def test_a_trace_that_cannot_be_written_is_one_line(tamis, recipe, run, tmp_path):
    nowhere = tmp_path / "none/trace.json"
    expect_refused(tamis("train", recipe, "--set", f"run.dir={run}", "--trace", nowhere), 30, "none")
    assert not run.exists(), "nothing is trained before the refusal"
    expect_refused(tamis("train", recipe, "--trace", tmp_path / "t.json", "--trace-steps", 0), 2, "--trace-steps")
