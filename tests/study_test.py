"""`tamis study` on models that are trained for a few steps.

Files, tables, figures, the page, verdicts, changed claims, measuring again, unequal and diverged variants, refusals.
"""

import csv
import json
import math
import pathlib
import re
import statistics
import xml.etree.ElementTree

import pytest
from program import environment, expect_refused
from studies import BASE, CLAIMS, FIGURES, FUNCTION, ONE_RUN
from studies import checkpoints, directory, losses, recipe, rows, study, summary

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def whole(tamis):
    """A whole study in runs/whole."""
    return study(tamis, "whole", BASE + CLAIMS + FIGURES)


# What a study writes.


def test_the_first_study_of_the_documentation_works(tamis):
    text = (ROOT / "docs/studies.md").read_text()
    first = re.search(r"```toml\n(.*?)```", text, re.DOTALL).group(1)
    assert len([line for line in first.splitlines() if line.strip()]) <= 10, first
    done = study(tamis, "first", first)
    assert "| holds |" in done.stdout, done
    for name in ("report.html", "report.md", "results.csv", "results.json", "study.json", "claims.json"):
        assert (directory(tamis, "first") / name).exists() and f"`{name}`" in text, name


def test_a_plan_leaves_nothing(tamis):
    planned = study(tamis, "planned", BASE, "--plan").stdout
    for job in ("rope/lr-0.001", "rope/lr-0.01", "window/seed-3"):
        assert f"  {job.split('/')[0]}/{job.split('/')[1]}\n" in planned, planned
    found = json.loads(study(tamis, "planned", BASE, "--plan", "--json").stdout)
    assert (found["id"], found["jobs"], found["tier"]) == ("planned", 10, "cpu"), found
    assert found["points"][1]["jobs"][-1] == "window/seed-3" and found["flops"] > 0, found
    assert not directory(tamis, "planned").exists()


@pytest.mark.parametrize("tier, options", [("", "--plan"), ("[tiers.paper.study]\nseeds = [1, 2]\n", "--tier paper --plan")])
def test_plan_and_train_name_the_commands_for_a_study(tamis, tier, options):
    path = recipe(tamis, "named", BASE + tier)
    for command in ("plan", "train"):
        refused = tamis(command, path)
        expect_refused(refused, 2, "[study] makes this a recipe of a study; run it with: tamis study ")
        named = re.search(r"sizes only: tamis (study .*)\n", refused.stderr).group(1)
        assert named.endswith(".toml " + options)
        planned = tamis(*named.split())
        assert planned.returncode == 0 and planned.stdout.startswith("runs/named"), planned


def test_a_larger_tier_announces_its_work(tamis):
    text = ONE_RUN + "[tiers.paper]\ntrain = {steps = 7}\n"
    done = study(tamis, "announced", text, "--tier", "paper")
    first = done.stderr.splitlines()[0]
    line = r"study: tier paper: \d jobs?, models of \S+ parameters, \S+ tokens, \S+ floating-point operations, "
    assert re.fullmatch(line + r"\S+ at the machine's peak; the same command with --plan lists them and runs none", first), first
    for arguments in (("--tier", "paper"), ()):  # nothing is left to do; the first tier
        assert "--plan lists" not in study(tamis, "announced", text, *arguments).stderr


def test_results_and_tables(tamis, whole):
    run = directory(tamis, "whole")
    assert whole.stdout.startswith((run / "report.md").read_text()), "what is printed is report.md"
    assert "9 of 10 jobs done" in whole.stderr, whole.stderr
    found = summary(tamis, "whole")
    assert (found["done"], found["jobs"], found["failed"]) == (10, 10, []), found
    assert found["processor_seconds"] > 1 and len(found["threads"]) == 1, found
    assert f"of processor time, {found['threads'][0]} thread" in whole.stdout, whole.stdout
    for point in found["points"]:
        grid = {each["value"]: each["loss"] for each in point["search"]}
        best = min(grid, key=grid.get)
        assert set(grid) == {0.001, 0.01} and point["chosen"] == f"train.lr {best}", point
        first = rows(tamis, "whole", metric="validation_loss", variant=point["name"], seed=1)
        assert [row["value"] for row in first] == [grid[best]], "the first seed's run is the grid's"
        values = [row["value"] for row in rows(tamis, "whole", metric="validation_loss", variant=point["name"])]
        assert len(set(values)) == 3, "seeds differ"
        cell = f"| {point['name']} | {statistics.mean(values):.3f} ± {statistics.stdev(values):.3f} |"
        assert cell in whole.stdout, (cell, whole.stdout)
        scores = rows(tamis, "whole", metric="score", variant=point["name"], seed=2)
        assert [row["length"] for row in scores] == [32, 64] and all(0 <= row["value"] <= 1 for row in scores), scores
        curve = rows(tamis, "whole", metric="training_loss", variant=point["name"], seed=1)
        assert [row["step"] for row in curve] == [1, 2, 3, 4, 5, 6], curve
        assert all(row["tokens"] == 128 * row["step"] and row["lr"] == best for row in curve), curve
    with open(run / "results.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(rows(tamis, "whole"))
    for line, row in zip(table, rows(tamis, "whole")):
        assert line["metric"] == row["metric"] and float(line["value"]) == row["value"], (line, row)
        assert line["variant"] == row["variant"] and line["length"] == str(row.get("length", "")), (line, row)
    assert tamis("eval", "copy", run / "rope/lr-0.01_seed-1", "--lengths", 32, "--instances", 2).returncode == 0


def test_new_labels_are_in_all_rows(tamis):
    """A run that was measured before its variant had this label is measured again, and not trained again."""
    study(tamis, "labelled", ONE_RUN)
    steps = (directory(tamis, "labelled") / "rope/seed-1/log.jsonl").read_text()
    study(tamis, "labelled", ONE_RUN.replace('name = "rope"', 'name = "rope"\nlabels = {positions = "rotary"}'))
    found = rows(tamis, "labelled", variant="rope")
    assert found and all(row["positions"] == "rotary" for row in found), found
    assert (directory(tamis, "labelled") / "rope/seed-1/log.jsonl").read_text() == steps, "nothing was trained again"


def test_windows_and_widths_during_training(tamis):
    text = BASE.replace('model_type = "transformer"\n', "").replace("[1, 2, 3]", "[1]").replace("log_every = 1", "log_every = 3")
    text = re.sub(r"\[choose\].*?\n\n", "", text, flags=re.DOTALL).replace('model = {pattern = "w", window = 8}', "train = {lr = 0.1}")
    study(tamis, "heads", text)
    for metric, low, high in (("window_curve", 1, 1000), ("acceptance_curve", 0, 1)):
        found = rows(tamis, "heads", metric=metric, variant="window")
        assert [(row["step"], row["head"]) for row in found] == [
            (step, head) for step in (3, 6) for head in ("smallest", "median", "largest")
        ], found
        values = [row["value"] for row in found]
        assert all(low < value < high for value in values) and values[:3] == sorted(values[:3]) != values[3:], values


def test_claims_have_verdicts(tamis, whole):
    claims = {claim["id"]: claim for claim in summary(tamis, "whole")["claims"]}
    assert [claims[name]["verdict"] for name in ("size", "solved", "few", "better")] == ["holds", "does not hold", "undecided", "undecided"]
    assert claims["few"]["reason"] == "2 of the 3 seeds that an interval needs", claims
    assert claims["better"]["reason"] == 'needs "Six steps suffice", which does not hold', claims
    low, high = claims["solved"]["interval_95"]
    assert low < claims["solved"]["value"] < high and claims["solved"]["seeds"] == 3, claims
    assert claims["solved"]["value"] == pytest.approx(
        statistics.mean(loss for (variant, _), loss in losses(tamis, "whole").items() if variant == "rope")
    )
    assert summary(tamis, "whole")["verdict"] == "does not hold"
    assert "| The models have the same size | section 3 | ratio at least 1, at most 1 | 1 " in whole.stdout


def test_figures_are_drawn(tamis, whole):
    drawn = summary(tamis, "whole")["drawn"]
    assert drawn == ["curves", "sizes", "scores", "map"], whole.stderr
    assert "study: not drawn: empty: it has no rows\n" in whole.stderr, whole.stderr
    assert re.search(r"study: not drawn: impossible: .*\n", whole.stderr), whole.stderr
    figures = directory(tamis, "whole") / "figures"
    assert sorted(path.name for path in figures.iterdir()) == sorted(f"{id}.{kind}" for id in drawn for kind in ("svg", "pdf"))
    for name in drawn:
        image = xml.etree.ElementTree.parse(figures / f"{name}.svg").getroot()
        assert image.tag == "{http://www.w3.org/2000/svg}svg", image
        assert len(list(image.iter("{http://www.w3.org/2000/svg}path"))) > 5, name
        assert (figures / f"{name}.pdf").read_bytes().startswith(b"%PDF"), name
        assert f"(figures/{name}.svg)" in whole.stdout, name


def test_page(tamis, whole, page):
    for width in (1280, 390):
        page.page.set_viewport_size({"width": width, "height": 800})
        page.open_file(directory(tamis, "whole") / "report.html")
        page.assert_clean()
        assert page.js("document.documentElement.scrollWidth") <= width
        assert page.text("h1") == "Two small Transformers"
        cells = page.js('[...document.querySelectorAll("td[class]")].map((e) => [e.className, e.textContent])')
        undecided = ["undecided", "undecided"]
        assert cells == [["holds", "holds"], ["fails", "does not hold"], undecided, undecided], cells
        sizes = page.js('[...document.querySelectorAll("figure svg")].map((e) => e.getBoundingClientRect().width)')
        assert len(sizes) == 4 and all(200 < size <= width for size in sizes), sizes
        labels = page.js('[...document.querySelectorAll("figure")].map((e) => e.ariaLabel)')
        assert labels == ["Training loss by step", "Loss & size", "Score by length", "Score by length"], labels
    assert "Two small Transformers" in page.text("pre"), "the recipe"


def test_long_words_do_not_widen_the_page(tamis, page):
    long = "supercalifragilistic" * 8
    text = FUNCTION.replace("The norm stays", f"{long} <b>stays</b>").replace('"A function"', f'"{long}"')
    study(tamis, "long", text.replace("[study]", f'[study]\nassumptions = ["{long}"]\nquestion = "{long}"'))
    page.page.set_viewport_size({"width": 390, "height": 800})
    page.open_file(directory(tamis, "long") / "report.html")
    page.assert_clean()
    assert page.js("document.documentElement.scrollWidth") <= 390
    assert page.js('document.querySelectorAll("td b").length') == 0


def test_no_column_is_hidden_on_a_phone(tamis, whole, page):
    page.page.set_viewport_size({"width": 390, "height": 800})
    page.open_file(directory(tamis, "whole") / "report.html")
    tables = page.page.locator("table")
    assert tables.count() >= 3
    for i in range(tables.count()):
        cell = tables.nth(i).locator("tr").first.locator("th, td").last
        cell.scroll_into_view_if_needed()
        box = cell.bounding_box()
        assert 0 <= box["x"] and box["x"] + min(box["width"], 300) <= 390, (i, cell.text_content(), box)
        assert page.js("scrollX") == 0, "the page itself scrolled"


def test_json_is_one_line(tamis):
    done = study(tamis, "lines", FUNCTION, "--json")
    assert done.stdout.count("\n") == 1 and json.loads(done.stdout) == summary(tamis, "lines"), done


def test_axes_and_settings_at_test_time(tamis):
    text = (
        ONE_RUN.replace("multiples = [1, 2]", 'lengths = [32]\nmodel = {rope_factor = [1, 2]}\nwhere = {variant = "rope"}')
        + '\n[[axes]]\nkey = "model.num_hidden_layers"\nname = "layers"\nvalues = [1, 2]\n'
    )
    study(tamis, "axes", text)
    scores = rows(tamis, "axes", metric="score")
    found = [(row["variant"], row["layers"], row["rope_factor"]) for row in scores]
    assert found == [("rope", layers, factor) for layers in (1, 2) for factor in (1, 2)], found
    assert len(rows(tamis, "axes", metric="validation_loss")) == 4
    assert (directory(tamis, "axes") / "window/layers-2/seed-1/result-axes.json").exists()


def test_the_checkpoint_that_is_best_at_a_length(tamis):
    text = ONE_RUN.replace("log_every = 1", "log_every = 1\nsave_every = 2\nkeep = 0").replace(
        "multiples = [1, 2]", 'lengths = [32]\ncheckpoint_length = 64\nwhere = {variant = "rope"}'
    )
    study(tamis, "kept", text)
    scores = rows(tamis, "kept", metric="score")
    assert [row["checkpoint"] for row in scores] == ["newest", "chosen"], scores
    (chosen,) = rows(tamis, "kept", metric="chosen_step")
    grid = {}
    for step in (2, 4, 6):
        checkpoint = directory(tamis, "kept") / f"rope/seed-1/checkpoints/step-{step}"
        evaluated = tamis("eval", "copy", checkpoint, "--lengths", 64, "--instances", 4, "--seed", 1, "--json")
        grid[step] = json.loads(evaluated.stdout)["cells"][0]["score"]
    assert chosen["value"] == max(step for step in grid if grid[step] == max(grid.values())), (chosen, grid)


def test_both_kinds_of_windows_of_models_with_and_without_them(tamis):
    """Only windows of screening are expanded; other models have the same values for both."""
    text = ONE_RUN.replace("log_every = 1", "log_every = 1\nsave_every = 3\nkeep = 0").replace(
        "multiples = [1, 2]", "lengths = [32, 64]\ncheckpoint_length = 64\nexpand_windows = [true, false]"
    )
    text += (
        '\n[[variants]]\nname = "screening"\nmodel = {model_type = "multiscreen", key_dim = 8, value_dim = 8, mipe_threshold = 16}\n'
    )
    study(tamis, "both", text)
    for variant in ("rope", "window", "screening"):
        scores = rows(tamis, "both", metric="score", variant=variant)
        found = [(row["checkpoint"], row["expand_windows"], row["length"]) for row in scores]
        cells = [(checkpoint, expand, length) for checkpoint in ("newest", "chosen") for expand in (True, False) for length in (32, 64)]
        assert sorted(found) == sorted(cells), (variant, found)
        values = {cell: row["value"] for cell, row in zip(found, scores)}
        if variant != "screening":
            assert all(values[kept, True, length] == values[kept, False, length] for kept, _, length in cells), values


def test_needle_scores_of_heads_and_instances(tamis):
    text = ONE_RUN.replace('kind = "copy"', 'kind = "needle"').replace("length = 32", "length = 160")
    text = text.replace('task = "copy"\nmultiples = [1, 2]', 'task = "needle"\nlengths = [152]\ndepths = [0.1, 0.9]\nneedle_score = true')
    study(tamis, "needles", text.replace("steps = 6", "steps = 2").replace("validate_tokens = 128", "validate_tokens = 160").replace("batch_tokens = 128", "batch_tokens = 160"))
    heads = rows(tamis, "needles", metric="needle_score_head", variant="rope", depth=0.9)
    assert [row["rank"] for row in heads] == [1, 2, 3, 4] and len({(row["layer"], row["head"]) for row in heads}) == 4, heads
    mean = rows(tamis, "needles", metric="needle_score", variant="rope", depth=0.9)[0]["value"]
    assert statistics.mean(row["value"] for row in heads) == pytest.approx(mean)
    (run,) = {path.parents[2] for path in checkpoints(tamis, "needles") if "rope" in path.parts}
    for flags, skips in (((), None), (("--skip-end-of-text",), True)):
        evaluated = tamis("eval", "needle", run, "--lengths", 152, "--instances", 2, "--json", *flags)
        assert json.loads(evaluated.stdout).get("skip_end_of_text") is skips, evaluated
    trials = rows(tamis, "needles", metric="needle_score_trial", variant="rope")
    assert [row["rank"] for row in trials] == list(range(1, 9)), trials
    assert [row["value"] for row in trials] == sorted((row["value"] for row in trials), reverse=True)
    assert all(row["outcome"] in ("right", "first character", "wrong") for row in trials), trials


def test_where_a_query_looks(tamis):
    text = ONE_RUN.replace('kind = "copy"', 'kind = "mqrar"\nkeys = 2\nqueries = 3').replace(
        'task = "copy"\nmultiples = [1, 2]', 'kind = "recall"\ntask = "mqrar"\nlengths = [32]'
    )
    study(tamis, "recall", text + '\n[[figures]]\nid = "map"\nkind = "heatmap"\nmetric = "recall_map"\nx = "key"\ny = "query"\n')
    drawn = xml.etree.ElementTree.parse(directory(tamis, "recall") / "figures/map.svg")
    texts = [each for each in drawn.iter("{http://www.w3.org/2000/svg}g") if each.get("id", "").startswith("text_")]
    assert len(texts) < 3 * 32, "cells of a map of many columns have no numbers, and some ticks no labels"
    for variant in ("rope", "window"):
        (newest,) = rows(tamis, "recall", metric="newest_mass", variant=variant)
        (stale,) = rows(tamis, "recall", metric="stale_mass", variant=variant)
        assert 0 <= newest["value"] and 0 <= stale["value"] and 0 < newest["value"] + stale["value"] < 1, (newest, stale)
        (share,) = rows(tamis, "recall", metric="stale_share", variant=variant)
        assert share["value"] * (newest["value"] + stale["value"]) == pytest.approx(stale["value"]), share
        shares = rows(tamis, "recall", metric="recall_map", variant=variant)
        assert max(row["query"] for row in shares) == 3 and sum(row["value"] for row in shares) == pytest.approx(3), variant


def test_relevance_maps(tamis):
    text = ONE_RUN + '\n[[evaluations]]\nkind = "relevance"\nlengths = [16]\nheads = 2\n'
    study(tamis, "relevance", text + '\n[[figures]]\nid = "map"\nkind = "heatmap"\nmetric = "relevance"\nx = "key"\ny = "query"\npanels = "map"\n')
    for variant in ("rope", "window"):
        found = rows(tamis, "relevance", metric="relevance", variant=variant)
        maps = {row["map"] for row in found}
        assert len(maps) == 2 and len(found) == 2 * 16 * 17 / 2 and all(name.startswith("layer ") for name in maps), maps
        last = [row["value"] for row in found if row["map"] == min(maps) and row["query"] == 16]
        assert sum(last) == pytest.approx(1, abs=1e-5), "attention adds up to one"
    assert (directory(tamis, "relevance") / "figures/map.svg").exists()
    error = study(tamis, "relevance", text.replace("[16]", "[64]"), code=2).stderr
    assert "64 tokens are more than train.length = 32, the length of a validation example" in error, error


def test_multiple_choice_needs_an_interpreter_with_the_harness(tamis):
    text = ONE_RUN + '\n[[evaluations]]\nkind = "lm_eval"\ntasks = ["hellaswag"]\n'
    error = study(tamis, "choice", text, code=1, env=environment(TAMIS_PYTHON="/nowhere/python")).stderr
    assert "/nowhere/python -m tamis.lm_eval: not found; it needs Python with torch and lm_eval: make python" in error, error
    missing = text.replace("tasks =", 'include = "nowhere"\ntasks =')
    assert "nowhere: cannot be read: No such file or directory" in study(tamis, "choice", missing, code=3).stderr


def test_an_untrained_model_is_measured(tamis):
    text = ONE_RUN.replace("[study]", "[study]\ntrain = false") + '\n[[evaluations]]\nkind = "costs"\nlengths = [32, 64]\n'
    study(tamis, "untrained", text)
    states = {(row["variant"], row["length"]): row["value"] for row in rows(tamis, "untrained", metric="state_bytes")}
    assert states["window", 32] == states["window", 64] and states["rope", 64] >= states["rope", 32], states
    assert not checkpoints(tamis, "untrained") and not rows(tamis, "untrained", metric="validation_loss")


# Running again.


def test_nothing_is_trained_again(tamis, whole):
    before = checkpoints(tamis, "whole")
    again = study(tamis, "whole", BASE + CLAIMS + FIGURES)
    assert "now" not in again.stderr and before == checkpoints(tamis, "whole") and before, again.stderr
    assert losses(tamis, "whole") and "The claims were changed" not in again.stdout
    removed = re.compile(r", \d{4}-\d\d-\d\dT[^ ]*Z")
    assert removed.sub("", again.stdout) == removed.sub("", whole.stdout)


def test_another_evaluation_is_measured_without_training(tamis):
    study(tamis, "again", ONE_RUN)
    before, first = checkpoints(tamis, "again"), losses(tamis, "again")
    done = study(tamis, "again", ONE_RUN.replace("multiples = [1, 2]", "multiples = [1, 2, 4]"))
    assert before == checkpoints(tamis, "again") and "now rope/seed-1" in done.stderr, done.stderr
    assert [row["length"] for row in rows(tamis, "again", metric="score", variant="rope")] == [32, 64, 128]
    assert losses(tamis, "again") == first
    refused = study(tamis, "again", ONE_RUN.replace("warmup_steps = 2", "warmup_steps = 3"), code=2)
    expect_refused(refused, 2, "train.warmup_steps was 2, is 3", "choose another study.dir")
    refused = study(tamis, "again", ONE_RUN, "--set", "train.steps=7", code=2)
    expect_refused(refused, 2, "train/steps was 6, is 7")


def test_results_of_another_version_and_damaged_ones_are_measured_again(tamis):
    study(tamis, "version", ONE_RUN)
    before, first = checkpoints(tamis, "version"), losses(tamis, "version")
    for variant, change in (
        ("rope", lambda text: text.replace('"version": "', '"version": "0.0.')),
        ("window", lambda text: text[: len(text) // 2]),
    ):
        file = directory(tamis, "version") / variant / "seed-1/result-version.json"
        content = file.read_text()
        file.write_text(change(content))
        done = study(tamis, "version", ONE_RUN)
        assert f"now {variant}/seed-1" in done.stderr and before == checkpoints(tamis, "version"), done
        assert json.loads(file.read_text())["version"] == json.loads(content)["version"]
        assert losses(tamis, "version") == first


def test_a_changed_claim_is_reported(tamis):
    study(tamis, "claims", FUNCTION)
    note = "The claims were changed on"
    assert note not in study(tamis, "claims", FUNCTION).stdout
    changed = study(tamis, "claims", FUNCTION.replace("at_most = 1", "at_most = 0.5"))
    assert re.search(rf"{note} \S+, when 1 results existed: changed claim-1\.", changed.stdout), changed.stdout
    assert "| does not hold |" in changed.stdout
    added = FUNCTION.replace("norm = [0, 1, 2]", "norm = [0, 1, 2, 3]")  # also measured again, and still noticed
    added += '[[claims]]\nid = "new"\ntext = "t"\nmetric = "tanh_norm"\nat_least = 0\n'
    both = study(tamis, "claims", added).stdout
    assert both.count(note) == 2 and "changed claim-1, added new" in both, both
    history = json.loads((directory(tamis, "claims") / "claims.json").read_text())
    assert [change["what"] for change in history["changes"]] == ["changed claim-1", "changed claim-1, added new"], history
    assert history["changes"][1]["before"]["claim-1"]["at_most"] == 0.5, history
    assert (directory(tamis, "claims") / "report.html").read_text().count(note) == 2
    removed = study(tamis, "claims", FUNCTION).stdout
    assert "removed new" in removed, removed
    (directory(tamis, "claims") / "claims.json").unlink()
    assert "claims.json was missing or damaged" in study(tamis, "claims", FUNCTION).stdout
    assert note in study(tamis, "claims", FUNCTION).stdout, "it stays on the page"


# Warnings and failures.


@pytest.mark.parametrize(("values", "best", "edge", "more"), [
    ([0.0001, 0.0002, 0.01], 0.01, "largest", "larger"), ([0.01, 100.0, 1000.0], 0.01, "smallest", "smaller"),
])  # fmt: skip
def test_a_choice_at_the_edge_of_its_values_is_a_warning(tamis, values, best, edge, more):
    done = study(tamis, edge, BASE.replace("[0.001, 0.01]", str(values)).replace("seeds = [1, 2, 3]", "seeds = [1]"))
    for point in summary(tamis, edge)["points"]:
        assert point["chosen"] == f"train.lr {best} (edge)", point
        warning = f"study: warning: {point['name']}: the best train.lr = {best} is the {edge} of its values; add {more} ones\n"
        assert done.stderr.count(warning) == 1, done.stderr
    note = "(edge): the smallest or the largest of the values that were tried; a better one may lie beyond."
    assert note in done.stdout and note in (directory(tamis, edge) / "report.html").read_text(), done


def test_diverged_runs_stay_in_the_table(tamis):
    grid = BASE.replace("[0.001, 0.01]", "[3e38, 0.01, 0.001]").replace("seeds = [1, 2, 3]", "seeds = [1]")
    study(tamis, "diverged", grid)
    for point in summary(tamis, "diverged")["points"]:
        assert [each["loss"] is None for each in point["search"]] == [True, False, False], point
        assert point["chosen"].startswith(("train.lr 0.01", "train.lr 0.001 (edge)")), point
    assert [row["lr"] for row in rows(tamis, "diverged", metric="search_loss", variant="rope", value=None)] == [3e38]
    none = BASE.replace("[0.001, 0.01]", "[3e38]") + CLAIMS.replace("parameters_without_embedding", "diverged")
    done = study(tamis, "none", none)
    found = summary(tamis, "none")
    assert len(found["failed"]) == 8 and done.stdout.count("all runs of [choose] diverged") == 6, done
    assert len(rows(tamis, "none", metric="diverged", value=1)) == 6
    assert [claim["verdict"] for claim in found["claims"]] == ["holds"] + 3 * ["undecided"], found["claims"]
    again = study(tamis, "none", none)
    assert "now" not in again.stderr and summary(tamis, "none")["failed"] == found["failed"], again
    final = study(tamis, "last", ONE_RUN.replace("[train]", "[train]\nlr = 3e38"))
    assert final.stdout.count("- rope/seed-1: ") == 1 and "1 diverged" in final.stdout, final.stdout


UNEQUAL = (
    ONE_RUN
    + """
[[variants]]
name = "wide"
model = {intermediate_size = 99}

[[variants]]
name = "screening"
model = {model_type = "multiscreen", num_attention_heads = 4, key_dim = 4, value_dim = 9}

[equal]
parameters_without_embedding = 0.02
"""
)


def test_unequal_variants(tamis):
    """A refusal names a value that fits, and that value does fit; match = true chooses the same."""
    by_hand = UNEQUAL
    for variant, key in (("wide", r"intermediate_size = 99"), ("screening", r"value_dim = 9|key_dim = 4|num_attention_heads = 4")):
        refused = tamis("study", recipe(tamis, "unequal", by_hand), "--plan")
        expect_refused(refused, 2, f"but {variant} has", "equal.match = true")
        found = re.search(r"model\.(\w+) = (\d+) comes nearest", refused.stderr)
        assert re.match(key, re.search(rf"{found[1]} = \d+(?=[,}}])", by_hand).group()), refused.stderr
        by_hand = re.sub(rf"({variant}\"\nmodel.*){found[1]} = \d+", rf"\g<1>{found[1]} = {found[2]}", by_hand)
    taken = json.loads(study(tamis, "unequal", by_hand, "--plan", "--json").stdout)
    matched = json.loads(study(tamis, "unequal", UNEQUAL + "match = true\n", "--plan", "--json").stdout)
    assert [point["model"] for point in matched["points"]] == [point["model"] for point in taken["points"]]
    sizes = [point["parameters_without_embedding"] for point in matched["points"]]
    assert max(sizes) <= 1.02 * min(sizes), sizes
    assert matched["points"][0]["matched_by"] is None and "intermediate_size" in matched["points"][2]["matched_by"]
    far = UNEQUAL.replace("intermediate_size = 99", "num_hidden_layers = 40") + "match = true\n"
    refused = study(tamis, "unequal", far, code=2)
    expect_refused(refused, 2, "but wide has", "model.intermediate_size = 1 comes nearest")


def test_refusals(tamis):
    claim = '\n[[claims]]\ntext = "t"\nmetric = "{}"\nat_most = 1\n'
    axis = '\n[[axes]]\nkey = "{}"\nvalues = [1]\n'
    for text, expected in {
        BASE + claim.format("validation_los"): r'refused.toml:\d+: unknown metric "validation_los"; did you mean "validation_loss"',
        BASE + axis.format("train.lrr"): r'refused.toml:\d+: .*"lrr"; did you mean "lr"',
        BASE + axis.format("trian.lr"): r'refused.toml:\d+: .*"trian.lr" is not a key of a training recipe',
        BASE.replace("seeds = [1, 2, 3]", "seeds = []"): r"refused.toml:4: study.seeds is empty; give at least one seed",
        BASE.replace('"w", window', '"q", window'): r"refused.toml:\d+: .*pattern.*\(window\)",
        BASE + "train = {steps = 3}\n": r'refused.toml:\d+: unknown key of .*"train"',
        BASE.replace("window = 8}", "window = 8}\ntrain = {steps = 3}"): r"equal.tokens: rope trains on 768 tokens, but window on 384",
        BASE + '\n[[figures]]\nmetric = "scre"\nx = "length"\n': r'refused.toml:\d+: unknown metric "scre"; did you mean "score"',
        "[study\n": r"refused.toml:1: ",
        "": r"refused.toml:1: expected \[model\] and \[data\], or \[\[evaluations\]\]",
        '[choose]\nvalues = [1]\n[[evaluations]]\nkind = "function"\nname = "trim"\n': r"refused.toml:1: \[choose\] compares runs",
    }.items():
        refused = study(tamis, "refused", text, code=2)
        expect_refused(refused, 2)
        assert re.search(expected, refused.stderr), (expected, refused.stderr)
    for arguments, expected in (
        (("--tier", "gpu"), "there is no [tiers.gpu]"),
        (("--tier", "gpuu"), 'did you mean "gpu"'),
        (("--jobs", 0), "--jobs must be at least 1"),
        (("--set", "study.sedes=[1]"), 'did you mean "seeds"'),
    ):
        expect_refused(study(tamis, "refused", BASE, *arguments, code=2), 2, expected)
    assert not directory(tamis, "refused").exists(), "a refused recipe leaves nothing"
    expect_refused(tamis("study", "missing.toml"), 3, "missing.toml")
    expect_refused(tamis("study", "-", input=FUNCTION), 2, "the recipe has to be a file")


def test_a_larger_tier_changes_the_recipe(tamis):
    text = FUNCTION + "[tiers.gpu]\nevaluations = [{kind = 'function', name = 'tanh_norm', settings = {norm = 5}}]\n"
    done = study(tamis, "tiers", text, "--tier", "gpu")
    assert "tiers.toml --tier gpu" in done.stdout and "--tier gpu" in summary(tamis, "tiers-gpu")["recipe"], done
    assert [row["value"] for row in rows(tamis, "tiers-gpu")] == [math.tanh(5)]
    assert not directory(tamis, "tiers").exists()
