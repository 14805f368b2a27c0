#!/usr/bin/env python3
"""Draws the weights that every mechanism gives to the same keys: .venv/bin/python docs/images/mechanisms.py [DIRECTORY].

`make plots` runs it; it needs torch and matplotlib. Writes one SVG file for each mechanism and overview.svg into
docs/images/mechanisms, or into another directory, and prints the totals. The bytes are the same every time.

There are 64 keys. Three are relevant, with scores 4, 3.5 and 3; the others are noise, N(0, 0.5^2), and in the second
case all of them are. The weights are those of the operators, which are linear in the values: values that are rows of
the identity give the weight of every key for the last query. Queries have the length SCALE and keys have length 1, so
that screening, which looks at directions, sees the similarity score / SCALE; what lowers all scores is added to it.
"""

import math
import pathlib
import random
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench")]

import figure  # noqa: E402
import tamis  # noqa: E402
import torch  # noqa: E402
from figure import FAINT, GREY, INK, VERMILION, WIDTH  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

KEYS = 64
MANY = 4096
RELEVANT = {11: 4.0, 33: 3.5, 55: 3.0}  # position: score; the older the better, so that preferring the newest shows
DEVIATION = 0.5
SCALE = 4.25
LOWERED = -4.0
KEY_DIM = 4  # MiPE turns 0 and 1; 0 also holds what lowers all scores; 2 and 3 the similarity
WINDOW = 16
NARROW, WIDE = 20.0, 257.0  # screening windows in tokens; WIDE is the widest of a fresh model
FORGET = 4.0  # gate of mLSTM: remembers for 1 / (1 - sigmoid(4)) = 56 tokens
CLOSED = -4.0  # input gate


# Weights


@dataclass
class Weights:
    shown: list[float]  # of the newest KEYS keys
    older: float = 0.0  # sum over all others
    relevant: tuple[int, ...] = ()  # of those shown
    seen: int = KEYS  # of those shown, the newest

    def total(self) -> float:
        return sum(self.shown) + self.older

    def of_relevant(self) -> float:
        return sum(self.shown[at] for at in self.relevant)

    def zeros(self) -> int:
        return self.shown[KEYS - self.seen :].count(0.0)


def scores(keys: int, relevant: bool) -> list[float]:
    """The newest 64 are the same for any number of keys."""
    draw = random.Random(5)
    noise = [DEVIATION * draw.gauss(0, 1) for _ in range(keys)][::-1]
    if relevant:
        for at, score in RELEVANT.items():
            noise[keys - KEYS + at] = score
    return noise


def weigh(
    operator, relevant: bool, keys: int = KEYS, strict: bool = False, lowered: float = 0.0, seen: int = KEYS
) -> Weights:
    """What `operator(q, k, v)`, one query, returns for each key's value; strict: the query's own key comes last."""
    similarity = torch.tensor(scores(keys, relevant), dtype=torch.float64) / SCALE
    k = torch.zeros(keys + strict, KEY_DIM, dtype=torch.float64)
    k[:keys, 2], k[:keys, 3] = similarity, (1 - similarity**2).sqrt()
    k[:, 0] = 1.0 if lowered else 0.0
    q = torch.tensor([lowered, 0.0, SCALE, 0.0], dtype=torch.float64)
    v = torch.zeros(keys + strict, KEYS + 1)
    v[: keys - KEYS, KEYS] = 1
    v[keys - KEYS : keys, :KEYS] = torch.eye(KEYS)
    found = operator(q.float().view(1, 1, 1, -1), k.float().view(1, -1, 1, KEY_DIM), v.view(1, -1, 1, KEYS + 1))
    *shown, older = found.double().flatten().tolist()
    return Weights(shown, older, tuple(RELEVANT) if relevant else (), seen)


def softmax(relevant: bool, keys: int = KEYS, window: int | None = None, s: float | None = None) -> Weights:
    log_scale = None if s is None else torch.tensor([s])

    def operator(q, k, v):
        return tamis.softmax_attention(q, k, v, scale=1.0, window=window, log_scale=log_scale)

    return weigh(operator, relevant, keys, seen=window or KEYS)


def entmax(relevant: bool, alpha: float = 1.5) -> Weights:
    return weigh(lambda q, k, v: tamis.entmax_attention(q, k, v, scale=1.0, alpha=alpha), relevant)


def stick_breaking(relevant: bool, lowered: float = 0.0) -> Weights:
    def operator(q, k, v):
        return tamis.stick_breaking_attention(q, k, v, scale=1.0)[0]

    return weigh(operator, relevant, strict=True, lowered=lowered)


def sieve(relevant: bool, lowered: float = 0.0) -> Weights:
    return weigh(lambda q, k, v: tamis.sieve_attention(q, k, v, scale=1.0), relevant, strict=True, lowered=lowered)


def screening(relevant: bool, window: float = WIDE, s_r: float = 0.0) -> Weights:
    def operator(q, k, v):
        s_w = torch.tensor([math.log(window - 1)])
        return tamis.screening(q, k, v, s_w, torch.tensor([s_r]), tanh_norm=False)

    return weigh(operator, relevant, seen=min(KEYS, math.ceil(window)))


def mlstm(relevant: bool, written: bool = False) -> Weights:
    """`written`: the input gate is open at the relevant keys only."""

    def operator(q, k, v):
        T = k.shape[1]
        i, f = torch.zeros(1, T, 1), torch.full((1, T, 1), FORGET)
        if written:
            i += CLOSED
            i[0, list(RELEVANT), 0] = 0
        queries = q.expand(1, T, 1, KEY_DIM) * math.sqrt(KEY_DIM)  # the operator divides by it
        return tamis.mlstm(queries, k, v, i, f)[0][:, -1:]

    return weigh(operator, relevant)


# Pictures

STEPS = [
    round(step * 10.0**power, 6) for power in (-3, -2, -1, 0) for step in (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8)
]


def number(x: float) -> str:
    """Two decimals; what would be 0.00 and is not, one digit; a minus sign that is one."""
    if abs(x) < 5e-7:
        return "0"
    shown = f"{x:.2f}" if abs(x) >= 0.005 else f"{x:.1g}" if abs(x) >= 1e-4 else "0.0000"
    return shown.replace("-", "\u2212")


def signed(x: float) -> str:
    return f"{x:g}".replace("-", "\u2212")


def said(weights: Weights, keys: bool = True) -> str:
    words = f"total {number(weights.total())}"
    if weights.relevant and abs(weights.total()) > 1e-6:
        words += f", relevant {number(weights.of_relevant())}"
    if keys and weights.older:
        words += f", {MANY - KEYS:,} older keys {number(weights.older)}"
    if keys and weights.zeros():
        words += f"; exactly 0 for {weights.zeros()} of {weights.seen}"
    return words


def bounds(every: list[Weights]) -> tuple[float, float]:
    """The axis that all of them fit: from 0, or less, to a round number."""
    low, high = min(min(w.shown) for w in every), max(max(w.shown) for w in every)
    high = next(step for step in STEPS if step >= high)
    return (-next(step for step in STEPS if step >= -low) if low < 0 else 0.0), high


def bars(ax, weights: Weights, low: float, high: float) -> None:
    """One bar for each key, the oldest left; what the query does not see is shaded."""
    if hidden := KEYS - weights.seen:
        ax.axvspan(-0.5, hidden - 0.5, color=FAINT, alpha=0.45, linewidth=0)
    colours = [VERMILION if at in weights.relevant else GREY for at in range(KEYS)]
    ax.bar(range(KEYS), weights.shown, width=0.8, color=colours)
    ax.axhline(0, color=INK, linewidth=0.9)
    ax.set_xlim(-0.5, KEYS - 0.5)
    ax.set_ylim(low, high)
    ax.set_yticks(sorted({low, 0.0, high}), [signed(tick) for tick in sorted({low, 0.0, high})])
    ax.set_xticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0, labelsize=8.5)


Panel = tuple[str, Weights]
NOTE = (
    "Weight that the last query gives to each of 64 keys, the oldest left. "
    "Orange: relevant keys, their scores below; grey: noise."
)


def picture(title: str, rows: list[list[Panel]], note: str = NOTE, one_axis: bool = True) -> Figure:
    """Rows of panels, with one scale for all or one for each row."""
    left, first, tall, pitch = 0.5, 1.15, 0.95, 1.75
    drawn = figure.figure(title, first + (len(rows) - 1) * pitch + tall + 0.4, note)
    whole = bounds([weights for row in rows for _, weights in row])
    for at, row in enumerate(rows):
        low, high = whole if one_axis else bounds([weights for _, weights in row])
        wide = (WIDTH - 0.12 - left * len(row)) / len(row)
        for column, (name, weights) in enumerate(row):
            ax = figure.axes(drawn, left + column * (wide + left), first + at * pitch, wide, tall)
            bars(ax, weights, low, high)
            ax.set_title(f"{name}\n", pad=1)
            ax.text(0, 1.06, said(weights), transform=ax.transAxes, fontsize=8.5)
            for key in weights.relevant:
                ax.text(
                    key,
                    -0.05,
                    f"{RELEVANT[key]:g}",
                    transform=ax.get_xaxis_transform(),
                    ha="center",
                    va="top",
                    fontsize=8.5,
                )
            if weights.seen < KEYS:
                middle = (KEYS - weights.seen) / (2 * KEYS)
                ax.text(
                    middle, 0.5, "outside the window", transform=ax.transAxes, ha="center", va="center", fontsize=8.5
                )
    return drawn


def overview(rows: list[tuple[str, str, Weights, Weights]]) -> Figure:
    """A row for each mechanism, with its own scale; with relevant keys left, without right."""
    left, first, tall, pitch, gap = 2.05, 1.1, 0.42, 0.78, 0.2
    wide = (WIDTH - left - gap - 0.12) / 2
    note = "Weight that the last query gives to each of 64 keys, the oldest left; every row has its own scale."
    drawn = figure.figure("The same keys, every mechanism", first + len(rows) * pitch, note)
    for at, (name, detail, *cases) in enumerate(rows):
        low, high = bounds(cases)
        for column, weights in enumerate(cases):
            ax = figure.axes(drawn, left + column * (wide + gap), first + at * pitch, wide, tall)
            bars(ax, weights, low, high)
            ax.text(1, 1.05, said(weights, keys=False), transform=ax.transAxes, ha="right", fontsize=8.5)
            if at == 0:
                heading = ("Three relevant keys (orange)", "Nothing relevant")[column]
                ax.text(0, 1.5, heading, transform=ax.transAxes, fontweight="bold")
            if column == 0:
                ax.text(-(left - 0.12) / wide, 0.75, name, transform=ax.transAxes, fontweight="bold")
                ax.text(-(left - 0.12) / wide, 0.32, detail, transform=ax.transAxes, fontsize=8.5)
            else:
                ax.set_yticklabels([])
    return drawn


def pictures() -> dict[str, Figure]:
    found, nothing, low = "Three relevant keys", "Nothing relevant", "scores 4 lower"
    few, many = f"{KEYS} keys", f"{MANY:,} keys"
    s = 1 / math.log(KEYS)  # leaves the scores of 64 keys as they are
    both = (True, False)
    drawn = {
        "softmax": picture(
            "Softmax shares out 1, whatever there is",
            [
                [(found, softmax(True))],
                [(nothing, softmax(False))],
                [(f"{found}, sliding window of {WINDOW}", softmax(True, window=WINDOW))],
            ],
        ),
        "scalable_softmax": picture(
            "Scalable-Softmax keeps its focus among many keys",
            [[(f"Softmax, {few}", softmax(True)), (f"Scalable, {few}", softmax(True, s=s))]]
            + [
                [
                    (f"Softmax, {many}{words}", softmax(case, MANY)),
                    (f"Scalable, {many}{words}", softmax(case, MANY, s=s)),
                ]
                for case, words in ((True, ""), (False, f", {nothing.lower()}"))
            ],
            f"The newest {few}, the oldest left; orange: relevant. s = 1 / ln {KEYS}: at {few} both are the same.",
            one_axis=False,
        ),
        "entmax": picture(
            "alpha-entmax cuts off below a threshold and shares out 1 above it",
            [
                [(f"{found}, alpha 1.5", entmax(True))],
                [(f"{nothing}, alpha 1.5", entmax(False))],
                [(f"{found}, alpha 2", entmax(True, 2.0))],
                [(f"{nothing}, alpha 2", entmax(False, 2.0))],
            ],
        ),
        "stick_breaking": picture(
            "Stick-breaking serves the newest keys first",
            [
                [(found, stick_breaking(True))],
                [(nothing, stick_breaking(False))],
                [(f"{found}, all {low}", stick_breaking(True, LOWERED))],
                [(f"{nothing}, all {low}", stick_breaking(False, LOWERED))],
            ],
        ),
        "sieve": picture(
            "Sieve selects by entmax, then breaks the stick over what is left",
            [
                [(found, sieve(True))],
                [(nothing, sieve(False))],
                [(f"{found}, all {low}", sieve(True, LOWERED))],
                [(f"{nothing}, all {low}", sieve(False, LOWERED))],
            ],
        ),
        "screening": picture(
            "Screening accepts or rejects every key on its own",
            [
                [(f"{found}, w = {WIDE:g}, r = 0.5", screening(True))],
                [(f"{nothing}, w = {WIDE:g}, r = 0.5", screening(False))],
                [(f"{found}, w = {NARROW:g}, r = 0.5", screening(True, NARROW))],
                [(f"{nothing}, w = {WIDE:g}, r = 1", screening(False, s_r=math.inf))],
            ],
        ),
        "mlstm": picture(
            "mLSTM fades what it wrote; weights follow the score itself, sign and all",
            [
                [(f"{found}, every key written", mlstm(True))],
                [(f"{nothing}, every key written", mlstm(False))],
                [(f"{found}, input gate 0 for these, \u2212{-CLOSED:g} elsewhere", mlstm(True, written=True))],
            ],
        ),
    }
    rows = [
        ("Softmax", "", *map(softmax, both)),
        ("Softmax", f"{many}, newest 64", *(softmax(case, MANY) for case in both)),
        ("Scalable-Softmax", f"{many}, newest 64", *(softmax(case, MANY, s=s) for case in both)),
        ("Sliding window", f"{WINDOW} keys", *(softmax(case, window=WINDOW) for case in both)),
        ("alpha-entmax", "alpha 1.5", *map(entmax, both)),
        ("Stick-breaking", "", *map(stick_breaking, both)),
        ("Stick-breaking", low, *(stick_breaking(case, LOWERED) for case in both)),
        ("Sieve", "alpha 1.5", *map(sieve, both)),
        ("Sieve", low, *(sieve(case, LOWERED) for case in both)),
        ("Screening", f"w = {WIDE:g}, r = 0.5", *map(screening, both)),
        ("mLSTM", "every key written", *map(mlstm, both)),
    ]
    for name, detail, *cases in rows:
        print(f"{name + ', ' * bool(detail) + detail:40} {' | '.join(map(said, cases))}")
    return drawn | {"overview": overview(rows)}


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    directory = pathlib.Path(arguments[0]) if arguments else ROOT / "docs" / "images" / "mechanisms"
    torch.set_num_threads(1)
    for name, drawing in pictures().items():
        figure.save(drawing, directory / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
