"""`tamis repro`: the list of studies, running one by its id, and the book of results."""

import json
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys

import pytest
from program import Program, environment, expect_refused, finished, limited, small_disk, wait_until
from studies import BASE, FUNCTION, ONE_RUN, last_line

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPES = sorted((ROOT / "recipes/studies").glob("*.toml"))
WITH_PAPER_TIER = [path for path in RECIPES if re.search(r"^\[+tiers\.paper\b", path.read_text(), re.MULTILINE)]
assert WITH_PAPER_TIER, "no recipe has a paper tier"


@pytest.fixture
def shelf(tmp_path, program):
    """Runs the program in an empty directory, with two studies."""
    studies = tmp_path / "studies"
    studies.mkdir()
    (studies / "a-norm.toml").write_text(FUNCTION + "[tiers.gpu.study]\nseconds = 60\n")
    (studies / "b-trim.toml").write_text('[[evaluations]]\nkind = "function"\nname = "trim"\n')
    work = tmp_path / "work"
    work.mkdir()
    run = Program(program, work)
    return lambda *arguments, studies=studies, python=sys.executable, **options: run(
        "repro", *arguments, env=environment(TAMIS_STUDIES=str(studies), TAMIS_PYTHON=str(python)), **options
    )


def test_list_of_studies(shelf, tmp_path):
    def listed():
        done = shelf("--list", "--json")
        assert done.returncode == 0 and done.stdout.count("\n") == 1, done
        return [(each["id"], each["tier"], each["verdict"]) for each in json.loads(done.stdout)["studies"]]

    assert listed() == [("a-norm", "cpu", None), ("a-norm", "gpu", None), ("b-trim", "cpu", None)]
    assert shelf("a-norm").returncode == 0
    assert listed()[0] == ("a-norm", "cpu", "holds")
    table = shelf("--list").stdout
    assert re.search(r"^a-norm +cpu +\S+ +holds +A function$", table, re.MULTILINE), table
    assert re.search(r"^The tier cpu takes \S+s on two cores, ", table, re.MULTILINE), table
    (tmp_path / "work/runs/a-norm/study.json").write_text('{"time": "2030", "verdict": "holds"}')
    assert listed()[0] == ("a-norm", "cpu", None), "of a file with other keys nothing is known"


def test_the_shipped_studies_are_listed(shelf):
    found = json.loads(shelf("--list", "--json", studies=ROOT / "recipes/studies").stdout)["studies"]
    assert {"id", "title", "tier", "seconds", "verdict"} <= set(found[0]), found
    ids = {each["id"] for each in found}
    assert ids == {path.stem for path in (ROOT / "recipes/studies").glob("*.toml")}
    assert all(each["title"] and each["seconds"] for each in found if each["tier"] == "cpu"), found


def test_the_shipped_results_take_20_minutes_each_and_8_hours_together(shelf, tmp_path):
    (tmp_path / "work/docs").symlink_to(ROOT / "docs")  # and no runs/ beside it
    found = json.loads(shelf("--list", "--json", studies=ROOT / "recipes/studies").stdout)["studies"]
    seconds = {each["id"]: each["seconds"] for each in found if each["tier"] == "cpu" and each["recipe_changed"] is not None}
    assert seconds and max(seconds.values()) <= 20 * 60 and sum(seconds.values()) <= 8 * 3600, seconds


@pytest.mark.parametrize("path", WITH_PAPER_TIER, ids=lambda path: path.stem)
def test_the_sizes_of_the_papers_are_planned(tamis, path):
    # Models of up to 7 billion parameters, without their weights.
    planned = tamis(
        *("repro", path.stem, "--tier", "paper", "--plan", "--threads", 1),
        env=environment(TAMIS_STUDIES=str(path.parent)),
        preexec_fn=limited(resource.RLIMIT_DATA, 1 << 30),
    )
    assert planned.returncode == 0 and f"runs/{path.stem}-paper: " in planned.stdout, planned


def test_repro_runs_a_study_and_knows_no_other(shelf, tmp_path):
    done = shelf("a-norm")
    assert done.returncode == 0 and "Command: tamis repro a-norm\n" in done.stdout, done
    assert (tmp_path / "work/runs/a-norm/report.html").exists()
    expect_refused(shelf("a-nrm"), 2, 'unknown study "a-nrm"; did you mean "a-norm"')
    expect_refused(shelf(), 2, "expected the id of a study, --list, --check or --book DIR")
    expect_refused(shelf("a-norm", "--list"), 2, "expected the id of a study")
    expect_refused(shelf("b-trim", "--tier", "gpu"), 2, "there is no [tiers.gpu]")


def test_without_studies(shelf):
    expect_refused(shelf("--list", studies="nowhere"), 2, "nowhere")


def test_book(shelf, tmp_path):
    book = tmp_path / "work/book"
    done = shelf("--book", "book")
    assert done.stdout == "book: 0 studies written\n" and (book / "README.md").exists(), done
    assert shelf("a-norm").returncode == shelf("b-trim").returncode == 0
    (book / "other.md").write_text("kept")
    (book / "a-norm").mkdir()
    (book / "a-norm/gone.svg").write_text("of a figure that the study had before")
    done = shelf("--book", "book")
    assert done.stdout == "book: 2 studies written\n", done
    index = (book / "README.md").read_text()
    assert "| [a-norm](a-norm.md) | The norm stays below one |  | 0.5752 | holds |" in index, index
    assert "| [b-trim](b-trim.md) | b-trim | | | no claim |" in index, index
    assert "| undecided | time on two cores |" in index and "once in the last row" in index, index
    assert "\n| none | 2 | 1 | 0 | 0 | " in index and "\n| All papers | 2 | 1 | 0 | 0 | " in index, index
    assert "tanh_norm" in (book / "a-norm/results.csv").read_text() and (book / "other.md").read_text() == "kept"
    assert "Command: tamis repro a-norm\n" in (book / "a-norm.md").read_text() and not (book / "a-norm/gone.svg").exists()


def rewrite(path, *changes):
    text = path.read_text()
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    path.write_text(text)


def test_a_page_of_new_runs_keeps_the_changes_of_claims(shelf, tmp_path):
    page, recipe = tmp_path / "work/book/a-norm.md", tmp_path / "studies/a-norm.toml"

    def changes_after_new_runs():
        shutil.rmtree(tmp_path / "work/runs", ignore_errors=True)
        assert shelf("a-norm").returncode == 0 and shelf("--book", "book").returncode == 0
        text = page.read_text()
        assert shelf("--book", "book").returncode == 0 and page.read_text() == text, "nothing is noted twice"
        return re.findall(r"The claims were changed on .*, when 1 results existed: (.*)\.", text)

    index = tmp_path / "work/book/README.md"
    assert changes_after_new_runs() == [] and "holds |" in index.read_text()
    rewrite(recipe, ("at_most = 1", "at_most = 0.5"))
    assert changes_after_new_runs() == ["changed claim-1"]
    assert "does not hold † |" in index.read_text(), "the claim is marked in the table of all verdicts"
    assert changes_after_new_runs() == ["changed claim-1"], "as before"


def test_a_page_without_runs_follows_what_its_recipe_shows(shelf, tmp_path):
    assert shelf("a-norm").returncode == 0 and shelf("--book", "book").returncode == 0
    shutil.rmtree(tmp_path / "work/runs")
    page, recipe = tmp_path / "work/book/a-norm.md", tmp_path / "studies/a-norm.toml"
    first = page.read_text()
    (tmp_path / "work/book/a-norm.md").unlink()
    assert shelf("--book", "book").stdout == "book: 1 studies written\n"
    assert page.read_text() == first, "the stored results give the same page"
    rewrite(recipe, ("at_most = 1", "at_most = 0.5"), ("stays below one", "stays below a half"))
    with open(recipe, "a") as file:
        file.write('[[tables]]\nmetric = "tanh_norm"\nrows = "norm"\nchance = 0.25\n')
        file.write('[[figures]]\nid = "curve"\nmetric = "tanh_norm"\nx = "norm"\nchance = 0.25\n')
    assert shelf("--book", "book").returncode == 0
    text = page.read_text()
    assert re.search(r"^\| The norm stays below a half \|.*\| does not hold \|$", text, re.MULTILINE), text
    assert re.search(r"The claims were changed on .*, when 1 results existed: changed claim-1\.", text), text
    assert "| chance | 0.250 |" in text and "](a-norm/curve.svg)" in text, text
    assert ">chance 0.25</text>" in (tmp_path / "work/book/a-norm/curve.svg").read_text()
    assert not (tmp_path / "work/book/a-norm/curve.pdf").exists()
    index = (tmp_path / "work/book/README.md").read_text()
    assert "below a half" in index and "recipe changed since" not in index, index
    assert shelf("--book", "book").returncode == 0
    assert page.read_text() == text, "nothing is noted twice"


def test_results_of_a_recipe_that_measured_something_else_are_marked(shelf, tmp_path):
    assert shelf("a-norm").returncode == 0 and shelf("--book", "book").returncode == 0
    page, recipe = tmp_path / "work/book/a-norm.md", tmp_path / "studies/a-norm.toml"
    before = page.read_text()

    def changed():
        return json.loads(shelf("--list", "--json").stdout)["studies"][0]["recipe_changed"]

    assert changed() is False
    rewrite(recipe, ("norm = [0, 1, 2]", "norm = [0, 1, 3]"), ("stays below one", "stays small"))
    assert changed() is True
    assert "recipe changed since" in shelf("--list").stdout
    shutil.rmtree(tmp_path / "work/runs")
    assert shelf("--book", "book").returncode == 0
    assert page.read_text() == before, "claims are not judged by results of other measurements"
    assert ", recipe changed since |" in (tmp_path / "work/book/README.md").read_text()


CURVE = '[[figures]]\nid = "curve"\nmetric = "tanh_norm"\nx = "norm"\n'


def test_figures_wait_for_matplotlib(shelf, tmp_path):
    page, recipe = tmp_path / "work/book/a-norm.md", tmp_path / "studies/a-norm.toml"
    svg = tmp_path / "work/book/a-norm/curve.svg"
    with open(recipe, "a") as file:
        file.write(CURVE)
    assert shelf("a-norm", python="/bin/false").returncode == 0 and shelf("--book", "book", python="/bin/false").returncode == 0
    shutil.rmtree(tmp_path / "work/runs")
    assert not svg.exists() and "curve.svg" not in page.read_text()
    assert shelf("--book", "book").returncode == 0
    assert svg.exists() and "](a-norm/curve.svg)" in page.read_text(), "a missing figure of an unchanged recipe is drawn"
    rewrite(recipe, ('id = "curve"', 'id = "curve"\ntitle = "Now with a title"'))
    with open(recipe, "a") as file:
        file.write(CURVE.replace("curve", "second"))
    before = svg.read_text()
    for _ in range(2):
        done = shelf("--book", "book", python="/bin/false")
        assert done.returncode == 0 and "study: no figures" in done.stderr, done
        assert svg.read_text() == before and "![Tanh norm by norm](a-norm/curve.svg)" in page.read_text(), "as it was drawn"
        assert "second.svg" not in page.read_text()
    assert shelf("--book", "book").returncode == 0
    assert "Now with a title" in svg.read_text() and "![Now with a title](a-norm/curve.svg)" in page.read_text()
    assert "](a-norm/second.svg)" in page.read_text()


def test_a_curve_that_was_not_kept_has_to_be_measured_again(shelf, tmp_path):
    recipe, book = tmp_path / "studies/c-run.toml", tmp_path / "work/docs/results"
    named = '[[figures]]\nmetric = "training_loss"\nx = "gradient_norm"\n[[tables]]\nmetric = "validation_loss"\n'
    recipe.write_text(ONE_RUN + named)
    assert shelf("c-run", "--threads", 1).returncode == 0 and shelf("--book", "docs/results").returncode == 0
    assert "\nvalidation_curve," in (tmp_path / "work/runs/c-run/results.csv").read_text()
    shutil.rmtree(tmp_path / "work/runs")
    kept = (book / "c-run/results.csv").read_text()
    assert "gradient_norm," in kept and "validation_curve," not in kept, kept

    def changed(text):
        recipe.write_text(ONE_RUN + named + text)
        listed = json.loads(shelf("--list", "--json").stdout)["studies"]
        assert shelf("--book", "docs/results").returncode == 0
        result = next(each["recipe_changed"] for each in listed if each["id"] == "c-run")
        assert result == (", recipe changed since |" in (book / "README.md").read_text())
        return result

    first = (book / "c-run.md").read_text()
    curve = 'metric = "validation_curve"\n'
    for addition in ("[[tables]]\n" + curve, "[[figures]]\n" + curve + 'x = "step"\n',
                     '[[claims]]\ntext = "t"\nat_most = 1\n' + curve,
                     '[[figures]]\nmetric = "training_loss"\nx = "validation_curve"\n'):
        assert changed(addition), addition
        assert (book / "c-run.md").read_text() == first, "nothing is judged by results that are missing"
    assert not changed('[[tables]]\nmetric = "parameters"\n[[figures]]\nmetric = "training_loss"\nx = "tokens"\n')
    assert "### Table 2" in (book / "c-run.md").read_text()


@pytest.mark.parametrize("damage, is_known", [('"[study"', True), ('"tiers = 3"', True), ("7", False), ("null", False)])
def test_a_damaged_recipe_in_a_result_stops_neither_the_list_nor_the_book(shelf, tmp_path, damage, is_known):
    book = tmp_path / "work/docs/results"
    assert shelf("a-norm").returncode == 0 and shelf("--book", "docs/results").returncode == 0
    for file in (tmp_path / "work/runs/a-norm/study.json", book / "a-norm/study.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "recipe": json.loads(damage)}))
    for _ in range(2):  # with the run and without it
        listed = shelf("--list", "--json")
        assert listed.returncode == 0, listed
        assert json.loads(listed.stdout)["studies"][0]["recipe_changed"] is (True if is_known else None)
        done = shelf("--book", "docs/results")
        assert done.returncode == 0, done
        assert (", recipe changed since |" in (book / "README.md").read_text()) == is_known
        shutil.rmtree(tmp_path / "work/runs", ignore_errors=True)


def test_settings_stay_in_the_recipe_of_a_page_once(shelf, tmp_path):
    recipe = tmp_path / "studies/a-norm.toml"
    text = recipe.read_text() + "# --set study.seconds=5 would be a comment\n# --set study.seconds=6 too"
    recipe.write_text(text)
    assert shelf("a-norm", "--set", "study.seconds=2", "--tier", "gpu").returncode == 0
    assert shelf("--book", "book").returncode == 0
    shutil.rmtree(tmp_path / "work/runs")
    for _ in range(3):
        stored = json.loads((tmp_path / "work/book/a-norm-gpu/study.json").read_text())["recipe"]
        lines = stored.removeprefix(text + "\n").splitlines()
        assert sorted(lines) == ["# --set study.seconds=2", "# --tier gpu"], stored
        assert shelf("--book", "book").returncode == 0


CHOSEN = BASE.replace("seeds = [1, 2, 3]", "seeds = [2, 3]")


@pytest.fixture
def checked(shelf, tmp_path):
    """The shelf with a third study, which trains; the book has it and a-norm. A function that checks them."""
    (tmp_path / "studies/c-run.toml").write_text(CHOSEN)
    for name in ("a-norm", "c-run"):
        assert shelf(name, "--threads", 1).returncode == 0
    assert shelf("--book", "docs/results").returncode == 0
    shutil.rmtree(tmp_path / "work/runs")

    def check(*arguments):
        done = shelf("--check", *arguments, "--json", "--threads", 1)
        assert not (tmp_path / "work/runs").exists(), "nothing is left behind"
        return done, {each["id"]: each for each in json.loads(done.stdout)["studies"]}

    return check


def stored(tmp_path, name="c-run"):
    return tmp_path / "work/docs/results" / name


def test_check_reproduces_what_is_stored(checked, shelf, tmp_path):
    done, studies = checked()
    assert done.returncode == 0, done
    assert studies["a-norm"]["same"] is True and studies["a-norm"]["run"] == "all/functions", studies
    assert studies["c-run"]["same"] is True and re.fullmatch(r"(rope|window)/seed-2", studies["c-run"]["run"]), studies
    assert studies["b-trim"]["same"] is None and studies["b-trim"]["reason"] == "has no result", studies
    page = stored(tmp_path).with_suffix(".md")
    assert "A repetition" not in page.read_text()
    assert shelf("--book", "docs/results").returncode == 0
    assert "/seed-2 agrees with the stored values. " in page.read_text()
    assert "\nCommand: tamis repro c-run --jobs 2\n" in page.read_text(), "its runs had one thread each"
    assert re.search(r"^c-run +\S+/seed-2 +same$", shelf("--check", "c-run").stdout, re.MULTILINE)


def test_check_of_another_tier(shelf, tmp_path):
    assert shelf("a-norm", "--tier", "gpu", "--threads", 1).returncode == 0
    assert shelf("--book", "docs/results").returncode == 0
    shutil.rmtree(tmp_path / "work/runs")
    done = shelf("--check", "--tier", "gpu", "--json", "--threads", 1)
    (found,) = json.loads(done.stdout)["studies"]  # the only one that has run in this tier
    assert found["id"] == "a-norm" and found["same"] is True, found
    assert "check" in json.loads((stored(tmp_path, "a-norm-gpu") / "study.json").read_text())
    expect_refused(shelf("--check", "b-trim", "--tier", "gpu"), 3, "b-trim: has no result")


def test_check_finds_results_that_this_version_does_not_reproduce(checked, shelf, tmp_path):
    results = stored(tmp_path) / "results.csv"
    results.write_text(re.sub(r"^(validation_loss),[^,]+,", r"\1,9.5,", results.read_text(), flags=re.MULTILINE))
    done, studies = checked("c-run")
    assert done.returncode == 1 and done.stderr.endswith(
        "tamis: repro: this version does not reproduce the stored results of c-run; remove what is left of its runs under "
        "runs/, and run it again\n"
    ), done
    assert len(studies) == 1 and studies["c-run"]["same"] is False, studies
    assert re.fullmatch(r"validation_loss [\d.]+, was 9\.5", studies["c-run"]["differences"][0]), studies
    assert shelf("--book", "docs/results").returncode == 0
    assert "/seed-2 differs: validation_loss " in stored(tmp_path).with_suffix(".md").read_text()
    assert re.search(r"\| \w+(-dirty)?; a repetition with \S+ differs \|", (stored(tmp_path).parent / "README.md").read_text())


def test_what_check_cannot_compare(checked, shelf, tmp_path):
    for arguments, text in (
        (("c-rum",), 'unknown study "c-rum"'),
        (("--list",), "expected the id of a study"),
        (("--plan",), "--check takes no --set, --plan or --jobs"),
        (("--tier", "gpo"), "gpo"),
    ):
        expect_refused(shelf("--check", *arguments), 2, text)
    summary = json.loads((stored(tmp_path) / "study.json").read_text())

    def refused(text, **changes):
        (stored(tmp_path) / "study.json").write_text(json.dumps({**summary, **changes}))
        done, studies = checked()
        assert done.returncode == 0 and studies["a-norm"]["same"] is True, done
        assert studies["c-run"]["same"] is None and text in studies["c-run"]["reason"], studies
        done = shelf("--check", "c-run", "--threads", 1)
        assert done.returncode == 3 and "tamis: c-run: " in done.stderr and text in done.stderr, done

    refused("has not run to its end", done=3)
    refused("the recipe has changed since", recipe=summary["recipe"].replace("steps = 6", "steps = 7"))
    refused("was run with --set train.lr=1", recipe=summary["recipe"] + "\n# --set train.lr=1\n")
    for points in ([], [7, {}], [{"name": "rope"}, {"name": "window"}]):
        refused("", points=points)
    (stored(tmp_path) / "results.csv").write_text("metric,value,seed,variant\n")
    refused("results.csv has no values of one with the seed 2")
    (stored(tmp_path) / "results.csv").unlink()
    refused("results.csv")


@pytest.mark.parametrize("noted", [7, {"same": 1}, {"same": True}, {"same": False, "differences": 3, "machine": []}])
def test_a_damaged_check_does_not_stop_the_book(shelf, tmp_path, noted):
    assert shelf("a-norm").returncode == 0
    file = tmp_path / "work/runs/a-norm/study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "check": noted}))
    done = shelf("--book", "book")
    assert done.returncode == 0, done


@pytest.mark.parametrize("claims", [[7], [{}], [{"value": [], "interval_95": []}], [{"interval_95": [1]}]])
def test_a_damaged_claim_does_not_stop_the_book(shelf, tmp_path, claims):
    assert shelf("a-norm").returncode == 0 and shelf("--book", "book").returncode == 0
    shutil.rmtree(tmp_path / "work/runs")
    (tmp_path / "studies/a-norm.toml").unlink()  # so that its claims are not judged again
    file = tmp_path / "work/book/a-norm/study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "claims": claims}))
    done = shelf("--book", "book")
    assert done.returncode == 0 and "[a-norm](a-norm.md)" in (tmp_path / "work/book/README.md").read_text(), done


def test_a_study_whose_runs_are_done_stays_as_it_was_made(shelf, tmp_path):
    assert shelf("a-norm").returncode == 0
    file = tmp_path / "work/runs/a-norm/study.json"
    check = {"run": "all/functions", "same": False, "differences": ["x 1, was 2"], "commit": "1", "time": "now"}
    before = {**json.loads(file.read_text()), "commit": "0123456789ab", "check": check}
    file.write_text(json.dumps(before))
    done = shelf("a-norm")
    assert done.returncode == 0 and "(0123456789ab)" in done.stdout and "x 1, was 2" in done.stdout, done
    assert json.loads(file.read_text())["time"] == before["time"]


def test_check_repeats_a_model_with_what_claims_judge_and_starts_none_from_others(shelf, tmp_path):
    recipe = ONE_RUN.replace("seeds = [1]", "seeds = [2]")
    recipe += '[equal]\ntokens = false\n[[variants]]\nname = "late"\nstart_from = {variant = "rope"}\n'
    recipe += '[[evaluations]]\ntask = "copy"\nlengths = [64]\ninstances = 2\nwhere = {variant = ["window", "late"]}\n'
    recipe = recipe.replace("multiples = [1, 2]\ninstances = 4\n", 'multiples = [1]\ninstances = 4\nwhere = {variant = "late"}\n')
    recipe += '[[claims]]\nid = "c"\ntext = "Windows score"\nmetric = "score"\nof = {variant = "window"}\nat_least = 0\n'
    (tmp_path / "studies/e-late.toml").write_text(recipe)
    assert shelf("e-late", "--threads", 1).returncode == 0
    scratch = tmp_path / "work/runs/.check/study-old"
    scratch.mkdir(parents=True)  # as of a process that was killed
    done = shelf("--check", "e-late", "--json", "--threads", 1)
    assert done.returncode == 0, done
    (entry,) = json.loads(done.stdout)["studies"]
    assert entry["run"] == "window/seed-2" and entry["same"] is True, entry
    assert not scratch.exists()


def test_a_study_that_cannot_run_here_does_not_stop_the_check(checked, tmp_path, shelf):
    evaluation = f'[[evaluations]]\nkind = "lm_eval"\ntasks = ["own"]\ninclude = "{tmp_path}/tasks"\n'
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/own.yaml").write_text("task: own\n")
    (tmp_path / "studies/c-run.toml").write_text(CHOSEN + evaluation)
    study = json.loads((stored(tmp_path) / "study.json").read_text())
    (stored(tmp_path) / "study.json").write_text(json.dumps({**study, "recipe": CHOSEN + evaluation}))
    done = shelf("--check", "--json", "--threads", 1, python="/bin/false")
    found = {each["id"]: each for each in json.loads(done.stdout)["studies"]}
    assert done.returncode == 0 and found["a-norm"]["same"] is True and found["c-run"]["same"] is None, done


@pytest.mark.parametrize("which", [("c-run",), ()])
def test_a_check_that_is_stopped_leaves_nothing(checked, program, tmp_path, which):
    recipe = tmp_path / "studies/c-run.toml"
    study = stored(tmp_path) / "study.json"
    for path in (recipe, study):  # as if it had been long
        path.write_text(path.read_text().replace("steps = 6", "steps = 5000"))
    before, scratch = study.read_text(), tmp_path / "work/runs/.check"
    run = Program(program, tmp_path / "work")
    options = {"env": environment(TAMIS_STUDIES=str(tmp_path / "studies"))}
    process = run.start("repro", "--check", *which, "--threads", 1, **options)
    wait_until(lambda: any(log.stat().st_size for log in scratch.rglob("log.jsonl")), process, "step in the log")
    expect_refused(run("repro", "--check", "a-norm", **options), 1, "runs/.check: in use by another process")
    process.send_signal(signal.SIGINT)
    stopped = finished(process)
    assert stopped.returncode == 130 and stopped.stderr.endswith("repro: the check was stopped by SIGINT\n"), stopped
    assert not scratch.exists() and study.read_text() == before


def test_check_notices_other_texts(shelf, tmp_path):
    words, heldout, hay = (tmp_path / "work" / name for name in ("words.txt", "heldout.txt", "hay.txt"))
    source = '[data.sources.text]\nkind = "text"\nfiles = ["words.txt"]\nvalidation_fraction = 0.2\n'
    recipe = re.sub(r"\[\[evaluations\]\].*", "", ONE_RUN, flags=re.DOTALL)
    recipe = recipe.replace('[data.sources.copy]\nkind = "copy"\n', source)
    recipe = recipe.replace("seeds = [1]", 'seeds = [1]\nprepare = "make words"')
    recipe += '[[evaluations]]\nkind = "loss"\nfile = "heldout.txt"\nlengths = [32]\n'
    recipe += '[[evaluations]]\ntask = "needle"\nhaystack = "hay.txt"\nlengths = [500]\ninstances = 1\n'
    (tmp_path / "studies/d-text.toml").write_text(recipe)
    text = "to be or not to be that is the question " * 200
    for file in (words, heldout, hay):
        file.write_text(text)
    assert shelf("d-text", "--threads", 1).returncode == 0
    assert shelf("--check", "d-text", "--threads", 1).returncode == 0
    evaluated = "a text of [[evaluations]]"
    for file, what in ((words, "the text of data.sources.text"), (heldout, evaluated), (hay, evaluated)):
        file.write_text("whether tis nobler in the mind to suffer " * 200)
        refused = shelf("--check", "d-text", "--threads", 1)
        assert refused.returncode == 3 and f"{what} has changed since; make it with: make words\n" in refused.stderr
        file.write_text(text)


def test_a_full_disk_under_a_check(checked, shelf, tmp_path):
    with small_disk(tmp_path / "work/runs", "24k"):
        done = shelf("--check", "c-run", "--threads", 1)
        assert done.returncode == 30 and "No space left on device" in last_line(done.stderr), done


def test_books_are_joined_from_given_texts(tmp_path):
    script = ROOT / "scripts/books.sh"
    for name, text in (("a", "first\n"), ("b", "second\n"), ("c", "x" * 40000)):
        (tmp_path / f"{name}.txt").write_text(text)

    def books(*arguments):
        return subprocess.run([script, *arguments], cwd=tmp_path, capture_output=True, text=True)

    assert books(tmp_path).returncode == 0
    assert (tmp_path / "books.txt").read_text() == "first\nsecond\n"
    assert (tmp_path / "heldout.txt").read_text() == "x" * 32768
    pieces = sorted((tmp_path / "heldout").iterdir())
    assert [piece.read_text() for piece in pieces] == ["x" * 9000] * 4 + ["x" * 4000]
    for made in ("books.txt", "heldout.txt", "heldout"):
        again = books("c.txt", "a.txt")
        assert again.returncode == 2 and again.stderr == f"books.sh: {made} exists; remove it first\n", again
        (tmp_path / made).unlink() if made != "heldout" else shutil.rmtree(tmp_path / made)
    (tmp_path / "c.txt").write_text("a line of words\n" * 2000)
    assert books("b.txt", "a.txt", "c.txt").returncode == 0
    assert (tmp_path / "books.txt").read_text() == "second\nfirst\n"
    assert all(piece.read_text().endswith("words\n") for piece in (tmp_path / "heldout").iterdir())
    for arguments in ((), ("a.txt",), ("a.txt", "nowhere.txt")):
        refused = books(*arguments)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused


def test_a_study_without_its_texts_names_the_command(tamis):
    refused = tamis("repro", "000-fig6", env=environment(TAMIS_STUDIES=str(ROOT / "recipes/studies")))
    expect_refused(refused, 3, "books.txt: cannot open", "scripts/books.sh FOLDER/{13272,14263,16215,972,16595}.txt")


def test_a_full_disk_under_a_book(shelf, tmp_path):
    assert shelf("b-trim").returncode == 0
    with small_disk(tmp_path / "work/book", "8k"):
        expect_refused(shelf("--book", "book"), 30, "No space left on device")
