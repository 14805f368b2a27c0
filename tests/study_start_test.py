"""Runs of a study that start from the runs of another variant."""

import shutil
import signal

import pytest
from program import finished, wait_until
from studies import ONE_RUN
from studies import directory, last_line, losses, recipe, rows, study, summary

LATE = """
[[variants]]
name = "late"
start_from = {variant = "rope", step = 4}
model = {ssmax = "learned"}
train = {steps = 2, warmup_steps = 0}
"""
STARTED = ONE_RUN.replace("[1]", "[1, 2]").replace("steps = 6", "steps = 6\nsave_every = 2\nkeep = 0") + LATE
DIVERGES = ONE_RUN.replace('name = "rope"', 'name = "rope"\ntrain = {lr = 3e38}')


def logged(tamis, name):
    """What each run has logged, to see whether one was trained again."""
    return {log.parent.name: log.read_text() for log in directory(tamis, name).rglob("log.jsonl")}


def written(run):
    """The files of a run but for its results, with their times."""
    return [(path, path.stat().st_mtime_ns) for path in sorted(run.rglob("*")) if not path.name.startswith("result-")]


def test_a_run_starts_from_the_checkpoint_that_its_recipe_names(tamis):
    """As with `tamis train`, whatever the number of processes."""
    one = study(tamis, "started", STARTED)
    two = study(tamis, "started-jobs", STARTED, "--jobs", 2)
    assert losses(tamis, "started") == losses(tamis, "started-jobs"), (one, two)
    assert "| late (from rope, step 4) |" in one.stdout, one.stdout
    point = summary(tamis, "started")["points"][-1]
    assert (point["start_from"], point["tokens"]) == ("rope, step 4", 6 * 128), point
    run = directory(tamis, "started") / "rope/seed-2"
    assert (run / "checkpoints/step-4").is_dir()
    config = (directory(tamis, "started") / "late/seed-2/config.toml").read_text()
    assert f'start_from = "{run.relative_to(tamis.directory)}/checkpoints/step-4"' in config, config


def test_a_started_run_that_goes_on_with_the_whole_state(tamis):
    """Its curve begins after the checkpoint, and its speed counts the tokens that it trained itself."""
    text = STARTED.replace("steps = 2, warmup_steps = 0", 'start_state = "all"')
    study(tamis, "whole-state", text.replace('model = {ssmax = "learned"}\n', ""))
    late = rows(tamis, "whole-state", variant="late", seed=1)
    assert [row["step"] for row in late if row["metric"] == "training_loss"] == [5, 6], late
    values = {row["metric"]: row["value"] for row in late}
    assert values["tokens_per_second"] * values["training_seconds"] == pytest.approx(2 * 128), values


def test_a_started_run_that_was_stopped_resumes(tamis):
    long = STARTED.replace("steps = 2,", "steps = 300,") + "\n[equal]\ntokens = false\n"
    study(tamis, "unbroken", long)
    process = tamis.start("study", recipe(tamis, "stopped", long), "--threads", 2, "--jobs", 2)
    log = directory(tamis, "stopped") / "late/seed-1/log.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size > 0, process, "line in the log")
    process.send_signal(signal.SIGINT)
    assert finished(process).returncode == 130
    saved = [int(path.name.removeprefix("step-")) for path in (directory(tamis, "stopped") / "late/seed-1/checkpoints").iterdir()]
    assert 0 < max(saved) < 300, "it was stopped before its end"
    study(tamis, "stopped", long, "--jobs", 2)
    assert losses(tamis, "stopped") == losses(tamis, "unbroken")


def test_a_moved_study_is_not_trained_again(tamis):
    study(tamis, "here", STARTED)
    before = logged(tamis, "here")
    directory(tamis, "here").rename(directory(tamis, "there"))
    study(tamis, "there", STARTED.replace('name = "late"', 'name = "late"\nlabels = {phase = "second"}'))
    assert logged(tamis, "there") == before
    assert all(row["phase"] == "second" for row in rows(tamis, "there", variant="late"))


def test_the_result_of_another_start_is_refused(tamis):
    study(tamis, "anew", STARTED)
    shutil.rmtree(directory(tamis, "anew") / "rope")
    changed = STARTED.replace('name = "rope"', 'name = "rope"\ntrain = {lr = 0.02}')
    error = last_line(study(tamis, "anew", changed, code=2).stderr)
    assert "late/seed-1: belongs to another recipe: rope, from which it starts: train.lr was 0.0625, is 0.02" in error


def test_a_stopped_run_does_not_go_on_from_another_start(tamis):
    study(tamis, "stale", STARTED)
    (directory(tamis, "stale") / "late/seed-1/result-stale.json").unlink()  # as if it had been stopped before
    shutil.rmtree(directory(tamis, "stale") / "rope")
    changed = STARTED.replace('name = "rope"', 'name = "rope"\ntrain = {lr = 0.02}')
    error = last_line(study(tamis, "stale", changed, code=2).stderr)
    assert "late/seed-" in error and "rope, from which it starts: train.lr was 0.0625, is 0.02" in error, error
    shutil.rmtree(directory(tamis, "stale") / "late/seed-2")
    error = last_line(study(tamis, "stale", changed, code=2).stderr)
    assert "late/seed-1: belongs to another recipe: rope, from which it starts" in error, error


def test_a_checkpoint_that_another_study_has_not_kept(tamis):
    shared = ONE_RUN.replace("[study]", '[study]\nruns = "runs/shared"')
    study(tamis, "first", shared)
    second = STARTED.replace("[1, 2]", "[1]").replace("[study]", '[study]\nruns = "runs/shared"')
    error = last_line(study(tamis, "second", second, code=2).stderr)
    assert "late/seed-1: starts from runs/shared/rope/seed-1/checkpoints/step-4, which does not exist" in error
    assert "remove runs/shared/rope/seed-1 to train it again" in error
    shutil.rmtree(directory(tamis, "shared") / "rope/seed-1")
    study(tamis, "second", second)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_whose_start_diverged_counts_as_diverged(tamis, jobs):
    text = DIVERGES + '\n[[variants]]\nname = "late"\nstart_from = {variant = "rope"}\n\n[equal]\ntokens = false\n'
    name = f"diverged{jobs}"
    done = study(tamis, name, text, "--jobs", jobs)
    found = summary(tamis, name)
    assert found["done"] == 3 and len(found["failed"]) == 2, done
    assert "late/seed-1: rope/seed-1, from which it starts, diverged" in found["failed"], found


def test_new_labels_do_not_train_a_diverged_run_again(tamis):
    study(tamis, "labels", DIVERGES)
    run = directory(tamis, "labels") / "rope/seed-1"
    before = written(run)
    study(tamis, "labels", DIVERGES.replace('name = "rope"', 'name = "rope"\nlabels = {positions = "rotary"}'))
    assert written(run) == before
    assert all(row["positions"] == "rotary" for row in rows(tamis, "labels", metric="diverged", variant="rope"))
