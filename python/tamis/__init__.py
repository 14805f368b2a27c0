"""Tamis for PyTorch: operators, modules and models that select from their context.

`import tamis` loads libtamis_ops.so, which registers `torch.ops.tamis.*` with autograd. The library is looked for in
the file that the environment variable TAMIS_OPS_LIBRARY names, in this package, and in `build/release/` of the source
tree.

    tamis.screening, ...               the operators as functions
    tamis.nn.Screening, ...            mixers as modules
    tamis.Multiscreen, tamis.Model     models, from the keys of config.json
    tamis.load(DIR), model.save(DIR)   checkpoints of the program `tamis`
"""

from tamis import generation, nn, scoring
from tamis.checkpoint import load, save
from tamis.config import ModelConfig
from tamis.models import Model, Multiscreen
from tamis.operators import (
    entmax_attention,
    linear_cross_entropy,
    mlstm,
    screening,
    sieve_algorithm1,
    sieve_attention,
    softmax_attention,
    stick_breaking_attention,
)

__all__ = [
    "Model",
    "ModelConfig",
    "Multiscreen",
    "entmax_attention",
    "generation",
    "linear_cross_entropy",
    "load",
    "mlstm",
    "nn",
    "save",
    "scoring",
    "screening",
    "sieve_algorithm1",
    "sieve_attention",
    "softmax_attention",
    "stick_breaking_attention",
]
