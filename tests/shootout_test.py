"""A shootout of two and three mixers on a few steps.

Files, tables, the page, seeds, resuming after a signal, several processes, a diverged run, every refusal.
"""

import json
import math
import re
import signal
import statistics

import pytest
from program import finished, wait_until
from shootout_page import check_shootout_page

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
precision = "float32"
log_every = 1

[[mixers]]
name = "rope"

[[mixers]]
name = "window"
model = {pattern = "w", window = 8}
"""


def recipe(tamis, name, text=RECIPE):
    path = tamis.directory / f"{name}.toml"
    path.write_text(text)
    return path


def shootout(tamis, name, *arguments, text=RECIPE):
    return tamis("shootout", recipe(tamis, name, text), "--threads", 1, *arguments)


def summary(tamis, name):
    return json.loads((tamis.directory / "runs" / name / "shootout.json").read_text())


def losses(tamis, name):
    return {
        (mixer["name"], run["seed"]): run["validation"]
        for mixer in summary(tamis, name)["mixers"]
        for run in mixer["runs"]
    }


@pytest.fixture(scope="module")
def whole(tamis):
    """The output of a whole shootout in runs/whole."""
    result = shootout(tamis, "whole")
    assert result.returncode == 0, result.stderr
    return result


def test_a_plan_leaves_nothing(tamis):
    planned = shootout(tamis, "planned", "--plan")
    assert planned.returncode == 0 and "rope/lr-0.001" in planned.stdout and "window/seed-2" in planned.stdout, planned
    assert not (tamis.directory / "runs/planned").exists()


def test_files_and_tables(tamis, whole):
    result, run = whole, tamis.directory / "runs/whole"
    table = (run / "table.md").read_text()
    assert result.stdout == table, "what is printed is table.md"
    assert "8 of 8" not in result.stderr and "7 of 8 jobs done" in result.stderr, result.stderr
    found = summary(tamis, "whole")
    assert (found["done"], found["jobs"]) == (8, 8), found["done"]
    assert math.isclose(found["chance"]["score"]["copy"], 1 / 31), found["chance"]
    assert math.isclose(found["chance"]["loss"]["recall"], math.log(128)), found["chance"]
    for mixer in found["mixers"]:
        grid = {each["lr"]: each["loss"] for each in mixer["search"]}
        assert set(grid) == {0.001, 0.01}, grid
        assert mixer["chosen_lr"] == min(grid, key=grid.get), "the lowest validation loss decides"
        assert [run["seed"] for run in mixer["runs"]] == [1, 2], mixer["runs"]
        first = mixer["runs"][0]
        assert math.isclose(statistics.mean(first["validation"].values()), grid[mixer["chosen_lr"]]), (
            "the first seed's run is the grid's"
        )
        assert [cell["length"] for cell in first["tasks"]["copy"]] == [32, 64], first["tasks"]
        for source in ("copy", "recall"):
            values = [run["validation"][source] for run in mixer["runs"]]
            assert values[0] != values[1], "seeds differ"
            spread = mixer["summary"]["validation"][source]
            assert math.isclose(spread["mean"], statistics.mean(values)), spread
            assert math.isclose(spread["sd"], statistics.stdev(values)), spread
            assert f"{spread['mean']:.3f} +- {spread['sd']:.3f}" in table, table
            low, high = spread["interval_95"]  # Student's t with one degree of freedom
            assert math.isclose(high - low, 2 * 12.706 * spread["sd"] / math.sqrt(2)), spread
        for cell in mixer["summary"]["tasks"]["copy"]:
            assert 0 <= cell["interval_95"][0] <= cell["mean"] <= cell["interval_95"][1] <= 1, cell
            bins = first["by_position"][source]
            total = sum(each["tokens"] * each["loss"] for each in bins) / sum(each["tokens"] for each in bins)
            assert math.isclose(total, first["validation"][source], rel_tol=1e-9), "positions add up to the loss"
        edge = "lowest" if mixer["chosen_lr"] == 0.001 else "highest"  # of two rates either is at the edge
        assert mixer["lr_edge"] == edge, mixer["lr_edge"]
        assert (
            f"{mixer['name']} has its best result at the {edge} rate of the grid, {mixer['chosen_lr']}: "
            in result.stdout
        ), result.stdout
        states = [each["bytes"] for each in mixer["state_bytes"]]
        if mixer["name"] == "rope":  # keys and values of 2 layers, D 16, float32, of at least 64 tokens
            assert states == [2 * 2 * 2 * 16 * 4 * max(64, length) for length in (32, 64)], (
                states
            )  # heads of 8, padded to 16
        else:
            assert states[0] == states[1], states
    log = [json.loads(line) for line in (run / "rope/lr-0.001-seed-1/log.jsonl").read_text().splitlines()]
    validation = {each["source"]: each["loss"] for each in log if each["type"] == "validation" and each["step"] == 8}
    for source, loss in validation.items():
        grid = json.loads((run / "rope/lr-0.001-seed-1/search.json").read_text())
        assert math.isclose(grid["validation"][source], loss, rel_tol=1e-4), "as the run's own validation says"
    page = (run / "report.html").read_text()
    assert "window" in page and "Plotly" in page, "one page, with all it needs"
    before = {path: path.stat().st_mtime_ns for path in run.rglob("checkpoints/*/*")}
    again = shootout(tamis, "whole")
    assert again.stdout == table and "now" not in again.stderr, again.stderr
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("checkpoints/*/*")}, (
        "nothing was trained again"
    )
    evaluated = tamis("report", "runs/whole/rope/lr-0.01-seed-1")
    assert evaluated.returncode == 0, "a run of the shootout is a run: " + evaluated.stderr


def test_page(tamis, whole, page):
    check_shootout_page(page, tamis.directory / "runs/whole/report.html")


def test_other_evaluation(tamis, whole):
    """Other lengths are measured without training again; other steps are refused."""
    shorter = RECIPE.replace("multiples = [1, 2]", "multiples = [1, 2, 4]")
    result = shootout(tamis, "whole", text=shorter)
    assert result.returncode == 0 and "resuming" not in result.stderr, result.stderr
    assert len(summary(tamis, "whole")["mixers"][0]["runs"][0]["tasks"]["copy"]) == 3, "a third length"
    refused = shootout(tamis, "whole", text=RECIPE.replace("warmup_steps = 2", "warmup_steps = 3"))
    assert refused.returncode == 2 and "train.warmup_steps was 2, is 3" in refused.stderr, refused.stderr
    assert refused.stderr.count("\n") == 1, refused.stderr


def test_stopped_and_resumed(tamis):
    long = RECIPE.replace("steps = 8", "steps = 300").replace("seeds = [1, 2]", "seeds = [1]")
    process = tamis.start("shootout", recipe(tamis, "stopped", long), "--threads", 1)
    log = tamis.directory / "runs/stopped/rope/lr-0.001-seed-1/log.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size > 0, process, "line in the log")
    process.send_signal(signal.SIGINT)
    stopped = finished(process)
    assert stopped.returncode == 130 and "run the same command to resume" in stopped.stderr, stopped
    result = shootout(tamis, "stopped", text=long)
    assert result.returncode == 0 and "resuming after step" in result.stderr, result.stderr
    unbroken = shootout(tamis, "unbroken", text=long)
    assert unbroken.returncode == 0, unbroken.stderr
    assert losses(tamis, "stopped") == losses(tamis, "unbroken"), "stopping changes nothing"


def test_several_processes(tamis, whole):
    result = tamis("shootout", recipe(tamis, "parallel"), "--threads", 2, "--jobs", 2)
    assert result.returncode == 0, result.stderr
    assert losses(tamis, "parallel") == losses(tamis, "whole"), "parallel jobs give what jobs in sequence give"
    long = RECIPE.replace("steps = 8", "steps = 20000")
    process = tamis.start("shootout", recipe(tamis, "terminated", long), "--threads", 2, "--jobs", 2)
    runs = tamis.directory / "runs/terminated/rope"
    wait_until(lambda: len(list(runs.glob("*/log.jsonl"))) == 2, process, "second log")
    wait_until(lambda: all(path.stat().st_size > 0 for path in runs.glob("*/log.jsonl")), process, "line in both logs")
    process.send_signal(signal.SIGTERM)
    stopped = finished(process)
    assert stopped.returncode == 143 and "run the same command to resume" in stopped.stderr, stopped
    assert len(list(runs.glob("*/checkpoints/step-*"))) == 2, "both were saved"


def test_one_job(tamis):
    early = shootout(tamis, "one", "--only", "rope/seed-1")
    assert early.returncode == 2 and "run these first" in early.stderr, early.stderr
    unknown = shootout(tamis, "one", "--only", "rope/lr-0.1")
    assert unknown.returncode == 2 and "rope/lr-0.01" in unknown.stderr, unknown.stderr
    for job in ("rope/lr-0.001", "rope/lr-0.01", "rope/seed-2"):
        result = shootout(tamis, "one", "--only", job)
        assert result.returncode == 0, result.stderr
    assert len(list((tamis.directory / "runs/one/rope").glob("*/result.json"))) == 1, "seed 2 was measured"


def test_divergence(tamis):
    one = RECIPE.replace("seeds = [1, 2]", "seeds = [1]")
    result = shootout(tamis, "diverged", text=one.replace("lr = [0.001, 0.01]", "lr = [3e38, 0.01]"))
    assert result.returncode == 0, result.stderr
    for mixer in summary(tamis, "diverged")["mixers"]:
        assert [each["status"] for each in mixer["search"]] == ["diverged", "done"], mixer["search"]
        assert mixer["chosen_lr"] == 0.01, mixer["chosen_lr"]
        assert mixer["lr_edge"] == "lowest", "a rate that diverged is a neighbour, a missing one is none"
    none = shootout(tamis, "none", text=one.replace("lr = [0.001, 0.01]", "lr = [3e38]"))
    assert none.returncode == 0 and none.stdout.count("diverged") == 2, none.stdout + none.stderr
    again = shootout(tamis, "none", text=one.replace("lr = [0.001, 0.01]", "lr = [3e38]"))
    assert again.stdout == none.stdout, again.stdout


UNEQUAL = (
    RECIPE
    + """
[[mixers]]
name = "wide"
model = {intermediate_size = 99}

[[mixers]]
name = "screening"
model = {model_type = "multiscreen", num_attention_heads = 4, key_dim = 4, value_dim = 9}
"""
)


def test_matched_sizes(tamis):
    """A refusal names values that fit, and those values do fit; match = "parameters" chooses them."""
    refused = shootout(tamis, "unequal", "--plan", text=UNEQUAL)
    found = dict(re.findall(r"(\w+) fits with model\.(\w+ = \d+)", refused.stderr))
    assert refused.returncode == 2 and set(found) == {"wide", "screening"}, refused.stderr
    assert refused.stderr.count("\n") == 1 and 'shootout.match = "parameters"' in refused.stderr, refused.stderr
    by_hand = UNEQUAL.replace("intermediate_size = 99", found["wide"])
    key = found["screening"].split()[0]
    by_hand = re.sub(rf"(multiscreen.*){key} = \d+", rf"\g<1>{found['screening']}", by_hand)
    taken = shootout(tamis, "by_hand", "--plan", "--json", text=by_hand)
    assert taken.returncode == 0, taken.stderr
    matched = shootout(
        tamis, "matched", "--plan", "--json", text=UNEQUAL.replace("[shootout]", "[shootout]\nmatch = 'parameters'")
    )
    assert matched.returncode == 0, matched.stderr
    mixers = {mixer["name"]: mixer for mixer in json.loads(matched.stdout)["mixers"]}
    sizes = [mixer["parameters_without_embedding"] for mixer in mixers.values()]
    assert max(sizes) <= 1.02 * min(sizes), sizes
    assert (mixers["rope"]["matched_by"], mixers["wide"]["matched_by"]) == (None, "intermediate_size"), mixers
    assert [mixer["model"] for mixer in mixers.values()] == [
        mixer["model"] for mixer in json.loads(taken.stdout)["mixers"]
    ], "by hand and by match the same models"
    text = shootout(
        tamis, "matched", "--plan", text=UNEQUAL.replace("[shootout]", "[shootout]\nmatch = 'parameters'")
    ).stdout
    assert f"with intermediate_size = {mixers['wide']['model']['intermediate_size']}" in text, text
    far = shootout(
        tamis,
        "far",
        text=RECIPE.replace("[shootout]", "[shootout]\nmatch = 'parameters'")
        + "\n[[mixers]]\nname = 'huge'\nmodel = {num_hidden_layers = 40}\n",
    )
    assert far.returncode == 2 and "huge comes nearest with model.intermediate_size = 1" in far.stderr, far.stderr


def test_refusals(tamis):
    cases = {
        "unknown letter": (
            RECIPE.replace('pattern = "w"', 'pattern = "q"'),
            r"refused.toml:\d+: .*pattern.*mixer window",
        ),
        "unknown key": (RECIPE.replace("seeds =", "sedes ="), r'refused.toml:3: .*"sedes"; did you mean "seeds"'),
        "unknown table": (RECIPE + "\n[evaluations]\n", r'refused.toml:\d+: unknown table "evaluations"; did you mean'),
        "unknown key of a mixer": (
            RECIPE + "modle = {}\n",
            r'unknown key of \[\[mixers\]\] "modle"; did you mean "model"',
        ),
        "unequal sizes": (
            RECIPE + "\n[[mixers]]\nname = 'wide'\nmodel = {intermediate_size = 99}\n",
            r"within 2%, but have: rope \d+, window \d+, wide \d+",
        ),
        "twice": (RECIPE + "\n[[mixers]]\nname = 'rope'\n", r'refused.toml:\d+: .*"rope" is used twice'),
        "no name": (RECIPE + "\n[[mixers]]\nmodel = {}\n", r"refused.toml:\d+: .*a name is missing"),
        "a name with a slash": (RECIPE + "\n[[mixers]]\nname = '../x'\n", r"must be letters, digits"),
        "no mixers": (RECIPE[: RECIPE.index("[[mixers]]")], r"expected at least one table \[\[mixers\]\]"),
        "own length": (RECIPE + "train = {length = 64}\n", r"train.length must be the same for all mixers"),
        "the same seed twice": (RECIPE.replace("[1, 2]\nlr", "[1, 1]\nlr"), r"shootout.seeds holds 1 twice"),
        "unknown task": (RECIPE.replace("instances = 4", "tasks = ['copi']"), r'"copi"; did you mean "copy"'),
        "too short for its task": (RECIPE.replace("instances = 4", "tasks = ['passkey']"), r"passkey: .*32.*too short"),
        "no validation": (
            RECIPE.replace("validate_tokens = 128", "validate_tokens = 0"),
            r"chosen by the validation loss",
        ),
        "not TOML": ("[shootout\n", r"refused.toml:1: "),
    }
    for what, (text, expected) in cases.items():
        result = shootout(tamis, "refused", text=text)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, f"{what}: {result}"
        assert re.search(expected, result.stderr), f"{what}: {result.stderr}"
    assert not (tamis.directory / "runs/refused").exists(), "a refused recipe leaves nothing"
    missing = tamis("shootout", "missing.toml")
    assert missing.returncode == 3 and missing.stderr.count("\n") == 1, missing
    jobs = shootout(tamis, "refused", "--jobs", 0)
    assert jobs.returncode == 2, jobs
