"""Attention mechanisms in plain torch, on [B, H, T, d], written from their definitions: what a user without Tamis runs."""

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW = 256
CHUNK = 64  # of mLSTM


def sliding_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax over the WINDOW newest keys, the query's own included: chunks of queries against two chunks of keys."""
    B, H, T, d = q.shape
    w = WINDOW
    rest = -T % w
    q, k, v = (F.pad(x, (0, 0, 0, rest)).unflatten(2, (-1, w)) for x in (q, k, v))
    before = [F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1] for x in (k, v)]
    keys, values = torch.cat([before[0], k], 3), torch.cat([before[1], v], 3)
    i, j = torch.arange(w).unsqueeze(1) + w, torch.arange(2 * w)
    seen = (j <= i) & (j > i - w)
    first = seen & (j >= w)  # the chunk before the first does not exist
    mask = torch.cat([first.unsqueeze(0), seen.expand(q.shape[2] - 1, w, 2 * w)])
    scores = q @ keys.transpose(-1, -2) / d**0.5
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values).flatten(2, 3)[:, :, :T]


def stick_breaking(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sigmoid(z_j) prod_{j < l < i} (1 - sigmoid(z_l)), strictly causal, in logarithms."""
    T, d = q.shape[2:]
    z = q @ k.transpose(-1, -2) / d**0.5
    seen = torch.ones(T, T, dtype=torch.bool).tril(-1)
    taken = F.softplus(z).masked_fill(~seen, 0)  # -log(1 - sigmoid)
    newer = taken.flip(-1).cumsum(-1).flip(-1)  # the key's own included, which turns log sigmoid into z
    return (z - newer).masked_fill(~seen, -torch.inf).exp() @ v


def mlstm(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """mLSTM chunk by chunk: products within a chunk, a matrix from chunk to chunk. i, f: [B, H, T] before activation."""
    B, H, T, K = q.shape
    q = q / K**0.5
    C, n = q.new_zeros(B, H, K, v.shape[-1]), q.new_zeros(B, H, K)
    m = q.new_zeros(B, H)
    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    out = []
    for first in range(0, T, CHUNK):
        qc, kc, vc, ic, fc = (x[:, :, first : first + CHUNK] for x in (q, k, v, i, f))
        L = qc.shape[2]
        decay = F.logsigmoid(fc).cumsum(-1)
        within = decay.unsqueeze(-1) - decay.unsqueeze(-2) + ic.unsqueeze(-2)
        within = within.masked_fill(~causal[:L, :L], -torch.inf)
        carried = decay + m.unsqueeze(-1)
        most = torch.maximum(within.amax(-1), carried)
        scores = (qc @ kc.transpose(-1, -2)) * (within - most.unsqueeze(-1)).exp()
        share = (carried - most).exp().unsqueeze(-1)
        summed = scores @ vc + share * (qc @ C)
        weight = scores.sum(-1) + share.squeeze(-1) * (qc @ n.unsqueeze(-1)).squeeze(-1)
        out.append(summed / (torch.maximum(weight.abs(), (-most).exp()) + 1e-6).unsqueeze(-1))
        left = decay[..., -1:] - decay + ic
        m_next = torch.maximum(decay[..., -1] + m, left.amax(-1))
        write = (left - m_next.unsqueeze(-1)).exp().unsqueeze(-1) * kc
        keep = (decay[..., -1] + m - m_next).exp()
        C = keep[..., None, None] * C + write.transpose(-1, -2) @ vc
        n = keep[..., None] * n + write.sum(2)
        m = m_next
    return torch.cat(out, 2)
