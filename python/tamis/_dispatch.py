"""How the operators behave under autocast and torch.func.vmap: registered once, for `torch.ops.tamis.*` too."""

from typing import Any, Callable

import torch
from torch import Tensor

# The tensor arguments that autocast rounds to its dtype: what the matrix products around an operator give. Scales,
# gates, windows and states stay as they are; the operators use them in float32.
_ROUNDED = {
    "screening": ("q", "k", "v", "gate"),
    "softmax_attention": ("q", "k", "v"),
    "entmax_attention": ("q", "k", "v"),
    "stick_breaking_attention": ("q", "k", "v"),
    "sieve_attention": ("q", "k", "v"),
    "sieve_algorithm1": ("q", "k", "v"),
    "mlstm": ("q", "k", "v"),
    "linear_cross_entropy": ("x", "weight"),
}
_DEVICES = {"AutocastCPU": "cpu", "AutocastCUDA": "cuda"}

_libraries: list[torch.library.Library] = []  # registrations last as long as these


def register() -> None:
    if _libraries:
        return
    library = torch.library.Library("tamis", "IMPL")
    _libraries.append(library)
    for name, rounded in _ROUNDED.items():
        for key, device in _DEVICES.items():
            library.impl(name, _autocast(name, rounded, key, device), key)
        library.impl(name, _refuse_vmap(name), "FuncTorchBatched")


def _autocast(name: str, rounded: tuple[str, ...], key: str, device: str) -> Callable[..., Any]:
    operator = getattr(torch.ops.tamis, name).default
    names = [argument.name for argument in operator._schema.arguments]
    without_autocast = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def rounding(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)

        def cast(argument: str, value: Any) -> Any:
            casts = argument in rounded and isinstance(value, Tensor) and value.dtype in (torch.float32, torch.float16,
                                                                                          torch.bfloat16)  # fmt: skip
            return value.to(dtype) if casts else value

        args = tuple(cast(argument, value) for argument, value in zip(names, args))
        kwargs = {argument: cast(argument, value) for argument, value in kwargs.items()}
        with torch._C._ExcludeDispatchKeyGuard(without_autocast):
            return operator(*args, **kwargs)

    return rounding


def _refuse_vmap(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"tamis.{name}: torch.func.vmap is not supported; the first dimension is the batch already: flatten the "
            "mapped dimension into it"
        )

    return refuse
