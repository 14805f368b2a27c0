"""Screening as a module."""

import math
from typing import Literal, Optional

import torch
from torch import Tensor
from torch.nn import Linear, Parameter, init
from torch.nn import functional as F

from tamis import operators
from tamis.nn.mixer import Llama3Scaling, Mixer, rotated, wide
from tamis.state import MixerState, ScreeningState


class Screening(Mixer):
    """A Multiscreen layer ("Screening Is Enough", Eq. 15-18): gated screening of all heads,

        sum_h exp(s_O) (screening(x W_Q, x W_K, x W_V) * tanh(SiLU(x W_G))) W_O

    Args:
        hidden_size: D.
        num_heads: H.
        key_dim, value_dim: K and V of a head.
        mipe_threshold: w_th in tokens: heads with a longer window are not rotated.
        position: "mipe"; "rope", all of q and k by the position alone; or "none".
        mipe_wrap_boundary: positions from this on count modulo the window in MiPE, as in multiscreen-pytorch.
        tanh_norm, gate, output_scale: False leaves TanhNorm, W_G or s_O out.
        fixed_r: acceptance width in (0, 1]; learned where None.
        trim_power, softmask: shapes of Trim and Softmask, as in `tamis.operators.screening`.
        rope_theta, rope_factor, rope_llama3: theta, factor and llama3 of `tamis.nn.rotated`.
        num_layers: of the model, for the initial output scale 1 / sqrt(num_layers H).
    """

    def __init__(self, hidden_size: int, num_heads: int, key_dim: int = 16, value_dim: int = 64, *,
                 mipe_threshold: float = 256.0, position: Literal["mipe", "rope", "none"] = "mipe",
                 tanh_norm: bool = True, gate: bool = True, output_scale: bool = True,
                 fixed_r: Optional[float] = None, rope_theta: float = 10_000.0, rope_factor: float = 1.0,
                 rope_llama3: Optional[Llama3Scaling] = None, mipe_wrap_boundary: Optional[int] = None,
                 trim_power: Literal[1, 2, 3] = 2, softmask: Literal["cosine", "linear", "none"] = "cosine",
                 num_layers: int = 1, device: Optional[torch.device] = None):  # fmt: skip
        super().__init__()
        self.hidden_size, self.num_heads, self.key_dim, self.value_dim = hidden_size, num_heads, key_dim, value_dim
        self.mipe_threshold, self.position, self.tanh_norm, self.fixed_r = mipe_threshold, position, tanh_norm, fixed_r
        self.rope_theta, self.rope_factor, self.rope_llama3 = rope_theta, rope_factor, rope_llama3
        self.mipe_wrap_boundary = mipe_wrap_boundary
        self.trim_power, self.softmask = trim_power, softmask
        keys, values = num_heads * key_dim, num_heads * value_dim
        self.q_proj = Linear(hidden_size, keys, bias=False, device=device)
        self.k_proj = Linear(hidden_size, keys, bias=False, device=device)
        self.v_proj = Linear(hidden_size, values, bias=False, device=device)
        self.g_proj = Linear(hidden_size, values, bias=False, device=device) if gate else None
        self.o_proj = Linear(values, hidden_size, bias=False, device=device)
        self.s_w = Parameter(torch.empty(num_heads, device=device))
        self.s_r = Parameter(torch.empty(num_heads, device=device)) if fixed_r is None else None
        self.s_O = Parameter(torch.empty(num_heads, device=device)) if output_scale else None
        self.initialise(num_layers)

    def initialise(self, num_layers: int) -> None:
        init.normal_(self.q_proj.weight, std=0.1 / math.sqrt(self.key_dim))
        init.normal_(self.k_proj.weight, std=0.1 / math.sqrt(self.key_dim))
        init.normal_(self.v_proj.weight, std=0.1 / math.sqrt(self.value_dim))
        if self.g_proj is not None:
            init.normal_(self.g_proj.weight, std=0.1)
        init.normal_(self.o_proj.weight, std=0.1 / math.sqrt(self.hidden_size))
        with torch.no_grad():
            self.s_w.copy_(torch.linspace(0, math.log(self.mipe_threshold), self.num_heads))
            if self.s_r is not None:
                self.s_r.zero_()
            if self.s_O is not None:
                self.s_O.fill_(-math.log(num_layers * self.num_heads) / 2)

    def windows(self, expand_beyond: Optional[float] = None) -> list[float]:
        """w = exp(s_w) + 1 of each head in tokens; math.inf beyond `expand_beyond`."""
        windows = (self.s_w.detach().double().exp() + 1).tolist()
        return [math.inf if expand_beyond is not None and w > expand_beyond else w for w in windows]

    def acceptance_widths(self) -> list[float]:
        """r of each head, in (0, 1]."""
        return self._s_r().detach().double().sigmoid().tolist()

    def new_state(self, expand_beyond: Optional[float] = None) -> ScreeningState:
        spans = [None if math.isinf(w) else math.ceil(w) for w in self.windows(expand_beyond)]
        return ScreeningState(spans, self.s_w.device)

    def forward(self, x: Tensor, *, document: Optional[Tensor] = None, state: Optional[MixerState] = None,
                expand_beyond: Optional[float] = None, position_scale: Optional[Tensor] = None) -> Tensor:  # fmt: skip
        """x [B, T, D] -> [B, T, D]; `expand_beyond`: windows longer than this are infinite."""
        q = self._heads(self.q_proj(x), self.key_dim)
        k = self._heads(self.k_proj(x), self.key_dim)
        v = self._heads(self.v_proj(x), self.value_dim)
        gate = None if self.g_proj is None else self._heads(self.g_proj(x), self.value_dim)
        first = 0 if state is None else state.position
        if self.mipe_wrap_boundary is not None:
            q, k = (self._wrapped(y, first, expand_beyond) for y in (q, k))
        if self.position == "rope":
            q, k = (
                rotated(y, first, theta=self.rope_theta, factor=self.rope_factor, llama3=self.rope_llama3)
                for y in (q, k)
            )
        s_w, s_r = wide(self.s_w), wide(self._s_r())
        options = {
            "mipe_threshold": self.mipe_threshold,
            "expand_beyond": expand_beyond,
            "tanh_norm": self.tanh_norm,
            "position": "none" if self.position == "rope" else self.position,
            "trim_power": self.trim_power,
            "softmask": self.softmask,
        }
        weight = self.o_proj.weight
        if state is None:
            u = operators.screening(q, k, v, s_w, s_r, gate=gate, document=document, **options)
            if self.s_O is not None:  # in the weights rather than in u: D products for each of T rows fewer
                scaled = weight.unflatten(1, (self.num_heads, self.value_dim)) * self.s_O.exp()[:, None]
                weight = scaled.flatten(1).to(weight.dtype)
            return F.linear(u.flatten(2), weight)
        u = self._continued(state, q, k, v, s_w, s_r, gate, document, options)
        if self.s_O is not None:
            u = u * self.s_O.exp()[:, None].to(u.dtype)
        return F.linear(u.flatten(2), weight)

    def _continued(self, state, q, k, v, s_w, s_r, gate, document, options) -> Tensor:
        results = []
        for heads, cache in state.groups:
            own = [x if x is None or len(state.groups) == 1 else x[:, :, heads] for x in (q, k, v, gate)]
            seen = cache.append(own[1], own[2], document)
            results.append(operators.screening(own[0], seen.k, seen.v, s_w[heads], s_r[heads], gate=own[3],
                                               document=seen.document, **options))  # fmt: skip
        state.position += q.shape[1]
        return results[0] if len(results) == 1 else torch.cat(results, 2)[:, :, state.back]

    def _wrapped(self, x: Tensor, first: int, expand_beyond: Optional[float]) -> Tensor:
        """Rotated by -pi phi(w) floor(i / w) at the positions i from the boundary on, so that MiPE's pi phi(w) i / w
        ends at that of i mod w."""
        last = first + x.shape[1]
        if last <= self.mipe_wrap_boundary:
            return x
        w = self.s_w.double().exp() + 1
        rotates = w < self.mipe_threshold
        if expand_beyond is not None:
            rotates = rotates & (w <= expand_beyond)
        phi = torch.where(rotates, (torch.cos(math.pi * w / self.mipe_threshold) + 1) / 2, 0.0)
        i = torch.arange(first, last, dtype=torch.float64, device=x.device)[:, None]
        angle = -math.pi * phi * torch.where(i >= self.mipe_wrap_boundary, torch.floor(i / w.detach()), 0.0)
        y = wide(x)
        cosine, sine = angle.cos().to(y.dtype), angle.sin().to(y.dtype)
        a, b = y[..., 0], y[..., 1]
        turned = torch.stack([a * cosine - b * sine, a * sine + b * cosine], -1)
        return torch.cat([turned, y[..., 2:]], -1).to(x.dtype)

    def _heads(self, x: Tensor, size: int) -> Tensor:
        return x.unflatten(-1, (self.num_heads, size))

    def _s_r(self) -> Tensor:
        if self.s_r is not None:
            return self.s_r
        odds = math.log(self.fixed_r) - math.log1p(-self.fixed_r) if self.fixed_r < 1 else math.inf
        return torch.full_like(self.s_w, odds)
