"""Keys of config.json that Hugging Face tools write and that are no settings of a model
(tamis/models/stored_config.cc has the same)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tamis.config import ModelConfig

IGNORED = frozenset({
    # Of the file.
    "_name_or_path", "_commit_hash", "architectures", "auto_map", "custom_pipelines", "name_or_path",
    "task_specific_params", "tokenizer_class", "transformers.js_config", "transformers_version", "unsloth_version",
    # Of training.
    "attention_dropout", "attn_pdrop", "embd_pdrop", "gradient_checkpointing", "hidden_dropout", "initializer_range",
    "labels_are_shifted", "resid_pdrop",
    # Of how the same numbers are computed.
    "_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "chunk_size_feed_forward",
    "mipe_compute_dtype", "pretraining_tp", "softmask_compute_dtype", "strict_cache_positions", "strict_position_ids",
    "tf_legacy_loss", "torchscript", "use_bfloat16", "use_cache", "zero_pad_hidden_states",
    # Of what a call returns, and of other tasks.
    "add_cross_attention", "cross_attention_hidden_size", "decoder_start_token_id", "finetuning_task", "id2label",
    "is_decoder", "label2id", "num_labels", "output_attentions", "output_hidden_states", "output_scores", "prefix",
    "problem_type", "pruned_heads", "return_dict", "return_dict_in_generate", "sep_token_id", "tie_encoder_decoder",
    # Of generation, in files of transformers 4.
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "remove_invalid_values", "repetition_penalty", "suppress_tokens", "temperature", "top_k",
    "top_p", "typical_p",
})  # fmt: skip

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_DTYPES = ("dtype", "torch_dtype")
_DTYPE_NAMES = ("bfloat16", "float16", "float32")
_BIASES = ("attention_bias", "bias", "mlp_bias", "use_bias")
# Keys that repeat a setting of the model.
_REPEATED = (
    "head_dim", "hidden_act", "num_key_value_heads", "is_encoder_decoder", "rms_norm_eps", "mipe_position_mode",
    "mipe_reference_wrap_boundary",
)  # fmt: skip
CHECKED = frozenset((*TOKENS, *_DTYPES, *_BIASES, *_REPEATED))


def without(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `given` that are not foreign."""
    return {key: value for key, value in given.items() if key not in IGNORED and key not in CHECKED}


def check(given: Mapping[str, Any], config: "ModelConfig") -> None:
    """Raises ValueError where a foreign key says that the model computes something else than `config`."""
    for key, value in given.items():
        if value is None or key not in CHECKED:
            continue
        if key in TOKENS:
            _check_token(key, value, config.vocab_size)
        elif key in _DTYPES:
            if value not in _DTYPE_NAMES:
                _refuse(key, '"float32", "float16" or "bfloat16"', value)
        elif key in _BIASES:
            if value is not False:
                _refuse(key, "false: Tamis's layers have no such biases", value)
        else:
            _check_repeated(key, value, config)


def _check_token(key: str, value: Any, vocab_size: int) -> None:
    for token in value if isinstance(value, list) else [value]:
        is_integer = isinstance(token, int) and not isinstance(token, bool)
        if not is_integer or not -1 <= token < vocab_size:  # -1 is how some tools write that there is none
            _refuse(key, f'a token id below "vocab_size" {vocab_size}, or a list of them', value)


def _check_repeated(key: str, value: Any, config: "ModelConfig") -> None:
    expected: Any = value
    why = ""
    if key == "head_dim":
        expected, why = config.head_dim, '"hidden_size" / "num_attention_heads"'
    elif key == "hidden_act" and config.mlp != "none":
        expected, why = "gelu" if config.mlp == "gelu" else "silu", f'as "mlp" is "{config.mlp}"'
    elif key == "num_key_value_heads":
        expected, why = config.num_attention_heads, '"num_attention_heads"'
    elif key == "is_encoder_decoder":
        expected, why = False, "a decoder"
    elif key == "rms_norm_eps" and config.norm != "none":
        expected, why = config.norm_eps, 'as "norm_eps"'
    elif key == "mipe_position_mode":
        expected, why = "paper_absolute", "the positions of the paper; `tamis convert` reads others"
    if value != expected or isinstance(value, bool) != isinstance(expected, bool):
        _refuse(key, f"{expected!r}, {why}", value)


def _refuse(key: str, expected: str, value: Any) -> NoReturn:
    raise ValueError(f'model: "{key}" must be {expected}, but is {value!r}')
