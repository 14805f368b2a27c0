#!/usr/bin/env python3
"""Draws what every mechanism makes of the same keys: .venv/bin/python docs/images/mechanisms.py [DIRECTORY].

Wants `make python`. Writes SVG, one file a mechanism and overview.svg, into docs/images/mechanisms unless a directory
is given, and prints the totals. The same bytes every time.

The keys: 64, three of them relevant, with scores 4, 3.5 and 3; the others, and all of them in the second case, are
noise, N(0, 0.5^2). Weights are those of the operators: they are linear in the values, so values that are rows of the
identity give the weight of every key for the last query. Queries are SCALE long and keys of unit length, so that
screening, which looks at directions, sees similarities of score / SCALE; what lowers all scores comes on top.
"""

import math
import pathlib
import random
import sys
from dataclasses import dataclass
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench")]

import tamis  # noqa: E402
import torch  # noqa: E402
from peers.results import write_whole  # noqa: E402
from plot import COLOURS, STYLE, text  # noqa: E402

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

WIDTH, MARGIN, AXIS = 720, 16, 34
SMALL = """
  .small { font-size: 11.5px; }
  .strong { font-weight: 600; }
  .relevant { fill: %s; }
  .noise { fill: #7d8b99; }
  .beyond { fill: var(--faint); opacity: 0.45; }
  .axis { stroke: var(--ink); stroke-width: 1; }
""" % COLOURS[0]


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


@dataclass
class Box:
    left: float
    top: float
    width: float
    height: float


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


def bars(weights: Weights, box: Box, low: float, high: float) -> list[str]:
    """One bar a key, the oldest left; shaded: what the query does not see."""
    pitch, unit = box.width / KEYS, box.height / (high - low)
    zero = box.top + high * unit
    body = []
    if hidden := KEYS - weights.seen:
        shade = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{hidden * pitch:.1f}" height="{box.height:.1f}"'
        body.append(f'<rect class="beyond" {shade}/>')
    for at, weight in enumerate(weights.shown):
        tall = abs(weight) * unit
        if tall >= 0.05:
            kind = "relevant" if at in weights.relevant else "noise"
            place = f'x="{box.left + (at + 0.1) * pitch:.1f}" y="{zero - max(weight, 0) * unit:.1f}"'
            body.append(f'<rect class="{kind}" {place} width="{0.8 * pitch:.1f}" height="{tall:.1f}"/>')
    end = box.left + box.width
    body.append(f'<line class="axis" x1="{box.left:.1f}" x2="{end:.1f}" y1="{zero:.1f}" y2="{zero:.1f}"/>')
    return body


def panel(title: str, weights: Weights, box: Box, low: float, high: float) -> list[str]:
    """Title and totals in two lines above the bars, the scores of the relevant keys below."""
    pitch, unit = box.width / KEYS, box.height / (high - low)
    body = [
        text(box.left, box.top - 28, title, kind="strong"),
        text(box.left, box.top - 11, said(weights), kind="small"),
    ]
    for tick in sorted({low, 0.0, high}):
        y = box.top + (high - tick) * unit
        if tick:
            ends = f'x1="{box.left:.1f}" x2="{box.left + box.width:.1f}"'
            body.append(f'<line class="grid" {ends} y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(text(box.left - 5, y + 4, signed(tick), "end", "small"))
    body += bars(weights, box, low, high)
    below = box.top + box.height + 14
    for at in weights.relevant:
        body.append(text(box.left + (at + 0.5) * pitch, below, f"{RELEVANT[at]:g}", "middle", "small"))
    if weights.seen < KEYS:
        middle = box.left + (KEYS - weights.seen) * pitch / 2
        body.append(text(middle, box.top + box.height / 2, "outside the window", "middle", "small"))
    return body


def page(title: str, note: str, height: float, body: list[str]) -> str:
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" viewBox="0 0 {WIDTH} {height:.0f}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}{SMALL}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height:.0f}"/>',
        text(MARGIN, 26, title, kind="title"),
        text(MARGIN, 45, note, kind="small"),
    ]
    return "\n".join([*head, *body, "</svg>", ""])


Panel = tuple[str, Weights]
NOTE = (
    "Weight that the last query gives each of 64 keys, the oldest left. "
    "Orange: relevant keys, their score below; grey: noise."
)
PLOT, ROW, FIRST = 84, 150, 100  # height of the bars, from panel to panel, the first one's top


def picture(title: str, rows: list[list[Panel]], note: str = NOTE, one_axis: bool = True) -> str:
    """Rows of panels, on one axis or on one a row."""
    whole = bounds([weights for row in rows for _, weights in row])
    body = []
    for at, row in enumerate(rows):
        low, high = whole if one_axis else bounds([weights for _, weights in row])
        share = (WIDTH - MARGIN) / len(row)
        for column, (name, weights) in enumerate(row):
            box = Box(column * share + MARGIN + AXIS, FIRST + at * ROW, share - MARGIN - AXIS, PLOT)
            body += panel(name, weights, box, low, high)
    return page(title, note, FIRST + (len(rows) - 1) * ROW + PLOT + 26, body)


def overview(rows: list[tuple[str, str, Weights, Weights]]) -> str:
    """A row for each mechanism, with its own axis; with relevant keys left, without right."""
    left, share, tall, pitch, first = 166, 272, 34, 62, 96
    body = [
        text(left, 70, "three relevant keys (orange)", kind="strong"),
        text(left + share, 70, "nothing relevant", kind="strong"),
    ]
    for at, (name, detail, *cases) in enumerate(rows):
        top = first + at * pitch
        low, high = bounds(cases)
        body += [text(MARGIN, top + 14, name, kind="strong"), text(MARGIN, top + 30, detail, kind="small")]
        for tick, y in ((high, top + 4), (low, top + tall + 4)):
            if tick:
                body.append(text(left - 6, y, signed(tick), "end", "small"))
        for column, weights in enumerate(cases):
            box = Box(left + column * share, top, share - 20, tall)
            body += bars(weights, box, low, high)
            body.append(text(box.left + box.width, top - 3, said(weights, keys=False), "end", "small"))
    note = "Weight that the last query gives each of 64 keys, the oldest left; every row has its own scale."
    return page("The same keys, every mechanism", note, first + len(rows) * pitch, body)


def pictures() -> dict[str, str]:
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
        write_whole(directory / f"{name}.svg", drawing)
        print(directory / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
