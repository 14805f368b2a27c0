"""The program on a GPU gives what it gives on the CPU, up to rounding. Skipped where there is none."""

import json
import os
import re

import pytest
from processes import RECIPE, arguments, losses
from program import Program, expect_refused

DEVICE = os.environ.get("TAMIS_TEST_DEVICE", "cuda")
TEXT = "".join(f"Line {i} of a small text: {i * i % 97}, é and {i % 7}.\n" for i in range(200))
# What a result says about the machine and its speed.
OF_THE_MACHINE = re.compile("second|bytes|file|device")
MODELS = {
    "multiscreen": (),
    "multiscreen, other shapes": ("model.trim_power=1", 'model.softmask="linear"', 'model.position="rope"'),
    "transformer": ('model.model_type="transformer"', 'model.ssmax="learned"'),
    "mixers": ('model.model_type="swax"', 'model.pattern="wmavebs"', "model.num_hidden_layers=7", "model.window=7"),
    "Algorithm 1 of Sieve": ('model.model_type="swax"', 'model.pattern="v"', 'model.sieve="algorithm1"'),
}


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    tamis = Program(program, tmp_path_factory.mktemp("tamis"))
    (tamis.directory / "recipe.toml").write_text(RECIPE)
    (tamis.directory / "text.txt").write_text(TEXT)
    done = tamis("train", "recipe.toml", "--device", DEVICE, "--set=run.dir=tried", "--set=train.steps=1")
    if "sees no GPU" in done.stderr:
        expect_refused(done, 2, f"--device {DEVICE}")
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done
    return tamis


def trained(tamis, run, *settings, device=DEVICE):
    done = tamis(*arguments(run, "train.reduction=fast", *settings), "--device", device)
    assert done.returncode == 0, done
    return run


@pytest.fixture(scope="module", params=MODELS)
def run(tamis, request):
    """A run of each model, trained on the CPU."""
    return trained(tamis, tamis.directory / f"{request.param} on the CPU", *MODELS[request.param], device="cpu")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 2e-4), ("bfloat16", 2e-2)])
def test_training_has_the_losses_of_the_cpu(tamis, tmp_path, model, precision, tolerance):
    settings = (*MODELS[model], "train.steps=4")  # rounding grows with every step
    expected = trained(tamis, tmp_path / "cpu", *settings, device="cpu")
    found = trained(tamis, tmp_path / "gpu", *settings, f"train.precision={precision}")
    assert losses(found) == pytest.approx(losses(expected), rel=tolerance)


@pytest.mark.parametrize("model", MODELS)
def test_training_in_float16(tamis, tmp_path, model):
    """Its loss scale may leave out the first updates."""
    expected = trained(tamis, tmp_path / "cpu", *MODELS[model], device="cpu")
    found = trained(tamis, tmp_path / "gpu", *MODELS[model], "train.precision=float16")
    assert losses(found)[0] == pytest.approx(losses(expected)[0], rel=2e-2)
    assert losses(found)[-1] == pytest.approx(losses(expected)[-1], rel=0.2)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_goes_on_on_either_device(tamis, tmp_path, model):
    settings = (*MODELS[model], "train.schedule=constant", "train.save_every=100")
    expected = trained(tamis, tmp_path / "whole", *settings)
    for first, then in ((DEVICE, DEVICE), (DEVICE, "cpu"), ("cpu", DEVICE)):
        run = tmp_path / f"{first}, then {then}"
        trained(tamis, run, *settings, "train.steps=4", device=first)
        trained(tamis, run, *settings, device=then)
        assert losses(run)[-1] == pytest.approx(losses(expected)[-1], rel=1e-2)


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "loss", "RUN", "text.txt", "--window", "64"),
        ("eval", "abc_digits", "RUN", "--lengths", "236,256", "--instances", "2"),
        ("eval", "mqrar", "RUN", "--lengths", "64", "--instances", "4"),
        ("score", "RUN", "text.txt"),
        ("generate", "RUN", "--prompt", "A=12\nB=7\nA=", "--max-new-tokens", "12", "--temperature", "0"),
        ("inspect", "RUN"),
        ("inspect", "RUN", "--text", "text.txt"),
    ],
    ids=lambda words: " ".join(words[:2]) + (" --text" if "--text" in words else ""),
)
def test_commands_give_what_they_give_on_the_cpu(tamis, run, command):
    words = [run if word == "RUN" else word for word in command]
    expected, found = (json.loads(tamis.out(*words, "--json", "--device", device)) for device in ("cpu", DEVICE))
    assert_close(found, expected)


def assert_close(found, expected, place="result", rel=1e-3):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key in expected:
            if not OF_THE_MACHINE.search(key):
                # Which weights of Sieve are just above 0 is a matter of rounding, also on the CPU.
                loose = key in ("nonzero", "keys")
                assert_close(found[key], expected[key], f"{place}.{key}", rel=0.3 if loose else rel)
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for i, (one, other) in enumerate(zip(found, expected)):
            assert_close(one, other, f"{place}[{i}]", rel)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=rel, abs=1e-4), place
    else:
        assert found == expected, place


def test_integer_weights_are_refused(tamis, run):
    if DEVICE == "cpu":
        pytest.skip("the CPU has them")
    done = tamis("generate", run, "--prompt", "A", "--weights", "int8", "--device", DEVICE)
    expect_refused(done, 2, "int8")


def test_a_study(tamis):
    recipe = tamis.directory / "study.toml"
    recipe.write_text(STUDY)
    found = json.loads(tamis.out("study", recipe, "--device", DEVICE, "--json"))
    assert found["done"] == found["jobs"] == 2, found


STUDY = """
[study]
id = "tiny"
title = "Two seeds"
seeds = [1, 2]
[model]
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2
[data.sources.digits]
kind = "abc_digits"
[train]
steps = 4
length = 48
batch_size = 4
validate_every = 4
validate_tokens = 480
[[variants]]
name = "multiscreen"
[[evaluations]]
task = "abc_digits"
lengths = [256]
instances = 2
[[tables]]
title = "Loss"
metric = "validation_loss"
"""
