"""What is wrong with results that somebody else may have written: every part that tables and reports read."""

import math
from collections.abc import Iterator

from gmmseg.json_tree import JSON

METRICS = {"closed_set": ("miou", "pixel_accuracy", "ece"), "anomaly": ("auroc", "ap", "fpr95")}
"""Numbers that a set of each task must hold."""
PARTS = ("curve", "components", "intervals")
CURVE = ("thresholds", "fpr", "tpr", "precision")
RELIABILITY = ("confidence", "accuracy", "count")
_SAID = ("promise", "score")
TOLD = ("fitted_on", "preset", "seeds", "settings", "versions")
"""How a figure was made, beside the figures; nobody computes with it."""


def results_fault(results: JSON) -> str | None:
    """The first thing missing or of the wrong kind in decoded results; None when all is there."""
    return next(_faults(results), None)


def _faults(results: JSON) -> Iterator[str]:
    if not isinstance(results.get("name"), str):
        yield "it has no name"
    if not isinstance(results.get("sets"), dict):
        yield "sets is no mapping of data sets"
        return
    if not isinstance(results.get("versions", {}), dict):
        yield "versions is no mapping"
    for name, entry in results["sets"].items():
        task = entry.get("task") if isinstance(entry, dict) else None
        if task == "closed_set":
            yield from _closed_set_faults(f"sets.{name}", entry)
        elif task == "anomaly":
            yield from _anomaly_faults(f"sets.{name}", entry)
        else:
            yield f"sets.{name} has no task closed_set or anomaly"


def _closed_set_faults(where: str, entry: JSON) -> Iterator[str]:
    yield from _threshold_faults(where, entry)
    yield from _number_faults(f"{where}.metrics", entry.get("metrics"), METRICS["closed_set"])
    if "reliability" in entry:
        yield from _column_faults(f"{where}.reliability", entry["reliability"], RELIABILITY)
    yield from _class_faults(where, entry)
    yield from _interval_faults(where, entry)
    yield from _ranked_faults(where, entry)


def _class_faults(where: str, entry: JSON) -> Iterator[str]:
    """Figures of the classes and their confusion matrix, in results that have them."""
    classes = entry.get("classes", {})
    if not isinstance(classes, dict):
        yield f"{where}.classes is no mapping of classes"
        return
    for name, figures in classes.items():
        place = f"{where}.classes.{name}"
        yield from _number_faults(place, figures, ("iou", "accuracy"), parts=("iou_interval",))
        if isinstance(figures, dict) and not _is_pair(figures.get("iou_interval", [0, 0])):
            yield f"{place}.iou_interval is no pair of numbers"
    if "confusion" in entry and not _is_square(entry["confusion"], len(classes)):
        yield f"{where}.confusion is no table of {len(classes)} by {len(classes)} counts"


def _is_square(table: object, side: int) -> bool:
    rows = table if isinstance(table, list) else []
    return len(rows) == side and all(
        isinstance(row, list) and len(row) == side and all(is_number(each) and each >= 0 for each in row)
        for row in rows
    )


def _ranked_faults(where: str, entry: JSON) -> Iterator[str]:
    """The worst and the strangest images, in results that name them."""
    ranked = entry.get("images_ranked", {})
    if not isinstance(ranked, dict):
        yield f"{where}.images_ranked is no mapping of lists"
        return
    for name, images in ranked.items():
        if not isinstance(images, list) or not all(map(_is_ranked_image, images)):
            yield f"{where}.images_ranked.{name} is no list of images with their figures"


def _is_ranked_image(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("image"), str):
        return False
    index = value.get("index")
    whole = isinstance(index, int) and not isinstance(index, bool) and index >= 0
    return whole and all(is_number(each) for name, each in value.items() if name != "image")


def _threshold_faults(where: str, entry: JSON) -> Iterator[str]:
    """What the threshold flags, in results that say it."""
    found = entry.get("at_threshold")
    if found is None:
        return
    yield from _number_faults(f"{where}.at_threshold", found, ("threshold", "promise"), parts=_SAID)
    for name in _SAID if isinstance(found, dict) else ():
        if not isinstance(found.get(name, ""), str):
            yield f"{where}.at_threshold.{name} is no text"


def _anomaly_faults(where: str, entry: JSON) -> Iterator[str]:
    yield from _threshold_faults(where, entry)
    yield from _ranked_faults(where, entry)
    scores = entry.get("scores")
    if not isinstance(scores, dict) or not scores:
        yield f"{where}.scores is no mapping of scores"
        return
    for name, score in scores.items():
        place = f"{where}.scores.{name}"
        yield from _number_faults(place, score, METRICS["anomaly"], parts=PARTS)
        if isinstance(score, dict):
            yield from _part_faults(place, score)


def _part_faults(where: str, score: JSON) -> Iterator[str]:
    if "curve" in score:
        yield from _column_faults(f"{where}.curve", score["curve"], CURVE)
    if "components" in score:
        yield from _number_faults(f"{where}.components", score["components"], ())
    yield from _interval_faults(where, score)


def _interval_faults(where: str, figures: JSON) -> Iterator[str]:
    intervals = figures.get("intervals", {})
    if not isinstance(intervals, dict) or not all(map(_is_pair, intervals.values())):
        yield f"{where}.intervals holds something that is no pair of numbers"


def _number_faults(
    where: str, numbers: object, needed: tuple[str, ...], parts: tuple[str, ...] = ()
) -> Iterator[str]:
    """All entries but ``parts`` are numbers, and those ``needed`` are there."""
    if not isinstance(numbers, dict):
        yield f"{where} is no mapping of numbers"
        return
    yield from (f"{where}.{name} is missing" for name in needed if name not in numbers)
    for name, value in numbers.items():
        told = name in TOLD or name.startswith("components (")
        if name not in parts and not told and not is_number(value):
            yield f"{where}.{name} is no number"


def _column_faults(where: str, table: object, needed: tuple[str, ...]) -> Iterator[str]:
    """Lists of numbers, all of one length and not empty."""
    if not isinstance(table, dict):
        yield f"{where} is no table"
        return
    for name in needed:
        column = table.get(name)
        if not isinstance(column, list) or not column or not all(map(is_number, column)):
            yield f"{where}.{name} is no list of numbers"
            return
    if len({len(table[name]) for name in needed}) > 1:
        yield f"{where} has columns of different lengths"


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value))


def is_number(value: object) -> bool:
    """Whether ``value`` is a number that floating point can hold; NaN and infinities are."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**1000
    return isinstance(value, float) and (not math.isfinite(value) or abs(value) < 1e300)
