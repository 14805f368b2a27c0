"""Studies that are stopped, that run in several processes, and on a full disk."""

import collections
import json
import re
import signal
import sys

import pytest
from processes import weights
from program import environment, finished, one_line, saved_steps, small_disk, wait_until
from studies import BASE, CLAIMS, FIGURES, FUNCTION, ONE_RUN
from studies import directory, last_line, losses, recipe, study, summary


@pytest.fixture(scope="module")
def whole(tamis):
    """A study in runs/whole that one process ran without a stop."""
    return study(tamis, "whole", BASE + CLAIMS + FIGURES)


def test_a_stopped_study_resumes(tamis):
    long = ONE_RUN.replace("steps = 6", "steps = 200")
    process = tamis.start("study", recipe(tamis, "stopped", long), "--threads", 1)
    log = directory(tamis, "stopped") / "rope/seed-1/log.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size > 0, process, "line in the log")
    process.send_signal(signal.SIGINT)
    stopped = finished(process)
    assert stopped.returncode == 130 and "run the same command to resume" in last_line(stopped.stderr), stopped
    assert "resuming after step" in study(tamis, "stopped", long).stderr
    study(tamis, "unbroken", long)
    assert losses(tamis, "stopped") == losses(tamis, "unbroken"), "stopping changes nothing"


def trained_steps(tamis, name):
    """How often each run logged each of its steps."""
    counts = {}
    for log in directory(tamis, name).rglob("log.jsonl"):
        records = [json.loads(line) for line in log.read_text().splitlines()]
        steps = collections.Counter(record["step"] for record in records if record["type"] == "train")
        counts[log.parent.relative_to(directory(tamis, name)).as_posix()] = steps
    return counts


def test_jobs_at_a_time(tamis, whole):
    study(tamis, "parallel", BASE, "--jobs", 2)
    assert losses(tamis, "parallel") == losses(tamis, "whole"), "parallel jobs give what jobs in sequence give"
    assert summary(tamis, "parallel")["done"] == 10


def test_a_name_that_looks_like_a_number(tamis):
    study(tamis, "2024", FUNCTION, "--jobs", 2)
    assert summary(tamis, "2024")["id"] == "2024"
    study(tamis, "other", FUNCTION, "--jobs", 2, "--set", 'study.dir="runs/a b"')
    assert json.loads((tamis.directory / "runs/a b/study.json").read_text())["done"] == 1


def test_a_signal_ends_all_jobs(tamis):
    long = BASE.replace("steps = 6", "steps = 20000")
    process = tamis.start("study", recipe(tamis, "terminated", long), "--threads", 2, "--jobs", 2)
    runs = directory(tamis, "terminated") / "rope"
    wait_until(lambda: len(list(runs.glob("*/log.jsonl"))) == 2, process, "second log")
    wait_until(lambda: all(path.stat().st_size > 0 for path in runs.glob("*/log.jsonl")), process, "line in both logs")
    process.send_signal(signal.SIGTERM)
    stopped = finished(process)
    assert stopped.returncode == 143 and "run the same command to resume" in last_line(stopped.stderr), stopped
    assert len(list(runs.glob("*/checkpoints/step-*"))) == 2, "both were saved"


def test_two_processes_share_a_study(tamis, whole):
    path = recipe(tamis, "shared", BASE + CLAIMS + FIGURES)
    started = [
        tamis.start("study", path, "--threads", 1, env=environment(TAMIS_PYTHON=sys.executable)) for _ in range(2)
    ]
    both = [finished(process) for process in started]
    for done in both:
        assert done.returncode == 0, done
        assert "no figures" not in done.stderr, done.stderr
    started = collections.Counter(job for done in both for job in re.findall(r"; now (\S+)", done.stderr))
    assert len(started) == 10 and set(started.values()) == {1}, started
    steps = trained_steps(tamis, "shared")
    assert len(steps) == 8, "the first seed's run with the chosen rate is the grid's"
    assert all(counts == {step: 1 for step in range(1, 7)} for counts in steps.values()), steps
    assert losses(tamis, "shared") == losses(tamis, "whole")
    assert summary(tamis, "shared")["drawn"] == summary(tamis, "whole")["drawn"]


def test_another_process_resumes_the_run_of_one_that_is_killed(tamis):
    """The first process is stopped after a checkpoint, so that it is killed within its run. Until then the second one leaves
    that run alone and does the other."""
    steps = 300
    long = ONE_RUN.replace("steps = 6", f"steps = {steps}\nsave_every = 20")
    study(tamis, "unkilled", long)
    path, runs = recipe(tamis, "killed", long), directory(tamis, "killed")
    held = runs / "rope/seed-1"
    first = tamis.start("study", path, "--threads", 1)
    try:
        wait_until(lambda: saved_steps(held), first, "checkpoint")
        first.send_signal(signal.SIGSTOP)
        second = tamis.start("study", path, "--threads", 1, env=environment(TAMIS_PYTHON=sys.executable))
        wait_until(lambda: list((runs / "window/seed-1").glob("result-*.json")), second, "result of the other run")
        saved = saved_steps(held)
    finally:
        first.kill()
    finished(first)
    assert steps not in saved, "the run ended before its process was stopped"
    done = finished(second)
    assert done.returncode == 0, done
    assert f"resuming after step {max(saved)}" in done.stderr, done
    assert losses(tamis, "killed") == losses(tamis, "unkilled")
    for run in ("rope/seed-1", "window/seed-1"):
        assert weights(runs / run, steps) == weights(directory(tamis, "unkilled") / run, steps)
    assert all(counts == {step: 1 for step in range(1, steps + 1)} for counts in trained_steps(tamis, "killed").values())


def test_an_error_of_a_worker_is_the_study_s(tamis):
    text = ONE_RUN + '\n[[evaluations]]\nkind = "parameters"\nname = "*.nothing"\n'
    alone = study(tamis, "error", text, code=2)
    workers = study(tamis, "error", text, "--jobs", 2, code=2)
    for done in (alone, workers):
        assert one_line(last_line(done.stderr)) and done.stderr.count("tamis: ") == 1, done
        assert "no tensor of the model is called *.nothing" in done.stderr, done


TOO_LARGE = """
[[variants]]
name = "large"
model = {hidden_size = 1048576}

[[variants]]
name = "after-large"
start_from = {variant = "large"}

[equal]
tokens = false
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_run_stays_in_the_table_and_the_others_go_on(tamis, jobs):
    name = f"failed{jobs}"
    text = re.sub(r"(?=\[\[variants\]\])", TOO_LARGE.split("[equal]")[0], ONE_RUN, count=1)  # the first of all
    text += "\n[equal]\ntokens = false\n"
    done = study(tamis, name, text, "--jobs", jobs, code=1)
    assert one_line(last_line(done.stderr)) and "2 of 4 jobs failed; large/seed-1: out of memory" in last_line(done.stderr), done
    found = summary(tamis, name)
    status = {point["name"]: point["status"] for point in found["points"]}
    assert status["large"] == status["after-large"] == "0 of 1, 1 failed", status
    assert all(value == "1 of 1" for key, value in status.items() if "large" not in key), status
    assert any(each.startswith("large/seed-1: out of memory") for each in found["failed"]), found["failed"]
    assert "after-large/seed-1: large/seed-1, from which it starts, failed" in found["failed"], found["failed"]
    assert "large/seed-1: out of memory" in (directory(tamis, name) / "report.md").read_text()
    again = study(tamis, name, text, "--jobs", jobs, code=1)
    assert last_line(again.stderr) == last_line(done.stderr), "tried again"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk(tamis, whole, jobs):
    name = f"full{jobs}"
    with small_disk(directory(tamis, name), "600k") as remount:
        done = study(tamis, name, BASE, "--jobs", jobs, code=30)
        assert one_line(last_line(done.stderr)) and "No space left on device" in last_line(done.stderr), done
        remount("size=64m")
        study(tamis, name, BASE, "--jobs", jobs)
        assert losses(tamis, name) == losses(tamis, "whole")
