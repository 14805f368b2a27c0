"""Draws the figures of a study: draw_figures.py INPUT.json writes ID.svg and ID.pdf into its directory.

INPUT.json has "figures" (tamis/study/figures.h), "rows" of the table of results, and "directory".
"""

import itertools
import json
import math
import os
import pathlib
import statistics
import sys
import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                     "grid.alpha": 0.25, "svg.fonttype": "none", "svg.hashsalt": "tamis", "legend.frameon": False,
                     "figure.constrained_layout.use": True})
KEPT_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
MARKERS = "osD^vP*X"
BINS = 24  # of a histogram
MOST_TICKS = 6  # of a logarithmic axis of lines: more points have the axis's own ticks
MOST_LABELS = 12  # of a heatmap: with more rows or columns its cells have no numbers
MOST_NAMES = 6  # of a legend in a panel
LETTERS_PER_INCH = 12  # of a title
CURVES = {"validation_curve": "validation loss", "text_loss_curve": "text loss", "window_curve": "window",
          "acceptance_curve": "acceptance width"}


def matches(row, where):
    return all(k in row and (row[k] in v if isinstance(v, list) else row[k] == v) for k, v in where.items())


def label(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "all" if value is None else str(value)


def words(name):
    """`validation loss` of `validation_curve`, `training seconds` of `training_seconds`."""
    return CURVES.get(name, name.replace("_", " "))


def series_name(figure, key):
    """`multiscreen`, `layers 2`."""
    parts = [label(v) if isinstance(v, str) else f"{words(column)} {label(v)}"
             for column, v in zip(figure["series"], key) if v not in (None, "")]
    return ", ".join(parts)


def sort_key(value):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (0, value, "") if number else (1, 0, str(value))


def values_of(rows, column):
    """The values of a column in the order of the table, numbers in ascending order."""
    found = list(dict.fromkeys(row.get(column) for row in rows))
    return sorted(found, key=sort_key) if all(sort_key(v)[0] == 0 for v in found) else found


def with_metric(rows, all_rows, metric):
    """Adds to each row the value of another metric of the same point and seed, as a column."""
    others = [row for row in all_rows if row["metric"] == metric and row["value"] is not None]
    for row in rows:
        for other in others:
            if all(row.get(k) == v for k, v in other.items() if k not in ("metric", "value")):
                row[metric] = other["value"]
                break
    return [row for row in rows if metric in row]


def best_rows(figure, rows, groups):
    """Of each group of columns, the rows with the value of best_over that has the best mean."""
    column = figure["best_over"]
    if not column:
        return rows
    chosen = []
    for key in dict.fromkeys(tuple(row.get(g) for g in groups) for row in rows):
        group = [row for row in rows if tuple(row.get(g) for g in groups) == key]
        means = {value: statistics.fmean(by_seed([row for row in group if row.get(column) == value]))
                 for value in values_of(group, column)}
        pick = max if figure["best"] == "highest" else min
        best = pick(means, key=means.get)
        chosen += [row for row in group if row.get(column) == best]
    return chosen


def by_seed(rows):
    """The mean of each seed."""
    seeds = {}
    for row in rows:
        seeds.setdefault(row.get("seed"), []).append(row["value"])
    return [statistics.fmean(values) for values in seeds.values()]


def summary(rows, band):
    values = by_seed(rows)
    mean = statistics.fmean(values)
    if len(values) < 2 or band == "none":
        return mean, mean, mean
    if band == "range":
        return mean, min(values), max(values)
    sd = statistics.stdev(values)
    low = mean - sd if min(values) < 0 else max(mean - sd, 0)  # a loss is never below 0
    return mean, low, mean + sd


def smoothed(values, width):
    half = int(width) // 2
    return [statistics.fmean(values[max(0, i - half):i + half + 1]) for i in range(len(values))]


def line_fit(xs, ys):
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    spread = sum((a - x) ** 2 for a in xs)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys)) / spread if spread else 0.0
    return y - slope * x, slope


def draw_fit(axis, figure, xs, ys, colour):
    if figure["fit"] == "none" or len(set(xs)) < 2:
        return ""
    power = figure["fit"] == "power"
    a, b = line_fit([math.log(x) for x in xs], [math.log(y) if power else y for y in ys])
    low, high = math.log(min(xs)), math.log(max(xs))
    steps = [math.exp(low + (high - low) * i / 100) for i in range(101)]
    axis.plot(steps, [math.exp(a + b * math.log(x)) if power else a + b * math.log(x) for x in steps],
              color=colour, lw=1, ls="--")
    return f" (x^{b:.3g})" if power else f" ({a:.3g} + {b:.3g} ln x)"


def tick_at_points(axis, points):
    """Few points of a logarithmic axis are its ticks: its own would overlap between two powers of ten."""
    if len(points) <= MOST_TICKS:
        axis.set_xticks(points, [label(point) for point in points])
        axis.set_xticks([], minor=True)


def draw_series(axis, figure, rows, index, name):
    colour = f"C{index % 10}"
    marker = MARKERS[index % len(MARKERS)]
    x = figure["x"]
    if figure["kind"] == "scatter":
        xs, ys = [row[x] for row in rows], [row["value"] for row in rows]
        fitted = draw_fit(axis, figure, xs, ys, colour)
        axis.plot(xs, ys, marker, ms=4, color=colour, label=name + fitted, alpha=0.8)
        return
    points = values_of(rows, x)
    stats = [summary([row for row in rows if row.get(x) == p], figure["band"]) for p in points]
    mean, low, high = (smoothed(list(s), figure["smooth"]) for s in zip(*stats))
    if figure["kind"] == "bars":
        return mean, [m - a for m, a in zip(mean, low)], points
    fitted = draw_fit(axis, figure, points, mean, colour)
    few = len(points) <= 24
    axis.plot(points, mean, marker if few else "", ms=4, ls="" if figure["fit"] != "none" else "-", lw=1.4,
              color=colour, label=name + fitted)
    if any(a != b for a, b in zip(low, high)):
        axis.fill_between(points, low, high, color=colour, alpha=0.15, lw=0)


def draw_bars(axis, figure, named):
    points = list(dict.fromkeys(p for _, rows in named for p in values_of(rows, figure["x"])))
    width = 0.8 / max(1, len(named))
    for i, (name, rows) in enumerate(named):
        bars = []
        for j, point in enumerate(points):
            here = [row for row in rows if row.get(figure["x"]) == point]
            if here:
                mean, low, high = summary(here, figure["band"])
                bars.append((j + (i - (len(named) - 1) / 2) * width, mean, mean - low, high - mean))
        if bars:
            at, mean, below, above = zip(*bars)
            errors = [below, above] if any(below) or any(above) else None
            axis.bar(at, mean, width, yerr=errors, label=name, color=f"C{i % 10}")
    axis.set_xticks(range(len(points)), [label(p) for p in points], rotation=0 if len(points) < 7 else 40)


def draw_heatmap(axis, figure, rows):
    xs, ys = values_of(rows, figure["x"]), values_of(rows, figure["y"])
    grid = [[math.nan] * len(xs) for _ in ys]
    for (i, y), (j, x) in itertools.product(enumerate(ys), enumerate(xs)):
        here = [row for row in rows if row.get(figure["x"]) == x and row.get(figure["y"]) == y]
        if not here:
            continue
        grid[i][j] = summary(here, "none")[0]
    known = [v for line in grid for v in line if not math.isnan(v)]
    low, high = min(known), max(known)
    if 0 <= low and high <= 1:
        low, high = 0, 1
    image = axis.imshow(grid, aspect="auto", cmap="viridis", vmin=low, vmax=high)
    for (i, y), (j, x) in itertools.product(enumerate(ys), enumerate(xs)):
        if math.isnan(grid[i][j]) or max(len(xs), len(ys)) > MOST_LABELS:
            continue
        text = f"{grid[i][j]:.3g}"
        if figure["best_over"]:
            here = [r for r in rows if r.get(figure["x"]) == x and r.get(figure["y"]) == y]
            text += f"\n{label(here[0].get(figure['best_over']))}"
        middle = (low + high) / 2
        axis.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if grid[i][j] < middle else "black")
    for set_ticks, values in ((axis.set_xticks, xs), (axis.set_yticks, ys)):
        some = range(0, len(values), math.ceil(len(values) / MOST_LABELS))
        set_ticks(some, [label(values[i]) for i in some])
    axis.grid(False)
    return image


def draw_histogram(axis, figure, named, rows):
    """Shares of each series in bins that all panels have in common."""
    edges = bin_edges([row["value"] for row in rows], figure["x_scale"] == "log")
    for index, name, own in named:
        found = [row["value"] for row in own]
        axis.hist(found, edges, weights=[1 / len(found)] * len(found), histtype="stepfilled", alpha=0.25,
                  color=f"C{index % 10}")
        axis.hist(found, edges, weights=[1 / len(found)] * len(found), histtype="step", label=name,
                  color=f"C{index % 10}", lw=1.4)
    axis.set_xscale(figure["x_scale"])


def bin_edges(values, log):
    """BINS bins of equal width, in logarithms if `log`."""
    low, high = min(values), max(values)
    if log:
        low, high = math.log(low), math.log(high)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = [low + (high - low) * i / BINS for i in range(BINS + 1)]
    edges = [math.exp(edge) for edge in edges] if log else edges
    edges[0], edges[-1] = min(edges[0], min(values)), max(edges[-1], max(values))  # rounding
    return edges


def draw_marginals(axis, figure, named, rows):
    """Histograms of both axes of a scatter, above it and at its right, in bins that all panels have in common."""
    for column, scale, box, flat in ((figure["x"], figure["x_scale"], (0, 1.02, 1, 0.2), False),
                                     ("value", figure["y_scale"], (1.02, 0, 0.2, 1), True)):
        shared = {"sharey" if flat else "sharex": axis}
        side = axis.inset_axes(box, **shared)
        edges = bin_edges([row[column] for row in rows if scale != "log" or row[column] > 0], scale == "log")
        for index, _, own in named:
            side.hist([row[column] for row in own], edges, histtype="stepfilled", alpha=0.35, color=f"C{index % 10}",
                      orientation="horizontal" if flat else "vertical")
        side.set_axis_off()


def chance_of(figure, panel):
    """A number, or None."""
    chance = figure.get("chance")
    return chance.get(label(panel)) if isinstance(chance, dict) else chance


def draw_chance(axis, chance):
    axis.axhline(chance, color="0.35", lw=1, ls="--")
    axis.text(1.01, chance, f"chance {chance:.3g}", transform=axis.get_yaxis_transform(), va="center", fontsize=7,
              color="0.35")  # next to the panel, where no line is


def draw_scale(canvas, image, axes, figure):
    """The scale of a heatmap."""
    name, chance = words(figure["metric"]), figure.get("chance")
    bar = canvas.colorbar(image, ax=axes, label=name if chance is None else f"{name} (dashed: chance {chance:.3g})")
    if chance is not None:
        bar.ax.axhline(chance, color="0.8", lw=1, ls="--")


def draw_legend(canvas, axes):
    """Of the series of all panels: below several panels, which need not have the same series, and below many series."""
    named = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels()):
            named.setdefault(name, handle)
    if len(axes) == 1 and len(named) <= MOST_NAMES:
        axes[0].legend(fontsize=8)
    else:
        columns = 2 if len(axes) == 1 else 3
        canvas.legend(named.values(), named.keys(), fontsize=8, loc="outside lower center", ncols=columns)


def draw(figure, all_rows, directory):
    """Why there is nothing to draw, or None."""
    rows = [dict(row) for row in all_rows
            if row["metric"] == figure["metric"] and row["value"] is not None and matches(row, figure["where"])]
    if figure["kind"] == "histogram":
        rows = [{**row, figure["x"]: row["value"]} for row in rows]
    elif not any(figure["x"] in row for row in rows):
        rows = with_metric(rows, all_rows, figure["x"])
    rows = [row for row in rows if figure["x"] in row]
    if figure["x_scale"] == "log":
        rows = [row for row in rows if row[figure["x"]] > 0]
    if not rows:
        return "it has no rows"
    groups = [g for g in [figure["panels"], figure["x"], figure["y"], *figure["series"]] if g]
    rows = best_rows(figure, rows, groups)
    if figure["kind"] == "histogram":
        figure = {**figure, "y_label": figure["y_label"] or "share"}
    panels = values_of(rows, figure["panels"]) if figure["panels"] else [None]
    columns = min(len(panels), 3)
    lines = math.ceil(len(panels) / columns)
    size = (5.2 * columns if columns == 1 else 3.6 * columns, 3.4 if lines == 1 else 2.7 * lines)
    canvas, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, sharey=figure["kind"] != "heatmap")
    axes = list(axes.flat)
    for axis in axes[len(panels):]:
        axis.set_axis_off()
    series = list(dict.fromkeys(tuple(row.get(s) for s in figure["series"]) for row in rows))
    image = None
    for axis, panel in zip(axes, panels):
        here = [row for row in rows if not figure["panels"] or row.get(figure["panels"]) == panel]
        if figure["kind"] == "heatmap":
            image = draw_heatmap(axis, figure, here)
        else:
            named = []
            for key in series:
                own = [row for row in here if tuple(row.get(s) for s in figure["series"]) == key]
                if own:
                    named.append((series.index(key), series_name(figure, key), own))
            if figure["kind"] == "bars":
                draw_bars(axis, figure, [(name, own) for _, name, own in named])
            elif figure["kind"] == "histogram":
                draw_histogram(axis, figure, named, rows)
            else:
                for index, name, own in named:
                    draw_series(axis, figure, own, index, name)
                axis.set_xscale(figure["x_scale"])
                if figure["kind"] == "lines" and figure["x_scale"] == "log":
                    tick_at_points(axis, values_of(rows, figure["x"]))
                elif figure["x_scale"] == "linear" and all(isinstance(row.get(figure["x"]), int) for row in rows):
                    axis.xaxis.get_major_locator().set_params(integer=True)
        if figure["kind"] != "heatmap":
            axis.set_yscale(figure["y_scale"])
            if (chance := chance_of(figure, panel)) is not None:
                draw_chance(axis, chance)
            if figure.get("marginals"):
                draw_marginals(axis, figure, named, rows)
        if figure["panels"]:
            name = words(figure["panels"])
            title = label(panel) if name == "map" else f"{name}: {label(panel)}"
            axis.set_title(title, fontsize=9, pad=40 if figure.get("marginals") else None)
        axis.set_xlabel(figure["x_label"] or words(figure["x"]))
        heat = figure["kind"] == "heatmap"
        axis.set_ylabel(figure["y_label"] or words(figure["y"] if heat else figure["metric"]))
    if image is not None:
        draw_scale(canvas, image, axes[:len(panels)], figure)
    elif len(series) > 1 or figure["fit"] != "none":
        draw_legend(canvas, axes[:len(panels)])
    if figure["title"]:
        letters = int(canvas.get_figwidth() * LETTERS_PER_INCH)
        canvas.suptitle(textwrap.fill(figure["title"], letters), fontsize=10)
    for kind in ("svg", "pdf"):
        path = os.path.join(directory, f"{figure['id']}.{kind}")
        unfinished = f"{path}.{os.getpid()}"
        canvas.savefig(unfinished, format=kind, metadata=KEPT_DATES[kind])
        os.replace(unfinished, path)
    return None


def main(path):
    with open(path, encoding="utf-8") as file:
        given = json.load(file)
    for figure in given["figures"]:
        try:
            reason = draw(figure, given["rows"], given["directory"])
        except OSError:
            raise
        except Exception as error:  # an axis or a fit that its values do not allow; the others can be drawn
            reason = f"{type(error).__name__}: {error}"
        plt.close("all")
        if reason is not None:
            print(f"not drawn: {figure['id']}: {' '.join(reason.split())}", flush=True)
            for kind in ("svg", "pdf"):
                pathlib.Path(given["directory"], f"{figure['id']}.{kind}").unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[-1])
