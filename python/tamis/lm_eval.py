"""Tamis in the LM Evaluation Harness: `lm_eval --model tamis --model_args path=DIR`.

An installed package registers the model (tamis_lm_eval.pth). From the source tree, or in any doubt,
`python -m tamis.lm_eval` runs the harness with the model registered; its arguments are those of `lm_eval`.
"""

import json
from collections.abc import Iterator
from typing import Any, Optional, Union

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import model_registry
from tqdm import tqdm

from tamis import checkpoint, generation, scoring

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
_TARGET = "tamis.lm_eval:TamisLM"


class TamisLM(TemplateLM):
    """A checkpoint of Tamis. Texts of any length are read with a state that is bounded where the windows are; no
    context is cut off.

    Args (of `--model_args`):
        path: checkpoint or run directory, with tokenizer.json.
        device: as of torch; the processor where there is no such GPU.
        batch_size: texts that are read together.
        dtype: of the matrices, "float32", "bfloat16" or "float64".
        expand_windows: screening windows beyond the training length are infinite.
        max_gen_toks: new tokens of a task that does not say how many.
        chunk_tokens: tokens of all texts that are read at once.
    """

    def __init__(self, path: str, batch_size: Union[int, str] = 8, device: Optional[str] = None,
                 dtype: str = "float32", expand_windows: bool = False, max_gen_toks: int = 256,
                 chunk_tokens: int = 4096, max_batch_size: Optional[int] = None):  # fmt: skip
        super().__init__()
        if dtype not in _DTYPES:
            raise ValueError(f"tamis: dtype must be one of {', '.join(_DTYPES)}, but is {dtype!r}")
        # The harness names a GPU by default.
        usable = device and (not device.startswith("cuda") or torch.cuda.is_available())
        self._device = torch.device(device if usable else "cpu")
        directory = checkpoint.find_checkpoint(path)
        self._name = str(directory)
        self.model = checkpoint.load(directory, device=self._device, dtype=_DTYPES[dtype]).eval()
        self.vocabulary = checkpoint.load_tokenizer(self.model)
        self._ends = checkpoint.end_tokens(directory, self.vocabulary)
        automatic = isinstance(batch_size, str) and batch_size.startswith("auto")
        self.batch_size = 8 if automatic else int(batch_size)
        if self.batch_size < 1:
            raise ValueError(f"tamis: batch_size must be at least 1, but is {batch_size}")
        self.expand_windows, self.max_gen_toks = bool(expand_windows), int(max_gen_toks)
        self.chunk_tokens = int(chunk_tokens)

    @property
    def eot_token_id(self) -> int:
        if not self._ends:
            raise ValueError(f"{self._name}: neither generation_config.json, config.json nor tokenizer.json names an "
                             "end of text, which the harness needs before a text without a context")  # fmt: skip
        return self._ends[0]

    @property
    def tokenizer_name(self) -> str:
        return self._name

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None, **_: Any) -> list[int]:
        return self.vocabulary.encode(string, add_special_tokens=bool(add_special_tokens)).ids

    def _loglikelihood_tokens(self, requests: list[tuple[tuple[str, str], list[int], list[int]]],
                              disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:  # fmt: skip
        texts = [(context, continuation) for _, context, continuation in requests]
        results: list[tuple[float, bool]] = [(0.0, True)] * len(texts)
        for index, result in self._scored(texts, "loglikelihood", disable_tqdm):
            results[index] = result
            if requests[index][0] is not None:
                self.cache_hook.add_partial("loglikelihood", requests[index][0], result)
        return results

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = False) -> list[float]:
        """The log-probability of every whole text after an end of text."""
        texts = [([self.eot_token_id], self.tok_encode(request.args[0])) for request in requests]
        results = [0.0] * len(texts)
        for index, (logprob, _) in self._scored(texts, "loglikelihood_rolling", disable_tqdm):
            results[index] = logprob
            self.cache_hook.add_partial("loglikelihood_rolling", requests[index].args, logprob)
        return results

    def generate_until(self, requests: list, disable_tqdm: bool = False) -> list[str]:
        results = [""] * len(requests)
        groups: dict[str, list[int]] = {}  # requests with equal options are continued together
        for index, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(index)
        progress = tqdm(total=len(requests), desc="generate_until", disable=disable_tqdm)
        for group in groups.values():
            prompts = {index: self.tok_encode(requests[index].args[0]) or [self.eot_token_id] for index in group}
            group.sort(key=lambda index: len(prompts[index]))
            for batch in _batches(group, self.batch_size):
                texts = self._continued([prompts[index] for index in batch], requests[batch[0]].args[1])
                for index, text in zip(batch, texts):
                    results[index] = text
                    self.cache_hook.add_partial("generate_until", requests[index].args, text)
                progress.update(len(batch))
        progress.close()
        return results

    def _scored(self, texts: list[tuple[list[int], list[int]]], what: str,
                disable_tqdm: bool) -> Iterator[tuple[int, tuple[float, bool]]]:  # fmt: skip
        """Index, log-probability of the continuation and whether it is greedy, of every (context, continuation)."""
        order = [index for index, (_, continuation) in enumerate(texts) if continuation]
        order.sort(key=lambda index: -len(texts[index][0]) - len(texts[index][1]))
        progress = tqdm(total=len(order), desc=what, disable=disable_tqdm)
        for batch in _batches(order, self.batch_size):
            length = max(len(texts[index][0]) + len(texts[index][1]) for index in batch) - 1
            tokens = torch.zeros(len(batch), length, dtype=torch.int64)
            targets = torch.full_like(tokens, scoring.IGNORED)
            for row, index in enumerate(batch):
                context, continuation = texts[index]
                ids = torch.tensor(context + continuation)
                tokens[row, : len(ids) - 1] = ids[:-1]
                targets[row, len(context) - 1 : len(ids) - 1] = ids[len(context) :]
            logprobs, likeliest = scoring.score_targets(
                self.model, tokens.to(self._device), targets.to(self._device), expand_windows=self.expand_windows,
                chunk_tokens=self.chunk_tokens,
            )  # fmt: skip
            greedy = (likeliest | (targets == scoring.IGNORED).to(self._device)).all(1)
            for row, index in enumerate(batch):
                yield index, (float(logprobs[row].sum()), bool(greedy[row]))
            progress.update(len(batch))
        progress.close()

    def _continued(self, prompts: list[list[int]], options: dict[str, Any]) -> list[str]:
        """Texts that follow the prompts, up to an end of text or the first of the strings `until`."""
        until = options.get("until") or []
        until = [until] if isinstance(until, str) else [text for text in until if text]
        most = int(options.get("max_gen_toks", self.max_gen_toks))
        sampled = options.get("do_sample", options.get("temperature", 0.0) > 0)
        sampling = {
            "temperature": float(options.get("temperature", 1.0)) if sampled else 0.0,
            "top_k": int(options.get("top_k", 0)),
            "top_p": float(options.get("top_p", 1.0)),
            "min_p": float(options.get("min_p", 0.0)),
        }
        tokens, document = generation.padded_at_front(prompts, self._device)
        made: list[list[int]] = [[] for _ in prompts]
        texts = [""] * len(prompts)
        open_rows = set(range(len(prompts))) if most > 0 else set()
        drawn = generation.stream(self.model, tokens, document=document, expand_windows=self.expand_windows,
                                  chunk_tokens=self.chunk_tokens, **sampling)  # fmt: skip
        while open_rows:
            new = next(drawn).tolist()
            for row in sorted(open_rows):
                if new[row] in self._ends:
                    open_rows.remove(row)
                    continue
                made[row].append(new[row])
                text = self.vocabulary.decode(made[row], skip_special_tokens=False)
                cuts = [text.index(stop) for stop in until if stop in text]
                texts[row] = text[: min(cuts)] if cuts else text
                if cuts or len(made[row]) == most:
                    open_rows.remove(row)
        return texts


def _batches(items: list[int], size: int) -> Iterator[list[int]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def register() -> None:
    """Makes `--model tamis` known to the harness of this process."""
    import lm_eval.models  # noqa: F401  registers the harness's own

    if "tamis" not in model_registry:
        model_registry.register("tamis", target=_TARGET)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    register()
    cli_evaluate()
