"""What training does at steps whose loss or gradients are not finite: skip, go back, stop, replay.

The embedding of the letter q is so large that every sequence with a q overflows; everything else trains.
"""

import json
import shutil
import signal
import struct

import pytest
from program import Program, expect_refused, finished, wait_until

STEPS = 60
RECIPE = """
[model]
model_type = "transformer"
hidden_size = 8
num_hidden_layers = 1
num_attention_heads = 2
norm = "none"
tie_word_embeddings = false

[data.sources.plays]
kind = "text"
files = "text.txt"
validation_fraction = 0.2

[train]
steps = 60
length = 16
batch_size = 2
lr = 0.001
warmup_steps = 1
start_from = "overflowing"
log_every = 1
save_every = 10
validate_tokens = 64
"""


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    tamis = Program(program, tmp_path_factory.mktemp("non_finite"))
    words = "to be or not to be that is the end " * 60
    middle = len(words) // 3
    (tamis.directory / "text.txt").write_text(words[:middle] + "q" + words[middle:])
    (tamis.directory / "run.toml").write_text(RECIPE)
    tamis.out("train", "run.toml", "--set", "run.dir=first", "--set", "train.start_from=", "--set", "train.steps=1")
    trained = tamis.directory / "first" / "checkpoints" / "step-1"
    overflowing = tamis.directory / "overflowing"
    overflowing.mkdir()
    shutil.copy(trained / "config.json", overflowing)
    content = bytearray((trained / "model.safetensors").read_bytes())
    size = struct.unpack("<Q", content[:8])[0]
    row = 8 + size + json.loads(content[8 : 8 + size])["embed.weight"]["data_offsets"][0] + ord("q") * 8 * 4
    content[row : row + 8 * 4] = struct.pack("<8f", *[3e38] * 8)
    (overflowing / "model.safetensors").write_bytes(content)
    return tamis


def train(tamis, run, *changes):
    arguments = [part for change in (f"run.dir={run}", *changes) for part in ("--set", change)]
    return tamis("train", "run.toml", *arguments)


def records(tamis, run, kind):
    lines = (tamis.directory / run / "log.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["type"] == kind]


def steps_with_q(tamis, seed):
    """The steps that a run without recovery would stop at, found one after the other."""
    train(tamis, f"find-{seed}", f"train.seed={seed}")
    found = [record["step"] for record in records(tamis, f"find-{seed}", "non_finite")]
    back = records(tamis, f"find-{seed}", "rollback")
    return found, back


@pytest.fixture(scope="module")
def seeds(tamis):
    """Seeds of runs with exactly one step that is not finite, with two, and with more."""
    by_count = {}
    for seed in range(1, 80):
        found, back = steps_with_q(tamis, seed)
        done = (tamis.directory / f"find-{seed}" / "checkpoints" / f"step-{STEPS}").exists()
        kind = "stop" if not done else "back" if back else "skip" if found else "none"
        by_count.setdefault(kind, seed)
        if by_count.keys() >= {"none", "skip", "back", "stop"}:
            break
    return by_count


def test_one_step_is_skipped(tamis, seeds):
    run = f"find-{seeds['skip']}"
    [event] = records(tamis, run, "non_finite")
    assert "first non-finite tensor: activation" in event["error"]
    steps = [record["step"] for record in records(tamis, run, "train")]
    assert event["step"] not in steps and len(steps) == STEPS - 1
    state = json.loads((tamis.directory / run / "checkpoints" / f"step-{STEPS}" / "trainer.json").read_text())
    assert state["non_finite"]["steps"] == [event["step"]]


def test_the_second_goes_back_and_leaves_out_what_lies_between(tamis, seeds):
    run = f"find-{seeds['back']}"
    [back] = records(tamis, run, "rollback")
    first, last = back["left_out"]
    assert back["from"] == last and back["step"] <= last
    steps = {record["step"] for record in records(tamis, run, "train")}
    assert first > back["step"], "the batches before the checkpoint were trained on"
    [skipped] = records(tamis, run, "non_finite")
    assert skipped["action"] == "skip" and skipped["step"] <= first
    assert steps == set(range(1, STEPS + 1)) - {skipped["step"], *range(first, last + 1)}


def test_the_third_stops(tamis, seeds):
    done = train(tamis, f"find-{seeds['stop']}", f"train.seed={seeds['stop']}")
    assert done.returncode == 20 and done.stderr.count("\n") < 10, done
    assert "not finite were the steps" in done.stderr and "checkpoint" in done.stderr
    assert_the_log_names_every_step(tamis, seeds, done)


def assert_the_log_names_every_step(tamis, seeds, done):
    run = f"find-{seeds['stop']}"
    named = [int(step) for step in done.stderr.split("not finite were the steps ")[1].split(";")[0].split(", ")]
    events = records(tamis, run, "non_finite")
    logged = [event["step"] for event in events] + [back["from"] for back in records(tamis, run, "rollback")]
    assert sorted(logged) == sorted(named) and [event["action"] for event in events].count("stop") == 1
    assert events[-1]["action"] == "stop" and events[-1]["error"] in done.stderr


def test_stop_stops_at_the_first(tamis, seeds):
    done = train(tamis, "stop", f"train.seed={seeds['skip']}", 'train.non_finite="stop"')
    [event] = records(tamis, f"find-{seeds['skip']}", "non_finite")
    assert done.returncode == 20 and f"step {event['step']}: diverged" in done.stderr, done


def test_a_killed_run_recovers_in_the_same_way(tamis, seeds):
    seed = seeds["back"]
    checkpoints = tamis.directory / "killed" / "checkpoints"
    arguments = ("train", "run.toml", "--set", "run.dir=killed", "--set", f"train.seed={seed}")
    for step in (10, 20, 30):
        process = tamis.start(*arguments)
        wait_until(lambda step=step: (checkpoints / f"step-{step}").exists(), process, f"step-{step}")
        process.send_signal(signal.SIGKILL)
        finished(process)
    assert tamis(*arguments).returncode == 0
    last = f"step-{STEPS}/model.safetensors"
    whole = tamis.directory / f"find-{seed}" / "checkpoints" / last
    assert (checkpoints / last).read_bytes() == whole.read_bytes()


def test_a_run_without_a_checkpoint_since_it_went_back(tamis, seeds):
    """As if it had been killed before the next one: the log alone knows what it left out."""
    seed = seeds["back"]
    assert train(tamis, "lost", f"train.seed={seed}", "train.save_every=100").returncode == 0
    last = tamis.directory / "lost" / "checkpoints" / f"step-{STEPS}"
    weights = (last / "model.safetensors").read_bytes()
    shutil.rmtree(last)
    where = ("--set", "run.dir=lost", "--set", f"train.seed={seed}", "--set", "train.save_every=100")
    [back] = records(tamis, "lost", "rollback")
    [skipped] = records(tamis, "lost", "non_finite")
    assert back["step"] == 0 and back["left_out"] == [skipped["step"], back["from"]], (back, skipped)
    after = [record for record in records(tamis, "lost", "train") if record["step"] > back["from"]]
    for record in (after[0], after[-1]):
        again = json.loads(tamis.out("train", "run.toml", "--replay", record["step"], *where, "--json"))
        assert again["loss"] == record["loss"] and again["grad_norms"] == record["grad_norms"]
    for step, error in ((skipped["step"], skipped["error"]), (back["from"], back["error"])):
        again = json.loads(tamis.out("train", "run.toml", "--replay", step, *where, "--json"))
        assert again["finite"] is False and again["error"] == error, "computed before the run went back"
    assert train(tamis, "lost", f"train.seed={seed}", "train.save_every=100").returncode == 0
    assert (last / "model.safetensors").read_bytes() == weights
    without_time = [{**event, "time": None} for event in (skipped, back)]
    events = [{**event, "time": None} for kind in ("non_finite", "rollback") for event in records(tamis, "lost", kind)]
    assert events == without_time, "once each"


def test_replay_is_of_a_run_that_exists_and_of_its_recipe(tamis, seeds):
    seed = seeds["back"]
    none = tamis("train", "run.toml", "--replay", 3, "--set", "run.dir=none")
    expect_refused(none, 3, "none: does not exist")
    assert not (tamis.directory / "none").exists()
    where = ("--set", f"run.dir=find-{seed}", "--set", f"train.seed={seed}")
    for option in (("--fresh",), ("--trace", "trace.json")):
        expect_refused(tamis("train", "run.toml", "--replay", 3, *where, *option), 2, f"leave out {option[0]}")
    # Without a checkpoint before the step as with one.
    for step in (3, STEPS):
        other = tamis("train", "run.toml", "--replay", step, *where, "--set", "train.lr=0.5")
        assert other.returncode == 2 and "belongs to another recipe: train.lr was 0.001, is 0.5" in other.stderr, other


def test_replay_computes_a_step_again(tamis, seeds):
    seed = seeds["skip"]
    run = f"find-{seed}"
    where = ("--set", f"run.dir={run}", "--set", f"train.seed={seed}", "--json")
    before = sorted((path, path.stat().st_mtime_ns) for path in (tamis.directory / run).rglob("*") if path.name != ".lock" and path.is_file())
    [event] = records(tamis, run, "non_finite")
    again = json.loads(tamis.out("train", "run.toml", "--replay", event["step"], *where))
    assert again["finite"] is False and again["error"] == event["error"]
    for record in records(tamis, run, "train")[-3:]:
        again = json.loads(tamis.out("train", "run.toml", "--replay", record["step"], *where))
        assert again["loss"] == record["loss"] and again["grad_norms"] == record["grad_norms"]
    after = sorted((path, path.stat().st_mtime_ns) for path in (tamis.directory / run).rglob("*") if path.name != ".lock" and path.is_file())
    assert before == after, "a replay changes nothing"
    refused = tamis("train", "run.toml", "--replay", STEPS + 1, *where)
    assert refused.returncode == 2 and "--replay: the recipe has steps 1 to 60" in refused.stderr
