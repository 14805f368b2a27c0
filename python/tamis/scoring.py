"""Log-probabilities of texts, with bounded state."""

from typing import TYPE_CHECKING, Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from tamis.generation import check_tokens

if TYPE_CHECKING:
    from tamis.models import Model

IGNORED = -100


@torch.no_grad()
def score_targets(model: "Model", tokens: Tensor, targets: Tensor, *, document: Optional[Tensor] = None,
                  expand_windows: bool = False, chunk_tokens: int = 4096) -> tuple[Tensor, Tensor]:  # fmt: skip
    """ln p(targets[b, t] | tokens[b, 0..t]), and whether it is the likeliest token.

    The head and the logarithm are computed in float64, as `tamis score` does, for the targets that count alone.

    Args:
        tokens: integers [B, T], T >= 1; pad shorter texts at the end.
        targets: int64 [B, T], -100 where nothing is scored.
        chunk_tokens: tokens of all texts that are read at once, which bounds memory.

    Returns:
        Log-probabilities in nats, float64 [B, T], 0 where nothing is scored; and bool [B, T].
    """
    check_tokens(model, tokens, "score")
    state = model.new_state(expand_windows=expand_windows)
    head = state.head.double()
    logprobs = torch.zeros(targets.shape, dtype=torch.float64, device=targets.device)
    likeliest = torch.zeros(targets.shape, dtype=torch.bool, device=targets.device)
    chunk = max(1, chunk_tokens // max(1, tokens.shape[0]))
    for first in range(0, tokens.shape[1], chunk):
        part = slice(first, first + chunk)
        x = model.hidden(tokens[:, part], document=None if document is None else document[:, part], state=state)
        counted = targets[:, part] != IGNORED
        wanted = targets[:, part][counted]
        logits = model.soft_capped(F.linear(x[counted].double(), head))
        found = F.log_softmax(logits, -1).gather(1, wanted[:, None])[:, 0]
        if not found.isfinite().all():
            raise ValueError("score: a log-probability is not finite; the model has diverged")
        logprobs[:, part][counted] = found
        likeliest[:, part][counted] = logits.argmax(-1) == wanted
    return logprobs, likeliest
