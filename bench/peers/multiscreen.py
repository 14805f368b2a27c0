"""A Multiscreen in plain torch, psi 16 by default; its screening is a function that the caller chooses."""

import math
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peers import screening
from peers.effort import Sizes

Screen = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v, s_w, s_r -> u
KEY_DIM, VALUE_DIM = 16, 64


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, screen: Screen):
        super().__init__()
        self.heads, self.screen = heads, screen
        scales = [0.1 / math.sqrt(KEY_DIM)] * 2 + [0.1 / math.sqrt(VALUE_DIM), 0.1]
        self.widths = [heads * KEY_DIM] * 2 + [heads * VALUE_DIM] * 2
        self.projection = nn.Parameter(torch.cat([torch.randn(n, width) * s for n, s in zip(self.widths, scales)]))
        self.output = nn.Parameter(torch.randn(width, heads * VALUE_DIM) * 0.1 / math.sqrt(width))
        self.s_w = nn.Parameter(screening.initial_windows(heads))
        self.s_r = nn.Parameter(torch.zeros(heads))
        self.s_O = nn.Parameter(torch.full((heads,), -math.log(layers * heads) / 2))

    def forward(self, x: Tensor, cache: screening.DenseCache | None) -> Tensor:  # (15)-(18)
        parts = F.linear(x, self.projection).split(self.widths, -1)
        q, k, v, g = (part.unflatten(-1, (self.heads, -1)) for part in parts)
        u = self.screen(q, k, v, self.s_w, self.s_r) if cache is None else cache.step(q, k, v)
        gated = u * F.silu(g).tanh() * self.s_O.exp().unsqueeze(-1).to(u.dtype)
        return x + F.linear(gated.flatten(-2), self.output)


class Multiscreen(nn.Module):
    """Layers = heads = psi, width = psi^2."""

    def __init__(self, sizes: Sizes, screen: Screen = screening.dense):
        super().__init__()
        self.sizes = sizes
        psi, width = sizes.psi, sizes.psi**2
        self.embed = nn.Parameter(torch.randn(sizes.vocabulary, width) * 0.1 / math.sqrt(width))
        self.s_E = nn.Parameter(torch.zeros(()))
        self.s_F = nn.Parameter(torch.tensor(math.log(math.sqrt(width))))
        self.layers = nn.ModuleList(Layer(width, psi, psi, screen) for _ in range(psi))

    def hidden(self, tokens: Tensor, caches: list[screening.DenseCache] | None = None) -> Tensor:
        """tokens [B, T] -> x [B, T, D].    (1), (2)"""
        x = self.s_E.exp() * F.embedding(tokens, F.normalize(self.embed, dim=-1))
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers)):
            x = layer(x, cache)
        return x

    def forward(self, tokens: Tensor, caches: list[screening.DenseCache] | None = None) -> Tensor:
        """tokens [B, T] -> logits [B, T, N]; with caches T is 1 and goes on behind them.    (3)"""
        return F.linear(self.s_F.exp() * self.hidden(tokens, caches), F.normalize(self.embed, dim=-1))

    def new_caches(self, capacity: int) -> list[screening.DenseCache]:
        dtype = self.embed.dtype
        return [screening.DenseCache(at.s_w, at.s_r, capacity, KEY_DIM, VALUE_DIM, dtype) for at in self.layers]


def banded_multiscreen(sizes: Sizes) -> Multiscreen:
    """Its windows are grouped as they are at initialisation."""
    plan = screening.bands(screening.initial_windows(sizes.psi))
    return Multiscreen(sizes, lambda q, k, v, s_w, s_r: screening.banded(q, k, v, s_w, s_r, plan))
