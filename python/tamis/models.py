"""The one model family of Tamis: an embedding, a pattern of layers and a head. Presets of it are Multiscreen, the
Transformer, SWAX and mixtures of them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList, Parameter, init
from torch.nn import functional as F

from tamis import generation, nn, operators
from tamis.config import ModelConfig
from tamis.nn.mixer import wide
from tamis.state import DecodingState, MixerState


class _Layer:
    """A mixer followed by an MLP, each preceded by an RMSNorm or by none:

        y = x + mixer(norm(x));   x <- y + W_down (SiLU(W_gate n) * W_up n),  n = norm(y)

    A layer is its mixer by inheritance, so that `layers.{l}.q_proj.weight` is the name of a parameter, of its entry in
    `state_dict` and of the tensor in a checkpoint.
    """

    def _add_layer(self, config: ModelConfig, device: Optional[torch.device]) -> None:
        def norm() -> Optional[nn.RMSNorm]:
            return None if config.norm == "none" else nn.RMSNorm(config.hidden_size, config.norm_eps, device)

        def linear(inputs: int, outputs: int) -> Linear:
            return Linear(inputs, outputs, bias=False, device=device)

        hidden, inner = config.hidden_size, config.intermediate_size
        self.mixer_norm = norm()
        self.mlp_norm = norm() if config.mlp != "none" else None
        self.gate_proj = linear(hidden, inner) if config.mlp == "swiglu" else None
        self.up_proj = linear(hidden, inner) if config.mlp != "none" else None
        self.down_proj = linear(inner, hidden) if config.mlp != "none" else None

    def _initialise_layer(self, config: ModelConfig) -> None:
        deviation = math.sqrt(2 / (5 * config.hidden_size))
        for projection in (self.gate_proj, self.up_proj):
            if projection is not None:
                init.normal_(projection.weight, std=deviation)
        if self.down_proj is not None:
            init.normal_(self.down_proj.weight, std=2 / (config.num_hidden_layers * math.sqrt(config.hidden_size)))

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """x [B, T, D], float32 at least, -> the same; options as of the mixer."""
        dtype = self._matrix_dtype()
        n = x if self.mixer_norm is None else self.mixer_norm(x)
        x = x + super().forward(n.to(dtype), **options)
        if self.up_proj is None:
            return x
        n = (x if self.mlp_norm is None else self.mlp_norm(x)).to(dtype)
        if self.gate_proj is None:
            return x + self.down_proj(F.gelu(self.up_proj(n)))
        return x + self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))

    def _matrix_dtype(self) -> torch.dtype:
        return next(parameter.dtype for parameter in self.parameters(recurse=True) if parameter.dim() > 1)


class ScreeningLayer(_Layer, nn.Screening):
    pass


class SoftmaxLayer(_Layer, nn.SoftmaxAttention):
    pass


class EntmaxLayer(_Layer, nn.EntmaxAttention):
    pass


class StickBreakingLayer(_Layer, nn.StickBreakingAttention):
    pass


class SieveLayer(_Layer, nn.SieveAttention):
    pass


class MLSTMLayer(_Layer, nn.MLSTM):
    pass


def _rotary(c: ModelConfig) -> dict[str, Any]:
    llama3 = None
    if c.rope_scaling == "llama3":
        llama3 = nn.Llama3Scaling(c.rope_low_freq_factor, c.rope_high_freq_factor, float(c.rope_original_length))
    return {"rope_theta": c.rope_theta, "rope_factor": c.rope_factor, "rope_llama3": llama3}


def _screening(c: ModelConfig, **options: Any) -> ScreeningLayer:
    return ScreeningLayer(c.hidden_size, c.num_attention_heads, c.key_dim, c.value_dim,
                          mipe_threshold=c.mipe_threshold, position=c.screening_position,
                          mipe_wrap_boundary=c.mipe_wrap_boundary, tanh_norm=c.tanh_norm,
                          gate=c.gate, output_scale=c.output_scale, fixed_r=c.fixed_r,
                          trim_power=c.trim_power, softmask=c.softmask, **_rotary(c),
                          **options)  # fmt: skip


def _attention(c: ModelConfig, kind: type, *, rotary: bool = False, **options: Any) -> Module:
    if rotary:
        options.update(position=c.position, **_rotary(c))
    if c.strict is not None:
        options.update(strict=c.strict)
    return kind(c.hidden_size, c.num_attention_heads, qk_norm=c.qk_norm, norm_eps=c.norm_eps, **options)


def _softmax(c: ModelConfig, window: Optional[int], **options: Any) -> Module:
    return _attention(c, SoftmaxLayer, rotary=True, window=window, ssmax=c.ssmax, ssmax_scale=c.ssmax_scale, **options)


# The layer of each letter of a pattern.
_LAYERS: dict[str, Callable[..., Module]] = {
    "a": lambda c, **options: _softmax(c, None, **options),
    "w": lambda c, **options: _softmax(c, c.window, **options),
    "e": lambda c, **options: _attention(c, EntmaxLayer, rotary=True, alpha=c.alpha, **options),
    "b": lambda c, **options: _attention(c, StickBreakingLayer, **options),
    "v": lambda c, **options: _attention(c, SieveLayer, alpha=c.alpha,
                                         algorithm1_epsilon=c.sieve_epsilon if c.sieve == "algorithm1" else None,
                                         **options),  # fmt: skip
    "m": lambda c, **options: MLSTMLayer(c.hidden_size, c.mlstm_heads, norm_eps=c.norm_eps, **options),
    "s": _screening,
}


class Model(Module):
    """An embedding, a pattern of layers and a head.

        x_0 = W_E[token];  x <- layer(x), L times;  logits = norm(x) W^T,  W = W_E when tied

    and with the unit-length embedding of "Screening Is Enough", Wbar being W_E with rows of length 1,

        x_0 = exp(s_E) Wbar[token];  logits = exp(s_F) norm(x) Wbar^T

    `state_dict` has the names of a checkpoint's tensors. The residual stream is float32 in matrices of any dtype.

    Args:
        config: a ModelConfig, or the keys of config.json; keys may also be given by name.
        device: where the parameters are made; "meta" makes none.
    """

    def __init__(self, config: Union[ModelConfig, Mapping[str, Any], None] = None, *,
                 device: Optional[Union[str, torch.device]] = None, **keys: Any):  # fmt: skip
        super().__init__()
        if isinstance(config, ModelConfig):
            config = config.to_dict()
        self.config = c = ModelConfig.from_dict({**(config or {}), **keys})
        # Of the checkpoint that was loaded: its tokenizer and generation_config.json, which `save` copies, and
        # bos_token_id and the like of its config.json.
        self.tokenizer_file: Optional[Path] = None
        self.generation_file: Optional[Path] = None
        self.special_tokens: dict[str, Any] = {}
        self.embed = Embedding(c.vocab_size, c.hidden_size, device=device)
        unit = c.embedding == "unit"
        self.s_E = Parameter(torch.empty((), device=device)) if unit else None
        self.s_F = Parameter(torch.empty((), device=device)) if unit else None
        self.layers = ModuleList()
        for l in range(c.num_hidden_layers):
            layer = _LAYERS[c.mixer_of(l)](c, num_layers=c.num_hidden_layers, device=device)
            layer._add_layer(c, device)
            layer._initialise_layer(c)
            self.layers.append(layer)
        positions = c.max_position_embeddings
        self.position_scale = Parameter(torch.empty(positions, device=device)) if c.ssmax == "position" else None
        has_norm = c.norm != "none" and c.final_norm_weight
        self.norm = nn.RMSNorm(c.hidden_size, c.norm_eps, device) if has_norm else None
        tied = unit or c.tie_word_embeddings
        self.head = None if tied else Linear(c.hidden_size, c.vocab_size, bias=False, device=device)
        self._initialise()

    def _initialise(self) -> None:
        c = self.config
        if c.embedding == "unit":
            init.normal_(self.embed.weight, std=0.1 / math.sqrt(c.hidden_size))
            init.zeros_(self.s_E)
            init.constant_(self.s_F, math.log(c.hidden_size) / 2)
        else:
            deviation = math.sqrt(2 / (5 * c.hidden_size))
            init.normal_(self.embed.weight, std=deviation)
            if self.head is not None:
                init.normal_(self.head.weight, std=deviation)
        if self.position_scale is not None:
            init.ones_(self.position_scale)

    def forward(self, tokens: Tensor, *, document: Optional[Tensor] = None, state: Optional[DecodingState] = None,
                expand_windows: bool = False) -> Tensor:  # fmt: skip
        """Logits of the next token after every token.

        Args:
            tokens: integers [B, T].
            document: integers [B, T]; tokens of other documents are invisible.
            state: of `new_state()`; tokens continue what it has seen, and it advances. Without gradients.
            expand_windows: screening windows beyond the training length are infinite; a state has its own setting.

        Returns:
            [B, T, N], float32 (float64 in a model of float64).
        """
        x = self.hidden(tokens, document=document, state=state, expand_windows=expand_windows)
        return self.logits(x, state)

    def logits(self, x: Tensor, state: Optional[DecodingState] = None) -> Tensor:
        """The head: x [..., D] of `hidden` -> [..., N]."""
        head = self.head_weight() if state is None else state.head
        return self.soft_capped(F.linear(x.to(head.dtype), head).to(x.dtype))

    def soft_capped(self, logits: Tensor) -> Tensor:
        """What the head makes of its products y: c tanh(y / c) with `logit_soft_cap` c."""
        cap = self.config.logit_soft_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def hidden(self, tokens: Tensor, *, document: Optional[Tensor] = None, state: Optional[DecodingState] = None,
               expand_windows: bool = False) -> Tensor:  # fmt: skip
        """What the head multiplies: [B, T, D]. Arguments as of `forward`."""
        c = self.config
        unit = c.embedding == "unit"
        x = wide(self.embed(tokens))
        if unit:
            x = nn.unit_rows(x) * wide(self.s_E).exp()
        expand = expand_windows if state is None else state.expand_windows
        expand_beyond = self._expand_beyond(expand)
        for l, layer in enumerate(self.layers):
            own = None if state is None else state.layers[l]
            x = layer(x, document=document, state=own, expand_beyond=expand_beyond,
                      position_scale=self.position_scale)  # fmt: skip
        if state is not None:
            state.position += tokens.shape[1]
        if c.norm != "none":
            x = nn.rms_norm(x, None if self.norm is None else self.norm.weight, c.norm_eps)
        return x * wide(self.s_F).exp() if unit else x

    def head_weight(self) -> Tensor:
        """The matrix of the head, [N, D]."""
        if self.config.embedding == "unit":
            return nn.unit_rows(wide(self.embed.weight)).to(self.embed.weight.dtype)
        return self.embed.weight if self.head is None else self.head.weight

    def loss(self, tokens: Tensor, targets: Tensor, *, document: Optional[Tensor] = None,
             reduction: str = "mean", ignore_index: int = -100) -> Tensor:  # fmt: skip
        """Cross-entropy in nats of targets [B, T] after tokens [B, T], without the B x T x N logits.

        `reduction`, `ignore_index` and the result are those of `tamis.linear_cross_entropy`.
        """
        x, head = self.hidden(tokens, document=document), self.head_weight()
        return operators.linear_cross_entropy(
            x.to(head.dtype), head, targets, reduction=reduction, ignore_index=ignore_index,
            soft_cap=self.config.logit_soft_cap,
        )

    def new_state(self, *, expand_windows: bool = False) -> DecodingState:
        """A state that has seen nothing, for sequences that are continued together.

        Heads with a finite window keep ceil(w) keys, mLSTM its memory; other heads keep every key. Train no further
        while states are alive: they hold the head's matrix and the windows.
        """
        expand_beyond = self._expand_beyond(expand_windows)
        with torch.no_grad():
            states: list[MixerState] = [layer.new_state(expand_beyond) for layer in self.layers]
            return DecodingState(states, self.head_weight().detach(), expand_windows)

    def generate(self, tokens: Tensor, max_new_tokens: int, *, end_token: Optional[int] = None,
                 document: Optional[Tensor] = None, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0,
                 min_p: float = 0.0, seed: Optional[int] = None, expand_windows: bool = False,
                 chunk_tokens: int = 2048) -> Tensor:  # fmt: skip
        """Continues texts with a state that is bounded where windows are; greedy as `tamis generate --temperature 0`.

        Args:
            tokens: integers [B, T], T >= 1. Pad shorter texts at the front and give `document`.
            end_token: a text that has it is followed by it to the end; reading stops when all texts have it.
            document: integers [B, T]; new tokens belong to the document of the last.
            temperature: 0 takes the likeliest token.
            top_k, top_p, min_p: see `tamis.generation.sample`.
            seed: of the draws; torch's generator where None.
            expand_windows: screening windows beyond the training length are infinite.
            chunk_tokens: tokens of all texts that are read at once, which bounds memory.

        Returns:
            The new tokens, int64 [B, at most max_new_tokens].
        """
        return generation.generate(
            self, tokens, max_new_tokens, end_token=end_token, document=document, temperature=temperature,
            top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, expand_windows=expand_windows,
            chunk_tokens=chunk_tokens,
        )  # fmt: skip

    def _expand_beyond(self, expand_windows: bool) -> Optional[float]:
        return float(self.config.max_position_embeddings) if expand_windows else None

    def save(self, directory: Union[str, Path]) -> None:
        """Writes config.json, model.safetensors, the tokenizer and generation_config.json:
        `tamis.save(self, directory)`."""
        from tamis import checkpoint

        checkpoint.save(self, directory)


class Multiscreen(Model):
    """A Multiscreen ("Screening Is Enough"): layers of screening alone, the unit-length embedding, no norms, no MLPs.

        tamis.Multiscreen(psi=8, vocab_size=257)            D = 64, L = H = 8
        tamis.Multiscreen(tamis.ModelConfig(...))           or the keys of config.json
    """

    def __init__(self, config: Union[ModelConfig, Mapping[str, Any], None] = None, *,
                 device: Optional[Union[str, torch.device]] = None, **keys: Any):  # fmt: skip
        super().__init__(config, device=device, **keys)
        if self.config.model_type != "multiscreen":
            raise ValueError(
                f'Multiscreen: "model_type" must be "multiscreen", but is "{self.config.model_type}"; use tamis.Model'
            )
