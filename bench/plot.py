#!/usr/bin/env python3
"""Draws a file of results as SVG, readable on light and on dark pages: bench/plot.py RESULTS.json [DIRECTORY].

decode.svg     tokens per second by depth of the context
train.svg      tokens per second by length of a sequence
forward.svg    tokens per second by length of a text that is read without gradients
ops.svg        milliseconds of the operators alone
attention.svg  milliseconds of the other attentions and mLSTM
accepted.svg   milliseconds of screening with infinite windows by the share of keys that is accepted

Needs matplotlib: scripts/setup.sh plot.
"""

import math
import pathlib
import sys
from dataclasses import dataclass

import figure
from figure import BLUE, GREEN, GREY, INK, OCHRE, PURPLE, VERMILION, WIDTH
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from peers.plan import BOTH, PASSES, TAMIS
from peers.results import Results
from peers.table import measured, number

INFINITE = "infinite windows"
DTYPES = (*BOTH, "int8")
NOTES = {
    "decode": "Tokens per second, by depth of the context in tokens. Both axes are logarithmic.",
    "train": "Tokens per second, by length of a sequence in tokens. Both axes are logarithmic.",
    "forward": "Tokens per second, by length of the text in tokens. Both axes are logarithmic.",
}
TITLES = {"decode": "Decoding", "train": "Training", "forward": "Reading a text"}
COLOURS = {
    TAMIS: VERMILION,
    "Transformer": BLUE,
    "SDPA": BLUE,
    "banded": GREEN,
    "dense": PURPLE,
    "llama.cpp": OCHRE,
}


@dataclass
class Series:
    name: str
    dtype: str
    points: list[tuple[float, float]]

    @property
    def colour(self) -> str:
        return colour(self.name)

    @property
    def dashed(self) -> bool:
        """A variant of another line: compiled, or with infinite windows."""
        return self.name.endswith((", compiled", INFINITE))


def colour(name: str) -> str:
    return next((value for start, value in COLOURS.items() if name.startswith(start)), GREY)


def series(rows: list[dict], section: str) -> list[Series]:
    """Tokens against tokens per second, Tamis first: a line for each peer and dtype, and one for infinite windows.
    Models of other sizes are left out."""
    found: dict[tuple[str, str], Series] = {}
    for row in measured(rows):
        comparable = row["what"].split(", ")[0] in ("step", "text", "token")
        if row["section"] == section and comparable and row.get("tokens_per_second"):
            name = f"{row['peer']}, {INFINITE}" if INFINITE in row["what"] else row["peer"]
            line = found.setdefault((name, row["dtype"]), Series(name, row["dtype"], []))
            line.points.append((row["tokens"], row["tokens_per_second"]))
    for line in found.values():
        line.points.sort()
    return sorted(
        found.values(), key=lambda line: (not line.name.startswith(TAMIS), line.name, line.dtype != "float32")
    )


def short(tokens: float) -> str:
    """512, 4k, 1M; 0 stands where a logarithmic axis has room for it."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens / unit:.0f}{name}"
    return f"{tokens:.0f}"


def label(name: str) -> str:
    """A line's name next to it, in short; a variant takes a second line."""
    return name.replace("llama.cpp, Transformer", "llama.cpp").replace(" (SDPA)", "").replace(", ", ",\n")


def line_panels(title: str, note: str, panels: list[tuple[str, list[Series]]], across: str, up: str, tick) -> Figure:
    """Panels side by side on the same logarithmic axes; names stand at the ends of the lines, in their colours."""
    height, top, bottom, name_width = 3.7, 0.85, 0.55, 1.32
    drawn = figure.figure(title, height, note)
    tall = height - top - bottom
    wide = (WIDTH - 0.62 - len(panels) * (name_width + 0.1)) / len(panels)
    points = [point for _, lines in panels for line in lines for point in line.points]
    low, high = min(y for _, y in points) / 1.25, max(y for _, y in points) * 1.25
    positive = sorted({x for x, _ in points if x > 0})
    zero = positive[0] / 8 if positive else 1.0  # where 0 stands

    for at, (name, lines) in enumerate(panels):
        ax = figure.axes(drawn, 0.62 + at * (wide + name_width + 0.1), top, wide, tall, xscale="log", yscale="log")
        ax.set_title(name)
        ax.set_ylim(low, high)
        shown = sorted({x for line in lines for x, _ in line.points})
        first, last = max(shown[0], zero), max(shown[-1], 2 * zero)
        ax.set_xlim(first / (last / first) ** 0.06, last * (last / first) ** 0.06)
        ax.xaxis.set_major_locator(FixedLocator(thinned([max(x, zero) for x in shown])))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick(0 if x == zero else x)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}") if at == 0 else NullFormatter())
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.tick_params(which="both", length=0)
        ax.set_xlabel(across)
        if at == 0:
            ax.set_ylabel(up)
        ends = [math.log(line.points[-1][1] / low) / math.log(high / low) for line in lines]
        rows = [1 + label(line.name).count("\n") for line in lines]
        for line, end, place in zip(lines, ends, figure.spread(ends, 0.16 * max(rows, default=1) / tall)):
            xs, ys = [max(x, zero) for x, _ in line.points], [y for _, y in line.points]
            dashes = (0, (3, 1.5)) if line.dashed else "-"
            heavy = 2.4 if line.name.startswith(TAMIS) else 1.5
            ax.plot(xs, ys, color=line.colour, linestyle=dashes, linewidth=heavy, marker="o", markersize=4)
            right, edge = (math.log(xs[-1] / ax.get_xlim()[0]) / math.log(ax.get_xlim()[1] / ax.get_xlim()[0]), 1.0)
            lead = {"color": line.colour, "linewidth": 0.6, "clip_on": False, "transform": ax.transAxes}
            ax.plot([right, edge, edge + 0.05], [end, end, place] if right > 0.9 else [end, place, place], **lead)
            ax.text(
                edge + 0.07, place, label(line.name), color=line.colour, va="center", fontsize=8.5,
                linespacing=1.0, fontweight="bold" if line.name == TAMIS else "normal", transform=ax.transAxes,
            )  # fmt: skip
    return drawn


def thinned(xs: list[float]) -> list[float]:
    """Of places on a logarithmic axis those that are far enough apart for a label, the ends among them."""
    kept = [xs[0]]
    least = (xs[-1] / xs[0]) ** 0.19
    for x in xs[1:-1]:
        if x / kept[-1] > least < xs[-1] / x:
            kept.append(x)
    return sorted({*kept, xs[-1]})


@dataclass(frozen=True)
class Dot:
    panel: str
    group: str
    name: str
    milliseconds: float


def dot_panels(title: str, note: str, dots: list[Dot]) -> Figure:
    """Panels side by side that share their rows: a point for each time, on a logarithmic axis."""
    panels = list(dict.fromkeys(dot.panel for dot in dots))
    rows: list[tuple[str, str]] = []
    for group in dict.fromkeys(dot.group for dot in dots):
        fastest: dict[str, float] = {}
        for dot in dots:
            if dot.group == group:
                fastest.setdefault(dot.name, dot.milliseconds)
        rows += [(group, name) for name in sorted(fastest, key=fastest.get)]
    groups = list(dict.fromkeys(group for group, _ in rows))
    place = {row: at + 0.55 * groups.index(row[0]) for at, row in enumerate(rows)}
    last = max(place.values())
    top, bottom, left = 0.88, 0.5, 2.62
    tall = 0.235 * (last + 1)
    drawn = figure.figure(title, tall + top + bottom, note)
    wide = (WIDTH - left - 0.12 - 0.14 * (len(panels) - 1)) / len(panels)
    low, high = min(dot.milliseconds for dot in dots), max(dot.milliseconds for dot in dots)
    room = 0.55 / wide  # of a panel, for the figure next to the largest value
    right = high * (high / low) ** (room / (1 - room))

    for at, panel in enumerate(panels):
        ax = figure.axes(drawn, left + at * (wide + 0.14), top, wide, tall, xscale="log")
        ax.set_title(panel)
        ax.set_xlim(low / 1.6, right)
        ax.set_ylim(last + 0.6, -0.6)
        ax.grid(False, axis="y")
        ax.xaxis.set_major_locator(FixedLocator([10.0**power for power in range(-3, 7) if 10.0**power <= high]))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.tick_params(length=0)
        ax.spines["left"].set_visible(False)
        ax.set_yticks(list(place.values()), [name for _, name in rows] if at == 0 else [""] * len(rows))
        for tick, (_, name) in zip(ax.get_yticklabels(), rows):
            tick.set_color(colour(name) if name.startswith(TAMIS) else INK)
        for dot in dots:
            if dot.panel == panel:
                y, x = place[dot.group, dot.name], dot.milliseconds
                ax.plot([low / 1.6, x], [y, y], color=colour(dot.name), linewidth=1.0, alpha=0.45)
                ax.plot([x], [y], "o", color=colour(dot.name), markersize=6 if dot.name.startswith(TAMIS) else 4.5)
                ax.annotate(
                    number(x),
                    (x, y),
                    (6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                    color=colour(dot.name),
                )
        if at == 0:
            for group in filter(None, groups):
                first = next(row for row in rows if row[0] == group)
                y = 1 - (place[first] + 0.6) / (last + 1.2)
                ax.text(-(left - 0.12) / wide, y, group, transform=ax.transAxes, va="center", fontweight="bold")
        ax.set_xlabel("milliseconds")
    return drawn


def most_common(values: list):
    return max(dict.fromkeys(values), key=values.count, default=0)


def at_one_length(rows: list[dict], section: str) -> tuple[list[dict], int]:
    """A section's rows with all threads at the length that most of them have."""
    rows = [row for row in measured(rows) if row["section"] == section and row["what"].split(", ")[0] in PASSES]
    tokens = most_common([row["tokens"] for row in rows])
    return [row for row in rows if row["tokens"] == tokens], tokens


def attention_dots(rows: list[dict]) -> tuple[list[Dot], int]:
    """The other attentions: a panel for each direction, a group for each operator."""
    rows, tokens = at_one_length(rows, "attention")
    dots = []
    for row in sorted(rows, key=lambda row: (row["what"].startswith(PASSES[1]), row["what"])):
        passes, operator = row["what"].split(", ", 1)
        dots.append(Dot(passes, operator.replace("_", "-"), row["peer"], milliseconds(row)))
    return dots, tokens


def operator_dots(rows: list[dict]) -> tuple[list[Dot], int]:
    """The operators at 4,096 tokens, or at what there is: a panel for each direction and dtype."""
    rows, tokens = at_one_length(rows, "ops")
    dots = []
    for row in sorted(rows, key=lambda row: (row["what"].startswith(PASSES[1]), row["dtype"] != "float32")):
        passes, *details = row["what"].split(", ")
        if row["peer"] == TAMIS and details[-1] not in ("2% accepted", "50% accepted"):
            continue  # accepted.svg has them
        name = ", ".join([row["peer"], *(details if row["peer"] == TAMIS else [])])
        panel = f"{passes}, {row['dtype']}".replace("forward and ", "forward and\n")
        dots.append(Dot(panel, "", name, milliseconds(row)))
    return dots, tokens


def by_accepted_share(rows: list[dict]) -> tuple[list[tuple[str, list[Series]]], int]:
    """Screening with infinite windows in float32: accepted keys in percent against milliseconds, with SDPA."""
    rows = [row for row in measured(rows) if row["section"] == "ops" and row["dtype"] == "float32"]
    infinite = [row for row in rows if row["peer"] == TAMIS and INFINITE in row["what"]]
    tokens = most_common([row["tokens"] for row in infinite])
    panels = []
    for passes in PASSES:
        mine = [row for row in infinite if row["what"].startswith(f"{passes}, {INFINITE}") and row["tokens"] == tokens]
        shares = sorted((float(row["what"].split(", ")[-1].split("%")[0]), milliseconds(row)) for row in mine)
        if len(shares) > 2:
            ends = (shares[0][0], shares[-1][0])
            sdpa = [row for row in rows if (row["peer"], row["what"], row["tokens"]) == ("SDPA", passes, tokens)]
            lines = [Series(row["peer"], "float32", [(x, milliseconds(row)) for x in ends]) for row in sdpa]
            panels.append((passes, [Series(TAMIS, "float32", shares), *lines]))
    return panels, tokens


def milliseconds(row: dict) -> float:
    return 1e3 * row["seconds"]["median"]


def charts(rows: list[dict]) -> dict[str, Figure]:
    drawn = {}
    for section, title in TITLES.items():
        lines = series(rows, section)
        panels = [(dtype, [line for line in lines if line.dtype == dtype]) for dtype in DTYPES]
        if panels := [(dtype, found) for dtype, found in panels if found]:
            drawn[section] = line_panels(title, NOTES[section], panels, "tokens", "tokens per second", short)
    panels, tokens = by_accepted_share(rows)
    if panels:
        note = f"Milliseconds by the accepted share of the keys before a query; {tokens:,} tokens, float32."
        title = "Screening with infinite windows"
        drawn["accepted"] = line_panels(title, note, panels, "accepted keys", "milliseconds", lambda x: f"{x:g}%")
    for name, (dots, tokens), title in (
        ("ops", operator_dots(rows), "The operator alone"),
        ("attention", attention_dots(rows), "Other attentions and mLSTM"),
    ):
        if dots:
            drawn[name] = dot_panels(title, f"Milliseconds for {tokens:,} tokens, logarithmic; less is better.", dots)
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
        figure.save(chart, directory / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
