"""`tamis convert` to and from LlamaForCausalLM and xLSTMForCausalLM: the logits are those of transformers.

Run by `make python`. The program computes log-probabilities (`tamis score --ids`); they are compared with the log-softmax
of the logits of transformers, on random models with weights large enough for distributions far from uniform.
"""

import json
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (scripts/setup.sh exchange)")

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "build/release/tamis"
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
    """What the program gives: the log-probability of each token but the first."""
    ids = pathlib.Path(directory) / "ids.json"
    ids.write_text(json.dumps(tokens))
    line = tamis("score", directory, "--ids", ids, "--json")
    ids.unlink()
    return torch.tensor(json.loads(line)["logprobs"][1:], dtype=torch.float64)


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
    model = llama().to(torch.bfloat16)
    model.save_pretrained(tmp_path / "hf", max_shard_size="50KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 2
    tamis("convert", tmp_path / "hf", tmp_path / "own")
    assert (scored(tmp_path / "own") - logprobs_of(model.float())).abs().max() < 1e-4
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
