"""results.json: the numbers, and everything needed to know what they mean."""

import json
import math
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from torch import Tensor

from gmmseg.atomic import write_bytes
from gmmseg.evaluation.calibration import CalibrationError
from gmmseg.evaluation.components import ComponentMetrics
from gmmseg.evaluation.confusion import ConfusionMatrix
from gmmseg.evaluation.detection import AnomalyCurve
from gmmseg.evaluation.per_image import Intervals, KnownImages
from gmmseg.evaluation.pooled import EvaluationError
from gmmseg.evaluation.results_fault import results_fault
from gmmseg.json_tree import JSON, Value

FORMAT = 1
_CURVE_POINTS = 200  # enough to draw a smooth line
_LIBRARIES = ("gmmseg", "torch", "numpy", "scipy", "torchmetrics")

AT_THRESHOLD = (
    "the model's anomaly map above its calibrated threshold, ignored pixels dropped; flagged_known: share of "
    "an image's known pixels, mean over images; images_with_alarm: of images without an unknown pixel"
)
RANKED = (
    "wrong: share of an image's judged pixels with another class, in anomaly sets missed or flagged in vain "
    "at the threshold; miou: mean over classes that occur in the image; strangeness: the anomaly score that "
    "1 % of its pixels exceed"
)
CLOSED_SET_PROTOCOL = {
    "miou": "one confusion matrix over the set at label resolution, ignored pixels dropped, "
    "mean over classes that occur",
    "ece": "15 equal-width bins of the top posterior, pooled over all labelled pixels, l1",
    "ece_as_trained": "the same without the temperature chosen on validation images",
    "confusion": "pixels by true class (row) and predicted class (column), in the order of the classes",
    "intervals": "bootstrap over images, 1000 draws, 95 % percentile, from the counts of each image",
    "images_ranked": RANKED,
    "at_threshold": AT_THRESHOLD,
}
ANOMALY_PROTOCOL = {
    "pooling": "every pixel of every image, ignored ones dropped, raw scores upsampled to the mask",
    "auroc": "trapezoid over distinct thresholds",
    "ap": "sum of precision x recall step over distinct thresholds",
    "fpr95": "false positive rate at the first threshold whose true positive rate is >= 0.95",
    "components": "SegmentMeIfYouCan: threshold of the best pixel F1 on the same set, 8-connected, "
    "sIoU and PPV thresholds 0.25..0.75",
    "intervals": "bootstrap over images, 1000 draws, 95 % percentile, from 512-atom summaries of each image",
    "images_ranked": RANKED,
    "at_threshold": AT_THRESHOLD,
}


def closed_set_entry(
    confusion: ConfusionMatrix,
    calibration: CalibrationError | None = None,
    names: tuple[str, ...] = (),
    as_trained: CalibrationError | None = None,
    images: KnownImages | None = None,
) -> JSON:
    """One closed set's part of the results, from metrics that have seen all of it.

    ``as_trained``: calibration before a temperature was chosen. ``images``: what was counted image by image.
    """
    figures = {key: plain(value) for key, value in confusion.compute().items()}
    classes = names or tuple(str(index) for index in range(confusion.num_classes))
    entry: JSON = {
        "task": "closed_set",
        "metrics": {key: figures[key] for key in ("miou", "pixel_accuracy", "mean_accuracy")},
        "classes": {
            name: {"iou": iou, "accuracy": accuracy}
            for name, iou, accuracy in zip(classes, *(_each(figures[key]) for key in ("iou", "accuracy")))
        },
        **_counted(confusion),
        "protocol": CLOSED_SET_PROTOCOL,
    }
    if calibration is not None:
        entry["metrics"].update({key: plain(value) for key, value in calibration.compute().items()})
        entry["reliability"] = {key: plain(value) for key, value in calibration.reliability().items()}
    if as_trained is not None:
        entry["metrics"]["ece_as_trained"] = plain(as_trained.compute()["ece"])
    if images is not None:
        entry["images_ranked"] = images.ranked()
        _add_intervals(entry, images.intervals())
    return entry


def _counted(confusion: ConfusionMatrix) -> JSON:
    """The matrix of all processes, and how much it has seen."""
    with confusion.sync_context():
        return {
            "confusion": plain(confusion.counts),
            "images": int(confusion.images),
            "pixels": int(confusion.counts.sum()),
            "ignored_pixels": int(confusion.ignored),
        }


def _add_intervals(entry: JSON, found: Intervals | None) -> None:
    """Put the intervals of the set's figures and of its classes into its entry."""
    if found is None:
        return
    entry["intervals"] = {name: list(ends) for name, ends in found.figures.items()}
    for figures, ends in zip(entry["classes"].values(), found.iou.tolist()):
        figures["iou_interval"] = ends


def _each(values: list[float] | float) -> list[float]:
    """One value per class; torchmetrics makes a single number of the values of one class."""
    return values if isinstance(values, list) else [values]


def anomaly_entry(
    curves: Mapping[str, AnomalyCurve], components: Mapping[str, ComponentMetrics] | None = None
) -> JSON:
    """One anomaly set's part of the results: one or more named scores, all over the same pixels."""
    counts = [curve.counts() for curve in curves.values()]
    if any(count != counts[0] for count in counts):
        raise EvaluationError("the scores of one set have seen different pixels; evaluate them together")
    return {
        "task": "anomaly",
        "scores": {name: _score_entry(curve, (components or {}).get(name)) for name, curve in curves.items()},
        "images": counts[0]["images"],
        "pixels": counts[0]["pixels"],
        "anomalous_pixels": counts[0]["anomalous"],
        "ignored_pixels": counts[0]["ignored"],
        "protocol": ANOMALY_PROTOCOL,
    }


def _score_entry(curve: AnomalyCurve, components: ComponentMetrics | None) -> JSON:
    entry: JSON = {key: plain(value) for key, value in curve.compute().items()}
    entry["curve"] = {key: plain(value) for key, value in curve.curve(_CURVE_POINTS).items()}
    if components is not None:
        entry["components"] = {key: plain(value) for key, value in components.compute().items()}
    if curve.per_image:
        entry["intervals"] = {key: list(value) for key, value in curve.confidence_intervals().items()}
    return entry


def build_results(
    name: str,
    sets: Mapping[str, JSON],
    *,
    seeds: Mapping[str, int] | None = None,
    settings: JSON | None = None,
    weights: str | None = None,
) -> JSON:
    """Results of the run or model ``name``: entries by set, with versions, seeds and settings.

    ``weights`` tells the model's weights from others (`gmmseg.models.saving.digest`).
    """
    return {
        "format": FORMAT,
        "name": name,
        "weights": weights,
        "sets": {key: dict(entry) for key, entry in sets.items()},
        "seeds": dict(seeds or {}),
        "settings": dict(settings or {}),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries the figures depend on."""
    found = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed as a package"
    return found


def plain(value: Value) -> Value:
    """Tensors, arrays and NumPy numbers as what JSON knows."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    return value


def write_results(results: JSON, path: str | Path) -> None:
    """Write ``results`` as JSON, whole or not at all; NaN and infinities become "nan", "inf", "-inf"."""
    text = json.dumps(_encoded(results), indent=2, allow_nan=False) + "\n"
    write_bytes(Path(path), _FLAT_LIST.sub(_on_one_line, text).encode())


# Text inside quotes has no line breaks in JSON, so this matches lists alone.
_FLAT_LIST = re.compile(r"\[\n\s+([^\[\]{}]*?)\n\s*\]")


def _on_one_line(found: re.Match[str]) -> str:
    """A list of plain values: a matrix of 150 classes is 150 lines, and a curve one."""
    return "[" + re.sub(r",\n\s+", ", ", found[1]) + "]"


def load_results(path: str | Path) -> JSON:
    """Results as they were written; a folder stands for the results.json in it."""
    path = Path(path)
    path = path / "results.json" if path.is_dir() else path
    if not path.is_file():
        raise EvaluationError(f"{path}: no such results file; write one with `gmmseg evaluate`")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"{path}: not JSON ({error}); write it again with `gmmseg evaluate`") from error
    known = isinstance(results, dict) and type(results.get("format")) is int and results["format"] == FORMAT
    if not known or "sets" not in results:
        raise EvaluationError(f"{path}: not a results file of format {FORMAT}; write it again")
    results = _decoded(results)
    fault = results_fault(results)
    if fault:
        raise EvaluationError(f"{path}: {fault}; write it again with `gmmseg evaluate`")
    return results


_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _encoded(value: Value) -> Value:
    value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {str(key): _encoded(item) for key, item in value.items()}
    return [_encoded(item) for item in value] if isinstance(value, list | tuple) else value


def _decoded(value: Value) -> Value:
    if isinstance(value, dict):
        return {key: item if _is_name(key, item) else _decoded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def _is_name(key: str, value: Value) -> bool:
    """A model or an image may be called "nan", and a class "name" or "image"."""
    return key in ("name", "image") and isinstance(value, str)
