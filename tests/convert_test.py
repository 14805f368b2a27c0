"""`tamis convert` with models that are damaged, incomplete or of no known format: one line, exit 3, nothing written."""

import json
import pathlib
import shutil
import struct

import pytest
from program import expect_refused
from safetensors_files import read_tensors, write_tensors

STORED = pathlib.Path(__file__).parent / "data/version-0.1/multiscreen"


@pytest.fixture
def model(tamis, tmp_path):
    """A model in another format, to damage."""
    directory = tmp_path / "model"
    tamis.out("convert", STORED, directory, "--to", "multiscreen-pytorch")
    (directory / "manifest.json").unlink(missing_ok=True)
    return directory


def refused(tamis, model, code, *parts, options=()):
    target = model.parent / "target"
    done = tamis("convert", model, target, *options)
    done.stderr = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("convert ["))
    expect_refused(done, code, *parts)
    assert not target.exists()


def test_it_goes_there_and_back(tamis, model, tmp_path):
    tamis.out("convert", model, tmp_path / "back")
    assert read_tensors(tmp_path / "back/model.safetensors") == read_tensors(STORED / "model.safetensors")


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda t: t.update(more=("F32", [1], b"\0" * 4)), 'holds "more", which the model in its configuration does not have'),
        (lambda t: t.pop("layers.0.block.k_proj.weight"), 'has no tensor "layers.0.block.k_proj.weight"'),
        (lambda t: t.update({"layers.0.block.sw": ("F32", [1], b"\0" * 4)}), '"layers.0.block.sw" must be ['),
        (lambda t: t.update({"s_E": ("I32", [], b"\0" * 4)}), '"s_E" must be F32, F16 or BF16, but is'),
        (lambda t: t.update({"s_E": ("F32", [], struct.pack("<f", float("nan")))}), '"s_E" holds numbers that are not finite'),
    ],
    ids=["too many", "missing", "shape", "dtype", "nan"],
)
def test_tensors_that_do_not_fit(tamis, model, change, text):
    tensors = read_tensors(model / "model.safetensors")
    change(tensors)
    write_tensors(model / "model.safetensors", tensors)
    refused(tamis, model, 3, f"{model}", text)


def test_files_that_are_cut_off_or_missing(tamis, model, tmp_path):
    data = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(data[:-5])
    refused(tamis, model, 3, "model.safetensors")
    (model / "model.safetensors").unlink()
    refused(tamis, model, 3, f"{model}: expected config.json and model.safetensors or its index")
    refused(tamis, tmp_path / "nowhere", 3, "expected the directory of a model")


def test_formats(tamis, model, tmp_path):
    config = json.loads((model / "config.json").read_text())
    refused(tamis, model, 2, 'unknown format "lama"; did you mean "llama"?', options=["--to", "lama"])
    refused(tamis, model, 2, 'unknown format "multiscreen-pytorc"', options=["--from", "multiscreen-pytorc"])
    refused(tamis, model, 3, "config.json: ", options=["--from", "llama"])
    (model / "config.json").write_text(json.dumps({**config, "hidden_dimm": 8}))
    refused(tamis, model, 3, 'unknown key "hidden_dimm"; did you mean "hidden_dim"?')
    tensors = read_tensors(model / "model.safetensors")
    write_tensors(model / "model.safetensors", {"a": tensors["s_E"]})
    (model / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    refused(tamis, model, 3, 'model_type "mamba" and its tensors are of no known format; known: ', "--from names one")
    shutil.copytree(STORED, tmp_path / "stored")
    refused(tamis, tmp_path / "stored", 2, "have no positions that wrap", options=["--wrap-positions"])
    refused(tamis, model, 2, 'unknown rotary layout "foo"', options=["--rotary-layout", "foo", "--from", "multiscreen-pytorch"])
    layout = ["--rotary-layout", "half", "--from", "multiscreen-pytorch"]
    refused(tamis, model, 2, "--rotary-layout: models of the formats multiscreen-pytorch and tamis have no other layout", options=layout)


def test_without_a_tokenizer(tamis, model, tmp_path):
    (model / "tokenizer.json").unlink(missing_ok=True)
    tamis.out("convert", model, tmp_path / "back")
    hint = f"{tmp_path}/back: has no tokenizer.json; copy the model's there, or give token ids"
    expect_refused(tamis("inspect", tmp_path / "back"), 3, hint, f"tamis score {tmp_path}/back --ids FILE")
    (tmp_path / "ids.json").write_text("[1, 2, 3]")
    tamis.out("score", tmp_path / "back", "--ids", tmp_path / "ids.json")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_tokens_outside_the_vocabulary(tamis, model, file):
    settings = json.loads((model / file).read_text()) if (model / file).exists() else {}
    (model / file).write_text(json.dumps({**settings, "pad_token_id": 10**6}))
    refused(tamis, model, 3, f'{model}/{file}: model: "pad_token_id" must be a token id below "vocab_size"')
