"""A LLaMA-style Transformer in plain torch: RMSNorm, RoPE (theta 10,000, half-split pairs), SDPA, SwiGLU, tied head."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peers.effort import Sizes

ROPE_THETA = 10_000.0
NORM_EPS = 1e-6


def rope_table(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin, [length, head_dim / 2], of the angle position * theta^(-2 n / head_dim)."""
    frequency = ROPE_THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, H, T, d]: dimension n and n + d/2 are a pair."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, sizes: Sizes):
        super().__init__()
        D, self.heads = sizes.width, sizes.heads
        self.attention_norm = nn.RMSNorm(D, eps=NORM_EPS)
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.output = nn.Linear(D, D, bias=False)
        self.mlp_norm = nn.RMSNorm(D, eps=NORM_EPS)
        self.gate_up = nn.Linear(D, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, D, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: "LayerCache | None") -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [B, H, T, d]
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        if cache is None:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            attended = F.scaled_dot_product_attention(q, *cache.append(k, v))
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class LayerCache:
    """Rotated keys and values of the tokens so far, [1, H, capacity, d]."""

    def __init__(self, heads: int, capacity: int, head_dim: int, dtype: torch.dtype):
        self.keys = torch.zeros(1, heads, capacity, head_dim, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.length = 0

    def pretend(self, depth: int) -> None:
        """As if `depth` tokens had been read: random rows."""
        for rows in (self.keys, self.values):
            rows[:, :, :depth] = torch.randn(rows[:, :, :depth].shape)
        self.length = depth

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One token more; all keys and values so far."""
        self.keys[:, :, self.length], self.values[:, :, self.length] = k[:, :, 0], v[:, :, 0]
        self.length += 1
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]


class Transformer(nn.Module):
    def __init__(self, sizes: Sizes, longest: int):
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        cos, sin = rope_table(longest, sizes.width // sizes.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for matrix in self.parameters():
            if matrix.dim() == 2:
                nn.init.normal_(matrix, std=math.sqrt(2 / (5 * sizes.width)))

    def hidden(self, tokens: Tensor, caches: list[LayerCache] | None = None) -> Tensor:
        """tokens [B, T] -> x [B, T, D]."""
        start, x = caches[0].length if caches else 0, self.embed(tokens)
        cos, sin = (table[start : start + tokens.shape[1]] for table in (self.cos, self.sin))
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers)):
            x = layer(x, cos, sin, cache)
        return F.rms_norm(x, (x.shape[-1],), eps=NORM_EPS)

    def forward(self, tokens: Tensor, caches: list[LayerCache] | None = None) -> Tensor:
        """tokens [B, T] -> logits [B, T, N]; with caches T is 1 and goes on behind them."""
        return F.linear(self.hidden(tokens, caches), self.embed.weight)

    def new_caches(self, capacity: int) -> list[LayerCache]:
        head_dim = self.sizes.width // self.sizes.heads
        return [LayerCache(self.sizes.heads, capacity, head_dim, self.embed.weight.dtype) for _ in self.layers]
