#!/usr/bin/env python3
"""Times the operators on a GPU beside scaled_dot_product_attention of the same card: bench/device.py --help."""

import argparse
import json
import math
import os
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
os.environ.setdefault("TAMIS_CUDA_KERNELS", "1")  # 0: the blocked form
import tamis

HEADS, KEY, VALUE, WIDTH = 16, 16, 64, 64  # screening's K and V; the width of a head of attention


def random(T: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(1, T, HEADS, width, device="cuda", dtype=dtype, requires_grad=True)


def screening(T: int, dtype: torch.dtype, s_w: torch.Tensor):
    """At r = 0.5 random pairs are accepted with a chance of 2%."""
    inputs = (random(T, KEY, dtype), random(T, KEY, dtype), random(T, VALUE, dtype),
              s_w.cuda().requires_grad_(), torch.zeros(HEADS, device="cuda", requires_grad=True))  # fmt: skip
    return inputs, tamis.screening


def attention(T: int, dtype: torch.dtype, operator):
    return tuple(random(T, WIDTH, dtype) for _ in range(3)), operator


def sdpa(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


MECHANISMS = {
    "SDPA": lambda T, dtype: attention(T, dtype, sdpa),
    "screening, initial windows": lambda T, dtype: screening(T, dtype, torch.linspace(0, math.log(256), HEADS)),
    "screening, infinite windows": lambda T, dtype: screening(T, dtype, torch.full((HEADS,), 40.0)),
    "softmax, window 256": lambda T, dtype: attention(T, dtype, lambda q, k, v: tamis.softmax_attention(q, k, v, window=256)),
    "softmax": lambda T, dtype: attention(T, dtype, tamis.softmax_attention),
    "entmax": lambda T, dtype: attention(T, dtype, tamis.entmax_attention),
    "Sieve": lambda T, dtype: attention(T, dtype, tamis.sieve_attention),
    "stick-breaking": lambda T, dtype: attention(T, dtype, tamis.stick_breaking_attention),
}


def once(inputs, operator, backward: bool) -> float:
    """Milliseconds of one call."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    with torch.set_grad_enabled(backward):
        out = operator(*inputs)
        out = out[0] if isinstance(out, tuple) else out
    if backward:
        torch.autograd.grad(out, inputs, torch.ones_like(out))
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def measure(T: int, dtype: torch.dtype, backward: bool, names: list[str], rounds: int) -> dict[str, float]:
    """Medians of interleaved calls, after one of each that is not counted."""
    subjects = {name: MECHANISMS[name](T, dtype) for name in names}
    times = {name: [] for name in names}
    for r in range(rounds + 1):
        for name, (inputs, operator) in subjects.items():
            elapsed = once(inputs, operator, backward)
            if r > 0:
                times[name].append(elapsed)
    return {name: statistics.median(found) for name, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: bench/device.py --lengths 4096,16384 --rounds 9")
    parser.add_argument("--lengths", default="4096,16384", help="tokens, separated by commas (default: %(default)s)")
    parser.add_argument("--dtypes", default="bfloat16,float32", help="default: %(default)s")
    parser.add_argument("--mechanisms", default="", help=f"separated by semicolons; default: all of {'; '.join(MECHANISMS)}")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved calls of each (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU")
    names = options.mechanisms.split(";") if options.mechanisms else list(MECHANISMS)
    if unknown := set(names) - set(MECHANISMS):
        parser.error(f"unknown mechanism {sorted(unknown)[0]!r}; expected {'; '.join(MECHANISMS)}")
    rows = []
    for dtype in options.dtypes.split(","):
        for T in map(int, options.lengths.split(",")):
            for backward in (False, True):
                found = measure(T, getattr(torch, dtype), backward, ["SDPA", *(n for n in names if n != "SDPA")], options.rounds)
                rows += [{"dtype": dtype, "tokens": T, "backward": backward, "mechanism": name, "milliseconds": time,
                          "of_sdpa": time / found["SDPA"]} for name, time in found.items()]  # fmt: skip
                if options.json:
                    continue
                print(f"{dtype}, {T} tokens, forward{' and backward' if backward else ''}", flush=True)
                for name, time in found.items():
                    print(f"  {name:28} {time:10.3f} ms {time / found['SDPA']:8.2f} times SDPA", flush=True)
    if options.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
