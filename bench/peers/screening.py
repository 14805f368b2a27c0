"""Screening in plain torch, twice: dense over all T x T pairs, and banded over what the initial windows can reach.

Equation numbers are those of "Screening Is Enough". Inputs are raw projections q, k [B, T, H, K] and v [B, T, H, V];
similarities are float32 whatever the dtype, as Trim amplifies their error; the sums over values use the dtype of v.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

MIPE_THRESHOLD = 256.0  # w_th, tokens
BANDS = (16, 64)  # lengths of query blocks; a head takes the longest one that its window fills


def initial_windows(heads: int) -> Tensor:
    """s_w of a new layer: windows from 2 to w_th + 1 tokens."""
    return torch.linspace(0, math.log(MIPE_THRESHOLD), heads)


@dataclass
class Heads:
    """What the two scalars of each head stand for, [H]."""

    width: Tensor  # w, tokens                                   (4)
    inverse_r: Tensor  # 1 / r                                   (4)
    step: Tensor  # MiPE's angle per token                       (6), (7)


def heads(s_w: Tensor, s_r: Tensor) -> Heads:
    width = s_w.exp() + 1
    phi = torch.where(width < MIPE_THRESHOLD, (torch.cos(math.pi * width / MIPE_THRESHOLD) + 1) / 2, 0.0)
    return Heads(width, 1 + torch.exp(-s_r), math.pi * phi / width)


def unit(x: Tensor) -> Tensor:  # (5)
    return F.normalize(x.float(), dim=-1, eps=1e-12)


def rotated(x: Tensor, position: Tensor, step: Tensor) -> Tensor:
    """MiPE: x [B, T, H, K] turned in dimensions 0 and 1 by position times step.    (6)"""
    angle = position[:, None] * step
    cos, sin = angle.cos(), angle.sin()
    x0, x1 = x[..., 0], x[..., 1]
    return torch.cat([torch.stack([x0 * cos - x1 * sin, x0 * sin + x1 * cos], -1), x[..., 2:]], -1)


def softmask(distance: Tensor, width: Tensor) -> Tensor:  # (10); [H, 1, 1] against distances [T_q, T_k]
    inside = (distance >= 0) & (distance < width)
    return torch.where(inside, (torch.cos(math.pi * distance / width) + 1) / 2, 0.0)


def trim(similarity: Tensor, inverse_r: Tensor) -> Tensor:  # (9)
    return F.relu(1 - (1 - similarity) * inverse_r).square()


def tanh_norm(h: Tensor) -> Tensor:  # (13), (14); u = h where h = 0
    norm = h.square().sum(-1, keepdim=True).clamp_min(1e-24).sqrt()
    return h * (norm.tanh() / norm)


def prepared(q: Tensor, k: Tensor, v: Tensor, scalars: Heads) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors, q and k rotated, as [B, H, T, .]."""
    position = torch.arange(q.shape[1], dtype=torch.float32)
    q = rotated(unit(q), position, scalars.step).transpose(1, 2)
    k = rotated(unit(k), position, scalars.step).transpose(1, 2)
    return q, k, unit(v).to(v.dtype).transpose(1, 2)


def weights(q: Tensor, k: Tensor, distance: Tensor, width: Tensor, inverse_r: Tensor, dtype: torch.dtype) -> Tensor:
    """Trim times softmask. Autocast would make the similarities bfloat16."""
    with torch.autocast("cpu", enabled=False):
        similarity = q @ k.transpose(-1, -2)  # (8)
    return (trim(similarity, inverse_r) * softmask(distance, width)).to(dtype)


def dense(q: Tensor, k: Tensor, v: Tensor, s_w: Tensor, s_r: Tensor) -> Tensor:
    """All pairs: O(T^2) time and memory."""
    scalars = heads(s_w, s_r)
    q, k, v = prepared(q, k, v, scalars)
    position = torch.arange(q.shape[2], dtype=torch.float32)
    distance = position[:, None] - position
    a = weights(q, k, distance, scalars.width.view(-1, 1, 1), scalars.inverse_r.view(-1, 1, 1), v.dtype)
    return tanh_norm((a @ v).float()).to(v.dtype).transpose(1, 2)  # (11), (12)


@dataclass
class Band:
    """Neighbouring heads that share a block length; a block of queries sees itself and `before` blocks of keys."""

    heads: slice
    block: int
    before: int


def bands(s_w: Tensor) -> list[Band]:
    """Groups the heads of a layer by their windows, which ascend."""
    reach = (s_w.exp() + 1).ceil().long().tolist()  # the furthest key is reach - 1 tokens back
    plan: list[Band] = []
    for head, tokens in enumerate(reach):
        block = max((b for b in BANDS if b <= tokens), default=BANDS[0])
        before = -(-(tokens - 1) // block)
        if plan and (plan[-1].block, plan[-1].before) == (block, before):
            plan[-1].heads = slice(plan[-1].heads.start, head + 1)
        else:
            plan.append(Band(slice(head, head + 1), block, before))
    return plan


def blocks(x: Tensor, block: int, before: int) -> Tensor:
    """[B, H, n block, D] -> [B, H, n, (before + 1) block, D]: each block behind the blocks before it."""
    whole = x.unflatten(2, (-1, block))
    earlier = [F.pad(whole, (0, 0, 0, 0, back, 0))[:, :, : whole.shape[2]] for back in range(before, 0, -1)]
    return torch.cat([*earlier, whole], 3)


def banded(q: Tensor, k: Tensor, v: Tensor, s_w: Tensor, s_r: Tensor, plan: list[Band]) -> Tensor:
    """Only the blocks that the windows of `plan` reach: O(T w). Padding has zero values, so it adds nothing."""
    scalars = heads(s_w, s_r)
    q, k, v = prepared(q, k, v, scalars)
    length, out = q.shape[2], []
    for band in plan:
        padding = (0, 0, 0, -length % band.block)
        qs, ks, vs = (F.pad(x[:, band.heads], padding) for x in (q, k, v))
        block = torch.arange(band.block, dtype=torch.float32)
        past = torch.arange(-band.before * band.block, band.block, dtype=torch.float32)
        width, inverse_r = (x[band.heads].view(-1, 1, 1, 1) for x in (scalars.width, scalars.inverse_r))
        a = weights(
            blocks(qs, band.block, 0),
            blocks(ks, band.block, band.before),
            block[:, None] - past,
            width,
            inverse_r,
            v.dtype,
        )
        out.append((a @ blocks(vs, band.block, band.before)).flatten(2, 3)[:, :, :length])
    return tanh_norm(torch.cat(out, 1).float()).to(v.dtype).transpose(1, 2)


class DenseCache:
    """Decoding: unit keys and values of all tokens so far, and the softmask of every distance (s_w no longer moves)."""

    def __init__(self, s_w: Tensor, s_r: Tensor, capacity: int, key_dim: int, value_dim: int, dtype: torch.dtype):
        self.scalars, self.length = heads(s_w, s_r), 0
        self.keys = torch.zeros(1, s_w.numel(), capacity, key_dim)
        self.values = torch.zeros(1, s_w.numel(), capacity, value_dim, dtype=dtype)
        newest_last = torch.arange(capacity - 1, -1, -1, dtype=torch.float32)
        self.mask = softmask(newest_last, self.scalars.width.view(-1, 1, 1))

    def pretend(self, depth: int) -> None:
        """As if `depth` tokens had been read: random unit rows."""
        for rows in (self.keys, self.values):
            rows[:, :, :depth] = unit(torch.randn(rows[:, :, :depth].shape))
        self.length = depth

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One token: q, k [1, 1, H, K], v [1, 1, H, V]."""
        n, position = self.length, torch.tensor([float(self.length)])
        self.keys[:, :, n] = rotated(unit(k), position, self.scalars.step)[:, 0]
        self.values[:, :, n] = unit(v)[:, 0]
        self.length = n = n + 1
        query = rotated(unit(q), position, self.scalars.step).transpose(1, 2)
        a = trim(query @ self.keys[:, :, :n].transpose(-1, -2), self.scalars.inverse_r.view(-1, 1, 1))
        a = (a * self.mask[..., -n:]).to(self.values.dtype)
        return tanh_norm((a @ self.values[:, :, :n]).float()).to(v.dtype).transpose(1, 2)
