#!/usr/bin/env python3
"""`-` for standard input and `--json` of every command, on a small run: input_output_test.py PROGRAM"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

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

SHOOTOUT = """
[shootout]
lr = [0.01]

[evaluation]
multiples = [1]
instances = 2

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

[[mixers]]
name = "rope"
"""

TEXT = "It was a small town by the sea. The harbour lay still, and nobody spoke of the storm. " * 20
ODD_BYTES = b"a\0b\xff\xfe and \xc3( then text\n" * 3  # NULs, and bytes that are not UTF-8

program = ""
work = pathlib.Path()


def tamis(*arguments, stdin=b""):
    return subprocess.run([program, *map(str, arguments)], input=stdin, capture_output=True, cwd=work, timeout=600)


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def one_document(*arguments):
    """The one line of JSON that a command prints on standard output, nothing else beside it."""
    outcome = tamis(*arguments, "--json")
    expect(outcome.returncode == 0, outcome)
    expect(outcome.stdout.count(b"\n") == 1 and outcome.stdout.endswith(b"\n"), f"{arguments}: {outcome.stdout[:300]}")
    return json.loads(outcome.stdout)


def test_every_command_has_json():
    found = {
        "train": one_document("train", "tiny.toml"),
        "loss": one_document("eval", "loss", "runs/tiny", "text.txt"),
        "task": one_document("eval", "copy", "runs/tiny", "--lengths", 16, "--instances", 2, "--vocab", 64),
        "score": one_document("score", "runs/tiny", "text.txt"),
        "generate": one_document("generate", "runs/tiny", "--prompt", "It", "--max-new-tokens", 3),
        "inspect": one_document("inspect", "runs/tiny"),
        "report": one_document("report", "runs/tiny"),
        "data": one_document("data", "generate", "copy", "--count", 3, "--out", "copy.jsonl"),
        "bench": one_document("bench", "forward", "--quick"),
        "plan": one_document("shootout", "shootout.toml", "--plan"),
        "shootout": one_document("shootout", "shootout.toml"),
    }
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
        "plan": {"dir", "jobs", "mixers", "tokens", "search_tokens"},
        "shootout": {"mixers", "done", "jobs", "lr_grid"},
    }
    for command, wanted in keys.items():
        expect(wanted <= set(found[command]), f"{command} lacks {wanted - set(found[command])}")
    expect((work / found["report"]["report"]).exists(), found["report"])
    expect(found["data"] == {"file": "copy.jsonl", "task": "copy", "instances": 3}, found["data"])
    expect(found["plan"]["mixers"][0]["jobs"] == ["rope/lr-0.01", "rope/seed-1"], found["plan"])
    expect(found["shootout"] == json.loads((work / "runs/shootout/shootout.json").read_text()), "shootout.json")


def test_instances_are_json_lines_with_and_without_the_option():
    plain, asked = (tamis("data", "generate", "needle", "--count", 3, *more) for more in ((), ("--json",)))
    expect(plain.stdout == asked.stdout and len(plain.stdout.splitlines()) == 3, plain)
    for line in plain.stdout.splitlines():
        json.loads(line)


def test_a_dash_reads_what_the_file_holds():
    """A pipe gives what a file gives, of bytes that are no text too."""
    for name, content in {"plain.txt": TEXT.encode(), "odd.txt": ODD_BYTES}.items():
        (work / name).write_bytes(content)
        for command in (("score", "runs/tiny"), ("eval", "loss", "runs/tiny"), ("inspect", "runs/tiny", "--text")):
            file, pipe = tamis(*command, name, "--json"), tamis(*command, "-", "--json", stdin=content)
            expect(file.returncode == pipe.returncode == 0, f"{command}: {file} {pipe}")
            from_file, from_pipe = json.loads(file.stdout), json.loads(pipe.stdout)
            for found in (from_file, from_pipe):
                for varying in ("file", "seconds"):
                    found.pop(varying, None)
            expect(from_file == from_pipe, f"{command} of {name}")
        prompt = tamis("generate", "runs/tiny", "--prompt", "-", "--max-new-tokens", 2, "--json", stdin=content)
        expect(json.loads(prompt.stdout)["prompt_tokens"] == len(content), prompt)
    ids = json.dumps([1, 2, 3]).encode()
    (work / "ids.json").write_bytes(ids)
    expect(tamis("score", "runs/tiny", "--ids", "-", stdin=ids).stdout
           == tamis("score", "runs/tiny", "--ids", "ids.json").stdout, "--ids -")
    needle = ("data", "generate", "needle", "--count", 2, "--haystack")
    expect(tamis(*needle, "-", stdin=TEXT.encode()).stdout == tamis(*needle, "plain.txt").stdout, "--haystack -")
    report = tamis("report", "runs/tiny", "--text", "-", "--output", "other.html", stdin=b"A text.")
    expect(report.returncode == 0 and (work / "other.html").exists(), report)


def test_a_recipe_from_standard_input_trains():
    recipe = RECIPE.encode()
    trained = tamis("train", "-", "--set", "run.dir=runs/piped", "--json", stdin=recipe)
    expect(trained.returncode == 0 and json.loads(trained.stdout)["run"] == "runs/piped", trained)
    for arguments, text in ((("train", "-"), "standard input: run.dir is missing"),
                            (("shootout", "-"), "the recipe has to be a file")):
        refused = tamis(*arguments, stdin=recipe)
        expect(refused.returncode == 2 and text in refused.stderr.decode() and refused.stderr.count(b"\n") == 1, refused)


def test_what_is_said_of_a_file_does_not_land_in_it():
    generate = ("data", "generate", "copy", "--count", 2)
    plain = tamis(*generate)
    for more in ((), ("--json",)):
        piped = tamis(*generate, "--out", "/dev/stdout", *more)
        expect(piped.returncode == 0 and piped.stdout == plain.stdout and b"copy" in piped.stderr, piped)
    page = tamis("report", "runs/tiny", "--output", "/dev/stdout")
    expect(page.returncode == 0 and page.stdout.rstrip().endswith(b"</html>") and b"/dev/stdout" in page.stderr, page)


def test_bad_standard_input_is_refused_with_one_line():
    cases = [
        (("score", "runs/tiny", "-"), b"", 3, "standard input: is empty; expected text"),
        (("eval", "loss", "runs/tiny", "-"), b"", 3, "standard input: is empty; expected text"),
        (("score", "runs/tiny", "--ids", "-"), b"{}", 3, "standard input: expected a list, but it is an object"),
        (("generate", "runs/tiny", "--prompt", "-"), b"", 2, "the prompt is empty"),
        (("data", "generate", "needle", "--haystack", "-"), b"  \n", 3, "standard input: holds no words"),
    ]
    for arguments, stdin, code, text in cases:
        refused = tamis(*arguments, stdin=stdin)
        expect(refused.returncode == code and text in refused.stderr.decode(), f"{arguments}: {refused}")
        expect(refused.stderr.count(b"\n") == 1 and not refused.stdout, refused)
    directory = os.open(work, os.O_RDONLY)
    refused = subprocess.run([program, "score", "runs/tiny", "-"], stdin=directory, capture_output=True, cwd=work)
    os.close(directory)
    expect(refused.returncode == 3 and b"standard input: cannot be read: Is a directory" in refused.stderr, refused)


def test_an_endless_standard_input_does_not_eat_the_memory():
    limit = 6 << 30
    with open("/dev/zero", "rb") as zeros:
        refused = subprocess.run(["bash", "-c", f'ulimit -v {limit >> 10}; exec "$0" score runs/tiny -', program],
                                 stdin=zeros, capture_output=True, cwd=work, timeout=600)
    expect(refused.returncode == 1 and b"standard input needs" in refused.stderr, refused)
    expect(refused.stderr.count(b"\n") == 1, refused)


def test_the_memory_that_inspect_promises_is_about_what_training_takes():
    """The growth with the batch, as the program itself takes memory too."""
    (work / "memory.toml").write_text(RECIPE.replace("hidden_size = 16", "hidden_size = 64").replace(
        "length = 32", "length = 256").replace("validate_tokens = 64", "validate_tokens = 0\nlog_every = 1"))
    estimated, resident = [], []
    for tokens in (1024, 16384):
        more = ("--set", f"train.batch_tokens={tokens}", "--set", f"run.dir=runs/memory{tokens}")
        estimated.append(one_document("inspect", "memory.toml", *more)["memory"]["total"])
        one_document("train", "memory.toml", "--threads", 1, *more)
        log = (work / f"runs/memory{tokens}/log.jsonl").read_text().splitlines()
        resident.append(max(json.loads(line).get("memory_bytes", 0) for line in log))
    ratio = (estimated[1] - estimated[0]) / (resident[1] - resident[0])
    expect(0.5 < ratio < 2, f"estimated {estimated}, resident {resident}: {ratio}")


def main():
    global program, work
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    program = os.path.abspath(sys.argv[1])
    work = pathlib.Path(tempfile.mkdtemp(prefix="tamis-input-output-"))
    (work / "tiny.toml").write_text(RECIPE)
    (work / "shootout.toml").write_text(SHOOTOUT)
    (work / "text.txt").write_text(TEXT)
    failed = 0
    try:
        for name, test in list(globals().items()):
            if not name.startswith("test_"):
                continue
            try:
                test()
                print(f"ok      {name}", flush=True)
            except Exception as error:  # noqa: BLE001: one failure must not end the other tests
                failed += 1
                print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
