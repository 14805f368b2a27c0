"""How much a run measures: real sizes, or small ones that only show whether it works."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Of the two models; the full ones have 14.8 and 14.4 million parameters."""

    vocabulary: int = 512
    psi: int = 16  # Multiscreen: layers = heads = psi, width = psi^2
    layers: int = 8  # Transformer
    width: int = 384
    heads: int = 6
    inner: int = 1024  # floor(8 width / 3)


@dataclass(frozen=True)
class Effort:
    sizes: Sizes = Sizes()
    operator_heads: int = 16
    matrix: int = 2048  # side of the matrices whose product is the peak
    read_numbers: int = 1 << 28  # 1 GiB: the memory whose reading is the peak
    decoded: int = 8  # tokens of a call
    seconds: float = 4.0  # of calls at least
    calls: int = 3  # at least
    most_calls: int = 100


FULL = Effort()
QUICK = Effort(
    sizes=Sizes(psi=4, layers=2, width=96, heads=2, inner=256),
    operator_heads=4,
    matrix=256,
    read_numbers=1 << 22,
    decoded=2,
    seconds=0.05,
    calls=2,
    most_calls=3,
)


def effort(quick: bool) -> Effort:
    return QUICK if quick else FULL
