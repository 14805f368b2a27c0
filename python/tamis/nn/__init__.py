"""The mixers of Tamis as torch modules, with the parameters, names and initial values of the program's.

Every module maps x [B, T, D] to [B, T, D], causally, and takes

    document    integers [B, T]: tokens of other documents are invisible, and recurrent state is reset
    state       what `new_state()` returned: x continues the text that the state has seen, and the state advances

Matrices may have any dtype of the operators. Vectors (scales, biases, norms) are used in float32 at least.
"""

from tamis.nn.attention import EntmaxAttention, SieveAttention, SoftmaxAttention, StickBreakingAttention
from tamis.nn.mixer import Llama3Scaling, Mixer, RMSNorm, rms_norm, rotated, unit_rows
from tamis.nn.mlstm import MLSTM
from tamis.nn.screening import Screening

__all__ = [
    "EntmaxAttention",
    "Llama3Scaling",
    "MLSTM",
    "Mixer",
    "RMSNorm",
    "Screening",
    "SieveAttention",
    "SoftmaxAttention",
    "StickBreakingAttention",
    "rms_norm",
    "rotated",
    "unit_rows",
]
