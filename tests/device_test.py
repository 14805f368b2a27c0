"""The program on another device gives what it gives on the CPU, up to rounding: on TAMIS_TEST_DEVICE, such as `cuda`,
where one is named, else on a simulated device, which refuses what a GPU would refuse (simulated_device.cc)."""

import json
import os
import re
import subprocess

import pytest
from processes import RECIPE, Processes, arguments, losses, records, together, weights
from program import Program, environment, expect_refused

SIMULATED = "privateuseone"
DEVICE = os.environ.get("TAMIS_TEST_DEVICE", SIMULATED)
TEXT = "".join(f"Line {i} of a small text: {i * i % 97}, é and {i % 7}.\n" for i in range(40))
# For training on a simulated device, which takes as long for a micro-batch of one sequence as for a larger one.
FEW_MICRO_BATCHES = RECIPE.replace("batch_size = 12\naccumulation = 12", "batch_size = 4\naccumulation = 2")
# What a result says about the machine and its speed.
OF_THE_MACHINE = re.compile("second|bytes|file|device")
MODELS = {
    "multiscreen": (),
    "multiscreen, other shapes": ("model.trim_power=1", 'model.softmask="linear"', 'model.position="rope"'),
    "transformer": ('model.model_type="transformer"', 'model.ssmax="learned"'),
    "mixers": ('model.model_type="swax"', 'model.pattern="wmavebs"', "model.num_hidden_layers=7", "model.window=7"),
    "Algorithm 1 of Sieve": ('model.model_type="swax"', 'model.pattern="v"', 'model.sieve="algorithm1"'),
}
if DEVICE == SIMULATED:  # which takes milliseconds for every operation
    MODELS = {name: MODELS[name] for name in ("multiscreen", "mixers")}


class DeviceProgram(Program):
    """A program that can compute on DEVICE."""

    def __init__(self, path, directory):
        super().__init__(path, directory)
        self.variables = {}  # of the environment of runs on DEVICE
        if DEVICE == SIMULATED:
            library = path.parent / "libtamis_simulated_device.so"
            if not library.exists():
                pytest.skip(f"there is no simulated device beside {path}")
            self.variables["LD_PRELOAD"] = str(library)

    def __call__(self, *words, **options):
        if DEVICE in words:
            options.setdefault("env", environment(**self.variables))
        return super().__call__(*words, **options)


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    tamis = DeviceProgram(program, tmp_path_factory.mktemp("tamis"))
    (tamis.directory / "recipe.toml").write_text(FEW_MICRO_BATCHES)
    (tamis.directory / "text.txt").write_text(TEXT)
    done = tamis("train", "recipe.toml", "--device", DEVICE, "--set=run.dir=tried", "--set=train.steps=1")
    if "sees none" in done.stderr:
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
    """A run of each model, trained on the CPU, with the whole batch."""
    settings = (*MODELS[request.param], "train.batch_size=12", "train.accumulation=12")
    return trained(tamis, tamis.directory / f"{request.param} on the CPU", *settings, device="cpu")


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
    settings = (*MODELS[model], "train.steps=20")
    expected = trained(tamis, tmp_path / "cpu", *settings, device="cpu")
    found = trained(tamis, tmp_path / "gpu", *settings, "train.precision=float16")
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


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "settings",
    [(), ("train.reduction=ordered",), ("train.shard=parameters",), ("train.context_parallel=2",)],
    ids=lambda words: " ".join(words),
)
def test_two_processes_have_the_losses_of_one(tamis, tmp_path, model, settings):
    of_both = (*MODELS[model], "train.steps=4", "train.reduction=fast")
    trained(tamis, tmp_path / "one", *of_both)
    also = {rank: ("--device", DEVICE) for rank in range(2)}
    together(tamis, 2, tmp_path / "two", *of_both, *settings, also=also, **tamis.variables)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=2e-4)
    if settings == ("train.context_parallel=2",):  # the plan says what is sent, as long as windows do not change
        changes = [f"--set={setting}" for setting in (*of_both, *settings)]
        plan = json.loads(tamis.out("plan", "recipe.toml", "--processes", "2", "--json", *changes))
        sent = [record["sent_bytes"] for record in records(tmp_path / "two") if record["type"] == "train"]
        assert sent[0] == plan["communication"]["sent_bytes"]
    if DEVICE == SIMULATED and settings == ("train.reduction=ordered",):
        trained(tamis, tmp_path / "ordered", *of_both, *settings)
        assert weights(tmp_path / "two", 4) == weights(tmp_path / "ordered", 4)
    # One process reads what two have written.
    trained(tamis, tmp_path / "one", *of_both[:-2], "train.steps=6")
    trained(tamis, tmp_path / "two", *of_both[:-2], "train.steps=6")
    assert losses(tmp_path / "two")[-1] == pytest.approx(losses(tmp_path / "one")[-1], rel=1e-3)


def test_two_processes_share_an_evaluation(tamis, run):
    words = ("eval", "mqrar", run, "--lengths", "64", "--instances", "4", "--json", "--device", DEVICE)
    expected = json.loads(tamis.out(*words))
    with Processes(tamis, 2, *words, options={0: {"stdout": subprocess.PIPE}}, **tamis.variables) as processes:
        first, second = processes.wait()
    assert first.returncode == second.returncode == 0, (first, second)
    assert_close(json.loads(first.stdout), expected)


@pytest.mark.parametrize("command", ["train", "eval"])
def test_processes_on_different_devices_are_refused(tamis, run, tmp_path, command):
    words = {"train": arguments(tmp_path / "run"), "eval": ["eval", "mqrar", run, "--lengths", "64", "--instances", "4"]}
    with Processes(tamis, 2, *words[command], also={1: ("--device", DEVICE)}, **tamis.variables) as processes:
        done = processes.wait()
    for each in done:
        each.stdout = each.stdout or ""
        expect_refused(each, 2, "process 1", "device")


def test_a_device_that_there_is_not(tamis, run):
    for device, text in (
        (f"{DEVICE}:77", "the numbers begin with 0"),
        (f"{DEVICE}:x", "such as cuda:1"),
        (f"{DEVICE}:256", "such as cuda:1"),
        ("cpu:1", "such as cuda:1"),
        ("gpu", '"gpu"; did you mean "cpu"'),
    ):
        expect_refused(tamis("inspect", run, "--device", device, env=environment(**tamis.variables)), 2, text)


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
