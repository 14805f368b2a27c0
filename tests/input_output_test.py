"""`-` for standard input and `--json` of every command, on a small run."""

import json
import os
import resource

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
WITHOUT_JSON = {("completion",), ("help",), ("man",)}


def test_every_command_takes_json_and_is_called(tamis):
    commands = {path for path in all_commands(tamis) if not section(help_of(tamis, path), "Commands")}
    assert {path for path in commands if "--json" not in options_of(tamis, path)} == WITHOUT_JSON
    called = {path for path in commands if any(words[: len(path)] == path for words in CALLS.values())}
    assert {path for path in commands - called if path[:-1] not in ALIKE} == WITHOUT_JSON


def test_every_command_prints_one_document(tamis):
    (tamis.directory / "it.json").write_text('{"tokens": [73, 116]}')
    calls = dict(CALLS)
    trained = tamis(*calls["train-tokenizer"])
    if trained.returncode:
        expect_refused(trained, 1, "cargo")  # a build without it
        del calls["train-tokenizer"]
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


def test_a_recipe_from_standard_input_trains(tamis):
    trained = tamis("train", "-", "--set", "run.dir=runs/piped", "--json", input=RECIPE)
    assert trained.returncode == 0 and json.loads(trained.stdout)["run"] == "runs/piped", trained
    for arguments, text in (
        (("train", "-"), "standard input: run.dir is missing"),
        (("study", "-"), "the recipe has to be a file"),
    ):
        expect_refused(tamis(*arguments, input=RECIPE), 2, text)


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
