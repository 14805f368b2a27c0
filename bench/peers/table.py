"""The tables: Tamis and the best peer of each measure, then every peer."""

from dataclasses import dataclass

from peers.plan import SECTIONS, TAMIS, Measure

TITLES = {
    "start": "Starting",
    "train": "Training",
    "forward": "Reading a text",
    "decode": "Decoding after a context",
    "ops": "The operator alone",
    "attention": "Other attentions and mLSTM",
    "head": "Vocabulary head and loss",
}
BUSY_CORES = 0.15  # of others, from which on a row is doubtful


@dataclass(frozen=True)
class Ratio:
    """Speed of Tamis over that of a peer: from the medians, and the range that the quartiles of both span."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.value)} ({number(self.low)}-{number(self.high)})"


def ratio(tamis: dict, peer: dict) -> Ratio:
    def slowest_and_fastest(row: dict) -> tuple[float, float]:
        seconds = row["seconds"]
        scale = row["tokens_per_second"] * seconds["median"]
        return scale / seconds["upper_quartile"], scale / seconds["lower_quartile"]

    (slow, fast), (peer_slow, peer_fast) = slowest_and_fastest(tamis), slowest_and_fastest(peer)
    return Ratio(tamis["tokens_per_second"] / peer["tokens_per_second"], slow / peer_fast, fast / peer_slow)


def spread(row: dict) -> float:
    """Distance of the quartiles, relative to the median."""
    seconds = row["seconds"]
    return (seconds["upper_quartile"] - seconds["lower_quartile"]) / seconds["median"]


def measured(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["status"] == "ok"]


def pairs(rows: list[dict]) -> list[tuple[dict, list[dict]]]:
    """Each row of Tamis with its peers, the fastest first."""
    good = measured(rows)
    peers = [row for row in good if row["peer"] != TAMIS]
    found = []
    for tamis in (row for row in good if row["peer"] == TAMIS):
        others = [row for row in peers if Measure.of(row).is_compared_with(Measure.of(tamis))]
        found.append((tamis, sorted(others, key=lambda row: -row["tokens_per_second"])))
    return sorted(found, key=lambda pair: order(pair[0]))


def order(row: dict) -> tuple:
    return SECTIONS.index(row["section"]), row["what"], row["dtype"] != "float32", row["dtype"], row["tokens"]


# ---- texts


def number(value: float) -> str:
    """Three digits that count: 0.0123, 1.23, 12.3, 1,230."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def figure(row: dict) -> str:
    percent = f"±{50 * spread(row):.1f}%"  # half the distance of the quartiles to each side
    if row["section"] in ("start", "ops", "attention", "head"):
        return f"{number(1e3 * row['seconds']['median'])} ms {percent}"
    return f"{number(row['tokens_per_second'])} tok/s {percent}"


def markdown(columns: list[str], lines: list[list[str]]) -> list[str]:
    cells = [columns, ["---"] * len(columns), *lines]
    return ["| " + " | ".join(line) + " |" for line in cells] + [""]


def share(row: dict) -> str:
    """Of the fastest product that the process measured in this dtype; of decoding, whose weights are read for every
    token, of reading too."""
    products = f"{100 * row['share_of_peak']:.0f}%" if "share_of_peak" in row else ""
    reading = f"{100 * row['share_of_bandwidth']:.0f}% of reading" if "share_of_bandwidth" in row else ""
    return ", ".join(text for text in (products, reading) if text)


def ratio_inside(row: dict) -> str:
    """Time relative to something that the same process measured in interleaved calls."""
    return f"{number(row['ratio']['value'])} x {row['ratio']['to']}" if "ratio" in row else ""


def ratio_table(rows: list[dict]) -> list[str]:
    lines = []
    for tamis, peers in pairs(rows):
        name = f"{tamis['section']}: {tamis['what']}"
        best = [peers[0]["peer"], figure(peers[0]), str(ratio(tamis, peers[0]))] if peers else ["none measured", "", ""]
        own = [figure(tamis), share(tamis), ratio_inside(tamis)]
        lines.append([name, tamis["dtype"], f"{tamis['tokens']:,}", *own, *best])
    columns = ["what", "dtype", "tokens", "Tamis", "of peak", "time relative to", "best peer", "its figure", "Tamis / peer"]
    return markdown(columns, lines)


def peer_table(rows: list[dict], section: str) -> list[str]:
    lines = []
    ratios = {id(peer): ratio(tamis, peer) for tamis, peers in reversed(pairs(rows)) for peer in peers}
    for row in sorted((row for row in rows if row["section"] == section), key=lambda row: (order(row), row["peer"])):
        start = [row["peer"], row["what"], row["dtype"], f"{row['tokens']:,}"]
        if row["status"] != "ok":
            lines.append([*start, f"{row['status']}: {row['why']}", "", "", "", ""])
            continue
        memory = f"{row['peak_bytes'] / 2**30:.1f} GiB" if "peak_bytes" in row else ""
        faults = number(row["page_faults"]) if "page_faults" in row else ""
        against = str(ratios[id(row)]) if id(row) in ratios else ""
        lines.append([*start, figure(row), against, memory, faults, row["check"]])
    return markdown(
        ["peer", "what", "dtype", "tokens", "median", "Tamis / it", "memory", "faults a call", "check"], lines
    )


def peak_lines(rows: list[dict]) -> list[str]:
    lines = []
    for row in (row for row in measured(rows) if row["section"] == "peaks"):
        name, when = row["what"].split(", ")
        amount = f"{row['tokens_per_second'] / 1e9:.1f} {'GB/s read' if name == 'read' else 'GFLOP/s ' + row['dtype']}"
        lines.append(f"{amount} ({when})")
    text = f"Peaks of this machine in torch, as the first and the last of these jobs found them: {', '.join(lines)}."
    return [text, ""] if lines else []


def settings_lines(rows: list[dict]) -> list[str]:
    found: dict[str, set[str]] = {}
    for row in measured(rows):
        group = row["peer"] if row["peer"] == TAMIS or "llama" in row["peer"] else "PyTorch"
        found.setdefault(group, set()).add(row["settings"])
    return [f"- {group}: {'; '.join(sorted(settings))}" for group, settings in sorted(found.items())] + [""]


def busy_lines(rows: list[dict]) -> list[str]:
    """Says so when something else ran."""
    busy = [row for row in measured(rows) if row["others_cores"] > BUSY_CORES]
    if not busy:
        return []
    most = max(row["others_cores"] for row in busy)
    return [
        f"**{len(busy)} of {len(measured(rows))} rows were measured while something else ran** (up to {most:.1f} "
        "cores): measure them again.",
        "",
    ]


def report(about: dict, rows: list[dict]) -> str:
    kind = (
        "quick try: sizes and times mean nothing"
        if about.get("quick")
        else "medians, half the distance of the quartiles"
    )
    lines = [
        f"# {about['date']}, {about['processor']}, {about['cores']} cores",
        "",
        f"`make peers` ({kind}). Ratios compare speeds: above 1 Tamis is faster; in parentheses the range that "
        "the quartiles of both span.",
        "",
        *settings_lines(rows),
        *peak_lines(rows),
        *busy_lines(rows),
        "## Tamis and the best peer",
        "",
        *ratio_table(rows),
    ]
    for section, title in TITLES.items():
        if any(row["section"] == section for row in rows):
            lines += [f"## {title}", "", *peer_table(rows, section)]
    return "\n".join(lines)
