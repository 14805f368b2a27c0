"""The figures of bench/plot.py and docs/images/mechanisms.py: what they show, and the same bytes every time."""

import xml.dom.minidom

import pytest
from bench_rows import ROOT, failed, row

pytest.importorskip("matplotlib", reason="matplotlib is not installed (scripts/setup.sh plot)")

import figure  # noqa: E402
import plot  # noqa: E402


def rows():
    found = [
        row(peer, "step", 100.0 * at, tokens=tokens)
        for at, peer in enumerate(["Tamis", "a <peer>"], 1)
        for tokens in (512, 4096)
    ]
    found += [row("Tamis", "token", 50, section="decode", tokens=0), row("SDPA", "forward", 70, section="ops")]
    found += [row("Tamis", "batch 8, token", 7777, section="decode", tokens=0)]
    for share, speed in ((0.1, 90), (2, 80), (50, 60)):
        found += [row("Tamis", f"forward, infinite windows, {share:g}% accepted", speed, section="ops")]
    return [*found, failed("broken", "step", "why")]


def test_plots_are_whole_xml():
    drawn = {name: figure.svg(chart) for name, chart in plot.charts(rows()).items()}
    assert set(drawn) == {"train", "decode", "ops", "accepted"}, set(drawn)
    assert "0.1% accepted" not in drawn["ops"] and "50% accepted" in drawn["ops"]
    assert "SDPA" in drawn["accepted"] and "0.1%" in drawn["accepted"]
    for chart in drawn.values():
        xml.dom.minidom.parseString(chart)
        assert "prefers-color-scheme: dark" in chart and "<title>" in chart
    assert "a &lt;peer&gt;" in drawn["train"]


def test_plots_are_the_same_bytes_every_time():
    first, again = ({name: figure.svg(chart) for name, chart in plot.charts(rows()).items()} for _ in range(2))
    assert first == again


def test_every_colour_has_one_for_dark_pages():
    for chart in plot.charts(rows()).values():
        text = figure.svg(chart)
        used = {f"#{each[:6]}" for kind in ("fill: #", "stroke: #") for each in text.split(kind)[1:]}
        assert used <= {*figure.ON_DARK, *figure.ON_DARK.values()}, used - set(figure.ON_DARK)


def test_a_line_has_one_point_at_a_length():
    whats = ("token", "token, initial windows", "token, infinite windows", "batch 8, token, initial windows")
    found = [
        row("Tamis" if "windows" in what else "llama.cpp", what, 100, section="decode", tokens=tokens)
        for what in whats
        for tokens in (0, 1024)
    ]
    lines = plot.series(found, "decode")
    assert [line.name for line in lines] == ["Tamis", "Tamis, infinite windows", "llama.cpp"], lines
    for line in lines:
        assert [tokens for tokens, _ in line.points] == [0, 1024], line


def test_accepted_shares_are_of_one_length():
    whats = [(share, tokens) for tokens in (4096, 16384) for share in (0.1, 2, 50) if (share, tokens) != (0.1, 16384)]
    found = [
        row("Tamis", f"forward, infinite windows, {share:g}% accepted", 100, section="ops", tokens=tokens)
        for share, tokens in whats
    ]
    ((_, (line,)),), tokens = plot.by_accepted_share(found)
    assert tokens == 4096 and [share for share, _ in line.points] == [0.1, 2, 50], line


def test_labels_do_not_overlap():
    places = figure.spread([0.5, 0.0, 0.51, 0.52, 0.95], 0.1)
    assert all(later - earlier > 0.0999 for earlier, later in zip(sorted(places), sorted(places)[1:])), places
    assert places[1] == 0 and places[0] < places[2] < places[3] < places[4]


@pytest.mark.parametrize("path", sorted((ROOT / "docs/images/mechanisms").glob("*.svg")), ids=lambda path: path.stem)
def test_the_figures_of_the_documentation_have_this_style(path):
    """mechanisms.py, which needs torch, drew them in the style of figure.py."""
    text = path.read_text()
    xml.dom.minidom.parseString(text)
    for light, dark in figure.ON_DARK.items():
        assert f'[style*="fill: {light}"] {{ fill: {dark} !important; }}' in text, f"run `make plots`: {light}"
