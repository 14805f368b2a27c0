"""Checkpoints in Python and in the program: equal log-probabilities, equal greedy texts, both ways."""

import json
import shutil

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import tamis
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
    "multiscreen_mixed": SIZES + 'pattern = "sa"\nnorm = "rms"\nmlp = "gelu"\noutput_scale = false\nssmax = "one"\n',
    "letters": STACK.replace("layers = 2", "layers = 7") + 'pattern = "awebvms"\nqk_norm = true\n',
    "ssmax": STACK + 'pattern = "aw"\nssmax = "bias"\nrope_factor = 2.0\ntie_word_embeddings = false\n',
    "ssmax_position": STACK + 'pattern = "wa"\nssmax = "position"\nfinal_norm_weight = true\nposition = "none"\n',
    "mlstm": STACK + 'pattern = "m"\nmlstm_heads = 4\n',
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
def logprobs(model: tamis.Stack, tokens: torch.Tensor, sizes: list[int]) -> torch.Tensor:
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
    assert json.loads((copy / "config.json").read_text()) == json.loads((newest / "config.json").read_text())
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
    assert '"gate" must be true or false' in with_keys(gate="yes")
    assert '"position" must be one of mipe, rope, none' in with_keys(position="alibi")
    assert '"vocab_size" must be an integer' in with_keys(vocab_size=3.5)
    assert '"pattern" must have a letter' in with_keys(pattern="x")
    (copy / "config.json").write_text("{")
    assert "is not JSON" in refusal(copy)


def test_damage_is_found(tmp_path):
    shutil.copytree(STORED / "training" / "step-4", tmp_path / "step-4")
    file = tmp_path / "step-4" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert "model.safetensors: checksum differs" in refusal(tmp_path / "step-4")


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
