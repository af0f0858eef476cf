"""Charts. The only door to matplotlib; plain numbers in, figures out.

Everything that is ink is drawn in the colour of the page's text, so that a chart reads in light and dark;
series are told apart by colours that stand out on both, and by dashes and markers. A line of a single point
is none: it is left out, and so is a chart without a line.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from gmmseg.json_tree import Value
from gmmseg.printable import printable
from gmmseg.report.parts import Figure
from gmmseg.report.projection import main_plane, most_frequent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

Numbers = Sequence[float] | np.ndarray
Curve = Mapping[str, Value]
Records = Sequence[Mapping[str, Value]]

Dash = str | tuple[int, tuple[int, ...]]
"""A word of matplotlib, or where dashes begin and how long dashes and gaps are."""

COLOURS = ("#2f7fc9", "#e0762a", "#2c9c6a", "#9067cf", "#c8508a", "#8a8f98", "#b08a1e", "#1b9aaa")
DASHES: tuple[Dash, ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (1, 1)),
    (0, (8, 2)),
    (0, (3, 3)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*")
KNOWN, UNKNOWN = COLOURS[0], COLOURS[1]
_UNKNOWN_POINTS = "#8a8f98"  # drawn into bitmaps, which do not follow the theme
_INK = "#0a0b0c"  # stands for the colour of the page's text

EM_DIAGNOSTICS = {
    "log_likelihood": "mean log likelihood of the points",
    "occupancy": "least occupied component (1 = even)",
    "separation": "nearest two components (standard deviations)",
    "fill": "memory behind a component",
    "collapsed": "components that coincide",
    "starved": "components hardly used",
}
"""What EM reports of itself while training, in words."""


class _Line(TypedDict):
    """How matplotlib draws a line."""

    color: str
    linestyle: Dash
    linewidth: float
    marker: str
    markersize: float
    markevery: float | None


class _Marks(TypedDict, total=False):
    """How matplotlib draws points."""

    color: str
    s: float
    marker: str
    alpha: float
    linewidths: float


def reliability_diagram(tables: Mapping[str, Curve]) -> Figure | None:
    """Accuracy against confidence, one line per model, above how the pixels spread over the confidences.

    ``tables``: model -> {"confidence", "accuracy", "count"}, lists over the bins; where the count is 0 the
    other two may hold anything.
    """
    filled = {name: _filled_bins(table) for name, table in tables.items()}
    filled = {name: bins for name, bins in filled.items() if len(bins[0]) > 1}
    if not filled:
        return None
    drawing = _drawing(height=4.3)
    above, below = drawing.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    above.plot([0, 1], [0, 1], color=_INK, alpha=0.45, linewidth=1, label="perfectly calibrated")
    errors = []
    for i, (name, (confidence, accuracy, share)) in enumerate(filled.items()):
        error = float((share * np.abs(confidence - accuracy)).sum())
        errors.append(f"{name} {error:.1%}")
        look = _series(i, dots=True)
        above.plot(confidence, accuracy, label=f"{_label(name)}, ECE {error:.1%}", **look)
        below.plot(confidence, share, **look)
    above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    below.set(xlabel="confidence", ylabel="pixels", yscale="log")
    _legend(drawing, above)
    alt = f"Reliability diagram. Expected calibration error: {', '.join(errors)}."
    return _figure(drawing, alt, "Reliability: accuracy at each confidence")


def bars(values: Mapping[str, float], *, chosen: str, caption: str, label: str) -> Figure:
    """One horizontal bar for each name, in the order given; that of ``chosen`` stands out.

    Bars begin at the least value, of which a tenth of the range is shown: logs have no zero of their own.
    """
    numbers = list(values.values())
    low, high = min(numbers), max(numbers)
    start = low - 0.1 * ((high - low) or 1.0)
    drawing = _drawing(height=max(1.6, 0.9 + 0.26 * len(values)))
    axes = drawing.subplots()
    colours = [UNKNOWN if name == chosen else KNOWN for name in values]
    places = list(range(len(values)))
    axes.barh(places, [value - start for value in numbers], left=start, color=colours, height=0.7)
    axes.set_yticks(places, [_label(name) for name in values])
    axes.set(xlabel=label, xlim=(start, high + 0.05 * ((high - low) or 1.0)))
    axes.invert_yaxis()
    alt = f"{caption}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()) + "."
    return _figure(drawing, alt, caption)


def _filled_bins(table: Curve) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Confidence, accuracy and share of the pixels of the bins that hold any."""
    count = np.asarray(table["count"], dtype=float)
    filled = count > 0
    confidence, accuracy = (np.asarray(table[key], dtype=float)[filled] for key in ("confidence", "accuracy"))
    return confidence, accuracy, count[filled] / count.sum()


def roc_curves(curves: Mapping[str, Curve]) -> Figure | None:
    """``curves``: score -> {"fpr", "tpr"}, lists over falling thresholds, and "auroc" in [0, 1] if known."""
    curves = _lines(curves)
    if not curves:
        return None
    drawing = _drawing()
    axes = drawing.subplots()
    axes.plot([0, 1], [0, 1], color=_INK, alpha=0.45, linewidth=1)
    for i, (name, curve) in enumerate(curves.items()):
        label = _with_number(name, curve, "auroc")
        axes.plot([0, *curve["fpr"]], [0, *curve["tpr"]], label=label, **_series(i))
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01))
    _legend(drawing, axes)
    return _figure(drawing, f"ROC curves. {_numbers(curves, 'auroc', 'AUROC')}", "ROC curves (AUROC)")


def pr_curves(curves: Mapping[str, Curve]) -> Figure | None:
    """``curves``: score -> {"tpr", "precision"} (recall is the tpr) and "ap" in [0, 1] if known."""
    curves = _lines(curves)
    if not curves:
        return None
    drawing = _drawing()
    axes = drawing.subplots()
    for i, (name, curve) in enumerate(curves.items()):
        # Steps, as average precision is computed: no credit for points between the thresholds.
        recall, precision = [0, *curve["tpr"]], [curve["precision"][0], *curve["precision"]]
        label = _with_number(name, curve, "ap")
        axes.plot(recall, precision, label=label, drawstyle="steps-pre", **_series(i))
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.01))
    _legend(drawing, axes)
    alt = f"Precision-recall curves. {_numbers(curves, 'ap', 'average precision')}"
    return _figure(drawing, alt, "Precision and recall (average precision)")


def _lines(curves: Mapping[str, Curve]) -> Mapping[str, Curve]:
    """The curves of more than one point: a score that is the same everywhere has none."""
    return {name: curve for name, curve in curves.items() if len(curve["tpr"]) > 1}


def score_histogram(name: str, histogram: Curve, threshold: float | None = None) -> Figure:
    """How one score spreads over known and unknown pixels, each as a density, and where unknown begins.

    ``histogram``: {"edges" (n + 1), "known" (n), "unknown" (n)}, counts per bin.
    """
    drawing = _drawing()
    axes = drawing.subplots()
    edges = np.asarray(histogram["edges"], dtype=float)
    for label, colour in (("known", KNOWN), ("unknown", UNKNOWN)):
        count = np.asarray(histogram[label], dtype=float)
        density = count / max(count.sum(), 1) / np.diff(edges)
        axes.stairs(density, edges, fill=True, color=colour, alpha=0.35)
        axes.stairs(density, edges, color=colour, linewidth=1.4, label=f"{label} pixels")
    if threshold is not None:
        axes.axvline(threshold, color=_INK, linewidth=1.4, linestyle="--", label=f"threshold {threshold:.4g}")
    axes.set(xlabel=f"{_label(name)} (higher = stranger)", ylabel="density")
    axes.set_yticks([])
    _legend(drawing, axes)
    begins = "" if threshold is None else f" Unknown begins at the threshold, {threshold:.4g}."
    return _figure(drawing, f"Histogram of the score {name} over known and unknown pixels.{begins}", name)


def training_curve(
    runs: Mapping[str, Records], key: str, label: str = "", *, step: str = "step"
) -> Figure | None:
    """One logged number over the steps, one line per run; records without it are passed over.

    ``runs``: run -> records, each a mapping with ``step`` and numbers, as `read_log` returns them.
    """
    logged = {name: _logged(records, key, step) for name, records in runs.items()}
    logged = {name: line for name, line in logged.items() if len(line[0]) > 1}
    if not logged:
        return None
    drawing = _drawing(height=2.9)
    axes = drawing.subplots()
    for i, (name, (steps, values)) in enumerate(logged.items()):
        axes.plot(steps, values, label=_label(name), **_series(i, dots=len(steps) < 25))
    axes.set(xlabel=step)
    _legend(drawing, axes)
    label = label or key.replace("_", " ").replace("/", ": ")
    return _figure(drawing, f"{label} over training, for {', '.join(logged)}.", label)


def em_diagnostics(runs: Mapping[str, Records], *, step: str = "step") -> tuple[Figure, ...]:
    """A chart for each number of EM_DIAGNOSTICS that the records of any run hold more than once."""
    drawn = (training_curve(runs, key, label, step=step) for key, label in EM_DIAGNOSTICS.items())
    return tuple(figure for figure in drawn if figure is not None)


def projection(
    points: Tensor,
    labels: Tensor,
    means: Tensor,
    variances: Tensor,
    names: Sequence[str],
    colours: Sequence[tuple[int, int, int]],
    *,
    classes: Sequence[int] | None = None,
    unknown: Tensor | None = None,
) -> Figure:
    """Points (n d) with labels (n) in their two main directions, and their mixtures' components as ellipses.

    Means and variances are (c k d); an ellipse is two standard deviations of a component. ``names`` and
    ``colours`` (red, green, blue up to 255) are of all c classes, ``classes`` which of them to show (default:
    the five with most points). ``unknown`` (m d): points of no class, as crosses.
    """
    points, means, variances = (torch.as_tensor(values).float() for values in (points, means, variances))
    labels = torch.as_tensor(labels).long()
    chosen = list(classes) if classes is not None else most_frequent(labels, len(names), 5)
    plane = main_plane(points[torch.isin(labels, torch.tensor(chosen))])
    drawing = _drawing(height=4.4)
    axes = drawing.subplots()
    for index in chosen:
        colour = "#{:02x}{:02x}{:02x}".format(*colours[index])
        _scatter(axes, plane.project(points[labels == index]), color=colour, s=4, alpha=0.3, linewidths=0)
        for outline in plane.outlines(means[index], variances[index]):
            axes.plot(outline[:, 0], outline[:, 1], color=colour, linewidth=1.5)
        axes.plot([], [], "o", color=colour, label=_label(names[index]))
    if unknown is not None and len(unknown):
        strange = plane.project(torch.as_tensor(unknown).float())
        _scatter(axes, strange, color=_UNKNOWN_POINTS, s=12, marker="x", alpha=0.7, linewidths=0.8)
        axes.plot([], [], "x", color=_UNKNOWN_POINTS, label="unknown")
    axes.set(xlabel=f"first direction ({plane.shares[0]:.0%} of the spread)", xticks=[], yticks=[])
    axes.set(ylabel=f"second direction ({plane.shares[1]:.0%})")
    _legend(drawing, axes)
    shown = ", ".join(names[index] for index in chosen)
    alt = f"Points of {shown} in two dimensions, with their Gaussian components as ellipses."
    return _figure(drawing, alt, "Points and their mixtures (ellipses: two standard deviations)")


def _scatter(axes: "Axes", flat: torch.Tensor, **look: Unpack[_Marks]) -> None:
    """At most 1500 of the points (n 2), as one small bitmap inside the chart."""
    some = flat[:: max(1, len(flat) // 1500)]
    axes.scatter(some[:, 0], some[:, 1], rasterized=True, **look)


def _logged(records: Records, key: str, step: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values where there are any; of long logs, means over at most 300 stretches."""
    pairs = [(record.get(step), record.get(key)) for record in records]
    pairs = [pair for pair in pairs if all(isinstance(value, int | float) for value in pair)]
    steps, values = np.array(pairs, dtype=float).reshape(-1, 2).T
    if len(steps) <= 300:
        return steps, values
    stretches = np.array_split(np.arange(len(steps)), 300)
    return np.array([steps[s].mean() for s in stretches]), np.array([values[s].mean() for s in stretches])


def _series(index: int, *, dots: bool = False) -> _Line:
    """The look of a line, which no other line of its chart has, however many there are.

    Eight colours with eight dashes, shifted in each round; later rounds also have markers, which grow when
    all of them have been used. ``dots``: each point is marked, in the first round too.
    """
    rounds, place = divmod(index, len(COLOURS))
    marked = rounds - 1 + dots
    return {
        "color": COLOURS[place],
        "linestyle": DASHES[(place + rounds) % len(DASHES)],
        "linewidth": 1.8,
        "marker": MARKERS[marked % len(MARKERS)] if marked >= 0 else "",
        "markersize": 4.5 + max(marked, 0) // (len(MARKERS) * len(DASHES)),
        "markevery": None if dots else 0.12,
    }


def _label(name: str) -> str:
    """A name as a chart shows it: dollar signs are no mathematics, and a first underscore hides nothing."""
    text = printable(name).replace("$", r"\$")
    return "\u200b" + text if text.startswith("_") else text


def _with_number(name: str, curve: Curve, key: str) -> str:
    name = _label(name)
    return f"{name} ({100 * curve[key]:.1f})" if key in curve else name


def _numbers(curves: Mapping[str, Curve], key: str, label: str) -> str:
    known = [f"{name} {100 * curve[key]:.1f}" for name, curve in curves.items() if key in curve]
    return f"{label}: {', '.join(known)}." if known else f"Of {', '.join(curves)}."


def _drawing(height: float = 3.9) -> "Drawing":
    from matplotlib.figure import Figure as Drawing

    return Drawing(figsize=(4.4, height), layout="constrained")


def _legend(drawing: "Drawing", axes: "Axes") -> None:
    """Under the chart, where it hides nothing."""
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        columns = 2 if max(map(len, labels)) <= 16 else 1
        rows = -(-len(labels) // columns)
        # Many lines make a taller figure, not a flatter chart.
        drawing.set_figheight(drawing.get_figheight() + 0.2 * max(0, rows - 2))
        drawing.legend(loc="outside lower left", ncols=columns, frameon=False, fontsize=10, handlelength=2.6)


def _figure(drawing: "Drawing", alt: str, caption: str) -> Figure:
    """The drawing as SVG with the page's ink; text stays text."""
    import matplotlib

    alt, caption = printable(alt), printable(caption)
    for axes in drawing.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=_INK, alpha=0.12, linewidth=0.7)
        axes.tick_params(colors=_INK, labelsize=9.5)
        axes.spines[["left", "bottom"]].set_color(_INK)
    for text in drawing.findobj(matplotlib.text.Text):
        text.set_color(_INK)
    buffer = BytesIO()
    # Identifiers in the SVG are made of the salt: figures on one page must not share any.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": alt + caption}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawing.savefig(buffer, format="svg", transparent=True, dpi=150, metadata=nothing)
    return Figure(buffer.getvalue().replace(_INK.encode(), b"currentColor"), "svg", alt, caption)
