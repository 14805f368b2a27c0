"""Rows of results for the tests of bench/; importing this makes the modules in bench/ importable."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

from peers.plan import Measure  # noqa: E402


def row(peer, what, rate, section="train", dtype="float32", tokens=512, per_call=1000.0, **more):
    """A row whose quartiles lie 10% below and above the median."""
    seconds = per_call / rate
    quartiles = {
        "median": seconds,
        "lower_quartile": seconds / 1.1,
        "upper_quartile": seconds * 1.1,
        "minimum": seconds / 2,
        "maximum": seconds * 2,
    }
    return {
        "peer": peer,
        "section": section,
        "what": what,
        "dtype": dtype,
        "tokens": tokens,
        "batch": 1,
        "status": "ok",
        "settings": "2 threads",
        "date": "2026-01-31T00:00:00Z",
        "others_cores": 0.0,
        "seconds": quartiles,
        "calls": 5,
        "tokens_per_second": rate,
        "page_faults": 0,
        "peak_bytes": 2**30,
        "check": "fine",
        **more,
    }


def failed(peer, what, why):
    kept = {
        name: value for name, value in row(peer, what, 1).items() if name in Measure.of(row("x", what, 1)).as_dict()
    }
    return {"peer": peer, **kept, "batch": 1, "status": "skipped", "why": why, "settings": "2 threads", "date": "x"}
