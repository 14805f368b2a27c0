"""Supervised fine-tuning and runs that start from another one, with the real program."""

import json

import pytest
from program import Program, expect_refused

RECIPE = """
[model]
hidden_size = 48
num_hidden_layers = 2
num_attention_heads = 4

[data.sources.pairs]
kind = "prompts"
files = "pairs.jsonl"
validation_fraction = 0.2

[train]
epochs = 40
length = 48
batch_size = 4
lr = 0.03
warmup_steps = 10
schedule = "cosine"
validate_tokens = 480
log_every = 1
"""
ANSWERS = {"red": "apple", "yellow": "banana", "green": "pear", "blue": "plum"}


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    tamis = Program(program, tmp_path_factory.mktemp("fine_tuning"))
    lines = [json.dumps({"prompt": f"{colour}?", "answer": fruit}) for colour, fruit in ANSWERS.items()] * 10
    (tamis.directory / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    (tamis.directory / "run.toml").write_text(RECIPE)
    return tamis


def records(tamis, run, kind):
    lines = (tamis.directory / run / "log.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["type"] == kind]


def test_a_model_learns_the_answers(tamis):
    summary = json.loads(tamis.out("train", "run.toml", "--set", "run.dir=learns", "--json"))
    # 32 pairs of 9 to 14 tokens, packed in their order into sequences of 48.
    packed, used = 1, 0
    for colour, fruit in list(ANSWERS.items()) * 8:
        tokens = len(colour) + 1 + len(fruit)
        packed, used = (packed, used + tokens) if used + tokens <= 48 else (packed + 1, tokens)
    assert summary["steps"] == -(-40 * packed // 4)
    assert summary["validation"]["pairs"] < 0.1
    for colour, fruit in ANSWERS.items():
        made = json.loads(tamis.out("generate", "learns", "--prompt", f"{colour}?", "--temperature", "0", "--json"))
        assert made["text"].startswith(fruit) and made["end"] == "end_of_text", made


def test_a_run_continues_another_with_its_optimizer_and_its_place_in_the_data(tamis):
    constant = ("--set", 'train.schedule="constant"', "--set", "train.epochs=0")
    whole = ("train", "run.toml", *constant, "--set", "run.dir=whole", "--set", "train.steps=20")
    first = ("train", "run.toml", *constant, "--set", "run.dir=first", "--set", "train.steps=10")
    tamis.out(*whole)
    tamis.out(*first)
    second = ("--set", "run.dir=second", "--set", "train.steps=20", "--set", "train.start_from=first")
    tamis.out("train", "run.toml", *constant, *second, "--set", 'train.start_state="all"')
    weights = "checkpoints/step-20/model.safetensors"
    assert (tamis.directory / "second" / weights).read_bytes() == (tamis.directory / "whole" / weights).read_bytes()
    third = ("--set", "run.dir=third", "--set", "train.steps=20", "--set", "train.start_from=first")
    tamis.out("train", "run.toml", *constant, *third)
    assert records(tamis, "third", "train")[0]["step"] == 1, "a new schedule"
    assert (tamis.directory / "third" / weights).read_bytes() != (tamis.directory / "whole" / weights).read_bytes()
    other_batch = tamis("train", "run.toml", *constant, *second, "--set", 'train.start_state="all"',
                        "--set", "run.dir=fourth", "--set", "train.batch_size=2")
    assert other_batch.returncode == 2 and "train.batch_size must be 4 as there" in other_batch.stderr, other_batch


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (["data.sources.pairs.files=none.jsonl"], 3, "none.jsonl"),
        (["data.sources.pairs.prompt={question}"], 3, 'pairs.jsonl:1: expected an object with a text at "question"'),
        (["data.sources.pairs.prompt={question"], 2, "expected a text with fields"),
        (["train.length=3"], 3, "none of its 32 pairs of prompt and answer fits"),
        (['data.sources.pairs.kind="text"'], 2, "train.epochs needs one source with epochs"),
    ],
)
def test_bad_recipes_are_refused(tamis, changes, code, text):
    arguments = [part for change in changes for part in ("--set", change)]
    expect_refused(tamis("train", "run.toml", "--set", "run.dir=bad", *arguments), code, text)
