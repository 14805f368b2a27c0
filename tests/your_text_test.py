"""The commands of docs/your_text.md, in their order, on real books and with few steps."""

import json
import os
import pathlib
import shlex
import shutil

import pytest
from program import expect_refused

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMANDS = ("data train-tokenizer", "data prepare", "plan", "train", "report", "generate")
FEW_STEPS = {"train.steps": 6, "train.warmup_steps": 2, "train.log_every": 1, "train.validate_tokens": 4096}


def commands():
    """The words of each command of the page's first block, without the program's name."""
    block = (ROOT / "docs/your_text.md").read_text().split("```")[1]
    words = [shlex.split(line, comments=True) for line in block.strip().splitlines()]
    assert all(line[0] == "tamis" for line in words), words
    return [line[1:] for line in words]


@pytest.fixture(scope="module")
def books(tamis):
    data = os.environ.get("TAMIS_TEST_DATA")
    if data is None:
        pytest.skip("TAMIS_TEST_DATA is not set: no real text to read")
    (tamis.directory / "probe.txt").write_text("probe")
    probe = tamis("data", "train-tokenizer", "probe.txt", "--vocab", "300", "--out", "probe.json")
    if probe.returncode == 1:
        expect_refused(probe, 1, "apt-get install cargo-web")
        pytest.skip("this build has no cargo")
    return pathlib.Path(data) / "books"


def test_the_page_leads_from_a_folder_to_a_report(tamis, books):
    shutil.copytree(ROOT / "recipes", tamis.directory / "recipes")
    shutil.copytree(books, tamis.directory / "FOLDER")
    few = [f"--set={key}={value}" for key, value in FEW_STEPS.items()]
    printed = {}
    for command, words in zip(COMMANDS, commands(), strict=True):
        assert " ".join(words).startswith(command), words
        printed[command] = tamis.out(*words, *(few if command in ("plan", "train") else ()))
    corpus = json.loads((tamis.directory / "corpus/manifest.json").read_text())
    assert corpus["tokenizer"]["vocab_size"] == 4096, corpus
    log = [json.loads(line) for line in (tamis.directory / "runs/text/log.jsonl").read_text().splitlines()]
    losses = {kind: [each["loss"] for each in log if each["type"] == kind] for kind in ("train", "validation")}
    assert len(losses["train"]) == 6 and len(losses["validation"]) == 1, losses
    assert losses["train"] == sorted(losses["train"], reverse=True), losses
    assert losses["validation"][0] == pytest.approx(losses["train"][-1], abs=1), losses
    assert any(each["type"] == "sample" for each in log)
    parameters = json.loads((tamis.directory / "runs/text/run.json").read_text())["parameters"]
    assert f" {parameters} (" in printed["plan"] and 3.45e6 < parameters < 3.55e6, printed["plan"]
    assert printed["report"].strip() == "runs/text/report.html", printed["report"]
    assert "<script" in (tamis.directory / "runs/text/report.html").read_text()
    assert printed["generate"].strip(), "an empty sample"
    # The page's first note: another text, far beyond the training length.
    measured = json.loads(tamis.out("eval", "loss", "runs/text", "FOLDER/972.txt", "--window", 8192, "--json"))
    assert measured["nats_per_token"] == pytest.approx(losses["validation"][0], abs=1), measured
