"""Class by class: how well each is found, and what it is taken for."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gmmseg.json_tree import JSON
from gmmseg.report.parts import Cell, Column, Matrix, Section, Table
from gmmseg.report.subjects import Subject, first_set

SHOWN_CLASSES = 30
"""A matrix of more classes shows those with most wrong pixels: a larger one is wallpaper."""
_PAIRS = 10
Counts = NDArray[np.float64]


def classes_section(subjects: Sequence[Subject]) -> Section | None:
    """The IoU of each class and the confusion matrices on the first labelled set; None without figures."""
    key, found = first_set(subjects, "closed_set")
    judged = {subject: entry for subject, entry in found.items() if entry.get("classes")}
    if not judged:
        return None
    counted = {subject.name: entry for subject, entry in judged.items() if "confusion" in entry}
    tables = [_class_table(judged, key), *(_pair_table(name, entry) for name, entry in counted.items())]
    text = (
        f"On `{key}`, the class with the lowest IoU first. An interval is where the figure lies in 95 of 100 "
        "sets of images drawn from this one, so it is wide where a class is in few images."
    )
    return Section(
        "Class by class",
        text + (_READING if counted else ""),
        tuple(table for table in tables if table is not None),
        matrices=tuple(_matrix(name, entry) for name, entry in counted.items()),
    )


_READING = (
    " A row of a confusion matrix says what the pixels of one class are taken for, in percent: blue is "
    "right, orange is wrong, and empty cells are below half a percent."
)


def _class_table(judged: dict[Subject, JSON], key: str) -> Table:
    """IoU of each class for every model; interval, accuracy and size of the class for the first one."""
    first = next(iter(judged.values()))
    own, counts = first["classes"], _counts(first)
    columns = [Column("class"), *(Column(f"{subject.name}: IoU %", "", 1, True) for subject in judged)]
    intervals = any("iou_interval" in figures for figures in own.values())
    name = next(iter(judged)).name
    columns += [Column(f"{name}: 95 % interval")] if intervals else []
    columns += [Column(f"{name}: accuracy %")] + (
        [Column("% of the pixels", digits=2)] if counts is not None else []
    )
    rows: list[tuple[float, tuple[Cell, ...]]] = []
    for number, (name, figures) in enumerate(own.items()):
        ious = [_percent(entry["classes"].get(name, {}).get("iou")) for entry in judged.values()]
        row: list[Cell] = [name, *ious]
        row += [interval_text(figures.get("iou_interval"))] if intervals else []
        row += [_percent(figures["accuracy"])]
        row += [] if counts is None else [100 * float(counts[number].sum() / max(counts.sum(), 1))]
        rows.append((ious[0], tuple(row)))
    rows.sort(key=lambda row: (math.isnan(row[0]), row[0]))
    return Table(tuple(columns), tuple(row for _, row in rows), f"{len(rows)} classes on {key}")


def _pair_table(name: str, entry: JSON) -> Table | None:
    """The most frequent mistakes; None where there are none."""
    counts, names = _counts(entry), list(entry["classes"])
    assert counts is not None
    wrong = counts * (1 - np.eye(len(counts)))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_PAIRS]
    places = [divmod(int(place), len(counts)) for place in order]
    rows = tuple(
        (
            f"{names[true]}, taken for {names[guess]}",
            100 * float(wrong[true, guess] / wrong.sum()),
            100 * float(wrong[true, guess] / counts[true].sum()),
        )
        for true, guess in places
        if wrong[true, guess] > 0
    )
    columns = (Column("mistake"), Column("% of all wrong pixels", "", 1, True), Column("% of the class"))
    return Table(columns, rows, f"{name}: the most frequent mistakes") if rows else None


def _matrix(name: str, entry: JSON) -> Matrix:
    """Shares of each true class, of the classes with most wrong pixels where there are many."""
    counts, names = _counts(entry), list(entry["classes"])
    assert counts is not None
    errors = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    chosen = sorted(np.argsort(-errors, kind="stable")[:SHOWN_CLASSES].tolist())
    total = counts.sum(1, keepdims=True)
    shares = np.divide(counts, total, out=np.full(counts.shape, np.nan), where=total > 0)
    shown = shares[np.ix_(chosen, chosen)]
    many = len(names) > len(chosen)
    if many:
        shown = np.concatenate([shown, shares[chosen].sum(1, keepdims=True) - shown.sum(1, keepdims=True)], 1)
    which = f"the {len(chosen)} of {len(names)} classes with most wrong pixels" if many else "all classes"
    return Matrix(
        tuple(names[index] for index in chosen),
        tuple(tuple(row) for row in shown.tolist()),
        f"{name}: confusion matrix of {which}; rows are labels, columns predictions, in % of the row",
        "others" if many else "",
    )


def _counts(entry: JSON) -> Counts | None:
    """Pixels by true and predicted class (c c); None in results of earlier versions."""
    return np.array(entry["confusion"], np.float64) if "confusion" in entry else None


def _percent(share: float | None) -> float:
    return math.nan if share is None else 100 * share


def interval_text(ends: Sequence[float] | None) -> str | None:
    """Both ends in percent; None where there is no interval."""
    if ends is None or any(map(math.isnan, ends)):
        return None
    return f"{100 * ends[0]:.1f} – {100 * ends[1]:.1f}"
