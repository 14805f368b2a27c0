"""Softmax, entmax, stick-breaking and Sieve attention as modules."""

from typing import Literal, Optional

import torch
from torch import Tensor
from torch.nn import Linear, Parameter, init

from tamis import operators
from tamis.nn.mixer import Llama3Scaling, Mixer, RMSNorm, inner_weights, residual_weights, rotated, wide
from tamis.state import KeyValueCache, MixerState


class _Attention(Mixer):
    """Multi-head attention with one matrix for queries, keys and values: projections, QKNorm and rotary embedding.

    Subclasses compute the weights and sum the values.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, qk_norm: bool = False, norm_eps: float = 1e-6,
                 position: Literal["rope", "none"] = "none", rope_theta: float = 10_000.0, rope_factor: float = 1.0,
                 rope_llama3: Optional[Llama3Scaling] = None, window: Optional[int] = None, strict: bool = False,
                 num_layers: int = 1, device: Optional[torch.device] = None):  # fmt: skip
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"attention: num_heads must divide hidden_size {hidden_size}, but is {num_heads}")
        self.hidden_size, self.num_heads, self.head_dim = hidden_size, num_heads, hidden_size // num_heads
        if position == "rope" and self.head_dim % 2:
            raise ValueError(f"attention: rotary embedding needs heads of even width, but it is {self.head_dim}")
        self.position, self.window, self.strict = position, window, strict
        self.rope_theta, self.rope_factor, self.rope_llama3 = rope_theta, rope_factor, rope_llama3
        self.qkv_proj = Linear(hidden_size, 3 * hidden_size, bias=False, device=device)
        self.o_proj = Linear(hidden_size, hidden_size, bias=False, device=device)
        self.q_norm = RMSNorm(self.head_dim, norm_eps, device) if qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, norm_eps, device) if qk_norm else None
        self._add_parameters(device)
        self.initialise(num_layers)

    def _add_parameters(self, device: Optional[torch.device]) -> None:
        """Parameters besides the matrices and norms."""

    def initialise(self, num_layers: int) -> None:
        inner_weights(self.qkv_proj.weight, self.hidden_size)
        residual_weights(self.o_proj.weight, self.hidden_size, num_layers)
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.reset_parameters()

    def new_state(self, expand_beyond: Optional[float] = None) -> KeyValueCache:
        return KeyValueCache(None if self.window is None else self.window + self.strict)

    def forward(self, x: Tensor, *, document: Optional[Tensor] = None, state: Optional[MixerState] = None,
                expand_beyond: Optional[float] = None, position_scale: Optional[Tensor] = None) -> Tensor:  # fmt: skip
        """x [B, T, D] -> [B, T, D]."""
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(2)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.position == "rope":
            first = 0 if state is None else state.position
            q, k = (
                rotated(y, first, theta=self.rope_theta, factor=self.rope_factor, llama3=self.rope_llama3)
                for y in (q, k)
            )
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
        window: keys that a query sees; None for all.
        strict: a query does not see its own key; else a window includes it.
        position: "rope" or "none".
        rope_theta, rope_factor, rope_llama3: theta, factor and llama3 of `tamis.nn.rotated`.
        qk_norm: RMSNorm of queries and keys, per head.
        ssmax: scores times: "none"; "learned" s ln n; "one" ln n; "bias" s ln n + b; "fixed" ssmax_scale ln n;
            "position" s p_n + b, where p is passed to forward.
        ssmax_scale: of "fixed"; where s is learned, its initial value (1 unless given).
        num_layers: of the model, for the initial o_proj.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, window: Optional[int] = None, strict: bool = False,
                 position: Literal["rope", "none"] = "rope", rope_theta: float = 10_000.0, rope_factor: float = 1.0,
                 rope_llama3: Optional[Llama3Scaling] = None, qk_norm: bool = False, norm_eps: float = 1e-6,
                 ssmax: Literal["none", "learned", "one", "bias", "fixed", "position"] = "none",
                 ssmax_scale: Optional[float] = None, num_layers: int = 1,
                 device: Optional[torch.device] = None):  # fmt: skip
        if ssmax == "fixed" and ssmax_scale is None:
            raise ValueError('SoftmaxAttention: ssmax="fixed" needs ssmax_scale')
        self._ssmax, self._ssmax_scale = ssmax, ssmax_scale
        super().__init__(hidden_size, num_heads, qk_norm=qk_norm, norm_eps=norm_eps, position=position,
                         rope_theta=rope_theta, rope_factor=rope_factor, rope_llama3=rope_llama3, window=window,
                         strict=strict, num_layers=num_layers, device=device)  # fmt: skip

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
            log_scale = torch.full((self.num_heads,), value, device=q.device, dtype=wide(q).dtype)
        if self._ssmax == "position" and position_scale is None:
            raise ValueError('SoftmaxAttention: ssmax="position" needs position_scale [P] in forward')
        return operators.softmax_attention(
            q, k, v, window=self.window, strict=self.strict, key_start=key_start, document=document,
            log_scale=None if log_scale is None else wide(log_scale),
            log_bias=None if self.log_bias is None else wide(self.log_bias),
            position_scale=wide(position_scale) if self._ssmax == "position" else None,
        )  # fmt: skip


class EntmaxAttention(_Attention):
    """Attention with alpha-entmax instead of softmax: keys below a threshold get exactly nothing.

    Args:
        hidden_size, num_heads: D and H; heads are D / H wide.
        alpha: from 1 (softmax) to 2 (sparsemax).
        strict: a query does not see its own key.
        position: "rope" or "none".
        rope_theta, rope_factor, rope_llama3: theta, factor and llama3 of `tamis.nn.rotated`.
        qk_norm: RMSNorm of queries and keys, per head.
        num_layers: of the model, for the initial o_proj.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, alpha: float = 1.5, strict: bool = False,
                 position: Literal["rope", "none"] = "rope", rope_theta: float = 10_000.0, rope_factor: float = 1.0,
                 rope_llama3: Optional[Llama3Scaling] = None, qk_norm: bool = False, norm_eps: float = 1e-6,
                 num_layers: int = 1, device: Optional[torch.device] = None):  # fmt: skip
        super().__init__(hidden_size, num_heads, qk_norm=qk_norm, norm_eps=norm_eps, position=position,
                         rope_theta=rope_theta, rope_factor=rope_factor, rope_llama3=rope_llama3, strict=strict,
                         num_layers=num_layers, device=device)  # fmt: skip
        self.alpha = alpha

    def _attend(self, q, k, v, document, key_start, position_scale) -> Tensor:
        return operators.entmax_attention(q, k, v, alpha=self.alpha, strict=self.strict, document=document)


class StickBreakingAttention(_Attention):
    """Stick-breaking attention, without positions.

    Args:
        hidden_size, num_heads: D and H; heads are D / H wide.
        strict: a query does not see its own key.
        qk_norm: RMSNorm of queries and keys, per head.
        num_layers: of the model, for the initial o_proj.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, strict: bool = True, qk_norm: bool = False,
                 norm_eps: float = 1e-6, num_layers: int = 1,
                 device: Optional[torch.device] = None):  # fmt: skip
        super().__init__(hidden_size, num_heads, strict=strict, qk_norm=qk_norm, norm_eps=norm_eps,
                         num_layers=num_layers, device=device)  # fmt: skip

    def _attend(self, q, k, v, document, key_start, position_scale) -> Tensor:
        return operators.stick_breaking_attention(q, k, v, strict=self.strict, document=document)[0]


class SieveAttention(_Attention):
    """Sieve attention, without positions: entmax selects keys, stick-breaking allocates among them.

    Args:
        hidden_size, num_heads: D and H; heads are D / H wide.
        alpha: of the entmax that selects, from 1 to 2.
        strict: a query does not see its own key.
        algorithm1_epsilon: computes the paper's Algorithm 1 instead, with this epsilon (`sieve_algorithm1`); alpha has
            no effect then.
        qk_norm: RMSNorm of queries and keys, per head.
        num_layers: of the model, for the initial o_proj.
    """

    def __init__(self, hidden_size: int, num_heads: int, *, alpha: float = 1.5, strict: bool = True,
                 algorithm1_epsilon: Optional[float] = None, qk_norm: bool = False, norm_eps: float = 1e-6,
                 num_layers: int = 1, device: Optional[torch.device] = None):  # fmt: skip
        super().__init__(hidden_size, num_heads, strict=strict, qk_norm=qk_norm, norm_eps=norm_eps,
                         num_layers=num_layers, device=device)  # fmt: skip
        self.alpha, self.algorithm1_epsilon = alpha, algorithm1_epsilon

    def _attend(self, q, k, v, document, key_start, position_scale) -> Tensor:
        if self.algorithm1_epsilon is not None:
            return operators.sieve_algorithm1(q, k, v, epsilon=self.algorithm1_epsilon, strict=self.strict,
                                              document=document)  # fmt: skip
        return operators.sieve_attention(q, k, v, alpha=self.alpha, strict=self.strict, document=document)
