#!/usr/bin/env python3
"""Training is stopped in every way there is, and goes on to the same bytes: resume_test.py PROGRAM

Kills with SIGKILL at random moments and in the middle of saves, signals, a full and a read-only disk (on a small real
tmpfs, which needs root), a second process, damaged checkpoints, and recipes that do not fit. Exit code 77: skipped.
"""

import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

STEPS = 40
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

program = ""
work = pathlib.Path()
passed, failed, skipped = [], [], []


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def arguments(run, *settings, recipe="recipe.toml"):
    command = [program, "train", str(work / recipe), "--set", f"run.dir={run}"]
    for setting in settings:
        command += ["--set", setting] if not setting.startswith("--") else [setting]
    return command


def train(run, *settings, recipe="recipe.toml"):
    """Trains to the end; returns (exit code, messages)."""
    done = subprocess.run(arguments(run, *settings, recipe=recipe), capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def start(run, *settings):
    return subprocess.Popen(arguments(run, *settings), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def saved_steps(run):
    names = [entry.name for entry in (run / "checkpoints").iterdir()] if (run / "checkpoints").is_dir() else []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))


def unfinished(run):
    places = [run, run / "checkpoints"]
    return [e for place in places if place.is_dir() for e in os.listdir(place) if e.startswith(".unfinished-")]


def wait_until(condition, process, text):
    deadline = time.monotonic() + 60
    while not condition():
        check(process.poll() is None, f"ended too early: {text}")
        check(time.monotonic() < deadline, f"timed out: {text}")


def state(run, step=STEPS):
    directory = run / "checkpoints" / f"step-{step}"
    return [(directory / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")]


def log(run, kind):
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [record for record in records if record["type"] == kind]


def expect_same_as_uninterrupted(run):
    reference = work / "uninterrupted"
    check(state(run) == state(reference), "the weights or the optimizer differ from the uninterrupted run's")
    for kind, key in (("train", "loss"), ("validation", "loss"), ("sample", "text"), ("tiles", "windows")):
        expected = [(record["step"], record[key]) for record in log(reference, kind)]
        check([(r["step"], r[key]) for r in log(run, kind)] == expected, f"the log's {kind} records differ")
    check(not unfinished(run), "unfinished writes were left behind")


def expect(result, code, *texts):
    check(result[0] == code, f"expected exit code {code}, got {result[0]}: {result[1]}")
    for text in texts:
        check(text in result[1], f"expected {text!r} in: {result[1]}")
    if code not in (0, 130, 143):
        errors = [line for line in result[1].splitlines() if line.startswith("tamis: ")]
        check(len(errors) == 1, f"expected one line of error: {result[1]}")


# The tests. Each gets a run directory of its own.


def test_a_recipe_without_a_precision_gets_the_fastest_and_keeps_it(run):
    """The run names it, and goes on in it wherever it is taken up."""
    expect(train(run, "train.precision=auto", "train.steps=2", "train.schedule=constant"), 0)
    resolved = re.search(r'precision = "(\w+)"', (run / "config.toml").read_text())[1]
    machine = json.loads((run / "run.json").read_text())["machine"]
    check(resolved in ("float32", "bfloat16") and machine["precision"] == resolved, f"resolved to {resolved}: {machine}")
    check(set(machine["matmul"]) == {"float32", "bfloat16"}, f"no matmul backends in run.json: {machine}")
    expect(train(run, "train.precision=auto", "train.steps=4", "train.schedule=constant"), 0)
    other = "float32" if resolved == "bfloat16" else "bfloat16"
    settings = (f"train.precision={other}", "train.steps=5", "train.schedule=constant")
    expect(train(run, *settings), 2, f'train.precision was "{resolved}", is "{other}"')


def test_uninterrupted(run):
    result = train(work / "uninterrupted")
    expect(result, 0)
    check(saved_steps(work / "uninterrupted") == [STEPS - 2, STEPS - 1, STEPS], "expected the three newest checkpoints")
    losses = [record["loss"] for record in log(work / "uninterrupted", "train")]
    check(len(losses) == STEPS and losses[-1] < losses[0], f"expected a falling loss: {losses}")
    expect(train(work / "uninterrupted"), 0, f"finished: {STEPS} of {STEPS} steps are done")


def test_same_bits_twice(run):
    expect(train(run), 0)
    expect_same_as_uninterrupted(run)


def test_kill_at_random_moments_and_inside_saves(run):
    kills = inside_saves = 0
    chance = random.Random(5)
    while STEPS not in saved_steps(run) and kills < 16:
        before = saved_steps(run)
        process = start(run)
        if kills % 2:
            wait_until(lambda: saved_steps(run)[-1:] > before[-1:] and unfinished(run), process, "no save seen")
        else:
            wait_until(lambda: saved_steps(run)[-1:] > before[-1:], process, "no checkpoint seen")
            time.sleep(chance.uniform(0, 0.02))
        process.kill()
        process.communicate()
        kills += 1
        inside_saves += any("step-" in name for name in unfinished(run))
    expect(train(run), 0)
    print(f"  {kills} kills, {inside_saves} of them inside a save")
    check(kills >= 8 and inside_saves >= 1, "too few kills, or none inside a save")
    expect_same_as_uninterrupted(run)
    resumed = json.loads((run / "run.json").read_text())["resumed"]
    check(len(resumed) >= kills - 1, "run.json misses resumptions")


def test_kill_before_the_first_checkpoint(run):
    for delay in (0.02, 0.1, 0.2, 0.3, 0.4):
        process = start(run, "train.save_every=1000")
        time.sleep(delay)
        process.kill()
        process.communicate()
    expect(train(run), 0)
    expect_same_as_uninterrupted(run)


def test_signals_save_and_stop(run):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        before = saved_steps(run)
        process = start(run, "train.save_every=1000")
        wait_until(lambda: (run / "log.jsonl").exists() and len(log_steps(run)) > len(before) * 4 + 3, process, "no steps")
        process.send_signal(number)
        _, messages = process.communicate(timeout=60)
        expect((process.returncode, messages), code, f"stopped by {number.name} and saved after step")
        check(saved_steps(run)[-1:] > before[-1:], "nothing was saved")
    step = saved_steps(run)[-1]
    expect(train(run), 0, f"resuming after step {step}")
    expect_same_as_uninterrupted(run)


def test_every_mixer_goes_on_and_windows_stay_as_drawn(run):
    model = ("hidden_size=32", "model_type=swax", "pattern=wmaebvs", "num_hidden_layers=7", "window=24")
    train_keys = ("window_short=8", "window_short_share=0.5", "window_long_last=0.2", "save_every=1", "steps=20")
    settings = [f"model.{key}" for key in model] + [f"train.{key}" for key in train_keys]
    whole = run.with_name(run.name + "_whole")
    expect(train(whole, *settings), 0)
    short = [record["short_windows"] for record in log(whole, "train")]
    check(0 < sum(short) < 16 and not any(short[16:]), f"expected short windows in half of the first 16 steps: {short}")
    for _ in range(2):
        before = saved_steps(run)
        process = start(run, *settings)
        wait_until(lambda: len(saved_steps(run)) >= 2 and saved_steps(run)[-1:] > before[-1:], process, "no checkpoint")
        process.kill()
        process.communicate()
    expect(train(run, *settings), 0, "resuming after step")
    check(state(run, 20) == state(whole, 20), "the weights or the optimizer differ from the uninterrupted run's")
    for key in ("loss", "short_windows"):
        found = [(r["step"], r[key]) for r in log(run, "train")]
        check(found == [(r["step"], r[key]) for r in log(whole, "train")], f"{key} differs")


def log_steps(run):
    return [line for line in (run / "log.jsonl").read_text().splitlines() if '"type":"train"' in line]


def test_second_process_is_refused(run):
    process = start(run, "train.steps=100000")
    wait_until(lambda: saved_steps(run), process, "no checkpoint")
    expect(train(run, "train.steps=100000"), 1, "in use by another process", f"process {process.pid}")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    check(process.returncode == 143, "the first process was disturbed")


def copy_uninterrupted(run):
    shutil.copytree(work / "uninterrupted", run)
    return [run / "checkpoints" / f"step-{step}" for step in saved_steps(run)]


def test_truncated_checkpoint(run):
    newest = copy_uninterrupted(run)[-1]
    os.truncate(newest / "model.safetensors", 1000)
    expect(train(run), 0, f"{newest}: damaged: model.safetensors: has 1000 of", f"resuming after step {STEPS - 1}")
    check((run / "checkpoints" / f"step-{STEPS}.damaged" / "model.safetensors").stat().st_size == 1000, "not kept")
    expect_same_as_uninterrupted(run)


def test_flipped_bits(run):
    first, second, third = copy_uninterrupted(run)
    for file in (second / "optimizer.safetensors", third / "trainer.json"):
        data = bytearray(file.read_bytes())
        data[len(data) * 2 // 3] ^= 4
        file.write_bytes(data)
    expect(train(run), 0, "trainer.json: ", "optimizer.safetensors: checksum differs", f"after step {STEPS - 2}")
    expect_same_as_uninterrupted(run)


def test_no_intact_checkpoint(run):
    for checkpoint in copy_uninterrupted(run):
        shutil.rmtree(checkpoint)
        checkpoint.write_text("a file where a directory should be")
    expect(train(run), 3, "none of its 3 checkpoints is intact", "is not a directory", "--fresh")
    check(len(saved_steps(run)) == 3, "damaged checkpoints were removed")
    expect(train(run, "--fresh"), 0, f"the earlier run is now {run}.1")
    check(len(saved_steps(pathlib.Path(f"{run}.1"))) == 3, "the earlier run was not kept")
    expect_same_as_uninterrupted(run)


def test_recipes_that_do_not_fit(run):
    copy_uninterrupted(run)
    for setting, text in (
        ("train.lr=0.5", "train.lr was 0.01, is 0.5"),
        (f"train.steps={STEPS + 5}", f"train.steps was {STEPS}, is {STEPS + 5}"),
        ("model.value_dim=4", "model.value_dim was 8, is 4"),
        ("model.num_attention_heads=4", "model.num_attention_heads was 2, is 4"),
        ("data.sources.digits.weight=2", "data.sources.digits.weight was 1.0, is 2.0"),
    ):
        expect(train(run, setting), 2, "belongs to another recipe", text)
    config = run / "checkpoints" / f"step-{STEPS}" / "config.json"
    replaced = config.read_text().replace("257", "258")
    reseal(config, replaced)
    expect(train(run), 3, str(config.parent))
    expect(train(copied_with_other_text(run)), 3, "the text of data.sources.plays has changed since this run started")


def reseal(file, text):
    """Replaces a file of a checkpoint and makes its checksums hold again."""
    file.write_text(text)
    trainer = file.parent / "trainer.json"
    content = json.loads(trainer.read_text())
    content["files"][file.name] = {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    del content["sha256"]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    content["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    trainer.write_text(json.dumps(content))


def copied_with_other_text(run):
    other = pathlib.Path(f"{run}-text")
    copy_uninterrupted(other)
    trainer = other / "checkpoints" / f"step-{STEPS}" / "trainer.json"
    content = json.loads(trainer.read_text())
    content["data"]["plays"] = "0" * 16
    trainer.write_text(json.dumps(content))
    reseal(trainer.parent / "generation_config.json", "{}")
    return other


def test_starts_from_the_weights_of_another_run(run):
    text = (work / "recipe.toml").read_text()
    model = '[model]\nmodel_type = "transformer"\nhidden_size = 16\nnum_hidden_layers = 2\nnum_attention_heads = 2\n\n'
    (work / "stack.toml").write_text(model + text[text.index("[data"):])
    base = work / "softmax"
    expect(train(base, "train.steps=6", recipe="stack.toml"), 0)
    again = work / "softmax_again"
    expect(train(again, f"train.start_from={base}", "train.steps=1", "train.lr=0", recipe="stack.toml"), 0,
           f"starts from {base}/checkpoints/step-6\n")
    check(state(again, 1)[0] == state(base, 6)[0], "without a learning rate the weights stay the other run's")
    swapped = ["model.ssmax=learned", "model.ssmax_scale=0.3", "train.warmup_steps=2", f"train.start_from={base}"]
    expect(train(run, "train.steps=4", *swapped, recipe="stack.toml"), 0, "new: layers.0.log_scale, layers.1.log_scale")
    check(log(run, "train")[0]["step"] == 1, "steps begin anew")
    shutil.rmtree(base)
    expect(train(run, "train.steps=4", *swapped, recipe="stack.toml"), 0, "finished")  # its start is not asked for again
    other = work / "other_sizes"
    expect(train(other, f"train.start_from={again}", "model.hidden_size=32", recipe="stack.toml"), 3, "embed.weight is")
    expect(train(work / "x", "train.start_from=/nowhere", recipe="stack.toml"), 3, "/nowhere: does not exist")
    expect(train(work / "y", f"train.start_from={again}"), 3, "which a model of config.json has not")


def test_divergence(run):
    result = train(run, "train.lr=1e38", "train.schedule=constant", "train.save_every=2", "train.warmup_steps=0")
    expect(result, 20, "diverged", str(run))
    check(re.search(r"(parameter|gradient of|loss itself)", result[1]), f"no tensor was named: {result[1]}")
    for step in saved_steps(run):
        check(b"nan" not in (run / "checkpoints" / f"step-{step}" / "trainer.json").read_bytes(), "a bad checkpoint")


def mounted(run, size):
    """A small real file system at `run`; None where it cannot be had."""
    run.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(run)], capture_output=True).returncode:
        skipped.append("a real small disk needs root")
        return None
    return run


def remount(run, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(run)], check=True)


def test_full_disk(run):
    if not mounted(run, "700k"):
        return
    try:
        expect(train(run / "run", "train.keep=0"), 30, "No space left on device", "free some space and run again")
        steps = saved_steps(run / "run")
        check(steps and steps == list(range(1, steps[-1] + 1)), f"checkpoints are missing: {steps}")
        check(not unfinished(run / "run"), "an unfinished checkpoint takes the room")
        remount(run, "size=64m")
        expect(train(run / "run"), 0, f"resuming after step {steps[-1]}")
        expect_same_as_uninterrupted(run / "run")
    finally:
        subprocess.run(["umount", str(run)], check=True)


def test_read_only_disk(run):
    if not mounted(run, "8m"):
        return
    try:
        process = start(run / "run")
        wait_until(lambda: saved_steps(run / "run"), process, "no checkpoint")
        process.kill()
        process.communicate()
        remount(run, "ro")
        expect(train(run / "run"), 30, "Read-only file system", "choose a directory you may write to")
        expect(train(run / "other"), 30, "Read-only file system")
        remount(run, "rw")
        expect(train(run / "run"), 0, "resuming after step")
        expect_same_as_uninterrupted(run / "run")
    finally:
        subprocess.run(["umount", str(run)], check=True)


def test_bad_input(run):
    (work / "empty.txt").write_bytes(b"")
    (work / "short.txt").write_bytes(b"too short")
    (work / "not_utf8.txt").write_bytes(bytes(range(128, 256)) * 20)
    (work / "file").write_text("a file")
    plays = "data.sources.plays.files="
    expect(train(run, recipe="missing.toml"), 3, "missing.toml")
    (work / "typo.toml").write_text(RECIPE.format(text="x", steps=1) + "stesp = 3\n")
    lines = (work / "typo.toml").read_text().count("\n")
    expect(train(run, recipe="typo.toml"), 2, f'typo.toml:{lines}: unknown key of [train] "stesp"; did you mean "steps"')
    expect(train(run, "train.lr=fast"), 2, '--set train.lr=fast: train.lr must be a number', '"fast"')
    expect(train(run, plays + "missing.txt"), 3, "missing.txt")
    expect(train(run, plays + str(work / "empty.txt")), 3, "empty.txt: is empty")
    expect(train(run, plays + str(work / "short.txt")), 3, "short.txt", "a sequence of 48 needs 49")
    expect(train(run, plays + str(work)), 3, "expected a file, but it is a directory")
    expect(train(work / "file"), 30, f"{work / 'file'}: ")
    expect(train(work), 2, "contains files, but no run")
    check(not run.exists(), "a run that could not begin left a directory")
    expect(train(run, plays + str(work / "not_utf8.txt"), "train.steps=2"), 0)


def text():
    """Words in random order: enough for windows and a validation part."""
    chance = random.Random(1)
    return " ".join(chance.choice("to be or not that is the question whether tis nobler".split()) for _ in range(2000))


def main():
    global program, work
    if len(sys.argv) < 2:
        print("SKIPPED: resume_test.py needs the program: resume_test.py build/release/tamis")
        return 77
    program = os.path.abspath(sys.argv[1])
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    chosen = sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="tamis-resume-") as directory:
        work = pathlib.Path(directory)
        (work / "plays.txt").write_text(text())
        (work / "recipe.toml").write_text(RECIPE.format(text=work / "plays.txt", steps=STEPS))
        for test in tests:
            if chosen and test is not test_uninterrupted and test.__name__ not in chosen:
                continue
            began = time.monotonic()
            skips = len(skipped)
            try:
                test(work / test.__name__)
                passed.append(test.__name__)
                verdict = "SKIPPED: " + skipped[-1] if len(skipped) > skips else "ok"
            except (AssertionError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
                failed.append(test.__name__)
                verdict = f"FAILED: {error}"
            print(f"{test.__name__} ({time.monotonic() - began:.1f} s): {verdict}", flush=True)
    if skipped:
        print(f"SKIPPED {len(skipped)} TESTS")
    print(f"{len(passed) - len(skipped)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
