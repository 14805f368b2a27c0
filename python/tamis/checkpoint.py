"""Checkpoints of the program `tamis`: a directory with config.json, model.safetensors and tokenizer.json."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, NoReturn, Optional, Union

import torch
from torch import Tensor

from tamis import foreign_keys
from tamis.config import ModelConfig
from tamis.models import Model, Multiscreen

_CONFIG, _TENSORS, _TOKENIZER, _MANIFEST = "config.json", "model.safetensors", "tokenizer.json", "trainer.json"
_INDEX, _GENERATION = "model.safetensors.index.json", "generation_config.json"
_OTHER_FILES = {"tokenizer_file": _TOKENIZER, "generation_file": _GENERATION}  # attributes of a model, and their files
# Names of a tokenizer's end of text, the first that it has (tamis/text/huggingface_tokenizer.cc).
_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot|>", "[SEP]")
_EXPECTED = "a checkpoint directory (config.json, model.safetensors) or a run with checkpoints/step-N"


def load(directory: Union[str, Path], *, device: Union[str, torch.device] = "cpu",
         dtype: torch.dtype = torch.float32) -> Model:  # fmt: skip
    """The model of a checkpoint, or of the newest checkpoint of a run directory.

    Args:
        directory: with config.json and model.safetensors (or model.safetensors.index.json and its shards), or a run
            with checkpoints/step-N.
        dtype: of the matrices; all else is float32 (float64 with float64).

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: a file is damaged or does not fit config.json; the text names file and tensor.
    """
    path = find_checkpoint(directory)
    _check_digests(path)
    config = _read_config(path)
    model = (Multiscreen if config.model_type == "multiscreen" else Model)(config, device="meta")
    model.to_empty(device=device)
    _fill(model, _read_tensors(path, config), path)
    for attribute, name in _OTHER_FILES.items():
        setattr(model, attribute, path / name if (path / name).is_file() else None)
    model.special_tokens = _special_tokens(_read_json(path / _CONFIG))
    for parameter in model.parameters():
        if parameter.dim() > 1 or dtype == torch.float64:
            parameter.data = parameter.data.to(dtype)
    return model


def save(model: Model, directory: Union[str, Path]) -> None:
    """Writes the model, as float32, and the tokenizer and generation_config.json that it was loaded with; `tamis` and
    `load` read them.

    The directory appears when it is complete. One that exists must be empty.
    """
    from safetensors.torch import save_file

    target = Path(directory)
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(f"{target}: exists and is not empty; choose another directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in model.state_dict().items()}
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        (temporary / _CONFIG).write_text(json.dumps(_stored_config(model), indent=2, sort_keys=True) + "\n")
        save_file(tensors, temporary / _TENSORS, metadata={"format": "pt"})
        for attribute, name in _OTHER_FILES.items():
            if getattr(model, attribute) is not None:
                shutil.copyfile(getattr(model, attribute), temporary / name)
        for file in temporary.iterdir():
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def find_checkpoint(directory: Union[str, Path]) -> Path:
    """The directory itself where it is a checkpoint, or the newest checkpoints/step-N in it."""
    path = Path(directory)
    if not path.is_dir():
        problem = "is a file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{path}: {problem}; expected {_EXPECTED}")
    if _is_checkpoint(path):
        return path
    steps = [entry for entry in path.glob("checkpoints/step-*") if re.fullmatch(r"step-\d+", entry.name)]
    steps = [entry for entry in steps if _is_checkpoint(entry)]
    if not steps:
        raise FileNotFoundError(f"{path}: holds no checkpoint; expected {_EXPECTED}")
    return max(steps, key=lambda entry: int(entry.name[len("step-") :]))


def load_tokenizer(model_or_directory: Union[Model, str, Path]) -> Any:
    """The `tokenizers.Tokenizer` of a model that was loaded, or of a directory."""
    from tokenizers import Tokenizer

    if isinstance(model_or_directory, Model):
        file = model_or_directory.tokenizer_file
    else:
        file = find_checkpoint(model_or_directory) / _TOKENIZER
    if file is None or not file.is_file():
        raise FileNotFoundError(f"{file or 'the model'}: there is no {_TOKENIZER}; pass token ids instead of text")
    return Tokenizer.from_file(str(file))


def _special_tokens(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in foreign_keys.TOKENS if config.get(key) is not None}


def end_tokens(directory: Union[str, Path], tokenizer: Any) -> list[int]:
    """The ids of the tokens that end a text: `eos_token_id` of generation_config.json, or of config.json where that
    names none; then the end of text of `tokenizer`, a `tokenizers.Tokenizer`, at which `tamis generate` stops."""
    path = find_checkpoint(directory)
    found: list[int] = []
    for name in (_GENERATION, _CONFIG):
        given = _read_json(path / name).get("eos_token_id") if (path / name).is_file() else None
        ids = given if isinstance(given, list) else [given]
        found += [token for token in ids if isinstance(token, int) and not isinstance(token, bool) and token >= 0]
        if found:
            break
    added = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
    found += [added[name] for name in _END_OF_TEXT if name in added][:1]
    return list(dict.fromkeys(found))


def _stored_config(model: Model) -> dict[str, Any]:
    """config.json as the program writes it, with the keys that Hugging Face's tools expect."""
    config = model.config.to_dict()
    model_type = config["model_type"]
    architecture = f"{model_type[0].upper()}{model_type[1:]}ForCausalLM"
    return {**config, "architectures": [architecture], "torch_dtype": "float32", **model.special_tokens}


def _is_checkpoint(path: Path) -> bool:
    return (path / _CONFIG).is_file() and any((path / name).is_file() for name in (_TENSORS, _INDEX))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file}: is not JSON in UTF-8 ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file}: expected an object, but got {type(value).__name__}")
    return value


def _check_digests(path: Path) -> None:
    """Compares the files that are read with trainer.json, where there is one with SHA-256 digests."""
    if not (path / _MANIFEST).is_file():
        return
    files = _read_json(path / _MANIFEST).get("files", {})
    files = files if isinstance(files, dict) else {}

    def refuse(damage: str) -> NoReturn:
        raise ValueError(
            f"{path}: damaged: {damage}; restore it, name another checkpoint, or remove {_MANIFEST} to read it unchecked"
        )

    shards = [name for name in files if name == _INDEX or re.fullmatch(r"model-\d{5,}-of-\d{5,}\.safetensors", name)]
    if shards and (path / _TENSORS).exists():  # it would be read instead of them
        refuse(f"{_MANIFEST}: does not list {_TENSORS}")
    for name in (_CONFIG, *(shards or [_TENSORS]), _TOKENIZER):
        wanted = files.get(name, {}).get("sha256")
        if wanted is None:  # a manifest of an earlier version
            continue
        if not (path / name).is_file():
            refuse(f"{name}: missing")
        with open(path / name, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != wanted:
                refuse(f"{name}: checksum differs")


def _read_config(path: Path) -> ModelConfig:
    given = _read_json(path / _CONFIG)
    if given.get("model_type", "multiscreen") != "multiscreen" and "output_scale" not in given:
        given["output_scale"] = False  # until version 0.1 screening in other presets had no s_O; others drop the key
    try:
        return ModelConfig.from_dict(given)
    except ValueError as error:
        raise ValueError(f"{path / _CONFIG}: {error}") from None


def _read_file(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file}: is not a safetensors file ({error})") from None


def _read_shards(index: Path) -> dict[str, Tensor]:
    """The tensors of the shards next to an index; every tensor is in exactly the file that the index gives."""
    files = _read_json(index).get("weight_map")
    if not isinstance(files, dict):
        raise ValueError(f'{index}: expected an object with "weight_map", the file of each tensor')
    for name, shard in files.items():  # no path leads out of the directory
        if not isinstance(shard, str) or not re.fullmatch(r"[^./\0][^/\0]*\.safetensors", shard):
            raise ValueError(
                f'{index}: the file of "{name}" must be a name like model-00001-of-00002.safetensors, but is {shard!r}'
            )
    shards: dict[str, dict[str, Tensor]] = {}
    for shard in sorted(set(files.values())):
        if not (index.parent / shard).is_file():
            raise ValueError(f"{index}: there is no {shard}, which the index names")
        shards[shard] = _read_file(index.parent / shard)
    for name, shard in files.items():
        if name not in shards[shard]:
            raise ValueError(f'{index}: {shard} has no tensor "{name}", which the index expects there')
    for shard, tensors in shards.items():
        for name in tensors:
            if files.get(name) != shard:
                raise ValueError(f'{index}: {shard} holds "{name}", which the index does not expect there')
    return {name: shards[shard][name] for name, shard in files.items()}


def _read_tensors(path: Path, config: ModelConfig) -> dict[str, Tensor]:
    stored = _read_file(path / _TENSORS) if (path / _TENSORS).is_file() else _read_shards(path / _INDEX)
    # Version 0.1 stored the projections of screening layers of other presets whole.
    keys, values = config.num_attention_heads * config.key_dim, config.num_attention_heads * config.value_dim
    for name in [name for name in stored if name.endswith("qkvg_proj.weight")]:
        rows = [keys, keys, values, values] if config.gate else [keys, keys, values]
        if stored[name].dim() != 2 or stored[name].shape[0] != sum(rows):
            continue
        prefix = name.removesuffix("qkvg_proj.weight")
        for letter, part in zip("qkvg", stored.pop(name).split(rows)):
            stored[f"{prefix}{letter}_proj.weight"] = part
    return stored


def _fill(model: Model, stored: dict[str, Tensor], path: Path) -> None:
    """Copies the tensors into the parameters: exactly those that the configuration needs, in their shapes, finite."""
    parameters = dict(model.named_parameters())
    source = _TENSORS if (path / _TENSORS).is_file() else _INDEX
    for name in stored:
        if name not in parameters:
            raise ValueError(f'{path}: {source} holds "{name}", which is not a tensor of the model in config.json')
    with torch.no_grad():
        for name, parameter in parameters.items():
            tensor: Optional[Tensor] = stored.get(name)
            if tensor is None:
                raise ValueError(f'{path}: {source} has no tensor "{name}", which config.json requires')
            if tensor.shape != parameter.shape and not (parameter.dim() == 0 and tuple(tensor.shape) == (1,)):
                raise ValueError(
                    f"{path}: {name} is {list(tensor.shape)} but config.json makes it {list(parameter.shape)}; was it "
                    "trained with another recipe?"
                )
            if not tensor.is_floating_point():
                raise ValueError(f"{path}: {name} must be F32, F16 or BF16, but is {tensor.dtype}")
            if not tensor.isfinite().all():
                raise ValueError(f"{path}: {name} holds numbers that are not finite; expected a model that has not "
                                 "diverged")  # fmt: skip
            parameter.copy_(tensor.view(parameter.shape))
