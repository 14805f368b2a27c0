"""`tamis repro`: the list of studies, running one by its id, and the book of results."""

import json
import pathlib
import re

import pytest
from program import Program, environment, expect_refused, small_disk
from studies import FUNCTION

ROOT = pathlib.Path(__file__).resolve().parent.parent


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
    return lambda *arguments, **options: run("repro", *arguments, env=environment(TAMIS_STUDIES=str(studies)), **options)


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
    (tmp_path / "work/runs/a-norm/study.json").write_text('{"time": "2030", "verdict": "holds"}')
    assert listed()[0] == ("a-norm", "cpu", None), "of a file with other keys nothing is known"


def test_the_shipped_studies_are_listed(tamis):
    studies = tamis("repro", "--list", "--json", env=environment(TAMIS_STUDIES=str(ROOT / "recipes/studies")))
    found = json.loads(studies.stdout)["studies"]
    assert {"id", "title", "tier", "seconds", "verdict"} <= set(found[0]), found
    ids = {each["id"] for each in found}
    assert ids == {path.stem for path in (ROOT / "recipes/studies").glob("*.toml")}
    assert all(each["title"] and each["seconds"] for each in found if each["tier"] == "cpu"), found


def test_repro_runs_a_study_and_knows_no_other(shelf, tmp_path):
    done = shelf("a-norm")
    assert done.returncode == 0 and "Command: tamis repro a-norm" in done.stdout, done
    assert (tmp_path / "work/runs/a-norm/report.html").exists()
    expect_refused(shelf("a-nrm"), 2, 'unknown study "a-nrm"; did you mean "a-norm"')
    expect_refused(shelf(), 2, "expected the id of a study, --list or --book DIR")
    expect_refused(shelf("a-norm", "--list"), 2, "expected the id of a study")
    expect_refused(shelf("b-trim", "--tier", "gpu"), 2, "there is no [tiers.gpu]")


def test_without_studies(tamis):
    expect_refused(
        tamis("repro", "--list", env=environment(TAMIS_STUDIES=str(tamis.directory / "nowhere"))), 2, "nowhere"
    )


def test_book(shelf, tmp_path):
    book = tmp_path / "work/book"
    done = shelf("--book", "book")
    assert done.stdout == "book: 0 studies written\n" and (book / "README.md").exists(), done
    assert shelf("a-norm").returncode == shelf("b-trim").returncode == 0
    (book / "other.md").write_text("kept")
    done = shelf("--book", "book")
    assert done.stdout == "book: 2 studies written\n", done
    index = (book / "README.md").read_text()
    assert "| [a-norm](a-norm.md) | The norm stays below one |" in index and "| holds |" in index, index
    assert "| [b-trim](b-trim.md) | b-trim | | no claim |" in index, index
    assert "tanh_norm" in (book / "a-norm/results.csv").read_text() and (book / "other.md").read_text() == "kept"
    assert "Command: tamis repro a-norm" in (book / "a-norm.md").read_text()


def test_a_full_disk_under_a_book(shelf, tmp_path):
    assert shelf("b-trim").returncode == 0
    with small_disk(tmp_path / "work/book", "8k"):
        expect_refused(shelf("--book", "book"), 30, "No space left on device")
