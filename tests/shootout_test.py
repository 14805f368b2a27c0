#!/usr/bin/env python3
"""Mixers are compared for real, small and fast: shootout_test.py PROGRAM

Two and three mixers on a few steps: files, tables, seeds, resuming after a signal, several processes, a diverged run,
every refusal. Exit code 77: skipped.
"""

import json
import math
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

RECIPE = """
[shootout]
seeds = [1, 2]
lr = [0.001, 0.01]

[evaluation]
multiples = [1, 2]
instances = 4

[model]
model_type = "transformer"
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2

[data.sources.copy]
kind = "copy"

[data.sources.recall]
kind = "mqrar"
keys = 2
queries = 4

[train]
steps = 8
length = 32
batch_tokens = 128
warmup_steps = 2
validate_tokens = 128
log_every = 1

[[mixers]]
name = "rope"

[[mixers]]
name = "window"
model = {pattern = "w", window = 8}
"""

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from report_test import Browser, check_shootout_page, find_browser  # noqa: E402

program = ""
work = pathlib.Path()


def tamis(*arguments, **options):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, cwd=work, **options)


def recipe(name, text=RECIPE):
    path = work / f"{name}.toml"
    path.write_text(text)
    return path


def shootout(name, *arguments, text=RECIPE):
    return tamis("shootout", recipe(name, text), "--threads", 1, *arguments)


def summary(name):
    return json.loads((work / "runs" / name / "shootout.json").read_text())


def losses(name):
    return {(mixer["name"], run["seed"]): run["validation"] for mixer in summary(name)["mixers"] for run in mixer["runs"]}


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def check_files_and_tables():
    planned = shootout("whole", "--plan")
    expect(planned.returncode == 0 and "rope/lr-0.001" in planned.stdout and "window/seed-2" in planned.stdout, planned)
    expect(not (work / "runs").exists(), "a plan leaves nothing")
    result = shootout("whole")
    expect(result.returncode == 0, result.stderr)
    run = work / "runs/whole"
    table = (run / "table.md").read_text()
    expect(result.stdout == table, "what is printed is table.md")
    expect("8 of 8" not in result.stderr and "7 of 8 jobs done" in result.stderr, result.stderr)
    found = summary("whole")
    expect((found["done"], found["jobs"]) == (8, 8), found["done"])
    expect(math.isclose(found["chance"]["score"]["copy"], 1 / 31), found["chance"])
    expect(math.isclose(found["chance"]["loss"]["recall"], math.log(128)), found["chance"])
    for mixer in found["mixers"]:
        grid = {each["lr"]: each["loss"] for each in mixer["search"]}
        expect(set(grid) == {0.001, 0.01}, grid)
        expect(mixer["chosen_lr"] == min(grid, key=grid.get), "the lowest validation loss decides")
        expect([run["seed"] for run in mixer["runs"]] == [1, 2], mixer["runs"])
        first = mixer["runs"][0]
        expect(math.isclose(statistics.mean(first["validation"].values()), grid[mixer["chosen_lr"]]),
               "the first seed's run is the grid's")
        expect([cell["length"] for cell in first["tasks"]["copy"]] == [32, 64], first["tasks"])
        for source in ("copy", "recall"):
            values = [run["validation"][source] for run in mixer["runs"]]
            expect(values[0] != values[1], "seeds differ")
            spread = mixer["summary"]["validation"][source]
            expect(math.isclose(spread["mean"], statistics.mean(values)), spread)
            expect(math.isclose(spread["sd"], statistics.stdev(values)), spread)
            expect(f"{spread['mean']:.3f} +- {spread['sd']:.3f}" in table, table)
            low, high = spread["interval_95"]  # Student's t with one degree of freedom
            expect(math.isclose(high - low, 2 * 12.706 * spread["sd"] / math.sqrt(2)), spread)
        for cell in mixer["summary"]["tasks"]["copy"]:
            expect(0 <= cell["interval_95"][0] <= cell["mean"] <= cell["interval_95"][1] <= 1, cell)
            bins = first["by_position"][source]
            total = sum(each["tokens"] * each["loss"] for each in bins) / sum(each["tokens"] for each in bins)
            expect(math.isclose(total, first["validation"][source], rel_tol=1e-9), "positions add up to the loss")
        edge = "lowest" if mixer["chosen_lr"] == 0.001 else "highest"  # of two rates either is at the edge
        expect(mixer["lr_edge"] == edge, mixer["lr_edge"])
        expect(f"{mixer['name']} has its best result at the {edge} rate of the grid, {mixer['chosen_lr']}: " in result.stdout, result.stdout)
        states = [each["bytes"] for each in mixer["state_bytes"]]
        if mixer["name"] == "rope":  # keys and values of 2 layers, D 16, float32, of at least 64 tokens
            expect(states == [2 * 2 * 2 * 16 * 4 * max(64, length) for length in (32, 64)], states)  # heads of 8, padded to 16
        else:
            expect(states[0] == states[1], states)
    log = [json.loads(line) for line in (run / "rope/lr-0.001-seed-1/log.jsonl").read_text().splitlines()]
    validation = {each["source"]: each["loss"] for each in log if each["type"] == "validation" and each["step"] == 8}
    for source, loss in validation.items():
        grid = json.loads((run / "rope/lr-0.001-seed-1/search.json").read_text())
        expect(math.isclose(grid["validation"][source], loss, rel_tol=1e-4), "as the run's own validation says")
    page = (run / "report.html").read_text()
    expect("window" in page and "Plotly" in page, "one page, with all it needs")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("checkpoints/*/*")}
    again = shootout("whole")
    expect(again.stdout == table and "now" not in again.stderr, again.stderr)
    expect(before == {path: path.stat().st_mtime_ns for path in run.rglob("checkpoints/*/*")}, "nothing was trained again")
    evaluated = tamis("report", "runs/whole/rope/lr-0.01-seed-1")
    expect(evaluated.returncode == 0, "a run of the shootout is a run: " + evaluated.stderr)


def check_page():
    """In a browser; without one this part is left out, loudly."""
    if find_browser() is None:
        print("check_page: SKIPPED, no Chromium found")
        return
    browser = Browser(find_browser(), work / "profile")
    try:
        check_shootout_page(browser, work / "runs/whole/report.html")
    finally:
        browser.close()


def check_other_evaluation():
    """Other lengths are measured without training again; other steps are refused."""
    shorter = RECIPE.replace("multiples = [1, 2]", "multiples = [1, 2, 4]")
    result = shootout("whole", text=shorter)
    expect(result.returncode == 0 and "resuming" not in result.stderr, result.stderr)
    expect(len(summary("whole")["mixers"][0]["runs"][0]["tasks"]["copy"]) == 3, "a third length")
    refused = shootout("whole", text=RECIPE.replace("warmup_steps = 2", "warmup_steps = 3"))
    expect(refused.returncode == 2 and "train.warmup_steps was 2, is 3" in refused.stderr, refused.stderr)
    expect(refused.stderr.count("\n") == 1, refused.stderr)


def check_stopped_and_resumed():
    long = RECIPE.replace("steps = 8", "steps = 300").replace("seeds = [1, 2]", "seeds = [1]")
    path = recipe("stopped", long)
    arguments = [program, "shootout", str(path), "--threads", "1"]
    process = subprocess.Popen(arguments, cwd=work, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    log = work / "runs/stopped/rope/lr-0.001-seed-1/log.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size > 0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    expect(process.returncode == 130 and "run the same command to resume" in errors, errors)
    result = subprocess.run(arguments, cwd=work, capture_output=True, text=True)
    expect(result.returncode == 0 and "resuming after step" in result.stderr, result.stderr)
    whole = shootout("unbroken", text=long)
    expect(whole.returncode == 0, whole.stderr)
    expect(losses("stopped") == losses("unbroken"), "stopping changes nothing")


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < end, "waited too long")
        time.sleep(0.01)


def check_several_processes():
    result = tamis("shootout", recipe("parallel"), "--threads", 2, "--jobs", 2)
    expect(result.returncode == 0, result.stderr)
    expect(losses("parallel") == losses("whole"), "several at a time give what one after the other gives")
    long = RECIPE.replace("steps = 8", "steps = 20000")
    process = subprocess.Popen([program, "shootout", str(recipe("terminated", long)), "--threads", "2", "--jobs", "2"],
                               cwd=work, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    runs = work / "runs/terminated/rope"
    wait_for(lambda: len(list(runs.glob("*/log.jsonl"))) == 2)
    wait_for(lambda: all(path.stat().st_size > 0 for path in runs.glob("*/log.jsonl")))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    expect(process.returncode == 143 and "run the same command to resume" in errors, errors)
    expect(len(list(runs.glob("*/checkpoints/step-*"))) == 2, "both were saved")


def check_one_job():
    early = shootout("one", "--only", "rope/seed-1")
    expect(early.returncode == 2 and "run these first" in early.stderr, early.stderr)
    unknown = shootout("one", "--only", "rope/lr-0.1")
    expect(unknown.returncode == 2 and "rope/lr-0.01" in unknown.stderr, unknown.stderr)
    for job in ("rope/lr-0.001", "rope/lr-0.01", "rope/seed-2"):
        result = shootout("one", "--only", job)
        expect(result.returncode == 0, result.stderr)
    expect(len(list((work / "runs/one/rope").glob("*/result.json"))) == 1, "seed 2 was measured")


def check_divergence():
    one = RECIPE.replace("seeds = [1, 2]", "seeds = [1]")
    result = shootout("diverged", text=one.replace("lr = [0.001, 0.01]", "lr = [3e38, 0.01]"))
    expect(result.returncode == 0, result.stderr)
    for mixer in summary("diverged")["mixers"]:
        expect([each["status"] for each in mixer["search"]] == ["diverged", "done"], mixer["search"])
        expect(mixer["chosen_lr"] == 0.01, mixer["chosen_lr"])
        expect(mixer["lr_edge"] == "lowest", "a rate that diverged is a neighbour, a missing one is none")
    none = shootout("none", text=one.replace("lr = [0.001, 0.01]", "lr = [3e38]"))
    expect(none.returncode == 0 and none.stdout.count("diverged") == 2, none.stdout + none.stderr)
    again = shootout("none", text=one.replace("lr = [0.001, 0.01]", "lr = [3e38]"))
    expect(again.stdout == none.stdout, again.stdout)


UNEQUAL = RECIPE + """
[[mixers]]
name = "wide"
model = {intermediate_size = 99}

[[mixers]]
name = "screening"
model = {model_type = "multiscreen", num_attention_heads = 4, key_dim = 4, value_dim = 9}
"""


def check_matched_sizes():
    """A refusal names values that fit, and those values do fit; match = "parameters" chooses them."""
    refused = shootout("unequal", "--plan", text=UNEQUAL)
    found = dict(re.findall(r"(\w+) fits with model\.(\w+ = \d+)", refused.stderr))
    expect(refused.returncode == 2 and set(found) == {"wide", "screening"}, refused.stderr)
    expect(refused.stderr.count("\n") == 1 and 'shootout.match = "parameters"' in refused.stderr, refused.stderr)
    by_hand = UNEQUAL.replace("intermediate_size = 99", found["wide"])
    key = found["screening"].split()[0]
    by_hand = re.sub(rf"(multiscreen.*){key} = \d+", rf"\g<1>{found['screening']}", by_hand)
    taken = shootout("by_hand", "--plan", "--json", text=by_hand)
    expect(taken.returncode == 0, taken.stderr)
    matched = shootout("matched", "--plan", "--json", text=UNEQUAL.replace("[shootout]", "[shootout]\nmatch = 'parameters'"))
    expect(matched.returncode == 0, matched.stderr)
    mixers = {mixer["name"]: mixer for mixer in json.loads(matched.stdout)["mixers"]}
    sizes = [mixer["parameters_without_embedding"] for mixer in mixers.values()]
    expect(max(sizes) <= 1.02 * min(sizes), sizes)
    expect((mixers["rope"]["matched_by"], mixers["wide"]["matched_by"]) == (None, "intermediate_size"), mixers)
    expect([mixer["model"] for mixer in mixers.values()] == [mixer["model"] for mixer in json.loads(taken.stdout)["mixers"]],
           "by hand and by match the same models")
    text = shootout("matched", "--plan", text=UNEQUAL.replace("[shootout]", "[shootout]\nmatch = 'parameters'")).stdout
    expect(f"with intermediate_size = {mixers['wide']['model']['intermediate_size']}" in text, text)
    far = shootout("far", text=RECIPE.replace("[shootout]", "[shootout]\nmatch = 'parameters'")
                   + "\n[[mixers]]\nname = 'huge'\nmodel = {num_hidden_layers = 40}\n")
    expect(far.returncode == 2 and "huge comes nearest with model.intermediate_size = 1" in far.stderr, far.stderr)


def check_refusals():
    cases = {
        "unknown letter": (RECIPE.replace('pattern = "w"', 'pattern = "q"'), r"refused.toml:\d+: .*pattern.*mixer window"),
        "unknown key": (RECIPE.replace("seeds =", "sedes ="), r'refused.toml:3: .*"sedes"; did you mean "seeds"'),
        "unknown table": (RECIPE + "\n[evaluations]\n", r'refused.toml:\d+: unknown table "evaluations"; did you mean'),
        "unknown key of a mixer": (RECIPE + "modle = {}\n", r'unknown key of \[\[mixers\]\] "modle"; did you mean "model"'),
        "unequal sizes": (RECIPE + "\n[[mixers]]\nname = 'wide'\nmodel = {intermediate_size = 99}\n",
                          r"within 2%, but have: rope \d+, window \d+, wide \d+"),
        "twice": (RECIPE + "\n[[mixers]]\nname = 'rope'\n", r'refused.toml:\d+: .*"rope" is used twice'),
        "no name": (RECIPE + "\n[[mixers]]\nmodel = {}\n", r"refused.toml:\d+: .*a name is missing"),
        "a name with a slash": (RECIPE + "\n[[mixers]]\nname = '../x'\n", r"must be letters, digits"),
        "no mixers": (RECIPE[: RECIPE.index("[[mixers]]")], r"expected at least one table \[\[mixers\]\]"),
        "own length": (RECIPE + "train = {length = 64}\n", r"train.length must be the same for all mixers"),
        "the same seed twice": (RECIPE.replace("[1, 2]\nlr", "[1, 1]\nlr"), r"shootout.seeds holds 1 twice"),
        "unknown task": (RECIPE.replace("instances = 4", "tasks = ['copi']"), r'"copi"; did you mean "copy"'),
        "too short for its task": (RECIPE.replace("instances = 4", "tasks = ['passkey']"), r"passkey: .*32.*too short"),
        "no validation": (RECIPE.replace("validate_tokens = 128", "validate_tokens = 0"), r"chosen by the validation loss"),
        "not TOML": ("[shootout\n", r"refused.toml:1: "),
    }
    for what, (text, expected) in cases.items():
        result = shootout("refused", text=text)
        expect(result.returncode == 2 and result.stderr.count("\n") == 1, f"{what}: {result}")
        expect(re.search(expected, result.stderr), f"{what}: {result.stderr}")
    expect(not (work / "runs/refused").exists(), "a refused recipe leaves nothing")
    missing = tamis("shootout", "missing.toml")
    expect(missing.returncode == 3 and missing.stderr.count("\n") == 1, missing)
    jobs = shootout("refused", "--jobs", 0)
    expect(jobs.returncode == 2, jobs)


def main():
    global program, work
    if len(sys.argv) != 2:
        print(__doc__)
        return 77
    program = str(pathlib.Path(sys.argv[1]).resolve())
    work = pathlib.Path(tempfile.mkdtemp(prefix="tamis-shootout-"))
    try:
        for check in (check_files_and_tables, check_page, check_other_evaluation, check_stopped_and_resumed, check_several_processes,
                      check_one_job, check_divergence, check_matched_sizes, check_refusals):
            started = time.monotonic()
            check()
            print(f"{check.__name__}: passed in {time.monotonic() - started:.1f} s", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
