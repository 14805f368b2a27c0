"""Jobs on whole models: each checks its peer, then yields rows in the order of the job's lengths or depths."""

import copy
import dataclasses
from typing import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peers import checks
from peers.effort import Effort, Sizes
from peers.multiscreen import Multiscreen, banded_multiscreen
from peers.timing import measure
from peers.transformer import Transformer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHECKED_TOKENS = 48
COMPILED_TOKENS = 512  # at most, of which a compiled model is compared with the eager one, which needs more memory


def make_model(name: str, sizes: Sizes, longest: int) -> nn.Module:
    torch.manual_seed(0)
    if name == "transformer":
        return Transformer(sizes, longest)
    return banded_multiscreen(sizes) if name == "multiscreen_banded" else Multiscreen(sizes)


def random_tokens(batch: int, length: int, sizes: Sizes) -> Tensor:
    return torch.randint(sizes.vocabulary, (batch, length), generator=torch.Generator().manual_seed(1))


def check_model(model: nn.Module, name: str, tokens: Tensor) -> str:
    """Multiscreens must equal the same model with Tamis' operator inside; a Transformer its own cached decoding."""
    if name == "transformer":
        return checks.decodes_as_forward(model, tokens, checks.tolerance(torch.float32))
    import tamis

    other = Multiscreen(model.sizes, tamis.screening)
    other.load_state_dict(model.state_dict())
    what = "logits equal those with tamis.screening"
    return checks.expect_close(what, model(tokens), other(tokens), checks.tolerance(torch.float32))


@torch.no_grad()
def checked_model(name: str, sizes: Sizes, longest: int, dtype: torch.dtype) -> tuple[nn.Module, str]:
    """A model of this dtype, compared in float32 with an independent form and in its dtype with itself in float32."""
    model, tokens = make_model(name, sizes, longest), random_tokens(1, CHECKED_TOKENS, sizes)
    check = check_model(model, name, tokens)
    if dtype != torch.float32:
        exact = model(tokens)
        round_weights(model, dtype)
        what = "logits equal those in float32"
        check += "; " + checks.expect_close(what, model(tokens), exact, checks.tolerance(dtype))
    return model, check


def round_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """All weights but the learned windows and acceptances, which stay float32 as RoPE's tables do."""
    for name, weight in model.named_parameters():
        if not name.endswith(("s_w", "s_r")):
            weight.data = weight.data.to(dtype)


def compile_layers(model: nn.Module) -> None:
    """All layers share one compiled form."""
    for layer in model.layers:
        layer.compile(dynamic=False)


def row(run: Callable[[], object], effort: Effort, tokens: int, check: str, model: nn.Module) -> dict:
    parameters = sum(p.numel() for p in model.parameters())
    return {**measure(run, effort), "per_call": tokens, "check": check, "parameters": parameters}


def train(effort: Effort, model: str, dtype: str, tokens: int, batch: int, compiled: bool) -> Iterator[dict]:
    """Steps of forward, loss, backward and AdamW; bfloat16 by autocast over float32 weights."""
    kind = DTYPES[dtype]
    net, check = checked_model(model, effort.sizes, tokens, torch.float32)
    text = random_tokens(batch, tokens + 1, effort.sizes)

    def loss(net: nn.Module, length: int = tokens) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == torch.bfloat16):
            logits = net(text[:, :length])
        return F.cross_entropy(logits.float().flatten(0, 1), text[:, 1 : length + 1].flatten())

    if compiled:
        eager = copy.deepcopy(net)
        compile_layers(net)
        beginning = min(tokens, COMPILED_TOKENS)
        check += "; " + checks.same_gradients(net, eager, lambda each: loss(each, beginning), checks.tolerance(kind))
        del eager
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, betas=(0.9, 0.95), fused=True)

    def step() -> None:
        loss(net).backward()
        optimizer.step()
        optimizer.zero_grad()

    yield row(step, effort, batch * tokens, check, net)


@torch.no_grad()
def forward(effort: Effort, model: str, dtype: str, lengths: list[int], compiled: bool) -> Iterator[dict]:
    """The whole text at once, without the vocabulary head; bfloat16 weights."""
    kind = DTYPES[dtype]
    net, check = checked_model(model, effort.sizes, max(lengths), kind)
    text = random_tokens(1, max(lengths), effort.sizes)
    beginning = net.hidden(text[:, :CHECKED_TOKENS])
    if compiled:
        compile_layers(net)
    found = net.hidden(text[:, : lengths[0]])[:, :CHECKED_TOKENS]
    what = "a text's beginning is what it is alone" + (" and eager" if compiled else "")
    check += "; " + checks.expect_close(what, found, beginning, checks.tolerance(kind))
    for length in lengths:
        yield row(lambda: net.hidden(text[:, :length]), effort, length, check, net)


@torch.no_grad()
def decode(effort: Effort, model: str, dtype: str, depths: list[int]) -> Iterator[dict]:
    """Token after token, the likeliest each time, behind caches that pretend `depth` tokens; bfloat16 weights."""
    kind = DTYPES[dtype]
    effort = dataclasses.replace(effort, most_calls=min(effort.most_calls, 20))
    capacity = max(max(depths) + effort.decoded * (effort.most_calls + 1), CHECKED_TOKENS)
    net, check = checked_model(model, effort.sizes, capacity, kind)
    tokens = random_tokens(1, CHECKED_TOKENS, effort.sizes)
    check += "; " + checks.decodes_as_forward(net, tokens, checks.tolerance(kind))
    caches = net.new_caches(capacity)

    def continue_greedily() -> None:
        token = torch.zeros(1, 1, dtype=torch.long)
        for _ in range(effort.decoded):
            token = net(token, caches)[:, -1].argmax(-1, keepdim=True)

    for depth in depths:
        for cache in caches:
            cache.pretend(depth)
        yield row(continue_greedily, effort, effort.decoded, check, net)
