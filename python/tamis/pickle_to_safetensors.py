"""Turns a PyTorch file (.pt, .pth, .bin) into a directory that `tamis convert` reads.

    python python/tamis/pickle_to_safetensors.py final.pt DIR      (installed: python -m tamis.pickle_to_safetensors)

The file is opened with `weights_only=True`: a pickle can run any code, and this option allows nothing but tensors and
plain containers. The program itself never reads a pickle.

Writes DIR/model.safetensors, and DIR/config.json where the file holds the configuration (as those of multiscreen-pytorch
do) or `--config FILE` names one. Takes the state dictionary from `model_state_dict`, `state_dict` or `model` if the file
has such a key. Prefixes of torch.compile and DistributedDataParallel (`_orig_mod.`, `module.`) are removed.
"""

import argparse
import json
import os
import pathlib
import pickle
import sys
import tempfile

STATE_KEYS = ("model_state_dict", "state_dict", "model")
PREFIXES = ("_orig_mod.", "module.")
# Classes of configurations that files of known programs hold; read as plain objects.
CONFIGURATIONS = ("multiscreen.config.MultiscreenConfig",)


class Configuration:
    """Stands for a configuration's class, which need not be installed."""


def load(path):
    """The content of a PyTorch file, without running code from it."""
    import torch

    with torch.serialization.safe_globals([(Configuration, name) for name in CONFIGURATIONS]):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError("is damaged, or holds more than tensors and plain containers, which is not read") from error


def state_of(content):
    """The tensors by name."""
    import torch

    if isinstance(content, dict):
        for key in STATE_KEYS:
            if isinstance(content.get(key), dict):
                content = content[key]
                break
    if not isinstance(content, dict):
        raise ValueError(f"expected a dictionary of tensors, but the file holds {type(content).__name__}")
    tensors, seen = {}, {}
    for name, value in content.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"expected a dictionary of tensors, but {name!r} is {type(value).__name__}")
        while name.startswith(PREFIXES):  # in any order: DistributedDataParallel may be around torch.compile
            for prefix in PREFIXES:
                name = name.removeprefix(prefix)
        # Tied weights are stored once in the pickle, and safetensors stores no views.
        same = seen.setdefault((value.untyped_storage().data_ptr(), value.shape, value.stride()), name)
        tensors[name] = value.contiguous() if same == name else value.clone().contiguous()
    return tensors


def config_of(content):
    """The configuration in the file, or None."""
    config = content.get("config") if isinstance(content, dict) else None
    return vars(config) if isinstance(config, Configuration) else config if isinstance(config, dict) else None


def convert(source, target, config=None):
    """Writes the directory `target`, which must not exist, all at once."""
    from safetensors.torch import save_file

    target = pathlib.Path(target)
    if target.exists():
        raise ValueError(f"{target}: exists; name a directory that does not")
    content = load(source)
    tensors = state_of(content)
    found = json.loads(pathlib.Path(config).read_text()) if config else config_of(content)
    with tempfile.TemporaryDirectory(dir=target.absolute().parent) as directory:
        place = pathlib.Path(directory) / "model"
        place.mkdir()
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
        if found is not None:
            (place / "config.json").write_text(json.dumps(found, indent=2, default=str) + "\n")
        os.rename(place, target)
    return found is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="file of torch.save")
    parser.add_argument("target", help="directory to write; must not exist")
    parser.add_argument("--config", help="config.json to put next to the tensors")
    options = parser.parse_args()
    try:
        if not convert(options.source, options.target, options.config):
            print(f"{options.target}: has no config.json; write one or name it with --config", file=sys.stderr)
    except Exception as error:  # one line, as the program gives
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        sys.exit(f"pickle_to_safetensors: {options.source}: {text}")


if __name__ == "__main__":
    main()
