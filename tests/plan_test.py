"""`tamis plan`: what it says of parameters, memory and disk is what a run then takes."""

import json
import pathlib
import re
import subprocess

import pytest
from program import expect_refused

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPE = """
[model]
model_type = "{model}"
hidden_size = 128
num_hidden_layers = 4
num_attention_heads = 4

[data.sources.digits]
kind = "abc_digits"

[train]
steps = 12
length = 256
batch_tokens = {tokens}
accumulation = {accumulation}
precision = "float32"
lr = 0.001
warmup_steps = 2
log_every = 1
save_every = 4
keep = 2
validate_tokens = 2048
"""


def plan(tamis, *arguments, **options):
    return json.loads(tamis.out("plan", *arguments, "--json", **options))


def peak_of_training(tamis, *arguments) -> int:
    """Peak resident bytes of `tamis train`, by GNU time's way: the usage of the child that was waited for last."""
    # A process of its own, because a child inherits the peak of the process that forks it, here of pytest.
    script = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)\n"
    )
    command = ["python3", "-c", script, tamis.path, "train", *arguments]
    done = subprocess.run(command, cwd=tamis.directory, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done
    return int(done.stdout)


def bytes_below(directory) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("model", "tokens", "accumulation"), [("multiscreen", 8192, 1), ("multiscreen", 16384, 4), ("transformer", 8192, 2)]
)
def test_a_plan_is_what_the_run_takes(tamis, run, model, tokens, accumulation):
    (tamis.directory / "recipe.toml").write_text(RECIPE.format(model=model, tokens=tokens, accumulation=accumulation))
    planned = plan(tamis, "recipe.toml", anew=True)
    peak = peak_of_training(tamis, "recipe.toml", "--set", f"run.dir={run}")
    assert planned["measured"] is True and planned["steps"] == 12 and planned["tokens"] == 12 * tokens, planned
    assert planned["parameters"] == json.loads((run / "run.json").read_text())["parameters"], planned
    assert planned["memory_bytes"] == pytest.approx(peak, rel=0.1), f"planned {planned}, peak {peak}"
    assert planned["disk_bytes"] == pytest.approx(bytes_below(run), rel=0.1), planned
    assert planned["checkpoints"] == len(list((run / "checkpoints").iterdir())) == 2, planned
    assert planned["checkpoint_bytes"] == pytest.approx(bytes_below(run / "checkpoints") / 2, rel=0.05), planned
    assert 0 < planned["seconds_in_steps"] <= planned["seconds"] and planned["flops_per_token"] > 0, planned


def test_models_too_large_for_the_machine_are_estimated_from_sizes(tamis):
    """Two thousand layers: nothing of this size is allocated."""
    (tamis.directory / "recipe.toml").write_text(RECIPE.format(model="transformer", tokens=256, accumulation=1))
    wide = ("--set", "model.hidden_size=1024", "--set", "model.num_hidden_layers=2000")
    planned = plan(tamis, "recipe.toml", *wide)
    assert planned["measured"] is False and planned["memory_bytes"] > planned["available_memory_bytes"], planned
    assert planned["memory_bytes"] > 16 * planned["parameters"] and planned["seconds"] > 1, planned
    assert planned["disk_bytes"] > 2 * 12 * planned["parameters"], planned
    # Twice as many layers: twice as many FLOPs, but for the vocabulary head.
    twice = plan(tamis, "recipe.toml", *wide, "--set", "model.num_hidden_layers=4000")
    assert twice["flops_per_token"] == pytest.approx(2 * planned["flops_per_token"], rel=1e-3), (planned, twice)


@pytest.mark.parametrize(
    ("recipe", "settings", "parameters"),
    [
        ("psi16", (), 27_546_626),
        ("transformer", (), 44_609_024),
        ("ssmax", (), 162_148_608 + 144),  # s of 12 layers of 12 heads
        ("ssmax", ("model.ssmax=none",), 162_148_608),
        ("ssmax", ("model.ssmax=bias",), 162_148_608 + 288),
    ],
)
def test_the_published_models_need_neither_texts_nor_tokenizer(tamis, recipe, settings, parameters):
    """Their sizes are those of the papers; with a batch that no memory holds nothing is measured."""
    large = ("train.batch_tokens=1073741824", "train.accumulation=1")
    tokenizer = ("data.tokenizer=nowhere/tokenizer.json", "model.vocab_size=50257")
    changes = [f"--set={setting}" for setting in (*large, *tokenizer, *settings)]
    planned = plan(tamis, ROOT / f"recipes/{recipe}.toml", *changes)
    assert planned["parameters"] == parameters and not planned["measured"], planned


def test_a_corpus_that_is_not_opened_is_taken_to_be_validated(tamis):
    settings = ("train.batch_tokens=1073741824", "model.vocab_size=4096", "data.tokenizer=nowhere/tokenizer.json")
    corpus = ("data.sources.text.path=nowhere", "data.sources.text.validation_fraction=0")
    planned = plan(tamis, ROOT / "recipes/text.toml", *(f"--set={setting}" for setting in (*settings, *corpus)))
    assert not planned["measured"] and planned["seconds"] > planned["seconds_in_steps"], planned


def test_a_missing_corpus_is_said_in_one_line(tamis):
    settings = ("--set=train.batch_tokens=1073741824", "--set=data.sources.text.path=nowhere")
    for command in ("plan", "inspect"):
        assumed = tamis(command, ROOT / "recipes/text.toml", *settings, "--json")
        assert assumed.returncode == 0 and assumed.stderr.count("\n") == 1, assumed
        assert 'data.sources.text: "nowhere" does not exist, so the byte tokenizer' in assumed.stderr, assumed
    given = tamis("plan", ROOT / "recipes/text.toml", *settings, "--set=model.vocab_size=4096", "--json")
    assert given.returncode == 0 and not given.stderr, given
    counted = json.loads(tamis.out("inspect", ROOT / "recipes/text.toml", "--set=model.vocab_size=4096", "--json"))
    assert counted["parameters"] == json.loads(given.stdout)["parameters"], counted


def test_the_table_says_the_same(tamis):
    (tamis.directory / "recipe.toml").write_text(RECIPE.format(model="multiscreen", tokens=512, accumulation=1))
    done = tamis("plan", "recipe.toml")
    assert done.returncode == 0, done
    rows = dict(re.findall(r"^(\w+)  +(.+)$", done.stdout, re.MULTILINE))
    assert list(rows) == ["model", "parameters", "training", "speed", "time", "memory", "disk"], done.stdout
    assert rows["model"] == "multiscreen" and "measured on random tokens" in rows["speed"], rows
    assert not (tamis.directory / "runs").exists(), "a plan writes nothing"


def test_a_wrong_recipe_is_one_line(tamis):
    (tamis.directory / "recipe.toml").write_text(RECIPE.format(model="multiscren", tokens=512, accumulation=1))
    expect_refused(tamis("plan", "recipe.toml"), 2, 'did you mean "multiscreen"?')
    expect_refused(tamis("plan", "nowhere.toml"), 3, "nowhere.toml")
    for command in ("plan", "train"):
        books = ROOT / "recipes/books.toml"
        expect_refused(tamis(command, books), 2, f"books.toml:4: [study] makes this a recipe of a study; run it with: "
                       f"tamis study {books}")
    expect_refused(tamis("plan", "recipe.toml", "--set", "lr"), 2, "expected key=value")
