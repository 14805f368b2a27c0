"""`tamis data generate`: the answers are found again from the prompts alone."""

import json
import math
import os
import re

from program import expect_refused

TEXT = 'Nothing of this is true! "Or is it?" he asked (twice). It was a dark night, caf\u00e9s were closed. ' * 5
NIAH = ("niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multiquery", "niah_multivalue", "niah_single_1",
        "niah_single_2", "niah_single_3")  # fmt: skip
IN_TEXT = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")
TASKS = ("abc_digits", "copy", "mqar", "mqrar", "needle", *NIAH, "passkey", "variable_tracking")


def generate(tamis, *arguments):
    return tamis("data", "generate", *arguments)


def instances(tamis, *arguments):
    outcome = generate(tamis, *arguments)
    assert outcome.returncode == 0 and outcome.stderr == "", f"{arguments}: {outcome.stderr}"
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def arguments_of(task, directory):
    if task not in IN_TEXT:
        return [task]
    path = directory / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return [task, "--haystack", path]


def solve(task, prompt):
    """The answers, by regular expressions of this test's own."""
    if task == "abc_digits":
        return re.findall(rf"^{prompt[-2]}=(\d+)$", prompt, re.MULTILINE)
    if task == "passkey":
        return re.findall(r"^The pass key is (\d{5})\. Remember it\. \1 is the pass key\.$", prompt, re.MULTILINE)
    if task == "needle":
        city = re.search(r"\nWhat is the special magic (\w+) number\? The special magic \1 number is:$", prompt)[1]
        return re.findall(rf"The special magic {city} number is: (\d{{7}})\.", prompt)
    if task == "variable_tracking":
        problem = prompt[prompt.rindex("Memorize and track") :]
        values = {re.search(r"assigned the value (\d{5}) in", problem)[1]}
        for name, source in re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?([A-Z]{5}|\d{5})", problem):
            values |= {name} if source in values else set()
        return [value for value in values if value.isalpha()]
    keys = re.search(r" for (\S+|\S+, \S+, \S+, and \S+) mentioned in the provided text\?", prompt)[1]
    return [
        value
        for key in keys.replace("and ", "").split(", ")
        for value in re.findall(rf"One of the special magic (?:numbers|uuids) for {key} is: ([0-9a-f-]+)\.", prompt)
    ]


def expect_text(task, instance):
    prompt = instance["prompt"].encode()
    assert len(prompt) == instance["prompt_tokens"] <= instance["length"]
    assert sorted(solve(task, instance["prompt"])) == sorted(instance["answers"]), instance
    for answer, (begin, end) in zip(instance["answers"], instance["answer_spans"], strict=True):
        assert answer in prompt[begin:end].decode() and end - begin <= len(answer) + 2, instance


def expect_tokens(task, instance):
    ids, positions, answers = instance["ids"], instance["answer_positions"], instance["answers"]
    assert len(ids) == instance["prompt_tokens"] <= instance["length"]
    if task == "copy":
        middle = ids.index(0)
        assert answers == ids[:middle] and positions == list(range(middle, 2 * middle))
        assert ids[middle + 1 :] == answers[:-1]
        return
    first_value = instance["settings"]["vocab"] // 2
    pairs = (positions[0] - 1) // 2 if task == "mqrar" else instance["settings"]["pairs"]
    latest = {ids[2 * i]: ids[2 * i + 1] for i in range(pairs)}
    assert all(key < first_value <= value for key, value in latest.items())
    asked = [t for t in range(2 * pairs, len(ids)) if ids[t] in latest]
    assert asked == positions and [latest[ids[t]] for t in asked] == answers, instance


def test_every_task_gives_instances_with_one_answer(tamis, tmp_path):
    for task in TASKS:
        got = instances(tamis, *arguments_of(task, tmp_path), "--count", 20, "--seed", 3)
        assert [instance["index"] for instance in got] == list(range(20))
        assert all(instance["task"] == task and instance["seed"] == 3 for instance in got)
        for instance in got:
            (expect_text if "prompt" in instance else expect_tokens)(task, instance)


def test_the_list_of_tasks_is_whole(tamis):
    listed = generate(tamis, "--help").stdout.split("Commands:")[1].split("Options:")[0]
    assert re.findall(r"^  (\w+)", listed, re.MULTILINE) == list(TASKS), listed


def test_options_reach_the_instances(tamis, tmp_path):
    for depth in (0, 0.25, 1):
        for task in ("passkey", "needle", "abc_digits"):
            (instance,) = instances(tamis, task, "--length", 4000, "--depth", depth, "--count", 1)
            assert instance["depth"] == depth and 3980 < instance["prompt_tokens"] <= 4000
            assert abs(instance["answer_spans"][0][0] / 4000 - depth) < 0.1, instance["answer_spans"]
    (mqar,) = instances(tamis, "mqar", "--pairs", 3, "--vocab", 32, "--length", 20, "--count", 1)
    assert mqar["settings"] == {"pairs": 3, "vocab": 32} and len(mqar["ids"]) == 20 and len(mqar["answers"]) == 3
    text = arguments_of("niah_single_2", tmp_path)[1:]
    (needle,) = instances(tamis, "needle", *text, "--length", 3000, "--count", 1)
    assert "caf\u00e9s were closed." in needle["prompt"] and "grass" not in needle["prompt"]


MQAR = """
[model]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2

[data.sources.recall]
kind = "mqar"

[train]
steps = 3
length = 64
batch_size = 2
precision = "float32"
warmup_steps = 1
log_every = 1
validate_tokens = 128
"""


def test_mqar_trains_with_its_default_vocabulary(tamis, tmp_path):
    (tmp_path / "recipe.toml").write_text(MQAR)
    tamis.out("train", tmp_path / "recipe.toml", "--set", f"run.dir={tmp_path}/run")
    assert json.loads((tmp_path / "run/checkpoints/step-3/config.json").read_text())["vocab_size"] == 8192
    first = next(map(json.loads, (tmp_path / "run/log.jsonl").read_text().splitlines()))
    assert first["type"] == "train" and abs(first["loss"] - math.log(8192)) < 1, first
    (generated,) = instances(tamis, "mqar", "--count", 1)
    assert generated["settings"]["vocab"] == 8192 and max(generated["ids"]) > 257, generated
    evaluated = json.loads(tamis.out("eval", "mqar", tmp_path / "run", "--lengths", 64, "--instances", 2, "--json"))
    assert evaluated["settings"]["vocab"] == 8192, evaluated


def test_the_same_seed_writes_the_same_file(tamis, tmp_path):
    out = tmp_path / "passkey.jsonl"
    out.write_text("old")
    outcome = generate(tamis, "passkey", "--count", 5, "--out", out)
    assert outcome.returncode == 0 and outcome.stdout == f"{out}: 5 instances of passkey\n", outcome
    assert out.read_text() == generate(tamis, "passkey", "--count", 5).stdout
    assert out.read_text() != generate(tamis, "passkey", "--count", 5, "--seed", 1).stdout
    assert os.listdir(tmp_path) == ["passkey.jsonl"]


def test_a_wrong_request_is_one_line(tamis, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    out = tmp_path / "none/a.jsonl"
    expect_refused(
        generate(tamis, *["niah_singel_1"]), 2, 'unknown task "niah_singel_1"; did you mean "niah_single_1"?'
    )
    expect_refused(
        generate(tamis, *["passkey", "--length", 100]),
        2,
        "passkey: a length of 100 tokens is too short; the least is 247",
    )
    expect_refused(generate(tamis, *["needle", "--depth", "2"]), 2, "needle: depth must be in 0..1, but is 2")
    expect_refused(generate(tamis, *["mqrar", "--keys", "0"]), 2, "mqrar: keys must be in 1..")
    expect_refused(
        generate(tamis, *["niah_multivalue"]), 2, "(RULER uses Paul Graham's essays); give a text file with --haystack FILE"
    )
    expect_refused(
        generate(tamis, *["niah_multivalue", "--haystack", f"{tmp_path}/no"]), 3, f"{tmp_path}/no: cannot open"
    )
    expect_refused(generate(tamis, *["needle", "--haystack", tmp_path]), 3, "expected a file, but it is a directory")
    expect_refused(generate(tamis, *["needle", "--haystack", empty]), 3, "holds no words")
    expect_refused(generate(tamis, *["copy", "--out", out]), 30, "cannot write")
    expect_refused(generate(tamis, *["copy", "--length", 1 << 50]), 1, "use a smaller length")
    assert os.listdir(tmp_path) == ["empty.txt"]


def test_help_has_an_example(tamis):
    for arguments in ([], *([task] for task in TASKS)):
        outcome = generate(tamis, *arguments, "--help")
        assert outcome.returncode == 0 and re.search(r"Examples?:\n  tamis data generate", outcome.stdout), (
            outcome.stdout
        )
