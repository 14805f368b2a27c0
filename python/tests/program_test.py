"""Checkpoints in Python and in the program: equal log-probabilities, equal greedy texts, both ways."""

import hashlib
import json
import re
import shutil

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import tamis
from tamis import config, foreign_keys
from tamis.checkpoint import load_tokenizer

STORED = ROOT / "tests" / "data" / "version-0.1"
SIZES = """hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 64
"""
STACK = 'model_type = "transformer"\nkey_dim = 8\nvalue_dim = 12\nwindow = 9\n' + SIZES
MODELS = {
    "multiscreen": SIZES.replace("heads = 2", "heads = 8"),
    "multiscreen_ablated": SIZES + 'position = "rope"\ntanh_norm = false\ngate = false\nfixed_r = 0.4\n',
    "multiscreen_shapes": SIZES + 'trim_power = 3\nsoftmask = "linear"\n',
    "multiscreen_mixed": SIZES + 'pattern = "sa"\nnorm = "rms"\nmlp = "gelu"\noutput_scale = false\nssmax = "one"\n',
    "letters": STACK.replace("layers = 2", "layers = 7") + 'pattern = "awebvms"\nqk_norm = true\n',
    "ssmax": STACK + 'pattern = "aw"\nssmax = "bias"\nrope_factor = 2.0\ntie_word_embeddings = false\n',
    "ssmax_position": STACK + 'pattern = "wa"\nssmax = "position"\nfinal_norm_weight = true\nposition = "none"\n',
    "mlstm": STACK + 'pattern = "m"\nmlstm_heads = 4\n',
    "rotary": STACK + 'pattern = "aews"\nscreening_position = "rope"\nrope_scaling = "llama3"\nrope_factor = 4.0\n'
    + "rope_original_length = 40\nrope_low_freq_factor = 0.5\n",
    "strict": STACK.replace("layers = 2", "layers = 3") + 'pattern = "awe"\nstrict = true\nssmax = "bias"\n',
    "not_strict": STACK + 'pattern = "bv"\nstrict = false\n',
    "algorithm1": STACK + 'pattern = "ve"\nsieve = "algorithm1"\nsieve_epsilon = 0.5\nstrict = true\n',
    "capped": STACK + 'pattern = "ma"\nlogit_soft_cap = 0.5\n',
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("program")


@pytest.fixture(scope="module", params=MODELS)
def run(request, program, directory):
    """A run of a few steps of a model with every kind of mixer."""
    return program.train(directory, request.param, MODELS[request.param])


def some_tokens(count: int, vocabulary: int = 257, rows: int = 1) -> torch.Tensor:
    return torch.randint(vocabulary, (rows, count), generator=torch.Generator().manual_seed(7))


@torch.no_grad()
def logprobs(model: tamis.Model, tokens: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """ln p of every token but the first, with the tokens in chunks of these sizes; the head in float64."""
    state = model.new_state() if len(sizes) > 1 else None
    x = torch.cat([model.hidden(part, state=state) for part in tokens.split(sizes, 1)], 1)
    logits = model.soft_capped(F.linear(x.double(), model.head_weight().double()))
    return F.log_softmax(logits, -1)[0, :-1].gather(1, tokens[0, 1:, None])[:, 0]


def test_log_probabilities_are_those_of_the_program(run, program, tmp_path):
    model, tokens = tamis.load(run), some_tokens(100)
    expected = torch.tensor(program.logprobs(run, tokens[0].tolist(), tmp_path), dtype=torch.float64)
    for sizes in [[100], [30, 1, 1, 60, 8], [1] * 100]:
        torch.testing.assert_close(logprobs(model, tokens, sizes), expected, atol=1e-5, rtol=0)


def test_saved_models_are_those_that_were_loaded(run, program, tmp_path):
    model, copy, tokens = tamis.load(run), tmp_path / "copy", some_tokens(40)
    model.save(copy)
    newest = run / "checkpoints" / "step-4"
    stored, saved = load_file(newest / "model.safetensors"), load_file(copy / "model.safetensors")
    assert stored.keys() == saved.keys() == model.state_dict().keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(stored[name], saved[name]) for name in stored)
    for name in ["config.json", "generation_config.json"]:
        assert json.loads((copy / name).read_text()) == json.loads((newest / name).read_text())
    again = tamis.load(copy)
    assert torch.equal(again(tokens), model(tokens))
    ids = tokens[0].tolist()
    assert program.logprobs(copy, ids, tmp_path) == program.logprobs(run, ids, tmp_path)


def test_greedy_texts_are_those_of_the_program(run, program):
    prompt, model = "Line 12 of a small", tamis.load(run)
    tokenizer = load_tokenizer(model)
    made = program.json("generate", run, "--prompt", prompt, "--temperature", 0, "--max-new-tokens", 30)
    tokens = torch.tensor([tokenizer.encode(prompt).ids])
    assert tokens.shape[1] == made["prompt_tokens"]
    ours = model.generate(tokens, 30, end_token=256)
    assert ours[0].tolist() == made["tokens"]


@pytest.mark.parametrize("name", ["multiscreen", "multiscreen_variant", "mixture", "swax"])
def test_models_of_version_0_1(name, program, tmp_path):
    model, expected = tamis.load(STORED / name), load_file(STORED / name / "expected.safetensors")
    tokens = expected["tokens"].view(1, -1).long()
    for key, expand in [("hidden", False), ("hidden-expanded", True)]:
        if key not in expected:
            continue
        state = model.new_state(expand_windows=expand)
        with torch.no_grad():
            torch.testing.assert_close(model.hidden(tokens, expand_windows=expand)[0], expected[key],
                                       atol=1e-5, rtol=0)  # fmt: skip
            parts = [model.hidden(part, state=state)[0] for part in tokens.split([40, 1, 19], 1)]
        torch.testing.assert_close(torch.cat(parts), expected[key], atol=1e-5, rtol=0)
    ids = tokens[0].tolist()
    scored = torch.tensor(program.logprobs(STORED / name, ids, tmp_path), dtype=torch.float64)
    torch.testing.assert_close(logprobs(model, tokens, [len(ids)]), scored, atol=1e-5, rtol=0)
    model.save(tmp_path / "copy")
    assert program.logprobs(tmp_path / "copy", ids, tmp_path) == pytest.approx(scored.tolist(), abs=1e-5)


def test_a_training_checkpoint_of_version_0_1():
    model = tamis.load(STORED / "training" / "step-4")
    assert model.config.pattern == "as" and model.layers[1].s_O is None


# What is refused.


@pytest.fixture
def copy(tmp_path):
    """A checkpoint to damage."""
    shutil.copytree(STORED / "multiscreen", tmp_path / "copy")
    return tmp_path / "copy"


def refusal(directory, kind=ValueError) -> str:
    with pytest.raises(kind) as raised:
        tamis.load(directory)
    message = str(raised.value)
    assert "\n" not in message and str(directory) in message, message
    return message


def change_tensors(copy, change) -> None:
    tensors = load_file(copy / "model.safetensors")
    change(tensors)
    save_file(tensors, copy / "model.safetensors")


def test_directories_without_a_checkpoint_are_refused(tmp_path):
    assert "does not exist" in refusal(tmp_path / "nowhere", FileNotFoundError)
    assert "holds no checkpoint" in refusal(tmp_path, FileNotFoundError)
    (tmp_path / "file").touch()
    assert "is a file" in refusal(tmp_path / "file", FileNotFoundError)


def test_tensors_that_do_not_fit_are_refused(copy):
    change_tensors(copy, lambda tensors: tensors.update(extra=torch.zeros(2)))
    assert '"extra"' in refusal(copy)
    change_tensors(copy, lambda tensors: [tensors.pop("extra"), tensors.pop("layers.1.s_w")])
    assert '"layers.1.s_w"' in refusal(copy)
    change_tensors(copy, lambda tensors: tensors.update({"layers.1.s_w": torch.zeros(3)}))
    assert "layers.1.s_w is [3]" in refusal(copy)
    change_tensors(copy, lambda tensors: tensors.update({"layers.1.s_w": torch.zeros(2, dtype=torch.int32)}))
    assert "F32, F16 or BF16" in refusal(copy)
    change_tensors(copy, lambda tensors: tensors.update({"layers.1.s_w": torch.tensor([0, torch.nan])}))
    assert "not finite" in refusal(copy)
    (copy / "model.safetensors").write_bytes(b"\xff" * 40)
    assert "is not a safetensors file" in refusal(copy)


def test_configurations_that_do_not_fit_are_refused(copy):
    config = json.loads((copy / "config.json").read_text())

    def with_keys(**keys) -> str:
        (copy / "config.json").write_text(json.dumps({**config, **keys}))
        return refusal(copy)

    assert 'unknown key "hidden_sizes"; did you mean "hidden_size"?' in with_keys(hidden_sizes=3)
    assert '"model_type" must be one of' in with_keys(model_type="gpt2")
    assert '"key_dim" must be at least 2' in with_keys(key_dim=1)
    assert '"trim_power" must be at most 3' in with_keys(trim_power=4)
    assert '"softmask" must be one of cosine, linear, none' in with_keys(softmask="sine")
    assert '"gate" must be true or false' in with_keys(gate="yes")
    assert '"position" must be one of mipe, rope, none' in with_keys(position="alibi")
    assert '"vocab_size" must be an integer' in with_keys(vocab_size=3.5)
    assert '"pattern" must have a letter' in with_keys(pattern="x")
    assert '"rope_scaling" must be one of linear, llama3' in with_keys(rope_scaling="yarn")
    scaled = {"position": "rope", "rope_scaling": "llama3", "rope_low_freq_factor": 4, "rope_high_freq_factor": 4}
    assert '"rope_high_freq_factor" must be above "rope_low_freq_factor" 4.0, but is 4.0' in with_keys(**scaled)
    assert 'but a layer of the letter "s" always sees it' in with_keys(strict=True)
    assert '"sieve" must be one of equations, algorithm1' in with_keys(sieve="x")
    assert 'unknown key "window"' in with_keys(window=9)  # which nothing in a Multiscreen uses
    sizes = dict.fromkeys(["hidden_size", "num_hidden_layers", "num_attention_heads"])
    assert 'unknown key "psi"' in with_keys(model_type="transformer", position="rope", psi=2, **sizes)
    mixed = {"model_type": "transformer", "position": "rope", "pattern": "sm", "strict": True}
    assert 'but a layer of the letter "m" always sees it' in with_keys(**mixed)  # the first in the alphabet
    (copy / "config.json").write_text("{")
    assert "is not JSON" in refusal(copy)


# Keys of config.json that repeat a setting of this model or mean something else to other programs: accepted, refused.
CHECKED = {
    "bos_token_id": ([0, -1, [1, 2], None], [9999, "x", True, [1, 9999]]),
    "eos_token_id": ([0, -1, [1, 2], None], [9999, -2, 1.5]),
    "pad_token_id": ([0, -1, None], [9999]),
    "dtype": (["bfloat16", None], ["int8", 3]),
    "torch_dtype": (["float16"], ["float64"]),
    "attention_bias": ([False, None], [True, 0]),
    "bias": ([False], [True]),
    "mlp_bias": ([False], [True]),
    "use_bias": ([False], [True]),
    "head_dim": ([16, 16.0], [8]),
    "hidden_act": (["silu"], ["gelu"]),
    "num_key_value_heads": ([2], [1]),
    "is_encoder_decoder": ([False], [True]),
    "rms_norm_eps": ([1e-6], [1e-5]),
    "mipe_position_mode": (["paper_absolute"], ["reference_mod_after_wrap_boundary"]),
    "mipe_reference_wrap_boundary": ([32], []),
}


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """A checkpoint with an MLP and norms."""
    directory = tmp_path_factory.mktemp("transformer") / "model"
    tamis.Model({"model_type": "transformer", "vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 1,
                 "num_attention_heads": 2, "max_position_embeddings": 64}).save(directory)  # fmt: skip
    return directory


@pytest.fixture
def with_keys(transformer, tmp_path):
    """Copies it with keys added to config.json."""
    config = json.loads((transformer / "config.json").read_text())

    def copied(keys):
        shutil.copytree(transformer, tmp_path / "keys", dirs_exist_ok=True)
        (tmp_path / "keys" / "config.json").write_text(json.dumps({**config, **keys}))
        return tmp_path / "keys"

    return copied


def test_keys_of_other_tools_are_accepted(with_keys, program, tmp_path):
    ignored = dict.fromkeys(foreign_keys.IGNORED, {"any": ["thing"]})
    directory = with_keys({**ignored, **{key: good[0] for key, (good, _) in CHECKED.items()}})
    tokens = some_tokens(20)
    expected = torch.tensor(program.logprobs(directory, tokens[0].tolist(), tmp_path), dtype=torch.float64)
    torch.testing.assert_close(logprobs(tamis.load(directory), tokens, [20]), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("key", CHECKED)
def test_keys_of_other_tools_are_checked_as_in_the_program(key, with_keys, program, tmp_path):
    accepted, refused = CHECKED[key]
    (tmp_path / "ids.json").write_text("[1, 2]")
    for value in accepted:
        program("score", with_keys({key: value}), "--ids", tmp_path / "ids.json")
        tamis.load(tmp_path / "keys")
    for value in refused:
        message = program("score", with_keys({key: value}), "--ids", tmp_path / "ids.json", code=3)
        assert f'"{key}" must be' in message and f'"{key}" must be' in refusal(tmp_path / "keys")


def test_the_keys_are_those_of_the_program():
    def listed(file: str, name: str) -> set[str]:
        text = (ROOT / "tamis" / "models" / file).read_text()
        found = re.search(rf"\b{name} = {{(.*?)}};", text, re.DOTALL)
        return set(re.findall(r'"([^"\n]+)"', re.sub("//.*", "", found[1])))

    fields = (ROOT / "tamis" / "models" / "model_fields.h").read_text()
    visited = {key for name in re.findall(r"\bvisit\(([^,]+),", fields) for key in re.findall(r'"(\w+)"', name)}
    assert visited | {"model_type", "psi"} == config.KEYS
    assert listed("stored_config.cc", "kIgnored") == foreign_keys.IGNORED
    assert set(CHECKED) == foreign_keys.CHECKED


def test_null_counts_as_absent():
    given = {"model_type": "transformer", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    assert tamis.ModelConfig.from_dict({**given, "pattern": None, "window": None}) == tamis.ModelConfig.from_dict(given)


def test_damage_is_found(tmp_path):
    shutil.copytree(STORED / "training" / "step-4", tmp_path / "step-4")
    file = tmp_path / "step-4" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert "model.safetensors: checksum differs" in refusal(tmp_path / "step-4")


def test_shards_that_do_not_fit_their_index_are_refused(copy):
    tensors, index = load_file(copy / "model.safetensors"), copy / "model.safetensors.index.json"
    expected = tamis.load(copy)(some_tokens(9, 9))
    (copy / "model.safetensors").unlink()
    assert "holds no checkpoint" in refusal(copy, FileNotFoundError)
    names, files = sorted(tensors), ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for file, part in zip(files, [names[:3], names[3:]]):
        save_file({name: tensors[name] for name in part}, copy / file)
    places = {name: files[number >= 3] for number, name in enumerate(names)}

    def indexed(places) -> str:
        index.write_text(json.dumps({"weight_map": places}))
        return refusal(copy)

    index.write_text(json.dumps({"weight_map": places}))
    assert torch.equal(tamis.load(copy)(some_tokens(9, 9)), expected)
    assert 'expected an object with "weight_map"' in indexed([])
    assert "must be a name like" in indexed({**places, names[0]: f"../copy/{files[0]}"})
    assert f'{files[1]} has no tensor "{names[0]}"' in indexed({**places, names[0]: files[1]})
    assert f'{files[0]} holds "{names[0]}"' in indexed({name: places[name] for name in names[1:]})
    assert "there is no other.safetensors" in indexed({**places, names[0]: "other.safetensors"})
    index.write_text("{")
    assert "is not JSON" in refusal(copy)


def test_damage_of_a_shard_is_found(copy):
    """Of a checkpoint of several processes, whose manifest lists every shard and the index."""
    tensors, index = load_file(copy / "model.safetensors"), copy / "model.safetensors.index.json"
    expected = tamis.load(copy)(some_tokens(9, 9))
    names, files = sorted(tensors), [copy / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, part in zip(files, [names[:3], names[3:]]):
        save_file({name: tensors[name] for name in part}, file)
    index.write_text(json.dumps({"weight_map": {name: files[number >= 3].name for number, name in enumerate(names)}}))
    (copy / "model.safetensors").unlink()
    listed = {
        path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in (copy / "config.json", index, *files)
    }
    (copy / "trainer.json").write_text(json.dumps({"files": listed}))
    assert torch.equal(tamis.load(copy)(some_tokens(9, 9)), expected)
    for file in (index, *files):
        intact = file.read_bytes()
        file.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
        assert f"damaged: {file.name}: checksum differs" in refusal(copy)
        file.write_bytes(intact)
    files[1].rename(copy / "elsewhere")
    assert f"damaged: {files[1].name}: missing" in refusal(copy)
    (copy / "elsewhere").rename(files[1])
    save_file(tensors, copy / "model.safetensors")
    assert "damaged: trainer.json: does not list model.safetensors" in refusal(copy)


def test_the_newest_checkpoint_of_a_run_is_loaded(tmp_path):
    for step in [2, 10, 9]:
        shutil.copytree(STORED / "multiscreen", tmp_path / "checkpoints" / f"step-{step}")
    tensors = load_file(STORED / "multiscreen" / "model.safetensors")
    tensors["s_F"] += 1
    save_file(tensors, tmp_path / "checkpoints" / "step-10" / "model.safetensors")
    (tmp_path / "checkpoints" / "step-11").mkdir()  # not a checkpoint
    assert tamis.load(tmp_path).s_F == tensors["s_F"]


def test_saving_writes_nothing_over(copy):
    with pytest.raises(FileExistsError, match="not empty"):
        tamis.load(copy).save(copy)
