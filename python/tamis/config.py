"""The settings of a model: the keys of config.json, their defaults and their checks (docs/models.md)."""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Optional

from tamis import foreign_keys


@dataclass(frozen=True)
class _Preset:
    pattern: str
    norm: str
    mlp: str
    embedding: str


_PRESETS = {
    "multiscreen": _Preset("s", "none", "none", "unit"),
    "swax": _Preset("wm", "rms", "swiglu", "plain"),
    "transformer": _Preset("a", "rms", "swiglu", "plain"),
}

_ATTENTION = {"qk_norm", "norm_eps", "strict"}
_ROTARY = _ATTENTION | {"position", "rope_theta", "rope_factor"}
_SOFTMAX = _ROTARY | {"ssmax", "ssmax_scale"}
_SCREENING = {
    "key_dim", "value_dim", "mipe_threshold", "screening_position", "mipe_wrap_boundary", "tanh_norm", "gate",
    "output_scale", "fixed_r", "trim_power", "softmask",
}  # fmt: skip
_ROPE = {"rope_theta", "rope_factor", "rope_scaling"}
_LLAMA3 = {"rope_low_freq_factor", "rope_high_freq_factor", "rope_original_length"}

# Letters of a pattern, and the settings that each mixer uses besides the sizes.
MIXER_SETTINGS = {
    "a": _SOFTMAX,
    "w": _SOFTMAX | {"window"},
    "e": _ROTARY | {"alpha"},
    "b": _ATTENTION,
    "v": _ATTENTION | {"alpha", "sieve", "sieve_epsilon"},
    "m": {"mlstm_heads", "norm_eps"},
    "s": _SCREENING,
}

_CHOICES = {
    "norm": ("rms", "none"),
    "mlp": ("swiglu", "gelu", "none"),
    "embedding": ("plain", "unit"),
    "position": ("rope", "none"),
    "rope_scaling": ("linear", "llama3"),
    "screening_position": ("mipe", "rope", "none"),
    "sieve": ("equations", "algorithm1"),
    "softmask": ("cosine", "linear", "none"),
    "ssmax": ("none", "learned", "one", "bias", "fixed", "position"),
}


@dataclass(frozen=True)
class ModelConfig:
    """The settings of a model, as `config.json` has them; `model_type` names the preset that fixes other defaults.

    Make one with `ModelConfig.from_dict`, which fills in the preset's defaults and checks every key.
    """

    model_type: str
    vocab_size: int  # N
    hidden_size: int  # D
    num_hidden_layers: int  # L
    num_attention_heads: int  # H, of attention and screening
    max_position_embeddings: int = 4096  # training length in tokens

    pattern: str = "s"  # a letter per layer, repeated to L
    norm: str = "rms"  # before mixers, MLPs and the head; or "none"
    mlp: str = "swiglu"  # or "gelu", "none"
    intermediate_size: int = 0  # of the MLP
    embedding: str = "plain"  # or "unit": unit-length rows, with learned scales s_E and s_F
    tie_word_embeddings: bool = True
    final_norm_weight: bool = False
    norm_eps: float = 1e-6
    logit_soft_cap: Optional[float] = None  # c: logits z become c tanh(z / c)

    window: int = 128  # of sliding-window attention: keys, the query's own included unless strict
    strict: Optional[bool] = None  # a query does not see its own key; None: as its mixer has it
    position: str = "rope"  # of softmax, sliding-window and entmax attention; or "none"
    rope_theta: float = 10_000.0
    rope_factor: float = 1.0
    rope_scaling: str = "linear"  # or "llama3": rope_factor scales long wavelengths alone (nn.Llama3Scaling)
    rope_low_freq_factor: float = 1.0  # of "llama3"
    rope_high_freq_factor: float = 4.0
    rope_original_length: int = 8192  # tokens of the training before
    qk_norm: bool = False
    ssmax: str = "none"  # Scalable-Softmax: "learned", "one", "bias", "fixed", "position"
    ssmax_scale: Optional[float] = None
    alpha: float = 1.5  # of entmax and Sieve
    sieve: str = "equations"  # of Sieve attention; or "algorithm1" of its paper
    sieve_epsilon: float = 1e-6  # of "algorithm1"

    mlstm_heads: int = 0

    key_dim: int = 16
    value_dim: int = 64
    mipe_threshold: float = 256.0
    screening_position: str = "mipe"  # or "rope", "none"; `position` in the config.json of a Multiscreen
    mipe_wrap_boundary: Optional[int] = None  # positions from here on count modulo the window in MiPE
    tanh_norm: bool = True
    gate: bool = True
    output_scale: bool = True
    fixed_r: Optional[float] = None
    trim_power: int = 2  # of Trim, 1 to 3
    softmask: str = "cosine"  # or "linear", "none"

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def learns_bias(self) -> bool:
        return self.ssmax in ("bias", "position")

    @property
    def learns_scale(self) -> bool:
        return self.learns_bias or self.ssmax == "learned"

    def mixer_of(self, layer: int) -> str:
        """The letter of a layer's mixer."""
        return self.pattern[layer % len(self.pattern)]

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "ModelConfig":
        """Reads the keys of config.json or of a recipe's [model] table.

        Keys that Hugging Face tools write are checked where they repeat a setting, and else ignored
        (`tamis.foreign_keys`). Raises ValueError, which names the key, when one is unknown, missing, of the wrong type
        or out of range.
        """
        config = _read(cls, foreign_keys.without(given))
        foreign_keys.check(given, config)
        return config

    def to_dict(self) -> dict[str, Any]:
        """The contents of config.json: every key that the model uses, without those that the preset fixes."""
        result = dataclasses.asdict(self)
        preset = _PRESETS[self.model_type]
        if self._is_multiscreen:
            result["position"] = self.screening_position
        for key in ("strict", "logit_soft_cap", "ssmax_scale", "mipe_wrap_boundary", "fixed_r"):
            if result[key] is None:
                del result[key]
        if self.mlstm_heads == self.num_attention_heads:
            del result["mlstm_heads"]
        for key in self._unused_keys():
            result.pop(key, None)
        for key, default in (
            ("rope_scaling", "linear"), ("sieve", "equations"), ("trim_power", 2), ("softmask", "cosine"),
        ):  # fmt: skip
            if result.get(key) == default:
                del result[key]
        for key in ("norm", "mlp", "embedding"):
            if result[key] == getattr(preset, key):
                del result[key]
        if self._is_multiscreen and self.pattern == preset.pattern:
            del result["pattern"]
        if self._is_multiscreen and self.output_scale:
            result.pop("output_scale", None)
        return result

    @property
    def _is_multiscreen(self) -> bool:
        return self.model_type == "multiscreen"

    def _unused_settings(self) -> set[str]:
        unused = set().union(*MIXER_SETTINGS.values())
        rotates = uses_alpha = False
        for layer in range(self.num_hidden_layers):
            used = MIXER_SETTINGS[self.mixer_of(layer)]
            unused -= used
            uses_alpha = uses_alpha or ("alpha" in used and not ("sieve" in used and self.sieve == "algorithm1"))
            rotates = rotates or ("position" in used and self.position == "rope")
            rotates = rotates or ("screening_position" in used and self.screening_position == "rope")
        unused = unused - _ROPE if rotates else unused | _ROPE
        if not rotates or self.rope_scaling != "llama3":
            unused |= _LLAMA3
        if not uses_alpha:
            unused.add("alpha")
        if self.sieve != "algorithm1":
            unused.add("sieve_epsilon")
        if self.mlp == "none":
            unused.add("intermediate_size")
        if self.embedding == "unit":
            unused.add("tie_word_embeddings")
        if self.norm == "none":
            unused.add("final_norm_weight")
        else:
            unused.discard("norm_eps")
        return unused

    def _unused_keys(self) -> set[str]:
        """The keys of config.json for `_unused_settings`: a Multiscreen has its own name of the position."""
        unused = self._unused_settings()
        if not self._is_multiscreen:
            return unused
        unused.discard("position")
        if "screening_position" in unused:
            unused.add("position")
        return unused | {"screening_position"}


# The settings of a model (tamis/models/model_fields.h has the same).
KEYS = frozenset(field.name for field in dataclasses.fields(ModelConfig)) | {"psi"}


class _Reader:
    """Typed access to the keys of a configuration; every error names the key."""

    def __init__(self, given: Mapping[str, Any]):
        self.given = given

    def integer(
        self, key: str, default: Optional[int] = None, least: int = 1, most: Optional[int] = None
    ) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f'model: "{key}" must be an integer, but is {value!r}')
        if value < least:
            raise ValueError(f'model: "{key}" must be at least {least}, but is {value}')
        if most is not None and value > most:
            raise ValueError(f'model: "{key}" must be at most {most}, but is {value}')
        return value

    def number(self, key: str, default: Optional[float] = None, most: float = math.inf) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f'model: "{key}" must be a number, but is {value!r}')
        if not 0 < value <= most or math.isinf(value):
            limit = "positive" if math.isinf(most) else f"above 0 and at most {most}"
            raise ValueError(f'model: "{key}" must be {limit}, but is {value}')
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise ValueError(f'model: "{key}" must be true or false, but is {value!r}')
        return value

    def choice(self, key: str, default: str, setting: Optional[str] = None) -> str:
        value, choices = self._value(key, default), _CHOICES[setting or key]
        if value not in choices:
            raise ValueError(f'model: "{key}" must be one of {", ".join(choices)}, but is {value!r}')
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self.given.get(key, default)
        if value is None:
            raise ValueError(f'model: "{key}" is missing')
        return value


def _read(cls: type[ModelConfig], given: Mapping[str, Any]) -> ModelConfig:
    name = given.get("model_type", "multiscreen")
    if name not in _PRESETS:
        raise ValueError(f'model: "model_type" must be one of {", ".join(_PRESETS)}, but is {name!r}')
    preset = _PRESETS[name]
    _check_names(given, KEYS)
    given = {key: value for key, value in given.items() if value is not None}  # null counts as absent
    reader = _Reader(given)
    psi = reader.integer("psi") if "psi" in given else None
    for size in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        if psi is not None and size in given:
            raise ValueError(
                f'model: "psi" sets hidden_size, num_hidden_layers and num_attention_heads, but "{size}" is given too; '
                "leave out one of them"
            )
    heads = reader.integer("num_attention_heads", psi)
    hidden = reader.integer("hidden_size", psi and psi * psi)
    positions = reader.integer("max_position_embeddings", 4096)
    pattern = given.get("pattern", preset.pattern)
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(MIXER_SETTINGS):
        letters = ", ".join(MIXER_SETTINGS)
        raise ValueError(f'model: "pattern" must have a letter for each layer, of {letters}, but is {pattern!r}')
    mlp = reader.choice("mlp", preset.mlp)
    ssmax = reader.choice("ssmax", "none")
    mean_log_inverse = 1.0 if positions < 2 else positions / math.lgamma(positions + 1)
    scale = reader.number("ssmax_scale", mean_log_inverse)
    keeps_scale = ssmax == "fixed" or (ssmax in ("learned", "bias", "position") and "ssmax_scale" in given)
    alpha = reader.number("alpha", 1.5)
    if not 1 <= alpha <= 2:
        raise ValueError(f'model: "alpha" must be a number from 1 to 2, but is {alpha}')
    is_multiscreen = name == "multiscreen"
    boundary = reader.integer("mipe_wrap_boundary", 1) if given.get("mipe_wrap_boundary") is not None else None
    cap = reader.number("logit_soft_cap", 1.0) if given.get("logit_soft_cap") is not None else None
    config = cls(
        model_type=name,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden,
        num_hidden_layers=reader.integer("num_hidden_layers", psi),
        num_attention_heads=heads,
        max_position_embeddings=positions,
        pattern=pattern,
        norm=reader.choice("norm", preset.norm),
        mlp=mlp,
        intermediate_size=reader.integer(
            "intermediate_size", max(1, 4 * hidden if mlp == "gelu" else 8 * hidden // 3)
        ),
        embedding=reader.choice("embedding", preset.embedding),
        tie_word_embeddings=reader.boolean("tie_word_embeddings", True),
        final_norm_weight=reader.boolean("final_norm_weight", False),
        norm_eps=reader.number("norm_eps", 1e-6, 1.0),
        logit_soft_cap=cap,
        window=reader.integer("window", 128),
        position="rope" if is_multiscreen else reader.choice("position", "rope"),
        rope_theta=reader.number("rope_theta", 10_000.0),
        rope_factor=reader.number("rope_factor", 1.0),
        rope_scaling=reader.choice("rope_scaling", "linear"),
        rope_low_freq_factor=reader.number("rope_low_freq_factor", 1.0),
        rope_high_freq_factor=reader.number("rope_high_freq_factor", 4.0),
        rope_original_length=reader.integer("rope_original_length", 8192),
        qk_norm=reader.boolean("qk_norm", False),
        ssmax=ssmax,
        ssmax_scale=scale if keeps_scale else None,
        alpha=alpha,
        strict=reader.boolean("strict", False) if "strict" in given else None,
        sieve=reader.choice("sieve", "equations"),
        sieve_epsilon=reader.number("sieve_epsilon", 1e-6),
        mlstm_heads=reader.integer("mlstm_heads", heads),
        key_dim=reader.integer("key_dim", 16, 2),
        value_dim=reader.integer("value_dim", 64),
        mipe_threshold=reader.number("mipe_threshold", 256.0),
        screening_position=reader.choice(
            "position" if is_multiscreen else "screening_position", "mipe", "screening_position"
        ),
        mipe_wrap_boundary=boundary,
        tanh_norm=reader.boolean("tanh_norm", True),
        gate=reader.boolean("gate", True),
        output_scale=reader.boolean("output_scale", True),
        fixed_r=reader.number("fixed_r", 1.0, 1.0) if given.get("fixed_r") is not None else None,
        trim_power=reader.integer("trim_power", 2, 1, 3),
        softmask=reader.choice("softmask", "cosine"),
    )
    _check_sizes(config)
    unused = config._unused_keys()
    used = {key: value for key, value in given.items() if key not in unused}
    refused = {key for key in unused if not key.startswith("rope_")} if is_multiscreen else {"psi"}
    _check_names(given, KEYS - refused)
    # Without the unused settings, which would otherwise decide about parameters: Scalable-Softmax without a softmax.
    return config if len(used) == len(given) else _read(cls, used)


def _check_names(given: Mapping[str, Any], known: Set[str]) -> None:
    for key in given:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, 1)
            raise ValueError(f'model: unknown key "{key}"' + (f'; did you mean "{nearest[0]}"?' if nearest else ""))


def _check_sizes(config: ModelConfig) -> None:
    if config.rope_scaling == "llama3" and config.rope_low_freq_factor >= config.rope_high_freq_factor:
        raise ValueError(
            f'model: "rope_high_freq_factor" must be above "rope_low_freq_factor" {config.rope_low_freq_factor}, '
            f"but is {config.rope_high_freq_factor}"
        )
    letters = {config.mixer_of(layer) for layer in range(config.num_hidden_layers)}
    for letter in sorted(letters) if config.strict else ():
        if "strict" not in MIXER_SETTINGS[letter]:
            raise ValueError(
                'model: "strict" = true hides a token from itself in attention, but a layer of the letter '
                f'"{letter}" always sees it; leave "strict" out or choose another "pattern"'
            )
    hidden, heads = config.hidden_size, config.num_attention_heads
    if letters & set("awebv") and hidden % heads:
        raise ValueError(f'model: "num_attention_heads" must divide "hidden_size" {hidden}, but is {heads}')
    if letters & set("awe") and config.position == "rope" and config.head_dim % 2:
        raise ValueError(
            f"model: rotary embedding needs heads of even width, but \"hidden_size\" / \"num_attention_heads\" is "
            f'{config.head_dim}; choose other sizes or position = "none"'
        )
    if "m" in letters and hidden % (2 * config.mlstm_heads):
        raise ValueError(
            'model: mLSTM needs "hidden_size" to be a multiple of twice "mlstm_heads" (default: '
            f'"num_attention_heads"), but {hidden} is not a multiple of {2 * config.mlstm_heads}'
        )
    if "s" in letters and config.screening_position == "rope" and config.key_dim % 2:
        raise ValueError(f'model: rotary embedding needs an even "key_dim", but it is {config.key_dim}')
    if "s" in letters and config.mipe_wrap_boundary is not None and config.screening_position != "mipe":
        raise ValueError(
            'model: "mipe_wrap_boundary" needs screening with the position "mipe", but it is '
            f'"{config.screening_position}"'
        )
