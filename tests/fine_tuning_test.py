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


def test_a_run_that_counts_epochs_has_a_recipe_that_continues_it(tamis):
    few = ("--set", "train.epochs=1", "--set", "run.dir=few", "--set", "train.schedule=constant")
    summary = json.loads(tamis.out("train", "run.toml", *few, "--json"))
    assert json.loads(tamis.out("train", "few/config.toml", "--json"))["steps"] == summary["steps"]


@pytest.fixture(scope="module")
def subwords(tamis):
    """A run with a BPE tokenizer."""
    (tamis.directory / "words.txt").write_text("red apples and yellow bananas, green pears and blue plums\n" * 40)
    trained = tamis("data", "train-tokenizer", "words.txt", "--vocab", 270, "--out", "words.json")
    if trained.returncode == 1:
        expect_refused(trained, 1, "apt-get install cargo-web")
        pytest.skip("this build has no cargo")
    text = RECIPE.replace('"prompts"', '"text"').replace("pairs.jsonl", "words.txt").replace("epochs = 40", "steps = 2")
    (tamis.directory / "subwords.toml").write_text(text)
    tamis.out("train", "subwords.toml", "--set", "run.dir=subwords", "--set", "data.tokenizer=words.json")
    return tamis.directory / "subwords"


def tokenizer_of(run):
    [checkpoint] = (run / "checkpoints").iterdir()
    return json.loads((checkpoint / "tokenizer.json").read_text())


def start_from(run, name, *changes):
    settings = (f"train.start_from={run.name}", f"run.dir={name}", "train.epochs=1", *changes)
    return ("train", "run.toml", *(part for change in settings for part in ("--set", change)))


def test_a_run_has_the_tokenizer_of_the_one_it_starts_from(tamis, subwords):
    command = start_from(subwords, "tuned", "train.schedule=constant")
    assert "warning: data.tokenizer" not in tamis(*command).stderr
    tuned = tamis.directory / "tuned"
    assert tokenizer_of(tuned) == tokenizer_of(subwords)
    assert 'tokenizer = "subwords"' in (tuned / "config.toml").read_text()
    assert json.loads(tamis.out(*command, "--json"))["steps"] > 0, "it resumes"
    bytes_run = tamis.directory / "learns"
    tamis.out(*start_from(bytes_run, "bytes"))
    assert 'tokenizer = "byte"' in (tamis.directory / "bytes/config.toml").read_text()


def test_another_tokenizer_than_that_of_the_start_is_a_decision(tamis, subwords):
    tamis.out("data", "prepare", "words.txt", "--out", "corpus", "--tokenizer", "byte")
    corpus = RECIPE.replace('"prompts"', '"corpus"').replace('files = "pairs.jsonl"', 'path = "corpus"')
    (tamis.directory / "corpus.toml").write_text(corpus)
    settings = ("train.start_from=subwords", "run.dir=other", "model.vocab_size=270")
    start = ("train", "corpus.toml", *(part for change in settings for part in ("--set", change)))
    texts = ('tokenizer of the corpus, "corpus/tokenizer.json"', 'train.start_from = "subwords"')
    expect_refused(tamis(*start), 2, *texts)
    named = tamis(*start, "--set", "data.tokenizer=byte", "--set", "train.epochs=1")
    assert named.returncode == 0, named
    assert 'warning: data.tokenizer = "byte" is not the tokenizer of subwords' in named.stderr, named


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (["data.sources.pairs.files=none.jsonl"], 3, "none.jsonl"),
        (["data.sources.pairs.prompt={question}"], 3, 'pairs.jsonl:1: expected an object with a text at "question"'),
        (["data.sources.pairs.prompt={question"], 2, "expected a text with fields"),
        (["train.length=3"], 3, "none of its 32 pairs of prompt and answer fits"),
        (['data.sources.pairs.kind="text"'], 2, "train.epochs needs one source with epochs"),
        (["train.steps=3"], 2, "train.steps = 3 and train.epochs = 40, which are 80 steps of these data, disagree"),
    ],
)
def test_bad_recipes_are_refused(tamis, changes, code, text):
    arguments = [part for change in changes for part in ("--set", change)]
    expect_refused(tamis("train", "run.toml", "--set", "run.dir=bad", *arguments), code, text)
