"""Figures as SVG in one style: colour-blind-safe, readable on light and on dark pages, the same bytes every time."""

import io
import pathlib

import matplotlib

matplotlib.use("svg")

from matplotlib.figure import Figure  # noqa: E402
from peers.results import write_whole  # noqa: E402

INK, FAINT, PAPER = "#1f2328", "#d8dee4", "#ffffff"
# Okabe and Ito's hues, dark enough for text on white.
VERMILION, BLUE, GREEN, PURPLE, OCHRE, GREY = "#c44e00", "#0072b2", "#007d5b", "#a3437f", "#8a6100", "#66717c"
ON_DARK = {
    INK: "#e6edf3",
    FAINT: "#3d444d",
    PAPER: "#0d1117",
    VERMILION: "#ff8b4a",
    BLUE: "#56b4e9",
    GREEN: "#2fc296",
    PURPLE: "#e29cc6",
    OCHRE: "#e6b432",
    GREY: "#9aa5b1",
}
WIDTH = 9.2  # inches: 883 CSS pixels, about what GitHub gives an image

matplotlib.rcParams.update(
    {
        "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
        "svg.hashsalt": "tamis",
        "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine measures the same
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.titlesize": 9,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": FAINT,
        "grid.linewidth": 0.8,
        "xtick.color": INK,
        "ytick.color": INK,
        "figure.facecolor": PAPER,
        "axes.facecolor": "none",
    }
)


def figure(title: str, height: float, note: str = "") -> Figure:
    """An empty figure `height` inches high with its title above, and a note in small print below that."""
    drawn = Figure(figsize=(WIDTH, height))
    drawn.text(0.012, 1 - 0.10 / height, title, fontsize=11.5, fontweight="bold", va="top")
    if note:
        drawn.text(0.012, 1 - 0.33 / height, note, fontsize=8.5, va="top")
    drawn.set_label(title)
    return drawn


def axes(drawn: Figure, left: float, top: float, width: float, height: float, **options):
    """Axes at a place in inches from the upper left corner."""
    whole = drawn.get_figheight()
    return drawn.add_axes((left / WIDTH, 1 - (top + height) / whole, width / WIDTH, height / whole), **options)


def svg(drawn: Figure) -> str:
    file = io.StringIO()
    drawn.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Title": drawn.get_label()})
    rules = "\n".join(
        f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important; }}'
        for light, dark in ON_DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark) {{\n{rules}\n}}</style>"
    head, body = file.getvalue().split("<defs>", 1)
    text = f"{head}{style}\n<defs>{body}".replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def save(drawn: Figure, path: pathlib.Path) -> None:
    write_whole(path, svg(drawn))
    print(path)


def spread(places: list[float], gap: float) -> list[float]:
    """The places from 0 on nearest to these, in their order, that are at least `gap` apart."""
    groups: list[list[float]] = []  # [sum of the first places that its numbers need, count]
    for at in sorted(places):
        groups.append([at, 1])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] + groups[-2][1] * gap > groups[-1][0] / groups[-1][1]:
            total, count = groups.pop()
            groups[-1][0] += total - count * groups[-1][1] * gap
            groups[-1][1] += count
    apart = [total / count + at * gap for total, count in groups for at in range(count)]
    apart = [max(place, at * gap) for at, place in enumerate(apart)]
    order = sorted(range(len(places)), key=lambda at: places[at])
    return [apart[order.index(at)] for at in range(len(places))]
