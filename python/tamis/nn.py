"""The mixers of Tamis as torch modules, with the parameters, names and initial values of the program's.

Every module maps x [B, T, D] to [B, T, D], causally, and takes

    document    integers [B, T]: tokens of other documents are invisible, and recurrent state is reset
    state       what `new_state()` returned: x continues the text that the state has seen, and the state advances

Matrices may have any dtype of the operators. Vectors (scales, biases, norms) are used in float32 at least.
"""

import math
from typing import Literal, Optional

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter, init
from torch.nn import functional as F

from tamis import operators
from tamis.state import KeyValueCache, MixerState, MLSTMState, ScreeningState

__all__ = [
    "EntmaxAttention",
    "MLSTM",
    "RMSNorm",
    "Screening",
    "SieveAttention",
    "SoftmaxAttention",
    "StickBreakingAttention",
    "rotated",
    "unit_rows",
]

_GATE_CAP = 15.0
_LEAST_NORM = 1e-12


def _wide(x: Tensor) -> Tensor:
    """float32 for half precision; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def rotated(x: Tensor, first: int = 0, *, theta: float = 10_000.0, factor: float = 1.0) -> Tensor:
    """Rotary position embedding of rows at the positions first, first + 1, ...; half-split pairs, angles in float64.

    Args:
        x: [B, T, H, K], K even: dimensions d and d + K/2 are a pair.
        theta: base of the wavelengths.
        factor: position i counts as i / factor.
    """
    length, half = x.shape[1], x.shape[3] // 2
    position = torch.arange(first, first + length, dtype=torch.float64, device=x.device) / factor
    frequency = torch.exp(torch.arange(half, dtype=torch.float64, device=x.device) * (-math.log(theta) / half))
    angle = (position[:, None] * frequency)[:, None]
    wide = _wide(x)
    cosine, sine = angle.cos().to(wide.dtype), angle.sin().to(wide.dtype)
    a, b = wide[..., :half], wide[..., half:]
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1).to(x.dtype)


def unit_rows(x: Tensor) -> Tensor:
    """x / |x| along the last dimension of x [..., D]; a row no longer than 1e-12 becomes zero, without a gradient."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * norm.where(norm > _LEAST_NORM, math.inf).reciprocal()


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32 at least, in the dtype of x."""

    def __init__(self, size: int, eps: float = 1e-6, device: Optional[torch.device] = None):
        super().__init__()
        self.eps = eps
        self.weight = Parameter(torch.empty(size, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape."""
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Optional[Tensor], eps: float) -> Tensor:
    """As RMSNorm; without a weight where it is None."""
    wide = _wide(x)
    y = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (y if weight is None else y * weight).to(x.dtype)


class Mixer(Module):
    """A module that carries information between positions."""

    def initialise(self, num_layers: int) -> None:
        """Draws initial weights, for a model of so many layers."""
        raise NotImplementedError

    def new_state(self, expand_beyond: Optional[float] = None) -> MixerState:
        """A state that has seen nothing. `expand_beyond`: learned windows longer than this are infinite."""
        raise NotImplementedError

    def forward(self, x: Tensor, *, document: Optional[Tensor] = None, state: Optional[MixerState] = None,
                expand_beyond: Optional[float] = None, position_scale: Optional[Tensor] = None) -> Tensor:  # fmt: skip
        """x [B, T, D] -> what is added to the residual stream, [B, T, D].

        `expand_beyond` concerns screening alone, `position_scale` Scalable-Softmax; others do not use them.
        """
        raise NotImplementedError


def _inner(matrix: Tensor, hidden_size: int) -> None:
    init.normal_(matrix, std=math.sqrt(2 / (5 * hidden_size)))


def _residual(matrix: Tensor, hidden_size: int, num_layers: int) -> None:
    init.normal_(matrix, std=2 / (num_layers * math.sqrt(hidden_size)))


class Screening(Mixer):
    """A Multiscreen layer ("Screening Is Enough", Eq. 15-18): gated screening of all heads,

        sum_h exp(s_O) (screening(x W_Q, x W_K, x W_V) * tanh(SiLU(x W_G))) W_O

    Args:
        hidden_size: D.
        num_heads: H.
        key_dim, value_dim: K and V of a head.
        mipe_threshold: w_th in tokens: heads with a longer window are not rotated.
        position: "mipe"; "rope", all of q and k by the position alone; or "none".
        tanh_norm, gate, output_scale: False leaves TanhNorm, W_G or s_O out.
        fixed_r: acceptance width in (0, 1]; learned where None.
        num_layers: of the model, for the initial output scale 1 / sqrt(num_layers H).
    """

    def __init__(self, hidden_size: int, num_heads: int, key_dim: int = 16, value_dim: int = 64, *,
                 mipe_threshold: float = 256.0, position: Literal["mipe", "rope", "none"] = "mipe",
                 tanh_norm: bool = True, gate: bool = True, output_scale: bool = True,
                 fixed_r: Optional[float] = None, rope_theta: float = 10_000.0, rope_factor: float = 1.0,
                 num_layers: int = 1, device: Optional[torch.device] = None):  # fmt: skip
        super().__init__()
        self.hidden_size, self.num_heads, self.key_dim, self.value_dim = hidden_size, num_heads, key_dim, value_dim
        self.mipe_threshold, self.position, self.tanh_norm, self.fixed_r = mipe_threshold, position, tanh_norm, fixed_r
        self.rope_theta, self.rope_factor = rope_theta, rope_factor
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
        """x [B, T, D] -> [B, T, D]; `expand_beyond`: windows longer than so many tokens are infinite."""
        q = self._heads(self.q_proj(x), self.key_dim)
        k = self._heads(self.k_proj(x), self.key_dim)
        v = self._heads(self.v_proj(x), self.value_dim)
        gate = None if self.g_proj is None else self._heads(self.g_proj(x), self.value_dim)
        if self.position == "rope":
            first = 0 if state is None else state.position
            q = rotated(q, first, theta=self.rope_theta, factor=self.rope_factor)
            k = rotated(k, first, theta=self.rope_theta, factor=self.rope_factor)
        s_w, s_r = _wide(self.s_w), _wide(self._s_r())
        options = {
            "mipe_threshold": self.mipe_threshold,
            "expand_beyond": expand_beyond,
            "tanh_norm": self.tanh_norm,
            "position": "none" if self.position == "rope" else self.position,
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

    def _heads(self, x: Tensor, size: int) -> Tensor:
        return x.unflatten(-1, (self.num_heads, size))

    def _s_r(self) -> Tensor:
        if self.s_r is not None:
            return self.s_r
        odds = math.log(self.fixed_r) - math.log1p(-self.fixed_r) if self.fixed_r < 1 else math.inf
        return torch.full_like(self.s_w, odds)


class _Attention(Mixer):
    """Multi-head attention with one matrix for queries, keys and values: projections, QKNorm and rotary embedding.

    Subclasses compute the weights and sum the values.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, qk_norm: bool = False, norm_eps: float = 1e-6,
                 position: Literal["rope", "none"] = "none", rope_theta: float = 10_000.0, rope_factor: float = 1.0,
                 window: Optional[int] = None, num_layers: int = 1,
                 device: Optional[torch.device] = None):  # fmt: skip
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"attention: num_heads must divide hidden_size {hidden_size}, but is {num_heads}")
        self.hidden_size, self.num_heads, self.head_dim = hidden_size, num_heads, hidden_size // num_heads
        if position == "rope" and self.head_dim % 2:
            raise ValueError(f"attention: rotary embedding needs heads of even width, but it is {self.head_dim}")
        self.position, self.rope_theta, self.rope_factor, self.window = position, rope_theta, rope_factor, window
        self.qkv_proj = Linear(hidden_size, 3 * hidden_size, bias=False, device=device)
        self.o_proj = Linear(hidden_size, hidden_size, bias=False, device=device)
        self.q_norm = RMSNorm(self.head_dim, norm_eps, device) if qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, norm_eps, device) if qk_norm else None
        self._add_parameters(device)
        self.initialise(num_layers)

    def _add_parameters(self, device: Optional[torch.device]) -> None:
        """Parameters beside the matrices and norms."""

    def initialise(self, num_layers: int) -> None:
        _inner(self.qkv_proj.weight, self.hidden_size)
        _residual(self.o_proj.weight, self.hidden_size, num_layers)
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.reset_parameters()

    def new_state(self, expand_beyond: Optional[float] = None) -> KeyValueCache:
        return KeyValueCache(self.window)

    def forward(self, x: Tensor, *, document: Optional[Tensor] = None, state: Optional[MixerState] = None,
                expand_beyond: Optional[float] = None, position_scale: Optional[Tensor] = None) -> Tensor:  # fmt: skip
        """x [B, T, D] -> [B, T, D]."""
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(2)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.position == "rope":
            first = 0 if state is None else state.position
            q = rotated(q, first, theta=self.rope_theta, factor=self.rope_factor)
            k = rotated(k, first, theta=self.rope_theta, factor=self.rope_factor)
        key_start = 0
        if state is not None:
            k, v, document, key_start = state.append(k, v, document)
        return self.o_proj(self._attend(q, k, v, document, key_start, position_scale).flatten(2))

    def _attend(self, q, k, v, document, key_start, position_scale) -> Tensor:
        """q [B, T_q, H, d], k and v [B, T_k, H, d] -> [B, T_q, H, d]."""
        raise NotImplementedError


class SoftmaxAttention(_Attention):
    """Softmax attention, full or of a sliding window, with Scalable-Softmax.

    Args:
        hidden_size, num_heads: D and H; heads are D / H wide.
        window: keys that a query sees, its own included; None for all.
        position: "rope" or "none".
        qk_norm: RMSNorm of queries and keys, per head.
        ssmax: scores times: "none"; "learned" s ln n; "one" ln n; "bias" s ln n + b; "fixed" ssmax_scale ln n;
            "position" s p_n + b, where p is passed to forward.
        ssmax_scale: of "fixed"; where s is learned, its initial value (1 unless given).
        num_layers: of the model, for the initial o_proj.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, window: Optional[int] = None,
                 position: Literal["rope", "none"] = "rope", rope_theta: float = 10_000.0, rope_factor: float = 1.0,
                 qk_norm: bool = False, norm_eps: float = 1e-6,
                 ssmax: Literal["none", "learned", "one", "bias", "fixed", "position"] = "none",
                 ssmax_scale: Optional[float] = None, num_layers: int = 1,
                 device: Optional[torch.device] = None):  # fmt: skip
        if ssmax == "fixed" and ssmax_scale is None:
            raise ValueError('SoftmaxAttention: ssmax="fixed" needs ssmax_scale')
        self._ssmax, self._ssmax_scale = ssmax, ssmax_scale
        super().__init__(hidden_size, num_heads, qk_norm=qk_norm, norm_eps=norm_eps, position=position,
                         rope_theta=rope_theta, rope_factor=rope_factor, window=window, num_layers=num_layers,
                         device=device)  # fmt: skip

    def _add_parameters(self, device: Optional[torch.device]) -> None:
        learns_bias = self._ssmax in ("bias", "position")
        learns_scale = learns_bias or self._ssmax == "learned"
        self.log_scale = Parameter(torch.empty(self.num_heads, device=device)) if learns_scale else None
        self.log_bias = Parameter(torch.empty(self.num_heads, device=device)) if learns_bias else None

    def initialise(self, num_layers: int) -> None:
        super().initialise(num_layers)
        if self.log_scale is not None:
            init.constant_(self.log_scale, 1.0 if self._ssmax_scale is None else self._ssmax_scale)
        if self.log_bias is not None:
            init.zeros_(self.log_bias)

    def _attend(self, q, k, v, document, key_start, position_scale) -> Tensor:
        log_scale = self.log_scale
        if self._ssmax in ("one", "fixed"):
            value = 1.0 if self._ssmax == "one" else self._ssmax_scale
            log_scale = torch.full((self.num_heads,), value, device=q.device, dtype=_wide(q).dtype)
        if self._ssmax == "position" and position_scale is None:
            raise ValueError('SoftmaxAttention: ssmax="position" needs position_scale [P] in forward')
        return operators.softmax_attention(
            q, k, v, window=self.window, key_start=key_start, document=document,
            log_scale=None if log_scale is None else _wide(log_scale),
            log_bias=None if self.log_bias is None else _wide(self.log_bias),
            position_scale=_wide(position_scale) if self._ssmax == "position" else None,
        )  # fmt: skip


class EntmaxAttention(_Attention):
    """Attention with alpha-entmax in the place of softmax: keys below a threshold get exactly nothing.

    Args:
        hidden_size, num_heads: D and H; heads are D / H wide.
        alpha: from 1 (softmax) to 2 (sparsemax).
        position: "rope" or "none".
        qk_norm: RMSNorm of queries and keys, per head.
        num_layers: of the model, for the initial o_proj.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, alpha: float = 1.5,
                 position: Literal["rope", "none"] = "rope", rope_theta: float = 10_000.0, rope_factor: float = 1.0,
                 qk_norm: bool = False, norm_eps: float = 1e-6, num_layers: int = 1,
                 device: Optional[torch.device] = None):  # fmt: skip
        super().__init__(hidden_size, num_heads, qk_norm=qk_norm, norm_eps=norm_eps, position=position,
                         rope_theta=rope_theta, rope_factor=rope_factor, num_layers=num_layers,
                         device=device)  # fmt: skip
        self.alpha = alpha

    def _attend(self, q, k, v, document, key_start, position_scale) -> Tensor:
        return operators.entmax_attention(q, k, v, alpha=self.alpha, document=document)


class StickBreakingAttention(_Attention):
    """Stick-breaking attention, strictly causal, without positions.

    Args:
        hidden_size, num_heads: D and H; heads are D / H wide.
        qk_norm: RMSNorm of queries and keys, per head.
        num_layers: of the model, for the initial o_proj.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, qk_norm: bool = False, norm_eps: float = 1e-6,
                 num_layers: int = 1, device: Optional[torch.device] = None):  # fmt: skip
        super().__init__(hidden_size, num_heads, qk_norm=qk_norm, norm_eps=norm_eps, num_layers=num_layers,
                         device=device)  # fmt: skip

    def _attend(self, q, k, v, document, key_start, position_scale) -> Tensor:
        return operators.stick_breaking_attention(q, k, v, document=document)[0]


class SieveAttention(_Attention):
    """Sieve attention, strictly causal, without positions: entmax selects keys, stick-breaking allocates among them.

    Args:
        hidden_size, num_heads: D and H; heads are D / H wide.
        alpha: of the entmax that selects, from 1 to 2.
        qk_norm: RMSNorm of queries and keys, per head.
        num_layers: of the model, for the initial o_proj.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, alpha: float = 1.5, qk_norm: bool = False,
                 norm_eps: float = 1e-6, num_layers: int = 1, device: Optional[torch.device] = None):  # fmt: skip
        super().__init__(hidden_size, num_heads, qk_norm=qk_norm, norm_eps=norm_eps, num_layers=num_layers,
                         device=device)  # fmt: skip
        self.alpha = alpha

    def _attend(self, q, k, v, document, key_start, position_scale) -> Tensor:
        return operators.sieve_attention(q, k, v, alpha=self.alpha, document=document)


class _Weight(Module):
    """A vector under the name `weight`."""

    def __init__(self, size: int, device: Optional[torch.device] = None):
        super().__init__()
        self.weight = Parameter(torch.empty(size, device=device))


class MLSTM(Mixer):
    """mLSTM with an output gate, as in xLSTM-large: keys half as wide as values, gates with biases, soft-capped.

    Args:
        hidden_size: D.
        num_heads: H; keys are D / 2H wide, values D / H.
        norm_eps: of the LayerNorm of each head's output.
        num_layers: of the model, for the initial out_proj.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, norm_eps: float = 1e-6, num_layers: int = 1,
                 device: Optional[torch.device] = None):  # fmt: skip
        super().__init__()
        if hidden_size % (2 * num_heads):
            raise ValueError(f"MLSTM: 2 num_heads must divide hidden_size {hidden_size}, but is {2 * num_heads}")
        self.hidden_size, self.num_heads, self.norm_eps = hidden_size, num_heads, norm_eps
        self.key_dim, self.value_dim = hidden_size // (2 * num_heads), hidden_size // num_heads
        keys, values = num_heads * self.key_dim, num_heads * self.value_dim
        self._widths = [keys, keys, values, values]
        self.qkvo_proj = Linear(hidden_size, sum(self._widths), bias=False, device=device)
        self.gates = Linear(hidden_size, 2 * num_heads, bias=False, device=device)
        self.input_bias = Parameter(torch.empty(num_heads, device=device))
        self.forget_bias = Parameter(torch.empty(num_heads, device=device))
        self.norm = _Weight(values, device)  # of the LayerNorm of all heads
        self.out_proj = Linear(values, hidden_size, bias=False, device=device)
        self.initialise(num_layers)

    def initialise(self, num_layers: int) -> None:
        _inner(self.qkvo_proj.weight, self.hidden_size)
        _inner(self.gates.weight, self.hidden_size)
        init.constant_(self.input_bias, -10.0)  # writes little at first
        with torch.no_grad():
            self.forget_bias.copy_(torch.linspace(3, 6, self.num_heads))  # keeps tens to hundreds of tokens
        init.ones_(self.norm.weight)
        _residual(self.out_proj.weight, self.hidden_size, num_layers)

    def new_state(self, expand_beyond: Optional[float] = None) -> MLSTMState:
        return MLSTMState()

    def forward(self, x: Tensor, *, document: Optional[Tensor] = None, state: Optional[MixerState] = None,
                expand_beyond: Optional[float] = None, position_scale: Optional[Tensor] = None) -> Tensor:  # fmt: skip
        """x [B, T, D] -> [B, T, D]."""
        q, k, v, output = self.qkvo_proj(x).split(self._widths, -1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in (q, k, v))
        i, f = _wide(self.gates(x)).chunk(2, -1)
        i, f = _capped(i + _wide(self.input_bias)), _capped(f + _wide(self.forget_bias))
        before = None if state is None else state.before(document)
        h, *memory = operators.mlstm(q, k, v, i, f, state=before, document=document)
        if state is not None:
            state.after(tuple(memory), document)
        wide = _wide(h)
        h = F.layer_norm(wide, (self.value_dim,), eps=self.norm_eps).to(h.dtype).flatten(2)
        gated = h * _wide(self.norm.weight) * output.sigmoid()
        return self.out_proj(gated.to(self.out_proj.weight.dtype))


def _capped(gate: Tensor) -> Tensor:
    return torch.tanh(gate / _GATE_CAP) * _GATE_CAP
