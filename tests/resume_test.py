"""Training that is stopped in any way resumes to the same bytes as training that is not.

SIGKILL at random moments and in the middle of saves, signals, a full and a read-only disk (a small tmpfs, which needs
root), a second process, damaged checkpoints, and recipes that do not fit.
"""

import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import time

import pytest
from program import Program, finished, saved_steps, small_disk, wait_until

KILLS = int(os.environ.get("TAMIS_KILLS", "16"))
STEPS = max(40, 4 * KILLS)
RECIPE = """
[model]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
key_dim = 4
value_dim = 8

[data.sources.digits]
kind = "abc_digits"

[data.sources.plays]
kind = "text"
files = "{text}"

[train]
steps = {steps}
length = 48
batch_size = 4
dropout = 0.1
accumulation = 2
precision = "bfloat16"
threads = 2
lr = 0.01
warmup_steps = 4
schedule = "cosine"
save_every = 1
log_every = 1
validate_every = 16
validate_tokens = 192
sample_every = 16
sample_prompt = "A=12\\nA="
sample_tokens = 4
sample_temperature = 1.0
"""


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    """The program in a directory with a recipe and `uninterrupted`, the run that others are compared with."""
    tamis = Program(program, tmp_path_factory.mktemp("tamis"))
    (tamis.directory / "plays.txt").write_text(text())
    (tamis.directory / "recipe.toml").write_text(RECIPE.format(text=tamis.directory / "plays.txt", steps=STEPS))
    expect(train(tamis, tamis.directory / "uninterrupted"), 0)
    return tamis


def text():
    """Words in random order, enough for the windows and a validation part."""
    chance = random.Random(1)
    return " ".join(chance.choice("to be or not that is the question whether tis nobler".split()) for _ in range(2000))


def arguments(tamis, run, *settings, recipe="recipe.toml"):
    options = [setting if setting.startswith("--") else f"--set={setting}" for setting in settings]
    return ["train", tamis.directory / recipe, "--set", f"run.dir={run}", *options]


def train(tamis, run, *settings, recipe="recipe.toml"):
    """Trains to the end."""
    return tamis(*arguments(tamis, run, *settings, recipe=recipe), timeout=120)


def start(tamis, run, *settings):
    return tamis.start(*arguments(tamis, run, *settings))


def unfinished(run):
    places = [run, run / "checkpoints"]
    return [e for place in places if place.is_dir() for e in os.listdir(place) if e.startswith(".unfinished-")]


def state(run, step=STEPS):
    directory = run / "checkpoints" / f"step-{step}"
    return [(directory / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")]


def log(run, kind):
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [record for record in records if record["type"] == kind]


def expect_same_as_uninterrupted(tamis, run):
    reference = tamis.directory / "uninterrupted"
    assert state(run) == state(reference), "the weights or the optimizer differ from the uninterrupted run's"
    for kind, key in (("train", "loss"), ("validation", "loss"), ("sample", "text"), ("tiles", "windows")):
        expected = [(record["step"], record[key]) for record in log(reference, kind)]
        assert [(r["step"], r[key]) for r in log(run, kind)] == expected, f"the log's {kind} records differ"
    assert not unfinished(run), "unfinished writes were left behind"


def expect(done, code, *texts):
    """The exit code and texts in the messages; a failure has one line of error."""
    assert done.returncode == code, done
    for text in texts:
        assert text in done.stderr, f"expected {text!r} in: {done.stderr}"
    if code not in (0, 130, 143):
        errors = [line for line in done.stderr.splitlines() if line.startswith("tamis: ")]
        assert len(errors) == 1, f"expected one line of error: {done.stderr}"


def test_a_recipe_without_a_precision_gets_the_fastest_and_keeps_it(tamis, run):
    """The run names it, and goes on in it wherever it is taken up."""
    expect(train(tamis, run, "train.precision=auto", "train.steps=2", "train.schedule=constant"), 0)
    resolved = re.search(r'precision = "(\w+)"', (run / "config.toml").read_text())[1]
    machine = json.loads((run / "run.json").read_text())["machine"]
    assert resolved in ("float32", "bfloat16") and machine["precision"] == resolved, (
        f"resolved to {resolved}: {machine}"
    )
    assert set(machine["matmul"]) == {"float32", "bfloat16"}, f"no matmul backends in run.json: {machine}"
    expect(train(tamis, run, "train.precision=auto", "train.steps=4", "train.schedule=constant"), 0)
    other = "float32" if resolved == "bfloat16" else "bfloat16"
    settings = (f"train.precision={other}", "train.steps=5", "train.schedule=constant")
    expect(train(tamis, run, *settings), 2, f'train.precision was "{resolved}", is "{other}"')


def test_uninterrupted(tamis, run):
    assert saved_steps(tamis.directory / "uninterrupted") == [STEPS - 2, STEPS - 1, STEPS], (
        "expected the three newest checkpoints"
    )
    losses = [record["loss"] for record in log(tamis.directory / "uninterrupted", "train")]
    assert len(losses) == STEPS and losses[-1] < losses[0], f"expected a falling loss: {losses}"
    expect(train(tamis, tamis.directory / "uninterrupted"), 0, f"finished: {STEPS} of {STEPS} steps are done")


def test_same_bits_twice(tamis, run):
    expect(train(tamis, run), 0)
    expect_same_as_uninterrupted(tamis, run)


def kill_after_a_save(tamis, run, seconds, during_save):
    """Continues the run and kills it some time after it has saved once, or during the save after that. False when it
    ended before."""
    before = saved_steps(run)
    process = start(tamis, run)

    def saved():
        steps = saved_steps(run)
        return STEPS in steps or (steps[-1:] > before[-1:] and (not during_save or unfinished(run)))

    wait_until(saved, process, "save")
    if not during_save:
        time.sleep(seconds)
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def test_kill_at_random_moments_and_inside_saves(tamis, run):
    """KILLS times (TAMIS_KILLS). A run whose steps are done before is followed by another."""
    kills, inside_saves, chance = 0, 0, random.Random(5)
    for number in range(KILLS):
        current, before = run.with_name(f"{run.name}-{number}"), kills
        while STEPS not in saved_steps(current) and kills < KILLS:
            killed = kill_after_a_save(tamis, current, chance.uniform(0, 0.02), during_save=kills % 2 == 1)
            kills += killed
            inside_saves += killed and any("step-" in name for name in unfinished(current))
        expect(train(tamis, current), 0)
        expect_same_as_uninterrupted(tamis, current)
        resumed = json.loads((current / "run.json").read_text())["resumed"]
        assert len(resumed) >= kills - before - 1, "run.json misses resumptions"
        if kills == KILLS:
            break
    print(f"  {kills} kills, {inside_saves} of them inside a save, {number + 1} runs")
    assert kills == KILLS and inside_saves >= 1, "too few kills, or none inside a save"


def test_kill_before_the_first_checkpoint(tamis, run):
    for delay in (0.02, 0.1, 0.2, 0.3, 0.4):
        process = start(tamis, run, "train.save_every=1000")
        time.sleep(delay)
        process.kill()
        process.communicate()
    expect(train(tamis, run), 0)
    expect_same_as_uninterrupted(tamis, run)


def test_signals_save_and_stop(tamis, run):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        before, logged = saved_steps(run), len(log_steps(run))
        process = start(tamis, run, "train.save_every=1000")
        wait_until(lambda: len(log_steps(run)) > logged + 3, process, "step in the log")
        process.send_signal(number)
        expect(finished(process), code, f"stopped by {number.name} and saved after step")
        assert saved_steps(run)[-1:] > before[-1:], "nothing was saved"
    step = saved_steps(run)[-1]
    expect(train(tamis, run), 0, f"resuming after step {step}")
    expect_same_as_uninterrupted(tamis, run)


def test_every_mixer_goes_on_and_windows_stay_as_drawn(tamis, run):
    model = ("hidden_size=32", "model_type=swax", "pattern=wmaebvs", "num_hidden_layers=7", "window=24")
    train_keys = ("window_short=8", "window_short_share=0.5", "window_long_last=0.2", "save_every=1", "steps=20")
    settings = [f"model.{key}" for key in model] + [f"train.{key}" for key in train_keys]
    whole = run.with_name(run.name + "_whole")
    expect(train(tamis, whole, *settings), 0)
    short = [record["short_windows"] for record in log(whole, "train")]
    assert 0 < sum(short) < 16 and not any(short[16:]), f"expected short windows in half of the first 16 steps: {short}"
    for _ in range(2):
        before = saved_steps(run)
        process = start(tamis, run, *settings)
        wait_until(lambda: len(saved_steps(run)) >= 2 and saved_steps(run)[-1:] > before[-1:], process, "checkpoint")
        process.kill()
        process.communicate()
    expect(train(tamis, run, *settings), 0, "resuming after step")
    assert state(run, 20) == state(whole, 20), "the weights or the optimizer differ from the uninterrupted run's"
    for key in ("loss", "short_windows"):
        found = [(r["step"], r[key]) for r in log(run, "train")]
        assert found == [(r["step"], r[key]) for r in log(whole, "train")], f"{key} differs"


def log_steps(run):
    log = run / "log.jsonl"
    return [line for line in log.read_text().splitlines() if '"type":"train"' in line] if log.exists() else []


def test_second_process_is_refused(tamis, run):
    process = start(tamis, run, "train.steps=100000")
    wait_until(lambda: saved_steps(run), process, "checkpoint")
    expect(train(tamis, run, "train.steps=100000"), 1, "in use by another process", f"process {process.pid}")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143, "the first process was disturbed"


def copy_uninterrupted(tamis, run):
    shutil.copytree(tamis.directory / "uninterrupted", run)
    return [run / "checkpoints" / f"step-{step}" for step in saved_steps(run)]


def test_truncated_checkpoint(tamis, run):
    newest = copy_uninterrupted(tamis, run)[-1]
    os.truncate(newest / "model.safetensors", 1000)
    expect(
        train(tamis, run), 0, f"{newest}: damaged: model.safetensors: has 1000 of", f"resuming after step {STEPS - 1}"
    )
    assert (run / "checkpoints" / f"step-{STEPS}.damaged" / "model.safetensors").stat().st_size == 1000, "not kept"
    expect_same_as_uninterrupted(tamis, run)


def test_flipped_bits(tamis, run):
    first, second, third = copy_uninterrupted(tamis, run)
    for file in (second / "optimizer.safetensors", third / "trainer.json"):
        data = bytearray(file.read_bytes())
        data[len(data) * 2 // 3] ^= 4
        file.write_bytes(data)
    expect(train(tamis, run), 0, "trainer.json: ", "optimizer.safetensors: checksum differs", f"after step {STEPS - 2}")
    expect_same_as_uninterrupted(tamis, run)


def test_no_intact_checkpoint(tamis, run):
    for checkpoint in copy_uninterrupted(tamis, run):
        shutil.rmtree(checkpoint)
        checkpoint.write_text("a file where a directory should be")
    expect(train(tamis, run), 3, "none of its 3 checkpoints is intact", "is not a directory", "--fresh")
    assert len(saved_steps(run)) == 3, "damaged checkpoints were removed"
    expect(train(tamis, run, "--fresh"), 0, f"the earlier run is now {run}.1")
    assert len(saved_steps(pathlib.Path(f"{run}.1"))) == 3, "the earlier run was not kept"
    expect_same_as_uninterrupted(tamis, run)


def test_recipes_that_do_not_fit(tamis, run):
    copy_uninterrupted(tamis, run)
    for setting, text in (
        ("train.lr=0.5", "train.lr was 0.01, is 0.5"),
        (f"train.steps={STEPS + 5}", f"train.steps was {STEPS}, is {STEPS + 5}"),
        ("model.value_dim=4", "model.value_dim was 8, is 4"),
        ("model.num_attention_heads=4", "model.num_attention_heads was 2, is 4"),
        ("data.sources.digits.weight=2", "data.sources.digits.weight was 1.0, is 2.0"),
    ):
        expect(train(tamis, run, setting), 2, "belongs to another recipe", text)
    config = run / "checkpoints" / f"step-{STEPS}" / "config.json"
    replaced = config.read_text().replace("257", "258")
    reseal(config, replaced)
    expect(train(tamis, run), 3, str(config.parent))
    expect(
        train(tamis, copied_with_other_text(tamis, run)),
        3,
        "the text of data.sources.plays has changed since this run started",
    )


def write_trainer(file, content):
    """Writes a trainer.json whose digest holds."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    file.write_text(json.dumps({**content, "sha256": hashlib.sha256(canonical.encode()).hexdigest()}))


def reseal(file, text):
    """Replaces a file of a checkpoint and makes its checksums hold again."""
    file.write_text(text)
    trainer = file.parent / "trainer.json"
    content = json.loads(trainer.read_text())
    content["files"][file.name] = {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    write_trainer(trainer, content)


def test_another_kind_of_machine_resumes_with_a_warning(tamis, run):
    """As if the last checkpoint but one were from a processor with other instructions."""
    _, before, newest = copy_uninterrupted(tamis, run)
    shutil.rmtree(newest)
    content = json.loads((before / "trainer.json").read_text())
    here = content["numerics"]["instruction_set"]
    there = "avx512" if here == "avx2" else "avx2"
    content["numerics"]["instruction_set"] = there
    write_trainer(before / "trainer.json", content)
    expect(
        train(tamis, run),
        0,
        f"{run}: resumes with different arithmetic, so the bits of its results will differ: "
        f"the instruction set was {there}, is {here}\n",
        f"resuming after step {STEPS - 1}",
    )
    now = json.loads((newest / "trainer.json").read_text())["numerics"]
    assert now["instruction_set"] == here, "the next checkpoint records what this machine computes with"
    assert "different arithmetic" not in train(tamis, run).stderr


def copied_with_other_text(tamis, run):
    other = pathlib.Path(f"{run}-text")
    copy_uninterrupted(tamis, other)
    trainer = other / "checkpoints" / f"step-{STEPS}" / "trainer.json"
    content = json.loads(trainer.read_text())
    content["data"]["plays"] = "0" * 16
    trainer.write_text(json.dumps(content))
    reseal(trainer.parent / "generation_config.json", "{}")
    return other


def test_starts_from_the_weights_of_another_run(tamis, run):
    text = (tamis.directory / "recipe.toml").read_text()
    model = '[model]\nmodel_type = "transformer"\nhidden_size = 16\nnum_hidden_layers = 2\nnum_attention_heads = 2\n\n'
    (tamis.directory / "stack.toml").write_text(model + text[text.index("[data") :])
    base = tamis.directory / "softmax"
    expect(train(tamis, base, "train.steps=6", recipe="stack.toml"), 0)
    again = tamis.directory / "softmax_again"
    expect(
        train(tamis, again, f"train.start_from={base}", "train.steps=1", "train.lr=0", recipe="stack.toml"),
        0,
        f"starts from {base}/checkpoints/step-6\n",
    )
    assert state(again, 1)[0] == state(base, 6)[0], "without a learning rate the weights stay the other run's"
    swapped = ["model.ssmax=learned", "model.ssmax_scale=0.3", "train.warmup_steps=2", f"train.start_from={base}"]
    expect(
        train(tamis, run, "train.steps=4", *swapped, recipe="stack.toml"),
        0,
        "new: layers.0.log_scale, layers.1.log_scale",
    )
    assert log(run, "train")[0]["step"] == 1, "steps begin again"
    shutil.rmtree(base)
    expect(
        train(tamis, run, "train.steps=4", *swapped, recipe="stack.toml"), 0, "finished"
    )  # its start is not asked for again
    other = tamis.directory / "other_sizes"
    expect(
        train(tamis, other, f"train.start_from={again}", "model.hidden_size=32", recipe="stack.toml"),
        3,
        "embed.weight is",
    )
    expect(
        train(tamis, tamis.directory / "x", "train.start_from=/nowhere", recipe="stack.toml"),
        3,
        "/nowhere: does not exist",
    )
    expect(train(tamis, tamis.directory / "y", f"train.start_from={again}"), 3, "which is not a tensor of the model in config.json")


def test_divergence(tamis, run):
    result = train(tamis, run, "train.lr=1e38", "train.schedule=constant", "train.save_every=2", "train.warmup_steps=0")
    expect(result, 20, "diverged", str(run))
    assert re.search(r"(parameter|gradient of|loss itself)", result.stderr), f"no tensor was named: {result.stderr}"
    for step in saved_steps(run):
        assert b"nan" not in (run / "checkpoints" / f"step-{step}" / "trainer.json").read_bytes(), "a bad checkpoint"


def test_full_disk(tamis, run):
    with small_disk(run, "700k") as remount:
        done = train(tamis, run / "run", "train.keep=0")
        expect(done, 30, "No space left on device", "free some space and run again")
        steps = saved_steps(run / "run")
        assert steps and steps == list(range(1, steps[-1] + 1)), f"checkpoints are missing: {steps}"
        assert not unfinished(run / "run"), "an unfinished checkpoint takes the room"
        remount("size=64m")
        expect(train(tamis, run / "run"), 0, f"resuming after step {steps[-1]}")
        expect_same_as_uninterrupted(tamis, run / "run")


def test_read_only_disk(tamis, run):
    with small_disk(run, "8m") as remount:
        process = start(tamis, run / "run")
        wait_until(lambda: saved_steps(run / "run"), process, "checkpoint")
        process.kill()
        process.communicate()
        remount("ro")
        expect(train(tamis, run / "run"), 30, "Read-only file system", "choose a directory you may write to")
        expect(train(tamis, run / "other"), 30, "Read-only file system")
        remount("rw")
        expect(train(tamis, run / "run"), 0, "resuming after step")
        expect_same_as_uninterrupted(tamis, run / "run")


def test_bad_input(tamis, run):
    (tamis.directory / "empty.txt").write_bytes(b"")
    (tamis.directory / "short.txt").write_bytes(b"too short")
    (tamis.directory / "not_utf8.txt").write_bytes(bytes(range(128, 256)) * 20)
    (tamis.directory / "file").write_text("a file")
    plays = "data.sources.plays.files="
    expect(train(tamis, run, recipe="missing.toml"), 3, "missing.toml")
    (tamis.directory / "typo.toml").write_text(RECIPE.format(text="x", steps=1) + "stesp = 3\n")
    lines = (tamis.directory / "typo.toml").read_text().count("\n")
    expect(
        train(tamis, run, recipe="typo.toml"),
        2,
        f'typo.toml:{lines}: unknown key of [train] "stesp"; did you mean "steps"',
    )
    expect(train(tamis, run, "train.lr=fast"), 2, "--set train.lr=fast: train.lr must be a number", '"fast"')
    expect(train(tamis, run, plays + "missing.txt"), 3, "missing.txt")
    expect(train(tamis, run, plays + str(tamis.directory / "empty.txt")), 3, "empty.txt: is empty")
    expect(train(tamis, run, plays + str(tamis.directory / "short.txt")), 3, "short.txt", "a sequence of 48 needs 49")
    expect(train(tamis, run, plays + str(tamis.directory)), 3, "expected a file, but it is a directory")
    expect(train(tamis, tamis.directory / "file"), 30, f"{tamis.directory / 'file'}: ")
    expect(train(tamis, tamis.directory), 2, "contains files, but no run")
    assert not run.exists(), "a run that could not begin left a directory"
    expect(train(tamis, run, plays + str(tamis.directory / "not_utf8.txt"), "train.steps=2"), 0)
