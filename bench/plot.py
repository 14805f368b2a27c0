#!/usr/bin/env python3
"""Draws a file of results as SVG, readable on light and on dark pages: bench/plot.py RESULTS.json [DIRECTORY].

decode.svg   tokens per second against the depth of the context
train.svg    tokens per second against the length of a sequence
forward.svg  the same for reading a text without gradients
ops.svg      milliseconds of the operators alone
attention.svg  the same of the other attentions and mLSTM
survive.svg  milliseconds of screening with endless windows against the share of keys that is accepted
"""

import math
import pathlib
import sys
from dataclasses import dataclass
from typing import Callable
from xml.sax.saxutils import escape

from peers.plan import PASSES, TAMIS
from peers.results import Results, write_whole
from peers.table import measured, number

WIDTH, HEIGHT = 860, 440
LEFT, RIGHT, TOP, BOTTOM = 78, 310, 58, 52  # margins; the names of the lines stand right
STYLE = """
  svg { --ink: #1f2328; --faint: #d8dee4; --paper: #ffffff; }
  @media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --faint: #3d444d; --paper: #0d1117; } }
  .paper { fill: var(--paper); }
  text { fill: var(--ink); font: 13px system-ui, sans-serif; }
  .title { font-weight: 600; font-size: 15px; }
  .grid { stroke: var(--faint); stroke-width: 1; }
  .line { fill: none; stroke-width: 2; }
  .tamis { stroke-width: 3.5; }
"""
COLOURS = ("#d9480f", "#1c7ed6", "#2b8a3e", "#9c36b5", "#e8a100", "#0c8599", "#868e96", "#c2255c")  # Tamis first
ENDLESS = "infinite windows"
DASHES = {"float32": "", "bfloat16": "7 4", "int8": "2 3"}


@dataclass
class Series:
    name: str
    dtype: str
    points: list[tuple[float, float]]


def series(rows: list[dict], section: str) -> list[Series]:
    """Tokens against tokens per second, Tamis first: a line for each peer and dtype, and one of its own for endless
    windows. Models of other sizes are left out."""
    found: dict[tuple[str, str], Series] = {}
    for row in measured(rows):
        comparable = row["what"].split(", ")[0] in ("step", "text", "token")
        if row["section"] == section and comparable and row.get("tokens_per_second"):
            name = f"{row['peer']}, {ENDLESS}" if ENDLESS in row["what"] else row["peer"]
            line = found.setdefault((name, row["dtype"]), Series(name, row["dtype"], []))
            line.points.append((row["tokens"], row["tokens_per_second"]))
    for line in found.values():
        line.points.sort()
    return sorted(found.values(), key=lambda line: (not line.name.startswith(TAMIS), line.name, line.dtype != "float32"))


def colours(names: list[str]) -> dict[str, str]:
    ordered = sorted(set(names), key=lambda name: (not name.startswith("Tamis"), name))
    return {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(ordered)}


def decades(low: float, high: float) -> list[float]:
    """1, 2, 5 times powers of ten that enclose a range, all of those between."""
    ticks = [digit * 10.0**power for power in range(-4, 10) for digit in (1, 2, 5)]
    first = max((at for at, tick in enumerate(ticks) if tick <= low), default=0)
    last = min((at for at, tick in enumerate(ticks) if tick >= high), default=len(ticks) - 1)
    return ticks[first : last + 1]


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'


def page(title: str, height: float, body: list[str]) -> str:
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height:.0f}"/>',
        text(16, 26, title, kind="title"),
    ]
    return "\n".join([*head, *body, "</svg>", ""])


def short(tokens: float) -> str:
    return f"{tokens / 1024:.0f}k" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:.0f}"


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis across; what is smaller than `least` stands where `least` would."""

    title: str
    least: float
    label: Callable[[float], str]

    def place(self, x: float) -> float:
        return math.log2(max(x, self.least))


def line_chart(title: str, axis: Axis, unit: str, lines: list[Series]) -> str:
    """Both axes logarithmic."""
    place = axis.place
    xs = sorted({x for line in lines for x, _ in line.points})
    ticks = decades(min(y for line in lines for _, y in line.points), max(y for line in lines for _, y in line.points))
    first, last = place(xs[0]), max(place(xs[-1]), place(xs[0]) + 1)
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def at(x: float, y: float) -> tuple[float, float]:
        up = math.log(y / ticks[0]) / max(math.log(ticks[-1] / ticks[0]), 1e-9)
        return LEFT + (place(x) - first) / (last - first) * (right - LEFT), bottom - up * (bottom - TOP)

    body = []
    for tick in ticks:
        y = at(xs[0], tick)[1]
        body += [
            f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>',
            text(LEFT - 8, y + 4, f"{tick:,g}", "end"),
        ]
    for x in xs:
        body.append(text(at(x, ticks[0])[0], bottom + 20, axis.label(x), "middle"))
    body += [text((LEFT + right) / 2, bottom + 42, axis.title, "middle"), text(LEFT, TOP - 14, unit, "end")]
    colour, legend = colours([line.name for line in lines]), TOP + 6
    for line in lines:
        kind = "line tamis" if line.name.startswith("Tamis") else "line"
        stroke = f'class="{kind}" stroke="{colour[line.name]}" stroke-dasharray="{DASHES[line.dtype]}"'
        points = [at(x, y) for x, y in line.points]
        body.append(f'<polyline {stroke} points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour[line.name]}"/>' for x, y in points]
        body.append(f'<path {stroke} d="M{right + 14} {legend - 4}h28"/>')
        body.append(text(right + 48, legend, f"{line.name}, {line.dtype}"))
        legend += 20
    return page(title, max(HEIGHT, legend + 10), body)


def bar_chart(title: str, bars: list[tuple[str, str, float]]) -> str:
    """(what, peer, milliseconds), logarithmic, grouped by what."""
    left, right, row = 300, WIDTH - 90, 21
    low, high = min(ms for *_, ms in bars) / 2, max(ms for *_, ms in bars)
    colour, y, body, group = colours([peer for _, peer, _ in bars]), TOP + 6.0, [], None
    for what, peer, ms in bars:
        if what != group:
            group, y = what, y + 16
            body.append(text(16, y, what))
            y += 8
        length = math.log(ms / low) / max(math.log(high / low), 1e-9) * (right - left)
        body.append(text(left - 8, y + 12, peer, "end"))
        body.append(f'<rect x="{left}" y="{y:.1f}" width="{length:.1f}" height="15" rx="2" fill="{colour[peer]}"/>')
        body.append(text(left + length + 6, y + 12, f"{number(ms)} ms"))
        y += row
    return page(title, y + 20, body)


def at_one_length(rows: list[dict], section: str) -> tuple[list[dict], int]:
    """A section's rows with all threads at the length that most of them have."""
    rows = [row for row in measured(rows) if row["section"] == section and row["what"].split(", ")[0] in PASSES]
    counts = [row["tokens"] for row in rows]
    tokens = max(set(counts), key=counts.count, default=0)
    return [row for row in rows if row["tokens"] == tokens], tokens


def attention_bars(rows: list[dict]) -> list[tuple[str, str, float]]:
    """The other attentions, by direction and operator; the fastest first."""
    rows, tokens = at_one_length(rows, "attention")
    bars = [(f"{row['what']}, {tokens:,} tokens", row["peer"], milliseconds(row)) for row in rows]
    return sorted(bars, key=lambda bar: (bar[0].startswith("forward and"), bar[0], bar[2]))


def operator_bars(rows: list[dict]) -> list[tuple[str, str, float]]:
    """The operators at 4,096 tokens, or at what there is, by direction and dtype; the fastest first."""
    rows, tokens = at_one_length(rows, "ops")
    bars = []
    for row in rows:
        passes, *details = row["what"].split(", ")
        if row["peer"] == TAMIS and details[-1] not in ("2% survive", "50% survive"):
            continue  # survive.svg has them
        name = ", ".join([row["peer"], *(d for d in details if row["peer"] == "Tamis")])
        bars.append((f"{passes}, {row['dtype']}, {tokens:,} tokens", name, milliseconds(row)))
    return sorted(bars, key=lambda bar: (bar[0].startswith("forward and"), "bfloat16" in bar[0], bar[2]))


def survivors(rows: list[dict]) -> list[Series]:
    """Screening with endless windows in float32: share of accepted keys against milliseconds; SDPA does not care."""
    rows = [row for row in measured(rows) if row["section"] == "ops" and row["dtype"] == "float32"]
    endless = [row for row in rows if row["peer"] == TAMIS and ENDLESS in row["what"]]
    lines = []
    for passes in PASSES:
        mine = [row for row in endless if row["what"].startswith(f"{passes}, {ENDLESS}")]
        shares = sorted((float(row["what"].split(", ")[-1].split("%")[0]), milliseconds(row)) for row in mine)
        if len(shares) > 2:
            lines.append(Series(f"{TAMIS}, {passes}", "float32", shares))
            tokens, ends = mine[0]["tokens"], (shares[0][0], shares[-1][0])
            lines += [
                Series(f"SDPA, {passes}", "float32", [(x, milliseconds(row)) for x in ends])
                for row in rows
                if (row["peer"], row["what"], row["tokens"]) == ("SDPA", passes, tokens)
            ]
    return lines


def milliseconds(row: dict) -> float:
    return 1e3 * row["seconds"]["median"]


def charts(rows: list[dict]) -> dict[str, str]:
    drawn = {}
    for section, title, across in (
        ("decode", "Decoding", "tokens of context"),
        ("train", "Training", "tokens of a sequence"),
        ("forward", "Reading a text", "tokens"),
    ):
        if lines := series(rows, section):
            drawn[section] = line_chart(title, Axis(across, 256, short), "tok/s", lines)
    if lines := survivors(rows):
        axis = Axis("accepted of the keys before a query", 0.001, lambda share: f"{share:g}%")
        drawn["survive"] = line_chart("Screening, endless windows", axis, "ms", lines)
    if bars := operator_bars(rows):
        drawn["ops"] = bar_chart("The operator alone (logarithmic)", bars)
    if bars := attention_bars(rows):
        drawn["attention"] = bar_chart("Other attentions and mLSTM (logarithmic)", bars)
    return drawn


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2) or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    source = pathlib.Path(arguments[0])
    directory = pathlib.Path(arguments[1]) if len(arguments) == 2 else source.with_suffix("")
    try:
        rows = list(Results.read(source).rows.values())
    except (OSError, ValueError) as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 2
    for name, chart in charts(rows).items():
        write_whole(directory / f"{name}.svg", chart)
        print(directory / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
