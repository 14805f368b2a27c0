"""The page of a shootout, held against the data written into it."""

import re

from pages import PHONES

SHOWN_MIXERS = '[...document.querySelectorAll("#summary tbody th")].map((e) => e.firstChild.textContent)'


def check_shootout_page(page, path):
    page.open(path)
    page.assert_clean()
    page.assert_controls_have_names()
    data = page.js('JSON.parse(document.getElementById("data").textContent)')
    check_summary(page, data["mixers"])
    check_chance(page, data)
    check_charts(page, data["mixers"])
    assert page.js("window.boom") is None

    page.open(path, scheme="dark")
    page.assert_clean()
    assert page.js("document.documentElement.dataset.theme") == "dark"
    for width in PHONES:
        page.open(path, width=width, height=740)
        page.assert_clean()
        page.assert_fits(width)
        beyond = page.js(f"""[...document.querySelectorAll("#summary td, #summary .sort")].filter((e) =>
            e.getBoundingClientRect().right > {width}).map((e) => e.textContent)""")
        assert beyond == [], f"columns of the summary beyond the edge of a phone: {beyond}"


def measured_tasks(mixers):
    return {
        task
        for mixer in mixers
        for task, entries in mixer.get("summary", {}).get("tasks", {}).items()
        if any(entry.get("mean") is not None for entry in entries)
    }


def check_summary(page, mixers):
    """A row for each mixer, sorted by a click on a column's head, with missing values last."""
    names = [mixer["name"] for mixer in mixers]
    assert page.js(SHOWN_MIXERS) == names
    speeds = {mixer["name"]: (mixer.get("summary", {}).get("tokens_per_second") or {}).get("mean") for mixer in mixers}
    if any(speeds.values()):
        fastest_first = [name for name in sorted(names, key=lambda name: -(speeds[name] or 0)) if speeds[name]]
        head = page.page.locator("#summary .sort", has_text=re.compile("^tokens/s$"))
        for direction in ("descending", "ascending"):
            head.click()
            assert head.evaluate('(e) => e.closest("th").ariaSort') == direction
            shown = page.js(SHOWN_MIXERS)
            known = [name for name in shown if speeds[name]]
            assert known == (fastest_first if direction == "descending" else fastest_first[::-1]), (direction, known)
            assert shown[: len(known)] == known, shown
        page.click("#summary .sort")
    heads = page.js('[...document.querySelectorAll("#summary thead th")].map((e) => e.firstChild.textContent)')
    assert measured_tasks(mixers) <= set(heads), heads

    # The note names every mixer whose best learning rate is the grid's lowest or highest.
    edges = [mixer["name"] for mixer in mixers if mixer.get("lr_edge")]
    note = page.js('document.getElementById("edge-note").textContent')
    assert all(name in note for name in edges) and bool(note) == bool(edges), (edges, note)
    assert "of sequences" not in page.js("document.body.innerText")

    # Bold is only what differs beyond uncertainty.
    assert page.js("""(() => {
      const cells = (...triples) => triples.map(([mean, low, high]) => ({mean, interval_95: [low, high]}));
      const best = (list, more = {}) => bestCells(list, {best: 'max', format: String, ...more}).join();
      return [best(cells([.9, .8, .95], [.85, .7, .9], [.3, .2, .4])), best(cells([.9, .8, .95], [.85, .7, .9])),
              best([{mean: 1, interval_95: null}, {mean: 2, interval_95: null}]), best([{mean: 1}, {mean: 2}], {exact: true})];
    })()""") == ["true,true,false", "false,false", "false,false", "false,true"]


def check_chance(page, data):
    """Chance is marked where answers can be guessed."""
    for task, chance in data.get("chance", {}).get("score", {}).items():
        shapes = page.js(f'document.querySelector("[data-task={task}]").layout.shapes.map((s) => s.y0)')
        assert any(abs(y - chance) < 1e-12 for y in shapes), (task, chance, shapes)
        caption = page.js(f'document.querySelector("[data-task={task}]").closest("figure").textContent')
        assert f"chance {100 * chance:.1f}%" in caption, caption


def check_charts(page, mixers):
    """One for every task; a mixer keeps its colour and marker in all of them; the legend hides it in all of them."""
    for name, points, width, ticks in page.js("""[...document.querySelectorAll("#scores .js-plotly-plot, #chart-rates")]
            .map((e) => [e.id, new Set(e.data.flatMap((t) => t.x)).size, e.clientWidth, e.layout.xaxis.tickvals.length])"""):
        if points == 2:
            assert width <= 600 and ticks == 2, f"{name}: a chart of two points has {width} px, {ticks} ticks"

    charts = page.js('[...document.querySelectorAll("[id^=chart-score]")].map((e) => e.dataset.task)')
    assert set(charts) == measured_tasks(mixers), charts
    looks = page.js("""[...document.querySelectorAll(".js-plotly-plot")].flatMap((e) => e.data.map((t) =>
        [t.name, t.marker.color + " " + t.marker.symbol]))""")
    assert len({tuple(look) for look in looks}) == len({name for name, _ in looks}), looks
    assert len({look for _, look in looks}) == len({name for name, _ in looks}), looks

    if looks:
        traces = '[...document.querySelectorAll(".js-plotly-plot")].flatMap((e) => e.data.map((t) => t.name))'
        first = looks[0][0]
        page.click("#legend .mixer")
        assert first not in page.js(traces), first
        assert page.js('document.querySelector("#legend .mixer").ariaPressed') == "false"
        page.click("#legend .all")
        assert page.js(traces) == [name for name, _ in looks]
