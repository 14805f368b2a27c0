"""What all mixers share: their interface, norms, rotary embedding and initial weights."""

import math
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor
from torch.nn import Module, Parameter, init

from tamis.state import MixerState

_LEAST_NORM = 1e-12


def wide(x: Tensor) -> Tensor:
    """float32 for half precision; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


@dataclass(frozen=True)
class Llama3Scaling:
    """How Llama 3.1 scales the wavelengths 2 pi / f of a model that was trained on `original_length` = L tokens, by
    s = `factor` of `rotated`:

        f          if the wavelength is below L / high_frequency_factor
        f / s      if it is above L / low_frequency_factor
        (1 - g) f / s + g f,  g = (L / wavelength - low) / (high - low),  between
    """

    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0  # above the low one
    original_length: float = 8192.0  # tokens

    def scaled(self, frequency: Tensor, factor: float) -> Tensor:
        """f in radians a position, float64 -> the same."""
        low, high = self.low_frequency_factor, self.high_frequency_factor
        waves = frequency * (self.original_length / (2 * math.pi))  # L / wavelength
        kept = ((waves - low) / (high - low)).clamp(0, 1)
        return (1 - kept) * frequency / factor + kept * frequency


def rotated(x: Tensor, first: int = 0, *, theta: float = 10_000.0, factor: float = 1.0,
            llama3: Optional[Llama3Scaling] = None) -> Tensor:  # fmt: skip
    """Rotary position embedding of rows at the positions first, first + 1, ...; half-split pairs, angles in float64.

    Args:
        x: [B, T, H, K], K even: dimensions d and d + K/2 are a pair.
        theta: base of the wavelengths.
        factor: position i counts as i / factor; with `llama3` its s instead.
        llama3: scales long wavelengths alone.
    """
    length, half = x.shape[1], x.shape[3] // 2
    position = torch.arange(first, first + length, dtype=torch.float64, device=x.device)
    frequency = torch.exp(torch.arange(half, dtype=torch.float64, device=x.device) * (-math.log(theta) / half))
    if llama3 is None:
        position = position / factor
    else:
        frequency = llama3.scaled(frequency, factor)
    angle = (position[:, None] * frequency)[:, None]
    x32 = wide(x)
    cosine, sine = angle.cos().to(x32.dtype), angle.sin().to(x32.dtype)
    a, b = x32[..., :half], x32[..., half:]
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
    x32 = wide(x)
    y = x32 * (x32.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (y if weight is None else y * weight).to(x.dtype)


class Mixer(Module):
    """A module that carries information between positions."""

    def initialise(self, num_layers: int) -> None:
        """Draws initial weights, for a model of this many layers."""
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


def inner_weights(matrix: Tensor, hidden_size: int) -> None:
    """N(0, sqrt(2 / (5 D)))."""
    init.normal_(matrix, std=math.sqrt(2 / (5 * hidden_size)))


def residual_weights(matrix: Tensor, hidden_size: int, num_layers: int) -> None:
    """N(0, 2 / (L sqrt(D))), for a matrix whose product is added to the residual stream."""
    init.normal_(matrix, std=2 / (num_layers * math.sqrt(hidden_size)))
