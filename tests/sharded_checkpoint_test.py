"""Checkpoints that several processes write: each writes a part of the weights and of the optimizer's state, the whole
appears at once, and everything that reads a checkpoint reads them."""

import hashlib
import json
import os
import shutil
import time

import pytest
from processes import LOST, RECIPE, alone, checkpoint_files, left_over, start, together, weights
from program import Program, expect_refused, wait_until
from safetensors_files import read_tensors

STEPS = 12
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    """The program in a directory with a recipe and runs of it: `alone` of a single process, `four` of four."""
    tamis = Program(program, tmp_path_factory.mktemp("tamis"))
    (tamis.directory / "recipe.toml").write_text(RECIPE)
    alone(tamis, tamis.directory / "alone")
    together(tamis, 4, tamis.directory / "four")
    return tamis


@pytest.fixture
def four(tamis, run):
    """A copy of the run of four processes."""
    shutil.copytree(tamis.directory / "four", run)
    return run


def newest(run):
    return run / f"checkpoints/step-{STEPS}"


def model_shard(number, count=4):
    return f"model-{number:05}-of-{count:05}.safetensors"


def damage(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_every_process_writes_its_part(tamis):
    directory = newest(tamis.directory / "four")
    index = json.loads((directory / INDEX).read_text())
    bytes_of = {}
    for number in range(1, 5):
        tensors = read_tensors(directory / model_shard(number))
        assert {name for name, shard in index["weight_map"].items() if shard == model_shard(number)} == set(tensors)
        bytes_of[number] = sum(len(content) for _, _, content in tensors.values())
    total = sum(bytes_of.values())
    assert index["metadata"]["total_size"] == total
    assert max(bytes_of.values()) < total / 2
    files = json.loads((directory / "trainer.json").read_text())["files"]
    written = {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "trainer.json"}
    assert files == {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in written.items()
    }
    assert "model.safetensors" not in files


def test_a_model_with_few_tensors_has_fewer_shards(tamis, run):
    """Most of it is its embedding, which is in one shard."""
    settings = ("model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=1", "model.value_dim=8")
    together(tamis, 4, run, "train.shard=parameters", *settings)
    shards = [name for name in checkpoint_files(run, STEPS) if name.startswith("model")]
    assert shards == [model_shard(number, len(shards)) for number in range(1, len(shards) + 1)]
    assert 1 <= len(shards) < 4
    alone(tamis, run.parent / "alone", *settings)
    assert weights(run, STEPS) == weights(run.parent / "alone", STEPS)


@pytest.mark.parametrize("shard", ["optimizer", "parameters"])
@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 3), (3, 2), (2, 4)])
def test_any_number_of_processes_continues(tamis, run, before, after, shard):
    for size, steps in ((before, 4), (after, STEPS)):
        settings = (f"train.shard={shard}", f"train.steps={steps}")
        if size == 1:
            alone(tamis, run, *settings)
        else:
            together(tamis, size, run, *settings)
        assert (run / f"checkpoints/step-{steps}/model.safetensors").exists() == (size == 1)
    assert weights(run, STEPS) == weights(tamis.directory / "alone", STEPS)
    assert not left_over(run)


def without_times(result):
    return {key: value for key, value in result.items() if key not in ("seconds", "model", "checkpoint", "run", "from")}


def test_every_command_reads_them(tamis, tmp_path):
    """With the results of the same weights in one file."""
    text = tmp_path / "text.txt"
    text.write_text("A=12\nB=34\n" * 20)
    commands = {
        "score": ("{run}", text, "--json"),
        "generate": ("{run}", "--prompt", "A=12\nA=", "--max-new-tokens", "6", "--temperature", "0"),
        "eval loss": ("{run}", text, "--json"),
        "eval abc_digits": ("{run}", "--lengths", "250", "--depths", "0.5", "--instances", "4", "--json"),
        "inspect": ("{run}", "--json"),
        "train": ("recipe.toml", "--replay", str(STEPS), "--set=run.dir={run}", "--json"),
    }
    for command, options in commands.items():
        found = []
        for name in ("alone", "four"):
            run = str(tamis.directory / name)
            given = [str(option).replace("{run}", run) for option in options]
            found.append(tamis.out(*command.split(), *given, "--threads=1"))
        if "--json" in options:
            found = [without_times(json.loads(each)) for each in found]
        assert found[0] == found[1] and found[0], command


def test_they_are_converted(tamis, tmp_path):
    for name in ("alone", "four"):
        tamis.out("convert", tamis.directory / name, tmp_path / name, "--to", "tamis")
    assert read_tensors(tmp_path / "four/model.safetensors") == read_tensors(tmp_path / "alone/model.safetensors")


def test_a_run_starts_from_them(tamis, tmp_path):
    for name in ("alone", "four"):
        settings = ("train.steps=16", f"train.start_from={tamis.directory / name}", "train.start_state=all")
        together(tamis, 3, tmp_path / name, *settings)
    assert weights(tmp_path / "four", 16) == weights(tmp_path / "alone", 16)


def test_damage_is_refused(tamis, four):
    """With one line and exit 3, also by a command that does not read the whole file."""

    def refuses(*texts):
        expect_refused(tamis("generate", newest(four), "--prompt", "A"), 3, *texts)

    damage(newest(four) / model_shard(3))
    refuses(f"damaged: {model_shard(3)}: checksum differs", "remove trainer.json to read it unchecked")
    (newest(four) / model_shard(3)).unlink()
    refuses("damaged: ", model_shard(3), "No such file")
    shutil.copy(newest(tamis.directory / "four") / model_shard(3), newest(four))
    tamis.out("inspect", newest(four))
    shutil.copy(newest(tamis.directory / "alone") / "model.safetensors", newest(four))
    refuses("damaged: trainer.json: does not list model.safetensors")
    (newest(four) / "model.safetensors").unlink()
    index = (newest(four) / INDEX).read_text()
    (newest(four) / INDEX).write_text(index.replace("00004-of", "00003-of"))
    refuses(f"damaged: {INDEX}: checksum differs")
    (newest(four) / INDEX).unlink()
    refuses(f"{newest(four)}: holds no checkpoint")
    (newest(four) / INDEX).write_text(index)
    (newest(four) / "trainer.json").unlink()
    tamis.out("inspect", newest(four))
    (newest(four) / model_shard(2)).unlink()
    refuses(model_shard(2), "No such file")


def test_training_continues_before_what_is_damaged(tamis, run):
    together(tamis, 2, run, "train.save_every=2", "train.keep=0")
    checkpoints = run / "checkpoints"
    damage(checkpoints / "step-12/optimizer-00002-of-00002.safetensors")
    damage(checkpoints / "step-10" / model_shard(1, 2))
    (checkpoints / "step-8" / model_shard(2, 2)).unlink()
    (checkpoints / "step-6" / INDEX).unlink()
    (checkpoints / "step-4/optimizer-00001-of-00002.safetensors").unlink()
    messages = together(tamis, 2, run)[0]
    assert "step-12: damaged: optimizer-00002-of-00002.safetensors: checksum differs" in messages
    assert f"step-10: damaged: {model_shard(1, 2)}: checksum differs" in messages
    assert f"{model_shard(2, 2)}: " in messages and f"{INDEX}: " in messages
    assert "optimizer-00001-of-00002.safetensors: missing; the optimizer's state was saved in 2 files" in messages
    assert "resuming after step 2" in messages
    assert weights(run, STEPS) == weights(tamis.directory / "alone", STEPS)
    for step in (4, 6, 8, 10, 12):
        assert (checkpoints / f"step-{step}.damaged").is_dir()


@pytest.mark.parametrize("shard", ["optimizer", "parameters"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_process_that_dies_while_it_saves_leaves_the_checkpoint_before(tamis, run, victim, shard):
    """The others end; what is there is whole, and the run continues with the same bytes."""
    large = ("model.hidden_size=256", f"train.shard={shard}", "train.sample_every=0", "train.validate_every=0")
    together(tamis, 3, run, *large, "train.steps=2", "train.save_every=2")
    saved = run / "checkpoints/step-4"
    for attempt in range(10):
        with start(tamis, 3, run, *large, "train.steps=4", "train.save_every=4") as processes:
            wait_until(lambda: left_over(run) or saved.is_dir(), processes.all[0], "shard of step 4")
            time.sleep(0 if attempt else 0.001 * victim)  # other moments of the save
            processes.all[victim].kill()
            done = processes.wait()
        assert all(each.returncode in (0, LOST, -9) for each in done), done
        if not saved.is_dir():
            break
        shutil.rmtree(saved)  # the kill came after the save
    else:
        pytest.fail("the save was always over before the kill")
    for step in os.listdir(run / "checkpoints"):
        if not step.startswith("."):
            tamis.out("inspect", run / "checkpoints" / step)
    assert (run / "checkpoints/step-2").is_dir()
    together(tamis, 3, run, *large, "train.steps=6")
    together(tamis, 3, run.parent / "reference", *large, "train.steps=6")
    assert weights(run, 6) == weights(run.parent / "reference", 6)
    assert not left_over(run)


def test_a_finished_run_is_opened_by_any_number_of_processes(tamis, four):
    for size in (2, 3):
        assert f"finished: {STEPS} of {STEPS} steps are done" in together(tamis, size, four)[0]
    alone(tamis, four)
