"""Finds libtamis_ops.so and loads it into this torch."""

import ctypes
import os
from pathlib import Path

import torch

_LIBRARY = "libtamis_ops.so"
_ADVICE = (
    "build it for this torch, in Tamis's source tree: `make python` to use the tree itself, or "
    "`pip install --no-build-isolation --no-deps --force-reinstall .` for the installed package"
)


def find() -> Path:
    named = os.environ.get("TAMIS_OPS_LIBRARY")
    package = Path(__file__).resolve().parent
    places = [Path(named)] if named else [package / _LIBRARY, package.parents[1] / "build" / "release" / _LIBRARY]
    for place in places:
        if place.is_file():
            return place
    looked = ", ".join(str(place) for place in places)
    raise ImportError(
        f"tamis: {_LIBRARY} is missing (looked for {looked}); {_ADVICE}; or name it in TAMIS_OPS_LIBRARY"
    )


def _version(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")[:2])


def load() -> None:
    """Registers the operators, unless something else in this process has loaded them already."""
    if hasattr(torch.ops.tamis, "screening"):
        return
    path = find()
    try:
        torch.ops.load_library(path)
        built_for = ctypes.CDLL(str(path)).tamis_torch_version
    except (OSError, AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ImportError(
            f"tamis: {path} does not load into torch {torch.__version__} ({reason}); {_ADVICE}"
        ) from None
    built_for.restype = ctypes.c_char_p
    version = built_for().decode()
    if _version(version) != _version(torch.__version__):
        raise ImportError(
            f"tamis: {path} was built for torch {version}, but this is torch {torch.__version__}; {_ADVICE}"
        )
