"""`tamis convert` to and from LlamaForCausalLM, xLSTMForCausalLM and multiscreen-pytorch: the logits stay the same.

Run by `make python`. The program computes log-probabilities (`tamis score --ids`); they are compared with the log-softmax
of the logits of transformers, or of the definition below, on random models with weights large enough for distributions
far from uniform.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (scripts/setup.sh python)")

PROGRAM = os.environ.get("TAMIS_PROGRAM", pathlib.Path(__file__).resolve().parents[2] / "build/release/tamis")
VOCABULARY = 61
TOKENS = [(7 * t * t + 3 * t) % VOCABULARY for t in range(96)]

SCALINGS = {
    "plain": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


def tamis(*arguments, code=0):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


def scored(directory, tokens=TOKENS):
    """What the program gives, and the Python package too: the log-probability of each token but the first."""
    import tamis as package

    ids = pathlib.Path(directory) / "ids.json"
    ids.write_text(json.dumps(tokens))
    line = tamis("score", directory, "--ids", ids, "--json")
    ids.unlink()
    logprobs = torch.tensor(json.loads(line)["logprobs"][1:], dtype=torch.float64)
    model, row = package.load(directory), torch.tensor([tokens])
    torch.testing.assert_close(package.scoring.score_targets(model, row[:, :-1], row[:, 1:], chunk_tokens=40)[0][0],
                               logprobs, atol=2e-5, rtol=2e-5)  # fmt: skip
    return logprobs


def logits_of(model, tokens=TOKENS):
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens])).logits[0].double()


def logprobs_of(model, tokens=TOKENS):
    logprobs = torch.log_softmax(logits_of(model, tokens), -1)
    return logprobs[:-1].gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)


def spread(model, seed):
    """Random weights that use every part of the model: no norm is 1, logits have deviations of about 2."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(noise * (1.0 if "embed" in name else 1.5 / parameter.shape[1] ** 0.5))
    return model


def llama(seed=0, **changes):
    sizes = dict(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
    )
    return spread(transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes})), seed)


def rope(scaling, theta=10_000.0):
    """The settings as transformers 5 takes them."""
    return {"rope_parameters": {"rope_theta": theta, **({"rope_type": "default"} | SCALINGS[scaling])}}


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("groups", [6, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_computes_the_same(tmp_path, scaling, groups, tied):
    model = llama(num_key_value_heads=groups, tie_word_embeddings=tied, **rope(scaling, theta=500.0))
    model.save_pretrained(tmp_path / "hf")
    tamis("convert", tmp_path / "hf", tmp_path / "own")
    assert (scored(tmp_path / "own") - logprobs_of(model)).abs().max() < 1e-4


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("shards", [1, 5])
def test_the_package_opens_a_converted_llama(tmp_path, scaling, shards):
    import tamis as package

    model = llama(hidden_size=192, intermediate_size=320, **rope(scaling, theta=500.0))
    model.save_pretrained(tmp_path / "hf")
    tamis("convert", tmp_path / "hf", tmp_path / "own", "--shard-size", 1 if shards > 1 else 5120)
    assert len(list((tmp_path / "own").glob("*.safetensors"))) == shards
    assert (scored(tmp_path / "own") - logprobs_of(model)).abs().max() < 1e-4
    package.load(tmp_path / "own").save(tmp_path / "saved")
    assert torch.equal(scored(tmp_path / "saved"), scored(tmp_path / "own"))
    generation = [(tmp_path / each / "generation_config.json").read_text() for each in ("own", "saved")]
    assert generation[0] == generation[1]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_llama_comes_back(tmp_path, scaling):
    model = llama(num_key_value_heads=3, **rope(scaling))
    model.save_pretrained(tmp_path / "hf")
    tamis("convert", tmp_path / "hf", tmp_path / "own")
    tamis("convert", tmp_path / "own", tmp_path / "back", "--to", "llama")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert back.config.eos_token_id == 2 and back.config.bos_token_id == 1
    assert (logits_of(back) - logits_of(model)).abs().max() < 1e-4


def test_settings_of_transformers_4_are_read(tmp_path):
    model = llama(**rope("llama3", theta=700.0))
    model.save_pretrained(tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    parameters = config.pop("rope_parameters", None) or {**config.pop("rope_scaling"), "rope_theta": config["rope_theta"]}
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = parameters
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    tamis("convert", tmp_path / "hf", tmp_path / "own")
    assert (scored(tmp_path / "own") - logprobs_of(model)).abs().max() < 1e-4


def test_shards_and_half_precision_are_read_and_written(tmp_path):
    llama().to(torch.bfloat16).save_pretrained(tmp_path / "hf", max_shard_size="50KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 2
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    tamis("convert", tmp_path / "hf", tmp_path / "own")
    assert (scored(tmp_path / "own") - logprobs_of(model)).abs().max() < 1e-4
    tamis("convert", tmp_path / "own", tmp_path / "back", "--to", "llama")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
    assert json.loads((tmp_path / "back/config.json").read_text())["torch_dtype"] == "bfloat16"
    assert torch.equal(logits_of(back), logits_of(model))


def test_a_trained_transformer_opens_in_transformers(tmp_path):
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    recipe = f"""
[model]
model_type = "transformer"
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
max_position_embeddings = 64
[data.sources.text]
kind = "text"
files = ["{tmp_path}/text.txt"]
[train]
steps = 3
length = 64
batch_tokens = 128
"""
    (tmp_path / "recipe.toml").write_text(recipe)
    tamis("train", tmp_path / "recipe.toml", "--set", f"run.dir={tmp_path}/run")
    tamis("convert", tmp_path / "run", tmp_path / "hf", "--to", "llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokens = list(b"the lazy dog jumps over the quick brown fox")
    (tmp_path / "ids.json").write_text(json.dumps(tokens))
    line = tamis("score", tmp_path / "run", "--ids", tmp_path / "ids.json", "--json")
    own = torch.tensor(json.loads(line)["logprobs"][1:], dtype=torch.float64)
    assert (own - logprobs_of(model, tokens)).abs().max() < 1e-4
    assert model.config.eos_token_id == 256


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"attention_bias": True}, "Tamis's attention has no biases"),
        ({"mlp_bias": True}, "Tamis's MLPs have no biases"),
        ({"hidden_act": "gelu"}, "SwiGLU"),
        ({"head_dim": 16}, "head_dim"),
    ],
)
def test_what_differs_is_refused(tmp_path, changes, text):
    llama(**changes).save_pretrained(tmp_path / "hf")
    message = tamis("convert", tmp_path / "hf", tmp_path / "own", code=3)
    assert text in message and message.count("\n") == 1
    assert not (tmp_path / "own").exists()


def xlstm(seed=0, **changes):
    sizes = dict(
        vocab_size=VOCABULARY,
        hidden_size=128,
        embedding_dim=128,
        num_hidden_layers=2,
        num_blocks=2,
        num_heads=2,
        ffn_proj_factor=2.0,
        output_logit_soft_cap=1e6,
        autocast_kernel_dtype="float32",
        tie_word_embeddings=False,
    )
    return spread(transformers.xLSTMForCausalLM(transformers.xLSTMConfig(**{**sizes, **changes})), seed)


@pytest.mark.parametrize("cap", [1e6, 30.0, 2.0])
def test_an_xlstm_computes_the_same_and_comes_back(tmp_path, cap):
    tokens = TOKENS[:48]  # below a chunk of 64, which needs NX-AI's own package
    model = xlstm(output_logit_soft_cap=cap)
    assert logits_of(model, tokens).abs().max() > 1.9
    model.save_pretrained(tmp_path / "hf")
    tamis("convert", tmp_path / "hf", tmp_path / "own")
    assert (scored(tmp_path / "own", tokens) - logprobs_of(model, tokens)).abs().max() < 1e-4
    tamis("convert", tmp_path / "own", tmp_path / "back", "--to", "xlstm")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert (logits_of(back, tokens) - logits_of(model, tokens)).abs().max() < 1e-4
    assert back.config.output_logit_soft_cap == cap
    own = json.loads((tmp_path / "own/config.json").read_text())
    assert own.get("logit_soft_cap") == (None if cap == 1e6 else cap)


@pytest.mark.parametrize("cap, expected", [("absent", 30.0), (None, None)])
def test_the_soft_cap_of_an_xlstm_has_a_default(tmp_path, cap, expected):
    xlstm().save_pretrained(tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    config["output_logit_soft_cap"] = cap
    if cap == "absent":
        del config["output_logit_soft_cap"]
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    tamis("convert", tmp_path / "hf", tmp_path / "own")
    assert json.loads((tmp_path / "own/config.json").read_text()).get("logit_soft_cap") == expected


@pytest.mark.parametrize("changes", [{"output_logit_soft_cap": -1.0}, {"gate_soft_cap": 10.0}, {"use_bias": True}])
def test_an_xlstm_that_differs_is_refused(tmp_path, changes):
    xlstm(**changes).save_pretrained(tmp_path / "hf")
    message = tamis("convert", tmp_path / "hf", tmp_path / "own", code=3)
    assert list(changes)[0] in message and message.count("\n") == 1
    assert not (tmp_path / "own").exists()


def multiscreen_tensors(prefix="", D=24, L=3, H=4, K=6, V=10, seed=0):
    """A checkpoint of multiscreen-pytorch, with windows between 2 and 40 tokens."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    tensors = {"embed.weight": normal(VOCABULARY, D), "s_E": torch.tensor(0.2), "s_F": torch.tensor(1.7)}
    for layer in range(L):
        name = f"layers.{layer}.block."
        for part, width in (("q", K), ("k", K), ("v", V), ("g", V)):
            tensors[f"{name}{part}_proj.weight"] = normal(H * width, D)
        tensors[f"{name}o_proj.weight"] = normal(D, H * V)
        tensors[f"{name}sw"] = torch.linspace(0.1, 3.7, H)
        tensors[f"{name}sr"] = 0.5 * normal(H) - 1
        tensors[f"{name}sO"] = 0.3 * normal(H)
    return {prefix + key: value for key, value in tensors.items()}


def multiscreen_logits(tensors, tokens, H=4, threshold=32.0, boundary=None):
    """The equations of "Screening Is Enough" in float64, with r as the inverse width; positions from the boundary on
    count modulo the window in MiPE."""
    t = {key: value.double() for key, value in tensors.items()}
    unit = lambda x: torch.nn.functional.normalize(x, dim=-1)  # noqa: E731
    table = unit(t["embed.weight"])
    x = table[tokens] * t["s_E"].exp()
    T = len(tokens)
    distance = torch.arange(T)[:, None] - torch.arange(T)[None, :]
    for layer in range(sum(key.endswith(".sw") for key in t)):
        name = f"layers.{layer}.block."
        heads = lambda part: (x @ t[f"{name}{part}_proj.weight"].T).view(T, H, -1).transpose(0, 1)  # noqa: E731
        q, k, v, g = unit(heads("q")), unit(heads("k")), unit(heads("v")), heads("g")
        w, inverse_r = t[name + "sw"].exp() + 1, t[name + "sr"].exp() + 1
        phi = torch.where(w < threshold, (torch.cos(torch.pi * w / threshold) + 1) / 2, torch.zeros_like(w))
        position = torch.arange(T, dtype=torch.float64).expand(H, T)
        if boundary is not None:
            position = torch.where(position < boundary, position, torch.remainder(position, w[:, None]))
        angle = position * (torch.pi * phi / w)[:, None]
        cosine, sine = angle.cos(), angle.sin()

        def turned(y):
            a, b = y[..., 0], y[..., 1]
            return torch.cat([torch.stack([a * cosine - b * sine, a * sine + b * cosine], -1), y[..., 2:]], -1)

        trim = (1 - inverse_r[:, None, None] * (1 - turned(q) @ turned(k).transpose(1, 2))).clamp(min=0) ** 2
        seen = (distance >= 0) & (distance < w[:, None, None])
        softmask = torch.where(seen, (torch.cos(torch.pi * distance / w[:, None, None]) + 1) / 2, 0.0)
        h = (trim * softmask) @ v
        norm = h.norm(dim=-1, keepdim=True)
        u = torch.where(norm > 0, torch.tanh(norm) / norm.clamp(min=1e-30), 1.0) * h
        gated = u * torch.tanh(torch.nn.functional.silu(g)) * t[name + "sO"].exp()[:, None, None]
        x = x + gated.transpose(0, 1).reshape(T, -1) @ t[name + "o_proj.weight"].T
    return t["s_F"].exp() * x @ table.T


def save_multiscreen(directory, tensors, config):
    from safetensors.torch import save_file

    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))


PYTORCH = dict(vocab_size=VOCABULARY, hidden_dim=24, num_layers=3, num_heads=4, key_dim=6, value_dim=10, max_seq_len=32)
PORT = dict(
    model_type="multiscreen",
    architectures=["MultiscreenForCausalLM"],
    vocab_size=VOCABULARY,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    key_dim=6,
    value_dim=10,
    max_position_embeddings=32,
    tie_word_embeddings=True,
    transformers_version="5.14.1",
    use_cache=True,
    mipe_compute_dtype="fp32",
    strict_position_ids=True,
    is_decoder=True,
)
WRAPPED = dict(mipe_position_mode="reference_mod_after_wrap_boundary", mipe_reference_wrap_boundary=32)


@pytest.mark.parametrize(
    "prefix, config",
    [
        ("", PYTORCH),
        ("multiscreen.", PORT),
        ("multiscreen.", {**PORT, "mipe_position_mode": "paper_absolute"}),
        ("multiscreen.", {**PORT, **WRAPPED}),
    ],
)
def test_a_multiscreen_computes_the_same(tmp_path, prefix, config):
    tensors = multiscreen_tensors(prefix)
    save_multiscreen(tmp_path / "other", tensors, {**config, "mipe_threshold": 32.0})
    tamis("convert", tmp_path / "other", tmp_path / "own")
    plain = {key.removeprefix("multiscreen."): value for key, value in tensors.items()}
    logprobs = torch.log_softmax(multiscreen_logits(plain, TOKENS), -1)
    expected = logprobs[:-1].gather(1, torch.tensor(TOKENS[1:]).unsqueeze(1)).squeeze(1)
    assert (scored(tmp_path / "own") - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    "prefix, config, boundary",
    [("", PYTORCH, 32), ("multiscreen.", {**PORT, **WRAPPED, "mipe_reference_wrap_boundary": 20}, 20)],
)
def test_positions_wrap_on_request(tmp_path, prefix, config, boundary):
    import tamis as package

    tensors = multiscreen_tensors(prefix)
    save_multiscreen(tmp_path / "other", tensors, {**config, "mipe_threshold": 32.0})
    tamis("convert", tmp_path / "other", tmp_path / "own", "--wrap-positions")
    plain = {key.removeprefix("multiscreen."): value for key, value in tensors.items()}
    tokens = TOKENS[:70]
    exact = multiscreen_logits(plain, tokens, boundary=boundary)
    assert (exact - multiscreen_logits(plain, tokens)).abs().max() > 0.01
    expected = torch.log_softmax(exact, -1)[:-1].gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)
    assert (scored(tmp_path / "own", tokens) - expected).abs().max() < 1e-4
    model = package.load(tmp_path / "own")
    with torch.no_grad():
        assert (model(torch.tensor([tokens]))[0] - exact).abs().max() < 1e-3
        state = model.new_state()
        parts = [model(part, state=state)[0] for part in torch.tensor([tokens]).split([30, 1, 1, 38], 1)]
    assert (torch.cat(parts) - exact).abs().max() < 1e-3


class Executed:
    """Would create a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def to_safetensors(*arguments):
    helper = pathlib.Path(__file__).resolve().parents[1] / "tamis/pickle_to_safetensors.py"
    return subprocess.run([sys.executable, helper, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."])
def test_a_pickle_becomes_safetensors(tmp_path, prefix):
    state = multiscreen_tensors(prefix)
    torch.save({"model_state_dict": state, "step": 3, "config": {**PYTORCH, "mipe_threshold": 32.0}}, tmp_path / "m.pt")
    assert to_safetensors(tmp_path / "m.pt", tmp_path / "other").returncode == 0
    tamis("convert", tmp_path / "other", tmp_path / "own")
    assert scored(tmp_path / "own").isfinite().all()


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    torch.save({"model_state_dict": {"a": Executed(tmp_path / "executed")}}, tmp_path / "m.pt")
    done = to_safetensors(tmp_path / "m.pt", tmp_path / "other")
    assert done.returncode == 1 and "holds more than tensors" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "executed").exists() and not (tmp_path / "other").exists()
