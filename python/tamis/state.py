"""What the mixers of a model keep of the tokens that they have seen, to continue a text: bounded where windows are.

Every class takes the new tokens of all sequences of a batch at once. Nothing here records gradients.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor


class Seen(NamedTuple):
    """The keys that new queries can see, oldest first."""

    k: Tensor  # [B, n, H, K]
    v: Tensor  # [B, n, H, V]
    document: Optional[Tensor]  # [B, n]
    key_start: int  # position of the oldest key


class MixerState:
    """What a mixer keeps of a batch of sequences."""

    def bytes(self) -> int:
        """Memory held, in bytes."""
        raise NotImplementedError


def _size(*tensors: Optional[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


class KeyValueCache(MixerState):
    """Keys and values after position encoding. A finite window keeps the newest `window` keys; an infinite one grows.

    Args:
        window: keys that a query sees, its own included; None for all.
    """

    _LEAST_ROWS = 64

    def __init__(self, window: Optional[int] = None):
        self.window = window
        self.position = 0  # tokens seen
        self._rows = 0  # in use, of the buffers of an infinite window
        self._k: Optional[Tensor] = None
        self._v: Optional[Tensor] = None
        self._document: Optional[Tensor] = None

    @property
    def keys(self) -> int:
        """Keys that are kept, of each head of each sequence."""
        return self._rows

    def bytes(self) -> int:
        return _size(self._k, self._v, self._document)

    def append(self, k: Tensor, v: Tensor, document: Optional[Tensor] = None) -> Seen:
        """Adds the keys and values of the next C tokens: k [B, C, H, K], v [B, C, H, V], document [B, C].

        Returns what their queries see. The tensors are valid until the next call.
        """
        if self.position > 0 and (document is None) != (self._document is None):
            raise ValueError("decoding state: document must be given with every chunk of a sequence or with none")
        k, v = k.detach(), v.detach()
        start = self.position - self._rows
        self.position += k.shape[1]
        if self.window is None:
            self._k, self._v = self._grown(self._k, k), self._grown(self._v, v)
            self._document = None if document is None else self._grown(self._document, document)
            self._rows += k.shape[1]
            seen_document = None if self._document is None else self._document[:, : self._rows]
            return Seen(self._k[:, : self._rows], self._v[:, : self._rows], seen_document, start)
        seen = Seen(_joined(self._k, k), _joined(self._v, v), _joined(self._document, document), start)
        kept = min(self.window, seen.k.shape[1])
        # A copy where something is dropped, so that the dropped part is released.
        self._k, self._v, self._document = (_last(x, kept) for x in seen[:3])
        self._rows = kept
        return seen

    def _grown(self, buffer: Optional[Tensor], new: Tensor) -> Tensor:
        """The buffer with `new` written behind its rows in use, in twice the memory where it is full."""
        needed = self._rows + new.shape[1]
        if buffer is None or buffer.shape[1] < needed:
            rows = max(needed, self._LEAST_ROWS, 2 * self._rows)
            larger = new.new_empty(new.shape[0], rows, *new.shape[2:])
            if buffer is not None:
                larger[:, : self._rows] = buffer[:, : self._rows]
            buffer = larger
        buffer[:, self._rows : needed] = new
        return buffer


def _joined(old: Optional[Tensor], new: Optional[Tensor]) -> Optional[Tensor]:
    return new if old is None else torch.cat((old, new), 1)


def _last(x: Optional[Tensor], count: int) -> Optional[Tensor]:
    if x is None:
        return None
    return x[:, x.shape[1] - count :].clone()


class ScreeningState(MixerState):
    """Raw keys and values of a screening layer. A head with a finite window w keeps ceil(w) of each.

    Args:
        windows: w of each head in tokens; math.inf for an infinite window.
    """

    def __init__(self, spans: list[Optional[int]], device: torch.device):
        groups: dict[Optional[int], list[int]] = {}
        for head, span in enumerate(spans):
            groups.setdefault(span, []).append(head)
        self.position = 0
        self.groups = [
            (torch.tensor(heads, device=device), KeyValueCache(span)) for span, heads in groups.items()
        ]  # heads with windows of equal length share a cache and a call of the operator
        order = torch.tensor([head for heads in groups.values() for head in heads], device=device)
        self.back = torch.argsort(order)  # from the order of the groups to that of the heads

    def bytes(self) -> int:
        return sum(cache.bytes() for _, cache in self.groups)


class MLSTMState(MixerState):
    """The matrix memory of each head, C [B, H, K, V], n [B, H, K] and m [B, H], and the document of the last token."""

    def __init__(self) -> None:
        self.memory: Optional[tuple[Tensor, Tensor, Tensor]] = None
        self.document: Optional[Tensor] = None  # [B]

    def bytes(self) -> int:
        return _size(*(self.memory or ()), self.document)

    def before(self, document: Optional[Tensor]) -> Optional[tuple[Tensor, Tensor, Tensor]]:
        """The memory that the next tokens start from: zeros where `document` [B, C] begins another document."""
        if self.memory is None:
            return None
        if (document is None) != (self.document is None):
            raise ValueError("decoding state: document must be given with every chunk of a sequence or with none")
        if document is None or self.document is None:
            return self.memory
        same = document[:, 0] == self.document
        C, n, m = self.memory
        return C * same[:, None, None, None], n * same[:, None, None], m * same[:, None]

    def after(self, memory: tuple[Tensor, Tensor, Tensor], document: Optional[Tensor]) -> None:
        self.memory = (memory[0].detach(), memory[1].detach(), memory[2].detach())
        self.document = None if document is None else document[:, -1].clone()


class DecodingState:
    """What a model keeps of a batch of sequences to continue them; `Model.new_state` makes one.

    With finite windows its size is bounded, whatever the length of the text.
    """

    def __init__(self, layers: list[MixerState], head: Tensor, expand_windows: bool):
        self.layers = layers
        self.head = head  # [N, D], made once
        self.expand_windows = expand_windows
        self.position = 0  # tokens seen

    def bytes(self) -> int:
        """Memory held by the layers, in bytes."""
        return sum(layer.bytes() for layer in self.layers)
