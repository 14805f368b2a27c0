"""The figures of `tamis study`: bands, chance levels, legends, ticks, and what happens without rows or without matplotlib."""

import importlib.util
import pathlib
import re
import xml.etree.ElementTree

import pytest
from program import environment
from studies import FUNCTION, directory, study, summary

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "tamis/study/draw_figures.py"


@pytest.fixture(scope="module")
def drawing():
    """The script that draws."""
    specification = importlib.util.spec_from_file_location("draw_figures", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_band_of_a_loss_does_not_reach_below_zero(drawing):
    def low(*values):
        return drawing.summary([{"seed": seed, "value": value} for seed, value in enumerate(values)], "sd")[1]

    assert low(0.0, 1.0) == 0
    assert low(1.0, 2.0) == pytest.approx(1.5 - 0.5**0.5)
    assert low(-1.0, 1.0) == pytest.approx(-(2**0.5))


def test_an_axis_names_what_a_curve_shows(drawing):
    assert drawing.words("validation_curve") == "validation loss"
    assert drawing.words("training_seconds") == "training seconds"


def test_chance_and_histograms_are_drawn(tamis):
    text = FUNCTION + """
[[figures]]
id = "line"
metric = "tanh_norm"
x = "norm"
chance = 0.25

[[figures]]
id = "panels"
metric = "tanh_norm"
x = "norm"
panels = "variant"
chance = {all = 0.75}

[[figures]]
id = "map"
kind = "heatmap"
metric = "tanh_norm"
x = "norm"
y = "variant"
chance = 0.5

[[figures]]
id = "shares"
kind = "histogram"
metric = "tanh_norm"
"""
    done = study(tamis, "chance", text)
    figures = directory(tamis, "chance") / "figures"
    assert summary(tamis, "chance")["drawn"] == ["line", "panels", "map", "shares"], done.stderr
    for name, words in (("line", "chance 0.25"), ("panels", "chance 0.75"), ("map", "tanh norm (dashed: chance 0.5)"), ("shares", "share")):
        assert f">{words}</text>" in (figures / f"{name}.svg").read_text(), name
    assert "chance" not in (figures / "shares.svg").read_text()
    assert ">chance 0.25</text>" in (directory(tamis, "chance") / "report.html").read_text()


def test_a_long_title_takes_two_lines(tamis):
    title = "The length of the output after the norm by the length of the input, of one variant alone, with many words"
    done = study(tamis, "title", FUNCTION + f'\n[[figures]]\ntitle = "{title}"\nmetric = "tanh_norm"\nx = "norm"\n')
    assert summary(tamis, "title")["drawn"] == ["figure-1"], done.stderr
    drawn = (directory(tamis, "title") / "figures/figure-1.svg").read_text()
    lines = [line for line in re.findall(r">([^<>]+)</t(?:ext|span)>", drawn) if line.strip() in title and " " in line.strip()]
    assert len(lines) == 2 and " ".join(line.strip() for line in lines) == title, lines


def test_a_legend_names_the_series_of_every_panel(tamis):
    weights = FUNCTION + """
[[evaluations]]
kind = "function"
name = "largest_weight"
settings = {n = [10, 100]}

[[figures]]
id = "weights"
metric = "largest_weight"
x = "n"
series = ["mechanism"]
panels = "mechanism"
"""
    done = study(tamis, "legend", weights)
    assert summary(tamis, "legend")["drawn"] == ["weights"], done.stderr
    drawn = (directory(tamis, "legend") / "figures/weights.svg").read_text()
    for name in ("softmax", "ssmax"):
        assert f">{name}</text>" in drawn and f">mechanism: {name}</text>" in drawn, name


def test_a_logarithmic_axis_has_ticks_at_its_points_when_they_are_few(tamis):
    """The axis's own ticks between 20 and 48 are 2, 3 and 4 x 10^1."""
    weights = FUNCTION + """
[[evaluations]]
kind = "function"
name = "largest_weight"
settings = {n = [20, 24, 30, 36, 40, 44, 48]}

[[figures]]
id = "few"
metric = "largest_weight"
where = {n = [20, 30, 48]}
x = "n"
x_scale = "log"

[[figures]]
id = "many"
metric = "largest_weight"
x = "n"
x_scale = "log"
"""
    done = study(tamis, "ticks", weights)
    assert summary(tamis, "ticks")["drawn"] == ["few", "many"], done.stderr
    names = {}
    for figure in ("few", "many"):
        drawn = xml.etree.ElementTree.parse(directory(tamis, "ticks") / f"figures/{figure}.svg")
        axis = drawn.find(".//*[@id='matplotlib.axis_1']")
        texts = ("".join(text.itertext()) for text in axis.iter("{http://www.w3.org/2000/svg}text"))
        names[figure] = ["".join(text.split()) for text in texts]
    assert names["few"] == ["20", "30", "48", "n"], names
    assert not {"24", "36", "44", "48"} & set(names["many"]), names


def test_a_figure_that_has_no_rows_any_more_is_removed(tamis):
    figure = FUNCTION + '\n[[figures]]\nmetric = "tanh_norm"\nx = "norm"\n'
    study(tamis, "removed", figure)
    image = directory(tamis, "removed") / "figures/figure-1.svg"
    assert image.exists()
    study(tamis, "removed", figure + "where = {norm = 7}\n")
    assert not image.exists() and summary(tamis, "removed")["drawn"] == []


def test_without_matplotlib_everything_else_is_written(tamis):
    figure = FUNCTION + '\n[[figures]]\nmetric = "tanh_norm"\nx = "norm"\n'
    done = study(tamis, "python", figure, env=environment(TAMIS_PYTHON="/nowhere/python"))
    assert "no figures: /nowhere/python" in done.stderr and "TAMIS_PYTHON" in done.stderr, done
    assert summary(tamis, "python")["verdict"] == "holds"
