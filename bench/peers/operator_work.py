"""Jobs on operators alone, on the vocabulary head and on the machine: each checks its peer, then yields its rows."""

import functools
import time
from typing import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from peers import checks, mechanisms, screening
from peers.effort import Effort
from peers.model_work import DTYPES
from peers.timing import measure

ATTENTION_DIM, KEY_DIM, VALUE_DIM = 64, 16, 64
CHECKED_TOKENS = 300  # longer than any initial window
HEAD_WIDTH = 256


def with_heads_first(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Of an operator on [B, H, T, d], the one on [B, T, H, d]."""
    return lambda *inputs: attention(*(x.transpose(1, 2) for x in inputs)).transpose(1, 2)


def causal_scores(q: Tensor, k: Tensor) -> Tensor:
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(hidden, -1e9)


def entmax15(scores: Tensor) -> Tensor:
    import entmax

    return entmax.entmax15(scores, dim=-1)


ATTENTIONS = {
    "sdpa": with_heads_first(functools.partial(F.scaled_dot_product_attention, is_causal=True)),
    "entmax15": with_heads_first(lambda q, k, v: entmax15(causal_scores(q, k)) @ v),
    "window": with_heads_first(mechanisms.sliding_window),
    "stick_breaking": with_heads_first(mechanisms.stick_breaking),
}


def attentions_of_tamis() -> dict[str, Callable[..., Tensor]]:
    """What a peer is compared with."""
    import tamis

    return {
        "window": functools.partial(tamis.softmax_attention, window=mechanisms.WINDOW),
        "stick_breaking": lambda q, k, v: tamis.stick_breaking_attention(q, k, v)[0],
        "mlstm": lambda *inputs: tamis.mlstm(*inputs)[0],
    }


def make_operator(kind: str, heads: int) -> tuple[Callable[..., Tensor], int, tuple[Tensor, ...]]:
    """The operator, the width of its queries and keys, and its learned scalars: initial windows, r 0.5."""
    if kind in ATTENTIONS:
        return ATTENTIONS[kind], ATTENTION_DIM, ()
    if kind == "mlstm":
        return with_heads_first(mechanisms.mlstm), ATTENTION_DIM, ()
    s_w = screening.initial_windows(heads)
    banded = functools.partial(screening.banded, plan=screening.bands(s_w))
    return screening.dense if kind == "dense" else banded, KEY_DIM, (s_w, torch.zeros(heads))


def check_operator(kind: str, run: Callable[..., Tensor], inputs: tuple[Tensor, ...], dtype: torch.dtype) -> str:
    """On the beginning of the text."""
    allowed = checks.tolerance(dtype)
    inputs = tuple(x[:, :CHECKED_TOKENS] if x.dim() > 1 else x for x in inputs)
    if kind == "sdpa":
        exact = with_heads_first(checks.attention_by_definition)
        return checks.same_operator("equals softmax attention in float64", run, exact, inputs, allowed)
    if kind == "entmax15":
        scores = causal_scores(*(x.transpose(1, 2) for x in inputs[:2]))
        return checks.entmax15_conditions(scores, entmax15(scores))
    if kind in ("window", "stick_breaking", "mlstm"):
        return checks.same_operator(f"equals tamis' {kind}", run, attentions_of_tamis()[kind], inputs, allowed)
    import tamis

    return checks.same_operator("result and gradients equal tamis.screening", run, tamis.screening, inputs, allowed)


def operator(effort: Effort, kind: str, dtype: str, tokens: int, passes: list[str], compiled: bool) -> Iterator[dict]:
    """One operator alone: its forward pass, or that and all gradients."""
    torch.manual_seed(0)
    number, heads = DTYPES[dtype], effort.operator_heads
    run, width, scalars = make_operator(kind, heads)
    values = VALUE_DIM
    if kind == "mlstm":
        heads, values = heads // 4, 2 * VALUE_DIM
        scalars = (torch.randn(1, tokens, heads), torch.randn(1, tokens, heads) + 4)
    rows = tuple(torch.randn(1, tokens, heads, d).to(number) for d in (width, width, values))
    inputs = rows + scalars
    check = check_operator(kind, run, inputs, number)
    if compiled:
        eager, run = run, torch.compile(run, dynamic=False)
        check += "; " + checks.same_operator("compiled equals eager", run, eager, inputs, checks.compiled_tolerance(number))
    upstream = torch.randn(1, tokens, heads, values).to(number)
    for which in passes:
        yield {**measure(one_pass(run, inputs, upstream, which), effort), "per_call": tokens, "check": check}


def one_pass(
    run: Callable[..., Tensor], inputs: tuple[Tensor, ...], upstream: Tensor, which: str
) -> Callable[[], object]:
    if which == "forward":
        return torch.no_grad()(lambda: run(*inputs))
    leaves = tuple(x.detach().requires_grad_() for x in inputs)
    return lambda: checks.gradients(run, leaves, upstream)


def head(effort: Effort, dtype: str, tokens: int, vocabulary: int, passes: list[str]) -> Iterator[dict]:
    """Vocabulary head and loss with the logits in memory."""
    import tamis

    torch.manual_seed(0)
    kind = DTYPES[dtype]
    x, weight = (torch.randn(n, HEAD_WIDTH).div(16).to(kind) for n in (tokens, vocabulary))
    target = torch.randint(vocabulary, (tokens,))

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight).float(), target[: len(x)])

    def expected(x: Tensor, weight: Tensor) -> Tensor:
        return tamis.linear_cross_entropy(x, weight, target[: len(x)])

    allowed = checks.tolerance(kind)
    check = checks.same_operator("equals tamis.linear_cross_entropy", loss, expected, (x[:64], weight), allowed)
    for which in passes:
        yield {
            **measure(one_pass(loss, (x, weight), torch.ones(()), which), effort),
            "per_call": tokens,
            "check": check,
        }


def matrix_size(dtype: torch.dtype, largest: int) -> int:
    """A product of which takes a second at most: torch multiplies bfloat16 at less than 1 GFLOP/s on some processors."""
    small = min(256, largest)
    a = torch.randn(small, small).to(dtype)
    a @ a
    start = time.monotonic()
    a @ a
    seconds = time.monotonic() - start
    return largest if seconds * (largest / small) ** 3 < 1 else small


def peaks(effort: Effort) -> Iterator[dict]:
    """Square matrix products of both dtypes, and reading memory: the sum of numbers far beyond the caches, for which
    torch takes all threads."""
    for dtype in DTYPES.values():
        size = matrix_size(dtype, effort.matrix)
        a = torch.randn(size, size).to(dtype)
        yield {**measure(lambda: a @ a, effort), "per_call": 2 * size**3, "check": "none"}
    numbers = torch.ones(effort.read_numbers)
    yield {**measure(numbers.sum, effort), "per_call": numbers.numel() * 4, "check": "none"}
