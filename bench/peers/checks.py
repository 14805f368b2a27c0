"""A peer that computes something else is no peer: each is compared with an independent form before it is timed."""

from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CheckFailed(Exception):
    pass


def expect_close(what: str, found: Tensor, expected: Tensor, tolerance: float) -> str:
    """Differences are relative to the largest magnitude. Returns what was found, for the row."""
    if found.shape != expected.shape:
        raise CheckFailed(f"{what}: shape {list(found.shape)}, expected {list(expected.shape)}")
    scale = expected.double().abs().max().clamp_min(1e-30)
    error = ((found.double() - expected.double()).abs().max() / scale).item()
    if not error <= tolerance:
        raise CheckFailed(f"{what}: differs by {error:.1e}, at most {tolerance:.0e} allowed")
    return f"{what}: {error:.0e}"


def tolerance(dtype: torch.dtype) -> float:
    return 1e-4 if dtype == torch.float32 else 6e-2


def compiled_tolerance(dtype: torch.dtype) -> float:
    """Between two orders of the same sums: Trim multiplies the rounding of a similarity by 2 / r."""
    return 1e-3 if dtype == torch.float32 else 6e-2


def gradients(run: Callable[..., Tensor], inputs: tuple[Tensor, ...], upstream: Tensor) -> list[Tensor]:
    out = run(*inputs)
    return [out, *torch.autograd.grad(out, inputs, upstream)]


def same_operator(
    what: str, run: Callable[..., Tensor], expected: Callable[..., Tensor], inputs: tuple[Tensor, ...], allowed: float
) -> str:
    """Result and every gradient."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    out = expected(*inputs)
    upstream = torch.randn(out.shape).to(out.dtype)
    pairs = zip(gradients(run, inputs, upstream), gradients(expected, inputs, upstream))
    texts = [expect_close(what, found, wanted, allowed) for found, wanted in pairs]
    return max(texts, key=lambda text: float(text.rsplit(" ", 1)[1]))


def same_gradients(net: nn.Module, eager: nn.Module, loss: Callable[[nn.Module], Tensor], allowed: float) -> str:
    """The gradients of the matrices of two forms of a model, relative in norm."""
    found, expected = (
        torch.autograd.grad(loss(each), [p for p in each.parameters() if p.dim() == 2]) for each in (net, eager)
    )
    error = max(((a - b).norm() / b.norm().clamp_min(1e-30)).item() for a, b in zip(found, expected))
    if not error <= allowed:
        raise CheckFailed(f"compiled gradients equal eager: differ by {error:.1e}, at most {allowed:.0e} allowed")
    return f"compiled gradients equal eager: {error:.0e}"


def decodes_as_forward(model: nn.Module, tokens: Tensor, allowed: float) -> str:
    """Token by token with a cache equals the whole at once."""
    caches = model.new_caches(tokens.shape[1])
    steps = [model(tokens[:, at : at + 1], caches) for at in range(tokens.shape[1])]
    return expect_close("cached decode equals forward", torch.cat(steps, 1), model(tokens), allowed)


def attention_by_definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention of [B, H, T, d] in float64."""
    scores = q.double() @ k.double().transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (F.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v.double()).to(v.dtype)


def entmax15_conditions(scores: Tensor, p: Tensor) -> str:
    """p = max(scores / 2 - tau, 0)^2 with rows that sum to 1, for one tau a row."""
    root = p.sqrt()
    tau = torch.where(p > 0, scores / 2 - root, -torch.inf).amax(-1, keepdim=True)
    expect_close("entmax rows sum to 1", p.sum(-1), torch.ones(p.shape[:-1]), 1e-4)
    return expect_close("entmax satisfies its equation", (scores / 2 - tau).clamp_min(0), root, 1e-3)
