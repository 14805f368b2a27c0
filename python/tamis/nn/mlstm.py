"""mLSTM as a module."""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter, init
from torch.nn import functional as F

from tamis import operators
from tamis.nn.mixer import Mixer, inner_weights, residual_weights, wide
from tamis.state import MixerState, MLSTMState

_GATE_CAP = 15.0


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
        inner_weights(self.qkvo_proj.weight, self.hidden_size)
        inner_weights(self.gates.weight, self.hidden_size)
        init.constant_(self.input_bias, -10.0)  # writes little at first
        with torch.no_grad():
            self.forget_bias.copy_(torch.linspace(3, 6, self.num_heads))  # keeps tens to hundreds of tokens
        init.ones_(self.norm.weight)
        residual_weights(self.out_proj.weight, self.hidden_size, num_layers)

    def new_state(self, expand_beyond: Optional[float] = None) -> MLSTMState:
        return MLSTMState()

    def forward(self, x: Tensor, *, document: Optional[Tensor] = None, state: Optional[MixerState] = None,
                expand_beyond: Optional[float] = None, position_scale: Optional[Tensor] = None) -> Tensor:  # fmt: skip
        """x [B, T, D] -> [B, T, D]."""
        q, k, v, output = self.qkvo_proj(x).split(self._widths, -1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in (q, k, v))
        i, f = wide(self.gates(x)).chunk(2, -1)
        i, f = _capped(i + wide(self.input_bias)), _capped(f + wide(self.forget_bias))
        before = None if state is None else state.before(document)
        h, *memory = operators.mlstm(q, k, v, i, f, state=before, document=document)
        if state is not None:
            state.after(tuple(memory), document)
        h32 = wide(h)
        h = F.layer_norm(h32, (self.value_dim,), eps=self.norm_eps).to(h.dtype).flatten(2)
        gated = h * wide(self.norm.weight) * output.sigmoid()
        return self.out_proj(gated.to(self.out_proj.weight.dtype))


def _capped(gate: Tensor) -> Tensor:
    return torch.tanh(gate / _GATE_CAP) * _GATE_CAP
