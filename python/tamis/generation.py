"""Continuing texts with a model, token by token, with bounded state."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tamis.models import Model


def sample(logits: Tensor, *, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
           generator: Optional[torch.Generator] = None) -> Tensor:  # fmt: skip
    """One token for each row of logits [B, N], int64 [B].

    In this order, as `tamis generate`: p = softmax(logits / temperature); keep the top_k likeliest tokens; of these,
    renormalised, the fewest likeliest with a total probability of at least top_p; of these, the ones with
    p >= min_p max(p); sample one. Temperature 0 takes the likeliest, of equals the one with the lowest id.
    """
    check_sampling(temperature, top_k, top_p, min_p)
    if not logits.isfinite().all():
        raise ValueError("sampling: logits are not finite; the model has diverged")
    if temperature == 0:
        return logits.argmax(-1)
    ranked, ids = torch.sort(logits.double(), dim=-1, descending=True, stable=True)
    weights = ((ranked - ranked[:, :1]) / temperature).exp()  # the likeliest has 1
    if 0 < top_k < weights.shape[-1]:
        weights[:, top_k:] = 0
    if top_p < 1:
        before = weights.cumsum(-1) - weights
        weights = weights.where(before < top_p * weights.sum(-1, keepdim=True), 0)
    weights = weights.where(weights >= min_p, 0)
    chosen = torch.multinomial(weights, 1, generator=generator)
    return ids.gather(1, chosen)[:, 0]


def check_sampling(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """Raises ValueError where an option is out of range."""
    if not temperature >= 0 or math.isinf(temperature):
        raise ValueError(f"generate: temperature must be 0 or more, but is {temperature}")
    if top_k < 0:
        raise ValueError(f"generate: top_k must be 0 or more, but is {top_k}")
    if not 0 < top_p <= 1:
        raise ValueError(f"generate: top_p must be in (0, 1], but is {top_p}")
    if not 0 <= min_p <= 1:
        raise ValueError(f"generate: min_p must be in [0, 1], but is {min_p}")


def check_tokens(model: "Model", tokens: Tensor, what: str) -> None:
    """Raises ValueError unless tokens are integers [B, T], T >= 1, of the model's vocabulary."""
    if tokens.dim() != 2 or tokens.shape[1] == 0 or tokens.is_floating_point():
        raise ValueError(f"{what}: tokens must be integers [B, T] with T >= 1, but are {tokens.dtype} "
                         f"{list(tokens.shape)}")  # fmt: skip
    most = model.config.vocab_size - 1
    if tokens.numel() and (int(tokens.min()) < 0 or int(tokens.max()) > most):
        worst = int(tokens.max()) if int(tokens.max()) > most else int(tokens.min())
        raise ValueError(f"{what}: token {worst} is outside of the model's vocabulary 0..{most}")


def padded_at_front(prompts: list[list[int]], device: Optional[torch.device] = None) -> tuple[Tensor, Optional[Tensor]]:
    """Tokens [B, T], and documents [B, T] that separate padding from text; None where nothing is padded."""
    length = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), length, dtype=torch.int64)
    document = torch.full_like(tokens, -1)
    for row, prompt in enumerate(prompts):
        tokens[row, length - len(prompt) :] = torch.tensor(prompt)
        document[row, length - len(prompt) :] = 0
    same = all(len(prompt) == length for prompt in prompts)
    return tokens.to(device), None if same else document.to(device)


@torch.no_grad()
def stream(model: "Model", tokens: Tensor, *, document: Optional[Tensor] = None, temperature: float = 0.0,
           top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: Optional[int] = None,
           expand_windows: bool = False, chunk_tokens: int = 2048) -> Iterator[Tensor]:  # fmt: skip
    """Yields the next token of every sequence, int64 [B], without end: stop reading it.

    Arguments as of `Model.generate`.
    """
    check_sampling(temperature, top_k, top_p, min_p)
    check_tokens(model, tokens, "generate")
    generator = None
    if seed is not None:
        generator = torch.Generator(device=tokens.device).manual_seed(seed)
    state = model.new_state(expand_windows=expand_windows)
    chunk = max(1, chunk_tokens // max(1, tokens.shape[0]))
    for first in range(0, tokens.shape[1], chunk):
        part = slice(first, first + chunk)
        x = model.hidden(tokens[:, part], document=None if document is None else document[:, part], state=state)
    newest = None if document is None else document[:, -1:]
    while True:
        logits = model.logits(x[:, -1], state)
        token = sample(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, generator=generator
        )
        yield token
        x = model.hidden(token[:, None], document=newest, state=state)


def generate(model: "Model", tokens: Tensor, max_new_tokens: int, *, end_token: Optional[int] = None,
             **options) -> Tensor:  # fmt: skip
    """See `Model.generate`."""
    if max_new_tokens < 0:
        raise ValueError(f"generate: max_new_tokens must be 0 or more, but is {max_new_tokens}")
    made: list[Tensor] = []
    ended = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
    drawn = stream(model, tokens, **options)
    while len(made) < max_new_tokens and not bool(ended.all()):
        token = next(drawn)
        if end_token is not None:
            token = token.where(~ended, end_token)
            ended |= token == end_token
        made.append(token)
    return torch.stack(made, 1) if made else tokens.new_empty(tokens.shape[0], 0)
