"""Modules and models in PyTorch: caches, documents, gradients, autocast, torch.compile, vmap, sampling, refusals."""

import math

import pytest
import torch

import tamis
from tamis import generation, scoring
from tamis.state import KeyValueCache

D, H = 32, 2
LLAMA3 = tamis.nn.Llama3Scaling(1.0, 4.0, original_length=32.0)
MIXERS = {
    "screening": lambda: tamis.nn.Screening(D, 4, 8, 6, mipe_threshold=20.0),
    "screening_rope": lambda: tamis.nn.Screening(D, 4, 8, 6, position="rope", gate=False, fixed_r=0.5),
    "softmax": lambda: tamis.nn.SoftmaxAttention(D, H, qk_norm=True, ssmax="bias"),
    "softmax_llama3": lambda: tamis.nn.SoftmaxAttention(D, H, rope_factor=4.0, rope_llama3=LLAMA3),
    "sliding": lambda: tamis.nn.SoftmaxAttention(D, H, window=7, ssmax="learned"),
    "sliding_strict": lambda: tamis.nn.SoftmaxAttention(D, H, window=7, strict=True, ssmax="learned"),
    "entmax": lambda: tamis.nn.EntmaxAttention(D, H),
    "entmax_strict": lambda: tamis.nn.EntmaxAttention(D, H, strict=True),
    "stick_breaking": lambda: tamis.nn.StickBreakingAttention(D, H, qk_norm=True),
    "sieve": lambda: tamis.nn.SieveAttention(D, H),
    "sieve_algorithm1": lambda: tamis.nn.SieveAttention(D, H, strict=False, algorithm1_epsilon=100.0),
    "mlstm": lambda: tamis.nn.MLSTM(D, H),
}


@pytest.fixture(params=MIXERS)
def mixer(request):
    torch.manual_seed(1)
    made = MIXERS[request.param]()
    with torch.no_grad():  # initial weights are small: larger ones tell mixers and their errors apart
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return made


def inputs(length: int = 40, rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, length, D, generator=torch.Generator().manual_seed(2))


DOCUMENT = torch.tensor([[0] * 11 + [1] * 20 + [2] * 9, [5] * 3 + [4] * 37])


def model_of(pattern: str = "sawebvm", **keys) -> tamis.Model:
    torch.manual_seed(3)
    return tamis.Model(
        {
            "model_type": "transformer", "pattern": pattern, "vocab_size": 23, "hidden_size": D, "window": 5,
            "num_hidden_layers": len(pattern), "num_attention_heads": H, "max_position_embeddings": 32, "key_dim": 8,
            "value_dim": 6, **keys,
        }  # fmt: skip
    )


def tokens_of(length: int = 40, rows: int = 2) -> torch.Tensor:
    return torch.randint(23, (rows, length), generator=torch.Generator().manual_seed(4))


@torch.no_grad()
@pytest.mark.parametrize("document", [None, DOCUMENT], ids=["text", "documents"])
def test_chunks_give_what_the_whole_gives(mixer, document):
    x = inputs()
    whole = mixer(x, document=document)
    for sizes in [[13, 1, 1, 20, 5], [1] * 40]:
        state, parts, first = mixer.new_state(), [], 0
        for size in sizes:
            part = slice(first, first + size)
            parts.append(mixer(x[:, part], document=None if document is None else document[:, part], state=state))
            first += size
        # Entmax finds its threshold to 1e-5 of the scores.
        torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-4, rtol=1e-5)


@torch.no_grad()
def test_documents_do_not_see_each_other(mixer):
    """Every document of a row gives what it gives alone."""
    x = inputs()
    packed = mixer(x, document=DOCUMENT)
    for row in range(2):
        for document in DOCUMENT[row].unique():
            own = DOCUMENT[row] == document
            torch.testing.assert_close(packed[row, own], mixer(x[row : row + 1, own])[0], atol=2e-5, rtol=1e-5)


def test_gradients_reach_every_parameter(mixer):
    mixer(inputs()).square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(mixer, dtype):
    x = inputs()
    expected = mixer(x)
    with torch.autocast("cpu", dtype):
        found = mixer(x)
        found.float().square().sum().backward()
    assert found.dtype == dtype
    error = (found.float() - expected).abs().max() / expected.abs().max()
    assert error < 0.1, error
    assert all(parameter.grad.dtype == torch.float32 for parameter in mixer.parameters())


def test_autocast_of_a_model_and_its_loss():
    model, tokens = model_of(), tokens_of()
    exact = model.loss(tokens[:, :-1], tokens[:, 1:])
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(exact.item(), rel=0.01)


def test_compiled_without_graph_breaks(mixer):
    torch.compiler.reset()
    x = inputs()
    expected = mixer(x)
    compiled = torch.compile(mixer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected, atol=1e-6, rtol=1e-5)
    compiled(x, document=DOCUMENT).sum().backward()


def test_a_compiled_model_trains():
    model, tokens = model_of(), tokens_of()
    loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model.loss, backend="aot_eager", fullgraph=True)
    again = compiled(tokens[:, :-1], tokens[:, 1:])
    again.backward()
    torch.testing.assert_close(again, loss)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4)


def test_vmap_is_refused_in_one_line():
    q = torch.randn(3, 1, 5, 2, 4)
    calls = {
        "softmax_attention": lambda x: tamis.softmax_attention(x, x, x),
        "screening": lambda x: tamis.screening(x, x, x, torch.ones(2), torch.zeros(2)),
        "mlstm": lambda x: tamis.mlstm(x, x, x, x[..., 0], x[..., 0])[0],
    }
    for name, call in calls.items():
        for recorded in [False, True]:
            with pytest.raises((NotImplementedError, RuntimeError), match=rf"(?s)tamis.{name}.*vmap"):
                torch.func.vmap(call)(q.clone().requires_grad_(recorded))


def test_wrong_devices_and_dtypes_say_what_is_expected():
    q = torch.randn(1, 5, 2, 4)
    with pytest.raises(ValueError, match="k must be on the device of q, meta, but is on cpu"):
        tamis.softmax_attention(q.to("meta"), q, q)
    with pytest.raises(ValueError, match="v must have the dtype of q, Float, but has Double"):
        tamis.sieve_attention(q, q, q.double())
    with pytest.raises(ValueError, match="s_w must be float32 or float64, but is BFloat16"):
        tamis.screening(q, q, q, torch.ones(2, dtype=torch.bfloat16), torch.zeros(2))
    with pytest.raises(ValueError, match="q must be floating point, but is Long"):
        tamis.entmax_attention(*[q.long()] * 3)


# Caches.


@torch.no_grad()
def test_heads_with_finite_windows_keep_as_many_keys():
    model = tamis.Multiscreen(vocab_size=23, psi=4, mipe_threshold=64.0)
    state, tokens = model.new_state(), tokens_of(300, 1)
    sizes = []
    for part in tokens.split(100, 1):
        model(part, state=state)
        sizes.append(state.bytes())
    assert sizes[0] == sizes[1] == sizes[2]
    for layer, own in zip(model.layers, state.layers):
        kept = {int(head): cache.keys for heads, cache in own.groups for head in heads}
        assert [kept[head] for head in range(4)] == [math.ceil(w) for w in layer.windows()]
    assert sizes[0] == 4 * sum(math.ceil(w) for layer in model.layers for w in layer.windows()) * (16 + 64)
    expanded = model.new_state(expand_windows=True)
    assert all(len(own.groups) == 4 for own in expanded.layers)


@torch.no_grad()
def test_states_of_windows_and_memories_are_bounded():
    model = model_of("wm")
    sizes = []
    state = model.new_state()
    for part in tokens_of(90).split(30, 1):
        model(part, state=state)
        sizes.append(state.bytes())
    assert sizes[0] == sizes[2] and state.position == 90
    assert state.layers[0].keys == 5
    growing = KeyValueCache()
    for count in [1, 100, 3]:
        seen = growing.append(torch.ones(2, count, H, 8), torch.ones(2, count, H, 6))
    assert seen.k.shape == (2, 104, H, 8) and seen.key_start == 0 and growing.bytes() <= 4 * 2 * 2 * 104 * H * 14


def test_document_is_given_always_or_never():
    for mixer in [tamis.nn.SieveAttention(D, H), tamis.nn.MLSTM(D, H)]:
        state = mixer.new_state()
        mixer(inputs(), state=state)
        with pytest.raises(ValueError, match="document must be given with every chunk"):
            mixer(inputs(), state=state, document=DOCUMENT)


# Models.


def test_names_of_parameters_are_those_of_a_checkpoint():
    model = model_of("sm", final_norm_weight=True)
    names = {
        "embed.weight", "norm.weight", "layers.0.q_proj.weight", "layers.0.s_w", "layers.0.mixer_norm.weight",
        "layers.0.gate_proj.weight", "layers.1.qkvo_proj.weight", "layers.1.norm.weight", "layers.1.input_bias",
    }  # fmt: skip
    assert names <= set(model.state_dict()) and list(model.state_dict()) == [n for n, _ in model.named_parameters()]


def test_initial_values_are_those_of_the_mixers():
    model = tamis.Multiscreen(vocab_size=257, psi=8)
    layer = model.layers[3]
    assert layer.q_proj.weight.std().item() == pytest.approx(0.1 / 4, rel=0.05)
    assert layer.v_proj.weight.std().item() == pytest.approx(0.1 / 8, rel=0.05)
    assert layer.g_proj.weight.std().item() == pytest.approx(0.1, rel=0.05)
    assert layer.o_proj.weight.std().item() == pytest.approx(0.1 / 8, rel=0.05)
    assert layer.s_O.tolist() == pytest.approx([-math.log(64) / 2] * 8)
    assert layer.windows()[0] == pytest.approx(2) and layer.windows()[-1] == pytest.approx(257)
    assert model.s_F.item() == pytest.approx(math.log(64) / 2) and layer.acceptance_widths() == [0.5] * 8
    stack = model_of("am", hidden_size=128, intermediate_size=256)
    assert stack.layers[0].qkv_proj.weight.std().item() == pytest.approx(math.sqrt(2 / 640), rel=0.05)
    assert stack.layers[1].out_proj.weight.std().item() == pytest.approx(1 / math.sqrt(128), rel=0.05)
    assert stack.layers[0].down_proj.weight.std().item() == pytest.approx(1 / math.sqrt(128), rel=0.05)
    assert stack.layers[1].forget_bias.tolist() == [3, 6] and stack.layers[1].input_bias.tolist() == [-10, -10]


def test_parameter_counts_of_the_paper():
    model = tamis.Multiscreen(vocab_size=50257, psi=16, device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == 27_546_626


@torch.no_grad()
def test_a_model_continues_padded_texts_as_alone():
    model = model_of()
    texts = [tokens_of(length, 1)[0].tolist() for length in [9, 17, 30]]
    tokens, document = generation.padded_at_front(texts)
    together = model.generate(tokens, 12, document=document)
    for row, text in enumerate(texts):
        assert together[row].tolist() == model.generate(torch.tensor([text]), 12)[0].tolist()


def test_texts_end_at_the_end_token():
    model = model_of()
    made = model.generate(tokens_of(), 10)
    end = int(made[0, 3])
    ended = model.generate(tokens_of(), 10, end_token=end)
    first = made[0].tolist().index(end)
    assert ended[0, : first + 1].tolist() == made[0, : first + 1].tolist() and set(ended[0, first:].tolist()) == {end}
    assert model.generate(tokens_of(), 0).shape == (2, 0)


def test_sampling_follows_its_options():
    logits = torch.tensor([[0.1, 0.4, 0.3, 0.2]]).log().repeat(4000, 1)

    def shares(**options) -> list[float]:
        generator = torch.Generator().manual_seed(5)
        drawn = generation.sample(logits, generator=generator, **options)
        return (torch.bincount(drawn, minlength=4) / len(drawn)).tolist()

    assert shares() == [0, 1, 0, 0]
    assert shares(temperature=1) == pytest.approx([0.1, 0.4, 0.3, 0.2], abs=0.04)
    assert shares(temperature=1, top_k=2) == pytest.approx([0, 4 / 7, 3 / 7, 0], abs=0.04)
    assert shares(temperature=1, top_p=0.75) == pytest.approx([0, 4 / 9, 3 / 9, 2 / 9], abs=0.04)
    assert shares(temperature=1, top_k=2, top_p=0.55) == [0, 1, 0, 0]
    assert shares(temperature=1, min_p=0.45) == pytest.approx([0, 4 / 9, 3 / 9, 2 / 9], abs=0.04)
    model = model_of()
    options = {"temperature": 1.0, "seed": 6}
    assert torch.equal(model.generate(tokens_of(), 8, **options), model.generate(tokens_of(), 8, **options))


def test_bad_arguments_of_generation_are_refused():
    model = model_of("a")
    for options, text in [({"temperature": -1}, "temperature must be 0 or more, but is -1"), ({"top_k": -1}, "top_k"),
                          ({"top_p": 0}, r"top_p must be in \(0, 1\], but is 0"), ({"min_p": 2}, "min_p")]:  # fmt: skip
        with pytest.raises(ValueError, match=text):
            model.generate(tokens_of(), 3, **options)
    with pytest.raises(ValueError, match="token 23 is outside of the model's vocabulary 0..22"):
        model.generate(torch.tensor([[1, 23]]), 3)
    with pytest.raises(ValueError, match=r"tokens must be integers \[B, T\]"):
        model.generate(torch.zeros(1, 0, dtype=torch.int64), 3)
    with pytest.raises(ValueError, match="max_new_tokens"):
        model.generate(tokens_of(), -3)


@torch.no_grad()
def test_scores_in_chunks_are_those_of_the_logits():
    model, tokens = model_of(), tokens_of()
    targets = tokens[:, 1:].clone()
    targets[1, 20:] = scoring.IGNORED
    expected = model(tokens[:, :-1]).log_softmax(-1)
    found, likeliest = scoring.score_targets(model, tokens[:, :-1], targets, chunk_tokens=14)
    wanted = expected.gather(2, targets.clamp_min(0)[..., None])[..., 0].double() * (targets >= 0)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(likeliest, (expected.argmax(-1) == targets))


def test_matrices_of_bfloat16(tmp_path):
    model, tokens = model_of(), tokens_of()
    model.save(tmp_path / "saved")
    half = tamis.load(tmp_path / "saved", dtype=torch.bfloat16)
    assert half.layers[0].q_proj.weight.dtype == torch.bfloat16 and half.layers[0].s_w.dtype == torch.float32
    with torch.no_grad():
        logits = half(tokens)
        assert logits.dtype == torch.float32
        assert (logits - model(tokens)).abs().max() < 0.05 * model(tokens).abs().max()
    double = tamis.load(tmp_path / "saved", dtype=torch.float64)
    torch.testing.assert_close(double(tokens).float(), model(tokens), atol=1e-4, rtol=1e-4)
