"""`-` for standard input, `--json` and a standard output that cannot be written, of every command on a small run."""

import json
import os
import resource
import shutil
import subprocess

import pytest
from commands import all_commands, help_of, options_of, section
from program import Program, environment, expect_refused, limited

RECIPE = """
[model]
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
key_dim = 4
value_dim = 8

[data.sources.text]
kind = "text"
files = ["text.txt"]

[train]
steps = 2
length = 32
batch_tokens = 64
save_every = 2
validate_tokens = 64
"""

STUDY = """
[choose]
values = [0.01]

[model]
model_type = "transformer"
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2

[data.sources.copy]
kind = "copy"

[train]
steps = 2
length = 32
batch_tokens = 64
validate_tokens = 64

[[variants]]
name = "rope"

[[evaluations]]
task = "copy"
multiples = [1]
instances = 2
"""

TEXT = "It was a small town by the sea. The harbour lay still, and nobody spoke of the storm. " * 20
ODD_BYTES = b"a\0b\xff\xfe and \xc3( then text\n" * 3  # NULs, and bytes that are not UTF-8


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    """The program in a directory with recipes, a text and a trained run."""
    tamis = Program(program, tmp_path_factory.mktemp("tamis"))
    (tamis.directory / "tiny.toml").write_text(RECIPE)
    (tamis.directory / "small.toml").write_text(STUDY)
    (tamis.directory / "text.txt").write_text(TEXT)
    (tamis.directory / "it.json").write_text('{"tokens": [73, 116]}')
    trained = tamis("train", "tiny.toml")
    assert trained.returncode == 0, trained.stderr
    return tamis


def one_document(tamis, *arguments, **options):
    """The one line of JSON that a command prints on standard output, and nothing else."""
    outcome = tamis(*arguments, "--json", **options)
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.count("\n") == 1 and outcome.stdout.endswith("\n"), f"{arguments}: {outcome.stdout[:300]}"
    return json.loads(outcome.stdout)


CALLS = {
    "train": ("train", "tiny.toml"),
    "plan": ("plan", "tiny.toml"),
    "loss": ("eval", "loss", "runs/tiny", "text.txt"),
    "task": ("eval", "copy", "runs/tiny", "--lengths", 16, "--instances", 2, "--vocab", 64),
    "score": ("score", "runs/tiny", "text.txt"),
    "generate": ("generate", "runs/tiny", "--prompt", "It", "--max-new-tokens", 3),
    "inspect": ("inspect", "runs/tiny"),
    "report": ("report", "runs/tiny"),
    "convert": ("convert", "runs/tiny", "converted", "--to", "multiscreen-pytorch"),
    "tokenize": ("tokenize", "byte", "text.txt"),
    "detokenize": ("detokenize", "byte", "it.json"),
    "prepare": ("data", "prepare", "text.txt", "--out", "corpus"),
    "train-tokenizer": ("data", "train-tokenizer", "text.txt", "--vocab", 260, "--out", "tokenizer.json"),
    "data": ("data", "generate", "copy", "--count", 3, "--out", "copy.jsonl"),
    "bench": ("bench", "forward", "--quick"),
    "planned": ("study", "small.toml", "--plan"),
    "study": ("study", "small.toml"),
    "repro": ("repro", "--list"),
}
ALIKE = {("eval",), ("bench",), ("data", "generate")}  # a call of one of their commands stands for all
WITHOUT_JSON = {"completion": ("completion", "bash"), "help": ("help", "eval"), "man": ("man", "pages")}
PRINTS_NOTHING = {"man"}  # it writes files


@pytest.fixture(scope="module")
def calls(tamis):
    """CALLS, without training a tokenizer in a build without cargo."""
    trained = tamis(*CALLS["train-tokenizer"])
    if trained.returncode == 0:
        return CALLS
    expect_refused(trained, 1, "cargo")
    return {name: words for name, words in CALLS.items() if name != "train-tokenizer"}


def test_every_command_takes_json_and_is_called(tamis):
    commands = {path for path in all_commands(tamis) if not section(help_of(tamis, path), "Commands")}
    without_json = {(name,) for name in WITHOUT_JSON}
    assert {path for path in commands if "--json" not in options_of(tamis, path)} == without_json
    called = {path for path in commands if any(words[: len(path)] == path for words in CALLS.values())}
    assert {path for path in commands - called if path[:-1] not in ALIKE} == without_json


def test_every_command_prints_one_document(tamis, calls):
    studies = environment(TAMIS_STUDIES=str(tamis.directory))
    found = {name: one_document(tamis, *words, env=studies) for name, words in calls.items()}
    keys = {
        "train": {"run", "checkpoint", "steps", "tokens", "seconds", "loss", "validation"},
        "loss": {"task", "nats_per_token", "nats_per_byte", "perplexity", "by_position", "file", "checkpoint"},
        "task": {"task", "cells", "by_length", "lengths", "instances", "checkpoint"},
        "score": {"tokens", "logprobs"},
        "generate": {"text", "tokens", "end", "prompt_tokens"},
        "inspect": {"parameters", "parameters_without_embedding", "config", "tiles"},
        "report": {"report", "left_out"},
        "data": {"file", "task", "instances"},
        "bench": {"bench", "rows", "peaks", "machine"},
        "plan": {"parameters", "steps", "tokens", "seconds", "memory_bytes", "disk_bytes"},
        "convert": {"from", "to", "target", "tensors", "parameters", "bytes", "copied", "notes"},
        "tokenize": {"tokens"},
        "prepare": {"corpus", "training", "validation", "records", "files", "bytes", "complete_before"},
        "train-tokenizer": {"file", "vocab_size", "files", "bytes", "left_out", "cut_bytes", "seconds"},
        "planned": {"id", "dir", "tier", "jobs", "points", "flops"},
        "study": {"points", "done", "jobs", "claims", "verdict", "figures", "tables", "failed"},
        "repro": {"studies"},
    }
    for command in found.keys() & keys.keys():
        assert keys[command] <= set(found[command]), f"{command} lacks {keys[command] - set(found[command])}"
    assert found["detokenize"] == {"text": "It"} and found["tokenize"]["tokens"] == list(TEXT.encode()), found
    assert (tamis.directory / found["report"]["report"]).exists(), found["report"]
    assert found["data"] == {"file": "copy.jsonl", "task": "copy", "instances": 3}, found["data"]
    assert found["planned"]["points"][0]["jobs"] == ["rope/lr-0.01", "rope/seed-1"], found["planned"]
    assert found["study"] == json.loads((tamis.directory / "runs/small/study.json").read_text()), "study.json"
    assert [study["id"] for study in found["repro"]["studies"]] == ["small", "tiny"], found["repro"]


def test_instances_are_json_lines_with_and_without_the_option(tamis):
    plain, asked = (tamis("data", "generate", "needle", "--count", 3, *more) for more in ((), ("--json",)))
    assert plain.stdout == asked.stdout and len(plain.stdout.splitlines()) == 3, plain
    for line in plain.stdout.splitlines():
        json.loads(line)


def test_a_dash_reads_what_the_file_holds(tamis):
    """A pipe gives what a file gives, also of bytes that are no text."""
    for name, content in {"plain.txt": TEXT.encode(), "odd.txt": ODD_BYTES}.items():
        (tamis.directory / name).write_bytes(content)
        for command in (("score", "runs/tiny"), ("eval", "loss", "runs/tiny"), ("inspect", "runs/tiny", "--text")):
            file, pipe = (
                tamis(*command, name, "--json"),
                tamis(*command, "-", "--json", input=content.decode(errors="surrogateescape")),
            )
            assert file.returncode == pipe.returncode == 0, f"{command}: {file} {pipe}"
            from_file, from_pipe = json.loads(file.stdout), json.loads(pipe.stdout)
            for found in (from_file, from_pipe):
                for varying in ("file", "seconds"):
                    found.pop(varying, None)
            assert from_file == from_pipe, f"{command} of {name}"
        prompt = tamis(
            "generate",
            "runs/tiny",
            "--prompt",
            "-",
            "--max-new-tokens",
            2,
            "--json",
            input=content.decode(errors="surrogateescape"),
        )
        assert json.loads(prompt.stdout)["prompt_tokens"] == len(content), prompt
    ids = json.dumps([1, 2, 3])
    (tamis.directory / "ids.json").write_text(ids)
    from_pipe, from_file = (
        tamis("score", "runs/tiny", "--ids", "-", input=ids),
        tamis("score", "runs/tiny", "--ids", "ids.json"),
    )
    assert from_pipe.stdout == from_file.stdout and from_file.stdout, "--ids -"
    needle = ("data", "generate", "needle", "--count", 2, "--haystack")
    assert tamis(*needle, "-", input=TEXT).stdout == tamis(*needle, "plain.txt").stdout, "--haystack -"
    report = tamis("report", "runs/tiny", "--text", "-", "--output", "other.html", input="A text.")
    assert report.returncode == 0 and (tamis.directory / "other.html").exists(), report


def test_results_that_cannot_be_written_are_no_success(tamis, calls):
    shutil.rmtree(tamis.directory / "converted", ignore_errors=True)
    printed = {name: words for name, words in {**calls, **WITHOUT_JSON}.items() if name not in PRINTS_NOTHING}
    printed["train"] = (*calls["train"], "--json")  # without the option it prints messages only
    for name in ("generate", "score"):  # their text is printed in pieces, their JSON at once
        printed[f"{name} --json"] = (*calls[name], "--json")
    printed |= {"--help": ("--help",), "--version": ("--version",), "eval --help": ("eval", "--help")}
    printed["instances"] = ("data", "generate", "copy", "--count", 1)
    for words in printed.values():
        with open("/dev/full", "wb") as full:
            failed = tamis(*words, stdout=full, env=environment(TAMIS_STUDIES=str(tamis.directory)))
        errors = [line for line in failed.stderr.splitlines() if line.startswith("tamis: ")]
        assert failed.returncode == 1 and len(errors) == 1, f"{words}: {failed}"
        assert "standard output" in errors[0] and "No space left on device" in errors[0], f"{words}: {errors}"


def test_a_standard_output_that_is_closed_or_that_nobody_reads_is_refused(tamis):
    closed = subprocess.run(["sh", "-c", f"exec {tamis.path} inspect --psi 2 >&-"], capture_output=True, text=True)
    expect_refused(closed, 1, "standard output")
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        expect_refused(tamis("data", "generate", "passkey", "--count", 100000, stdout=nobody), 1, "Broken pipe")


def test_a_recipe_from_standard_input_trains(tamis):
    trained = tamis("train", "-", "--set", "run.dir=runs/piped", "--json", input=RECIPE)
    assert trained.returncode == 0 and json.loads(trained.stdout)["run"] == "runs/piped", trained
    for arguments, text in (
        (("train", "-"), "standard input: run.dir is missing"),
        (("study", "-"), "the recipe has to be a file"),
    ):
        expect_refused(tamis(*arguments, input=RECIPE), 2, text)


def test_a_recipe_from_standard_input_is_planned_and_inspected(tamis):
    """Both write nothing, so the recipe needs no name for a run directory."""
    changes = ("--set", "model.vocab_size=300")
    assert one_document(tamis, "inspect", "-", input=RECIPE) == one_document(tamis, "inspect", "tiny.toml")
    assert one_document(tamis, "inspect", "-", *changes, input=RECIPE)["config"]["vocab_size"] == 300
    file, pipe = one_document(tamis, "plan", "tiny.toml"), one_document(tamis, "plan", "-", input=RECIPE)
    for key in ("parameters", "steps", "tokens", "checkpoint_bytes", "flops_per_token"):
        assert pipe[key] == file[key], key
    wide = one_document(tamis, "plan", "-", *changes, input=RECIPE)
    assert wide["parameters"] == file["parameters"] + (300 - 257) * 16, wide


def test_what_is_said_of_a_file_does_not_land_in_it(tamis):
    generate = ("data", "generate", "copy", "--count", 2)
    plain = tamis(*generate)
    for more in ((), ("--json",)):
        piped = tamis(*generate, "--out", "/dev/stdout", *more)
        assert piped.returncode == 0 and piped.stdout == plain.stdout and "copy" in piped.stderr, piped
    page = tamis("report", "runs/tiny", "--output", "/dev/stdout")
    assert page.returncode == 0 and page.stdout.rstrip().endswith("</html>") and "/dev/stdout" in page.stderr, page


def test_bad_standard_input_is_refused_with_one_line(tamis):
    cases = [
        (("score", "runs/tiny", "-"), "", 3, "standard input: is empty; expected text"),
        (("eval", "loss", "runs/tiny", "-"), "", 3, "standard input: is empty; expected text"),
        (("eval", "loss", "runs/tiny", "-", "-"), "", 2, "standard input, -, is named twice; name it once"),
        (("score", "runs/tiny", "--ids", "-"), "{}", 3, "standard input: expected a list, but it is an object"),
        (("generate", "runs/tiny", "--prompt", "-"), "", 2, "the prompt is empty"),
        (("data", "generate", "needle", "--haystack", "-"), "  \n", 3, "standard input: holds no words"),
        (("inspect", "-"), "[model", 2, "standard input:1: "),
        (("plan", "-"), "[model", 2, "standard input:1: "),
        (("inspect", "-", "--text", "-"), RECIPE, 2, "standard input describes a model that is not trained yet"),
    ]
    for arguments, stdin, code, text in cases:
        expect_refused(tamis(*arguments, input=stdin), code, text)
    directory = os.open(tamis.directory, os.O_RDONLY)
    refused = tamis("score", "runs/tiny", "-", stdin=directory)
    os.close(directory)
    expect_refused(refused, 3, "standard input: cannot be read: Is a directory")


def test_an_infinite_standard_input_is_refused_before_memory_is_full(tamis):
    limit = 6 << 30
    with open("/dev/zero", "rb") as zeros:
        refused = tamis("score", "runs/tiny", "-", stdin=zeros, preexec_fn=limited(resource.RLIMIT_AS, limit))
    expect_refused(refused, 1, "standard input needs")


def test_the_memory_that_inspect_estimates_is_about_what_training_takes(tamis):
    """Compares the growth with the batch, which leaves out the memory of the program itself."""
    (tamis.directory / "memory.toml").write_text(
        RECIPE.replace("hidden_size = 16", "hidden_size = 64")
        .replace("length = 32", "length = 256")
        .replace("validate_tokens = 64", "validate_tokens = 0\nlog_every = 1")
    )
    estimated, resident = [], []
    for tokens in (1024, 16384):
        more = ("--set", f"train.batch_tokens={tokens}", "--set", f"run.dir=runs/memory{tokens}")
        estimated.append(one_document(tamis, "inspect", "memory.toml", *more)["memory"]["total"])
        one_document(tamis, "train", "memory.toml", "--threads", 1, *more)
        log = (tamis.directory / f"runs/memory{tokens}/log.jsonl").read_text().splitlines()
        resident.append(max(json.loads(line).get("memory_bytes", 0) for line in log))
    ratio = (estimated[1] - estimated[0]) / (resident[1] - resident[0])
    assert 0.5 < ratio < 2, f"estimated {estimated}, resident {resident}: {ratio}"
