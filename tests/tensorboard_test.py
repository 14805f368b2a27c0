"""The event files of a run, read back by TensorBoard's own package, hold what log.jsonl says."""

import json

import pytest
from program import wait_until

pytest.importorskip("tensorboard", reason="tensorboard is not installed (scripts/setup.sh test)")
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator  # noqa: E402
from tensorboard.util import tensor_util  # noqa: E402

PROMPT = 'A=12\n  "\u00e9"\nA='
RECIPE = f"""
[model]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
key_dim = 4
value_dim = 8

[data.sources.digits]
kind = "abc_digits"

[data.sources.copies]
kind = "copy"

[train]
steps = 24
length = 48
batch_size = 4
precision = "float32"
lr = 0.01
warmup_steps = 4
save_every = 4
log_every = 2
validate_every = 8
validate_tokens = 96
sample_every = 12
sample_prompt = {json.dumps(PROMPT)}
sample_tokens = 6
"""


@pytest.fixture(scope="module")
def recipe(tamis):
    path = tamis.directory / "recipe.toml"
    path.write_text(RECIPE)
    return path


def train(tamis, recipe, run, *settings):
    done = tamis("train", recipe, "--set", f"run.dir={run}", *(f"--set={setting}" for setting in settings))
    assert done.returncode == 0, done


def log(run, kind):
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [record for record in records if record["type"] == kind]


def saved(run):
    return sorted((run / "checkpoints").glob("step-*"))


def event_files(run):
    return sorted((run / "tensorboard").iterdir())


def events_of(run):
    everything = {"scalars": 0, "tensors": 0}  # 0: without sampling
    events = event_accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance=everything)
    return events.Reload()


def samples_of(run):
    """The texts as TensorBoard's text page reads them."""
    events = plugin_event_accumulator.EventAccumulator(str(run / "tensorboard"), tensor_size_guidance={"text": 0})
    events.Reload()
    assert events.SummaryMetadata("sample").plugin_data.plugin_name == "text"
    texts = [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in events.Tensors("sample")]
    return [(step, text.decode().removeprefix("    ").replace("\n    ", "\n")) for step, text in texts]


def expect_equal_to_the_log(run):
    events = events_of(run)
    for key in ("loss", "lr", "grad_norm", "tokens_per_second", "mfu", "memory_bytes"):
        found = events.Scalars(f"train/{key}")
        expected = [(record["step"], pytest.approx(record[key], rel=1e-6)) for record in log(run, "train")]
        assert [(event.step, event.value) for event in found] == expected, key
    groups = log(run, "train")[0]["grad_norms"]
    assert {"embed.weight", "layers.qkvg", "layers.s_w"} <= set(groups), groups
    tags = {tag for tag in events.Tags()["scalars"] if tag.startswith("train/grad_norms/")}
    assert tags == {f"train/grad_norms/{group}" for group in groups}
    for group in groups:
        found = [(event.step, event.value) for event in events.Scalars(f"train/grad_norms/{group}")]
        records = [(record["step"], record["grad_norms"][group]) for record in log(run, "train")]
        assert found == [(step, pytest.approx(norm, rel=1e-6)) for step, norm in records], group
    for source in ("digits", "copies"):
        found = events.Scalars(f"validation/{source}")
        records = [record for record in log(run, "validation") if record["source"] == source]
        expected = [(record["step"], pytest.approx(record["loss"], rel=1e-6)) for record in records]
        assert expected and [(event.step, event.value) for event in found] == expected, source
    assert samples_of(run) == [(record["step"], record["prompt"] + record["text"]) for record in log(run, "sample")]


def test_events_are_those_of_the_log(tamis, recipe, run):
    train(tamis, recipe, run)
    expect_equal_to_the_log(run)
    assert len(event_files(run)) == 1 and len(log(run, "train")) == 12


def test_a_resumed_run_continues_its_curves(tamis, recipe, run):
    for steps in (8, 16, 24):
        train(tamis, recipe, run, f"train.steps={steps}")
    assert len(event_files(run)) == 3, "a file of every start"
    expect_equal_to_the_log(run)


def test_a_killed_run_leaves_readable_files_and_resumes_to_the_same_curves(tamis, recipe, run):
    for _ in range(3):
        before = saved(run)
        process = tamis.start("train", recipe, "--set", f"run.dir={run}", "--set", "train.steps=4000")
        wait_until(lambda: saved(run) != before and log(run, "train"), process, "save")
        process.kill()
        process.communicate()
        if event_files(run):
            newest = event_files(run)[-1]
            newest.write_bytes(newest.read_bytes() + b"\x40\0\0\0\0\0\0\0\x01")  # a record that was being written
        assert events_of(run).Scalars("train/loss"), "the files of a killed run cannot be read"
    last = log(run, "train")[-1]["step"] + 8
    train(tamis, recipe, run, f"train.steps={last}")
    expect_equal_to_the_log(run)


def test_event_files_can_be_switched_off(tamis, recipe, run):
    train(tamis, recipe, run, "train.tensorboard=false")
    assert not (run / "tensorboard").exists()
