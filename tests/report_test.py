"""Trains small runs with the program, makes their reports and reads them in Chromium.

With --basetemp=DIRECTORY the runs, the pages and screenshots stay in DIRECTORY.
"""

import json
import re
import shutil

import pytest
from pages import PHONES
from trained_runs import HOSTILE


def test_report_draws_without_errors_and_loads_nothing(digits, page):
    page.open(digits / "report.html")
    page.assert_clean()


def test_report_has_every_chart(digits, page):
    page.open(digits / "report.html")
    for chart in ("loss", "gradient", "rate", "speed", "windows", "accepts", "eval-0-0", "eval-1", "scatter"):
        traces = page.js(f'(document.getElementById("chart-{chart}").data || []).length')
        drawn = page.js(f'document.querySelectorAll("#chart-{chart} .main-svg").length')
        assert traces and drawn, (chart, traces, drawn)
    assert page.js('document.getElementById("chart-loss").data.at(-1).name') == "validation, abc_digits"
    assert page.js('document.getElementById("chart-scatter").data[0].x.length') == 8
    sections = page.js('[...document.querySelectorAll("main > section:not([hidden])")].map((s) => s.id)')
    for section in ("training", "evaluation", "relevance", "tiles", "samples", "provenance"):
        assert section in sections, sections


def test_gradient_norms_of_groups_are_thin_lines(digits, page):
    page.open(digits / "report.html")
    record = json.loads((digits / "log.jsonl").read_text().splitlines()[0])
    data = 'document.getElementById("chart-gradient").data'
    assert page.js(f"{data}.slice(0, -1).map((t) => t.name)") == sorted(record["grad_norms"])
    assert page.js(f"{data}.map((t) => t.line.width)") == [1] * len(record["grad_norms"]) + [2]
    assert page.text("#gradient-note") == "thin: of groups of parameters"


def test_heat_map_tells_wilson_intervals_on_hover(digits, page):
    page.open(digits / "report.html")
    page.hover("[data-task=abc_digits] .nsewdrag", 0.25, 0.25)
    told = 'document.querySelector("[data-task=abc_digits] .hoverlayer").textContent'
    page.wait(told + '.includes("Wilson")')
    label = page.js(told)
    assert "236 tokens" in label and "of 2" in label, label


def test_maps_are_drawn_and_follow_the_pointer(digits, page):
    page.open(digits / "report.html", fragment="tile=1.3")
    assert page.js('document.querySelectorAll(".thumbnail canvas").length') == 8
    assert page.text("#tile-title") == "Layer 1, head 3 screening"
    height = page.js("document.documentElement.scrollHeight")
    page.hover("#map", 0.25, 0.75)
    pair = page.text("#pair")
    assert "query 72" in pair and "key 24" in pair, pair
    page.hover("#map", 0.75, 0.25)
    assert "future" in page.text("#pair")
    assert page.js("document.documentElement.scrollHeight") == height, "the layout jumped"
    # The last head of a layer begins with a window of 256, so nothing of these 96 tokens lies outside it.
    colour = page.js('[...document.getElementById("map-canvas").getContext("2d").getImageData(95, 0, 1, 1).data]')
    assert colour == [196, 199, 204, 255], colour


def test_numbers_of_a_pair_belong_together(digits, page):
    page.open(digits / "report.html")
    checked = page.js("""(() => {
      const relevance = JSON.parse(document.getElementById("data").textContent).relevance;
      let accepted = 0;
      for (const tile of relevance.maps) {
        const map = new RelevanceMap(tile, relevance.tokens.length);
        let inside = 0, nonzero = 0;
        for (let q = 0; q < map.length; ++q) for (let k = 0; k < map.length; ++k) {
          const pair = map.pair(q, k);
          if (pair.state === "future" || pair.state === "outside") continue;
          ++inside;
          if (pair.state === "rejected") continue;
          ++nonzero;
          const trim = Math.max(1 - (1 - pair.similarity) / map.accept, 0) ** 2;
          const softmask = (Math.cos(Math.PI * (q - k) / map.window) + 1) / 2;
          if (Math.abs(trim - pair.trim) > 1e-6 || Math.abs(trim * softmask - pair.relevance) > 1e-6) return [q, k];
        }
        if (Math.abs(nonzero / inside - map.nonzero) > 1e-12) return [tile.layer, tile.head, nonzero / inside];
        accepted += nonzero;
      }
      return accepted;
    })()""")
    assert isinstance(checked, int) and checked > 0, checked


def test_keyboard_reaches_heads_and_pairs(digits, page):
    page.open(digits / "report.html", fragment="tile=0.1&query=40&key=30")
    page.focus("#map")
    page.press("ArrowDown")
    page.press("Shift+ArrowLeft")
    pair = page.text("#pair")
    assert "query 41" in pair and "key 20" in pair, pair
    page.focus(".thumbnail[aria-current]")
    page.press("ArrowRight")
    assert page.js('document.activeElement.getAttribute("aria-label")').startswith("Layer 0, head 2")


def test_a_clicked_token_lights_what_it_retrieves(digits, page):
    page.open(digits / "report.html")
    page.click("#tokens [data-index='50']")
    assert "query 50" in page.text("#pair")
    assert "query=50" in page.js("location.hash")
    page.js('location.hash = "tile=0.2&query=33&key=31"')
    page.wait('document.getElementById("pair").textContent.includes("query 33")')


def test_theme_follows_the_system_and_the_button(digits, page):
    page.open(digits / "report.html", scheme="dark")
    assert page.js("document.documentElement.dataset.theme") == "dark"
    dark = page.js('document.getElementById("chart-loss").layout.font.color')
    page.click("#theme")
    assert page.js("document.documentElement.dataset.theme") == "light"
    page.wait(f'document.getElementById("chart-loss").layout.font.color !== "{dark}"')


def test_text_from_outside_stays_text(digits, page):
    page.open(digits / "report.html")
    assert page.js("window.boom") is None
    assert HOSTILE in page.text(".samples pre")
    assert "</script>" in page.text("#recipe")
    assert page.js(
        'document.querySelectorAll("main b").length === document.querySelectorAll(".numbers b, .context b").length'
    )


@pytest.mark.parametrize("width", PHONES)
def test_fits_a_phone(digits, page, width):
    page.open(digits / "report.html", width=width, height=740)
    page.assert_clean()
    page.assert_fits(width)


def test_controls_have_names(digits, page):
    page.open(digits / "report.html")
    page.assert_controls_have_names()


def test_screenshots_in_both_schemes_and_on_a_phone(tamis, digits, page):
    for name, options in {"light": {}, "dark": {"scheme": "dark"}, "narrow": {"width": 390, "height": 844}}.items():
        page.open(digits / "report.html", **options)
        page.screenshot(tamis.directory / f"{name}.png")
        assert (tamis.directory / f"{name}.png").stat().st_size > 10_000


# Readability.


def test_run_json_is_told_in_words_and_units(digits, page):
    page.open(digits / "report.html")
    text = page.text("#machine")
    assert "[object" not in text and "FLOP/s" in text and "step 24" in text, text
    assert not re.search(r"\d\.\d{7}", text), text


def test_no_tile_of_facts_stands_alone(digits, page):
    for width in (1280, 1000, 700):
        page.open(digits / "report.html", width=width)
        rows = page.js('[...document.querySelectorAll("#facts > div")].map((e) => e.offsetTop)')
        assert len(rows) > 6 and rows.count(max(rows)) > 1, (width, rows)


def test_a_loss_that_falls_to_zero_has_a_log_axis_and_a_readable_number(tamis, digits, page):
    fallen = tamis.directory / "fallen"
    fallen.mkdir(exist_ok=True)
    shutil.copy(digits / "config.toml", fallen)
    losses = [4 * 0.95**step for step in range(400)]
    records = [
        {"type": "train", "step": step + 1, "loss": loss, "tokens": 768 * (step + 1)}
        for step, loss in enumerate(losses)
    ]
    records.append({"type": "validation", "step": 400, "source": "abc_digits", "loss": 4.679e-8})
    (fallen / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    tamis.out("report", fallen)
    page.open(tamis.directory / "fallen/report.html")
    chart = 'document.getElementById("chart-loss")'
    assert page.js(chart + ".layout.yaxis.type") == "log"
    assert "<0.0001" in page.text("#facts")
    # The smoothed line begins where the loss began.
    assert page.js(chart + ".data[1].y[0]") == losses[0]
    page.click("#training .switch")
    page.wait(chart + '.layout.yaxis.type === "linear"')


def test_no_label_lies_on_a_line(digits, page):
    page.open(digits / "report.html")
    assert page.js("charts.length") > 7
    labels = page.js('[...document.querySelectorAll(".js-plotly-plot")].flatMap((e) => e.layout.annotations || [])')
    assert labels == [], labels


def test_no_panel_is_half_empty(digits, letters, page):
    for run in (digits, letters):
        page.open(run / "report.html", width=1280)
        gap = page.js(
            '[...document.querySelectorAll("#training .charts, #evaluation-grid")].map((grid) =>'
            "grid.getBoundingClientRect().right - grid.lastElementChild.getBoundingClientRect().right)"
        )
        assert all(abs(each) < 1 for each in gap), (run, gap)


def test_the_recipe_ends_with_a_whole_line(digits, page):
    page.open(digits / "report.html")
    cut = page.js(
        '(() => { const e = document.getElementById("recipe");'
        "return [e.clientHeight / parseFloat(getComputedStyle(e).lineHeight), e.scrollHeight, "
        "e.clientHeight]; })()"
    )
    assert cut[1] > cut[2] and abs(cut[0] - round(cut[0])) < 0.05, cut


def test_carriage_returns_and_controls_are_no_boxes(letters, page):
    page.open(letters / "report.html")
    text = page.text(".samples pre")
    assert text.startswith("one\ntwo\\rthree\\x01"), text
    raw = page.js(
        r'[...document.querySelectorAll("#tokens span, pre, .context")].filter((e) =>'
        r"/[\0-\x08\x0b-\x1f\x7f]/.test(e.textContent)).map((e) => e.outerHTML)"
    )
    assert raw == [], raw


# Several runs.


def test_any_two_runs_are_compared(tamis, digits, letters, page):
    tamis.out("report", letters, digits, "--output", tamis.directory / "both.html")
    page.open(tamis.directory / "both.html")
    page.assert_clean()
    page.assert_controls_have_names()
    names = page.js('document.getElementById("chart-loss").data.map((trace) => trace.name)')
    for wanted in ("stack, training", "run, training", "stack, validation, letter", "run, validation, abc_digits"):
        assert wanted in names, names
    for chart in ("gradient", "rate", "speed"):
        assert page.js(f'document.getElementById("chart-{chart}").data.length') >= 2, chart
    # Their batches differ, so they are drawn over tokens.
    assert page.js('document.getElementById("chart-loss").layout.xaxis.title.text') == "tokens read"
    assert page.js('document.getElementById("chart-loss").data[0].x.at(-1)') == 24 * 512
    evaluation = page.text("#evaluation")
    for wanted in ("ABCDigits", "copy", "nats per byte", "letter.txt", "By position"):
        assert wanted in evaluation, (wanted, evaluation)
    comparison = page.text("#comparison")
    assert "model.pattern" in comparison and "train.batch_tokens" in comparison, comparison
    for width in PHONES:
        page.open(tamis.directory / "both.html", width=width, height=740, scheme="dark")
        page.assert_fits(width)


def test_points_of_a_loss_are_its_curve(tamis, letters, page):
    run = tamis.directory / "points"
    shutil.copytree(letters, run)
    texts = [tamis.directory / name for name in ("one.txt", "two.txt")]
    for text in texts:
        text.write_text(f"Dear {text.stem}, this is a letter of more than a hundred characters. " * 2)
    options = ("--window", 100, "--middle", "--points", 10, "--smooth", 0.1)
    found = json.loads(tamis.out("eval", "loss", run, *texts, *options, "--json"))
    assert found["texts"] == 2 and found["tokens"] == 200 and found["files"] == [str(text) for text in texts], found
    assert found["points"][1].items() >= {"first": 10, "last": 20, "tokens": 22}.items(), found
    tamis.out("report", run)
    page.open(run / "report.html")
    page.assert_clean()
    assert page.js('[...document.getElementById("chart-eval-0").data[0].x]') == list(range(5, 105, 10))
    assert page.js('document.getElementById("chart-eval-0").layout.xaxis.type') != "log"
    assert "the middle of 2 texts" in page.text("#evaluation")


def test_an_evaluation_of_a_changed_model_stands_beside_the_other(tamis, letters, page):
    run = tamis.directory / "changed"
    shutil.copytree(letters, run)
    words = ("eval", "mqrar", run, "--lengths", "64,128", "--instances", 4)
    tamis.out(*words)
    tamis.out(*words, "--set-model", "rope_theta=500000", "--set-model", "rope_factor=2")
    changed = json.loads((run / "eval/mqrar.rope_factor=2,rope_theta=500000.json").read_text())
    assert changed["model_changes"] == {"rope_factor": 2, "rope_theta": 500000}
    assert "model_changes" not in json.loads((run / "eval/mqrar.json").read_text())
    tamis.out("report", run)
    page.open(run / "report.html")
    page.assert_clean()
    titles = page.js('[...document.querySelectorAll("#evaluation-grid figcaption")].map((each) => each.textContent)')
    for wanted in ("mqrar ", "mqrar, rope_factor=2, rope_theta=500000 "):
        assert any(title.startswith(wanted) for title in titles), titles


@pytest.mark.parametrize("option", ["--compare", "--beside"])  # --beside: the name in version 0.1
def test_compare_is_another_name_for_one_more_run(tamis, digits, letters, page, option):
    tamis.out("report", digits, option, letters, "--output", tamis.directory / "compared.html")
    page.open(tamis.directory / "compared.html")
    page.assert_clean()
    assert page.js('document.querySelectorAll("#table-runs tbody tr").length') == 2


def test_a_run_without_evaluation_or_checkpoint_has_a_report_too(tamis, digits, page):
    bare = tamis.directory / "bare"
    bare.mkdir(exist_ok=True)
    shutil.copy(digits / "config.toml", bare)
    (bare / "log.jsonl").write_text((digits / "log.jsonl").read_text()[:-20])
    tamis.out("report", bare)
    page.open(tamis.directory / "bare/report.html")
    assert page.js("document.documentElement.dataset.errors") is None
    assert page.js('document.getElementById("relevance").hidden && document.getElementById("evaluation").hidden')
    assert page.js('document.getElementById("chart-loss").data.length')
