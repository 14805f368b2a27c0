"""The operators as functions: `torch.ops.tamis.*` with names, defaults and documentation."""

from typing import Literal, Optional

import torch
from torch import Tensor

from tamis import _dispatch, _library

__all__ = [
    "entmax_attention",
    "linear_cross_entropy",
    "mlstm",
    "screening",
    "sieve_attention",
    "softmax_attention",
    "stick_breaking_attention",
]

_library.load()
_dispatch.register()


def screening(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s_w: Tensor,
    s_r: Tensor,
    *,
    gate: Optional[Tensor] = None,
    mipe_threshold: float = 256.0,
    expand_beyond: Optional[float] = None,
    tanh_norm: bool = True,
    position: Literal["mipe", "none"] = "mipe",
    document: Optional[Tensor] = None,
    trim_power: Literal[1, 2, 3] = 2,
    softmask: Literal["cosine", "linear", "none"] = "cosine",
) -> Tensor:
    """Screening: every key is accepted or rejected on its own; keys do not compete ("Screening Is Enough").

    With window w = exp(s_w) + 1 in tokens and acceptance width r = sigmoid(s_r) of each head, and q, k, v brought to
    unit length, q and k rotated by MiPE:

        s_ij = q_i . k_j                                       in [-1, 1]
        a_ij = max(1 - (1 - s_ij) / r, 0)^2                    Trim
        m_ij = (cos(pi (i - j) / w) + 1) / 2 if 0 <= i - j < w, else 0
        u_i  = TanhNorm(sum_j a_ij m_ij v_j) * tanh(SiLU(gate_i))

    Args:
        q: [B, T_q, H, K], raw projections of the last T_q of T_k positions.
        k: [B, T_k, H, K].
        v: [B, T_k, H, V].
        s_w, s_r: [H], float32 or float64.
        gate: [B, T_q, H, V]; left out, nothing is gated.
        mipe_threshold: w_th in tokens; heads with a longer window are not rotated.
        expand_beyond: every window longer than this becomes infinite (window expansion at inference).
        tanh_norm: False leaves TanhNorm out.
        position: "mipe", or "none" for no rotation.
        document: integers [B, T_k]; a query sees only the keys of its own document.
        trim_power: the exponent of Trim. Other shapes than the paper's run in plain torch on the CPU.
        softmask: "cosine", "linear", 1 - (i - j) / w, or "none", 1 inside the window.

    Returns:
        [B, T_q, H, V] in the dtype of v (float32, float64 or bfloat16). Differentiable once in q, k, v, gate, s_w, s_r.
    """
    return torch.ops.tamis.screening(
        q,
        k,
        v,
        s_w,
        s_r,
        gate=gate,
        mipe_threshold=mipe_threshold,
        expand_beyond=expand_beyond,
        tanh_norm=tanh_norm,
        position=position,
        document=document,
        trim_power=trim_power,
        softmask=softmask,
    )


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    ignore_index: int = -100,
    soft_cap: Optional[float] = None,
) -> Tensor:
    """Vocabulary head and loss in one, without the T x N logits: logsumexp_n(x_t . weight_n) - x_t . weight_target.

    With a soft cap c, each product y is replaced by c tanh(y / c).

    Args:
        x: [..., D]; a learned scale of the logits is multiplied into x beforehand.
        weight: [N, D], the vocabulary head, in the dtype of x (float32, float64 or bfloat16).
        target: int64 [...], in [0, N) or ignore_index.
        reduction: "mean" over the counted targets (0 when there is none), "sum", or "none".
        ignore_index: targets with this value count nothing and get no gradient.
        soft_cap: c > 0; None for logits without a cap.

    Returns:
        A float32 (float64) number in nats, or [...] with reduction "none". Differentiable once in x and weight.
    """
    return torch.ops.tamis.linear_cross_entropy(
        x, weight, target, reduction=reduction, ignore_index=ignore_index, soft_cap=soft_cap
    )


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: Optional[float] = None,
    window: Optional[int] = None,
    strict: bool = False,
    log_scale: Optional[Tensor] = None,
    log_bias: Optional[Tensor] = None,
    position_scale: Optional[Tensor] = None,
    key_start: int = 0,
    document: Optional[Tensor] = None,
) -> Tensor:
    """Causal softmax attention, sliding windows, Scalable-Softmax ("Scalable-Softmax Is Superior for Attention").

    Scores scale q_i . k_j are multiplied by s ln n_i + b, where n_i is the number of keys that query i sees.

    Args:
        q: [B, T_q, H, K], queries of the last T_q of T_k positions, position-encoded already.
        k: [B, T_k, H, K].
        v: [B, T_k, H, V].
        scale: 1 / sqrt(K) unless given.
        window: keys that a query sees; left out, all before it.
        strict: a query does not see its own key; else a window includes it.
        log_scale: s [H]; left out, scores are not multiplied.
        log_bias: b [H].
        position_scale: p [P], p_n instead of ln n; beyond its end the logarithm that fits it best.
        key_start: absolute position of the first key.
        document: integers [B, T_k]; a query sees only the keys of its own document.

    Returns:
        [B, T_q, H, V] in the dtype of v; 0 where a query sees no key. Differentiable once in q, k, v, log_scale,
        log_bias, position_scale.
    """
    return torch.ops.tamis.softmax_attention(
        q,
        k,
        v,
        scale=scale,
        window=window,
        strict=strict,
        log_scale=log_scale,
        log_bias=log_bias,
        position_scale=position_scale,
        key_start=key_start,
        document=document,
    )


def entmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float = 1.5,
    scale: Optional[float] = None,
    strict: bool = False,
    document: Optional[Tensor] = None,
) -> Tensor:
    """Causal attention with alpha-entmax instead of softmax: keys below a threshold get exactly nothing.

    Args:
        q, k, v: [B, T_q, H, K], [B, T_k, H, K], [B, T_k, H, V].
        alpha: from 1 (softmax) to 2 (sparsemax).
        scale: of the scores, 1 / sqrt(K) unless given.
        strict: a query does not see its own key.
        document: integers [B, T_k]; a query sees only the keys of its own document.

    Returns:
        [B, T_q, H, V] in the dtype of v; 0 where a query sees no key. Differentiable once in q, k, v.
    """
    return torch.ops.tamis.entmax_attention(q, k, v, alpha=alpha, scale=scale, strict=strict, document=document)


def stick_breaking_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: Optional[float] = None,
    strict: bool = True,
    document: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """Stick-breaking attention: each key, the newest first, takes its share of what the newer ones left.

    Args: as entmax_attention, without alpha.

    Returns:
        [B, T_q, H, V] in the dtype of v, and what is left of the stick, [B, T_q, H]. Differentiable once in q, k, v.
    """
    return torch.ops.tamis.stick_breaking_attention(q, k, v, scale=scale, strict=strict, document=document)


def sieve_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: float = 1.5,
    scale: Optional[float] = None,
    strict: bool = True,
    document: Optional[Tensor] = None,
) -> Tensor:
    """Sieve attention: alpha-entmax selects keys, stick-breaking over these alone allocates ("Sieve Attention").

    Args: as entmax_attention.

    Returns:
        [B, T_q, H, V] in the dtype of v. Differentiable once in q, k, v; nothing flows through the selection.
    """
    return torch.ops.tamis.sieve_attention(q, k, v, alpha=alpha, scale=scale, strict=strict, document=document)


def sieve_algorithm1(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    epsilon: float = 1e-6,
    scale: Optional[float] = None,
    strict: bool = True,
    document: Optional[Tensor] = None,
) -> Tensor:
    """Sieve attention as the paper's Algorithm 1 computes it, which differs from its equations (`sieve_attention`):
    keys within epsilon of the highest score count, and all visible keys break the stick, the oldest first. It has no
    kernel.

    Args: as entmax_attention, with epsilon for alpha.

    Returns:
        [B, T_q, H, V] in the dtype of v. Differentiable once in q, k, v; nothing flows through the selection.
    """
    return torch.ops.tamis.sieve_algorithm1(q, k, v, epsilon=epsilon, scale=scale, strict=strict, document=document)


def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    *,
    state: Optional[tuple[Tensor, Tensor, Tensor]] = None,
    chunk: int = 64,
    document: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Matrix memory with exponential gates (mLSTM, "xLSTM: Extended Long Short-Term Memory").

    Args:
        q, k, v: [B, T, H, K], [B, T, H, K], [B, T, H, V]; 1 / sqrt(K) is applied inside.
        i, f: [B, T, H], input and forget gates before their activation.
        state: C [B, H, K, V], n [B, H, K], m [B, H] before the first token; left out, zeros.
        chunk: tokens that are worked on at once: speed, not results.
        document: integers [B, T]; the state is reset where the document changes.

    Returns:
        h [B, T, H, V] and the state after the last token, C, n, m. Differentiable once.
    """
    return torch.ops.tamis.mlstm(q, k, v, i, f, state=state, chunk=chunk, document=document)
