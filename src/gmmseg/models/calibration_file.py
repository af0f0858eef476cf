"""What was found after training: thresholds, temperature and typical evidence, in a file beside the weights.

calibration.json names the weights it belongs to. Calibrating writes this file alone, and a file of other
weights, of other classes, or with a value that cannot be, is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path

import gmmseg
from gmmseg.atomic import write_bytes
from gmmseg.bounds import Count, Positive, Share, Text, broken_rule, check_bounds, shown
from gmmseg.json_tree import JSON, Value
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.models.weights import WeightsError

CALIBRATION_FILE = "calibration.json"
CALIBRATION_FORMAT = 1
PIXELS = "pixels"
"""The promise of a threshold that at most ``share`` of known pixels, all images taken together, exceed."""
ANOMALY_MAP = "anomaly_map"
"""The score thresholds are of: what a Prediction shows as ``anomaly``."""
FUSED = "fused"
"""The score of models with a density beside their head: energy and density, each standardised."""
_AGAIN = "write it again with `gmmseg calibrate`, or remove it"


@dataclass(frozen=True)
class Threshold:
    """A pixel is unknown where its score exceeds ``value``; ``share`` says how often a known one does.

    What it is the share of, pixels or something else, is the promise it is filed under. None: not recorded.
    """

    value: float
    share: Share | None = None

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class ScoreMoments:
    """Mean and standard deviation of a score over the known cells."""

    mean: float
    deviation: Positive

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class CalibrationData:
    """The labelled images a calibration was found on: a data set's name and split, its classes, how many."""

    name: str
    split: str
    classes: tuple[str, ...]
    images: Count

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class Calibration:
    """What was found after training, on labelled images (``data``) that were not trained on.

    Equal calibrations say the same of the same weights; when they were found does not matter.
    """

    weights: Text
    """The weights it belongs to: `gmmseg.models.saving.digest`."""
    thresholds: Mapping[str, Threshold]
    """By promise; PIXELS is the one that unknown masks are made with."""
    temperature: Positive
    """What a Predictor divides logits by for its posterior."""
    typical: tuple[float, ...] | None
    """Mean evidence of each class over its own pixels; None without mixtures."""
    data: CalibrationData | None
    """None where it was not recorded."""
    time: str | None = field(compare=False)
    """When, in UTC as ISO 8601; None where it was not recorded."""
    score: Text = ANOMALY_MAP
    """The name of the score that thresholds and quantiles are of."""
    quantiles: tuple[tuple[Share, float], ...] = ()
    """Pairs (share, score): this share of known pixels has a higher score."""
    moments: Mapping[str, ScoreMoments] = field(default_factory=dict)
    """By name of a score; the fused one needs those of its parts."""
    inference: InferenceSettings | None = None
    """How images were looked at: in another size or other windows scores differ. None: not recorded."""
    version: str = field(default_factory=lambda: gmmseg.__version__)
    """Of the library that found it."""

    def __post_init__(self) -> None:
        check_bounds(self)
        for promise, threshold in self.thresholds.items():
            if not isinstance(promise, str) or not isinstance(threshold, Threshold):
                raise ValueError(f"thresholds must be Threshold objects by promise, got {shown(promise)}")
        for name, found in self.moments.items():
            if not isinstance(name, str) or not isinstance(found, ScoreMoments):
                raise ValueError(f"moments must be ScoreMoments objects by score, got {shown(name)}")
        if self.score == FUSED and not self.moments:
            raise ValueError("the fused score needs the moments of its parts")

    @property
    def threshold(self) -> float | None:
        """From which anomaly score on a pixel is unknown."""
        found = self.thresholds.get(PIXELS)
        return None if found is None else found.value

    def check_model(self, weights: str, num_classes: int) -> None:
        """ValueError unless it was found for these weights (their digest) and as many classes."""
        if self.weights != weights:
            raise ValueError(f"belongs to other weights ({shown(self.weights)}, these are {weights})")
        if self.typical is not None and len(self.typical) != num_classes:
            raise ValueError(f"typical has {len(self.typical)} entries for {num_classes} classes")
        if self.data is not None and len(self.data.classes) != num_classes:
            raise ValueError(f"was found on {len(self.data.classes)} classes, the model has {num_classes}")


def write_calibration(calibration: Calibration, folder: Path) -> None:
    """Write calibration.json into ``folder``, whole or not at all; nothing else there changes."""
    about = {"library": "gmmseg", "format": CALIBRATION_FORMAT}
    text = json.dumps({**about, **asdict(calibration)}, indent=2, allow_nan=False)
    write_bytes(folder / CALIBRATION_FILE, (text + "\n").encode())


def remove_calibration(folder: Path) -> None:
    """Remove calibration.json, which belongs to weights that are about to be replaced."""
    (folder / CALIBRATION_FILE).unlink(missing_ok=True)


def read_calibration(folder: Path, weights: str, num_classes: int) -> Calibration | None:
    """What calibration.json in ``folder`` says of ``weights`` (their digest); None where there is no file."""
    path = folder / CALIBRATION_FILE
    if not path.exists():
        return None
    if not path.is_file():
        raise WeightsError(f"{path}: there is no regular file here; remove it")
    try:
        calibration = _from_tree(json.loads(path.read_text(encoding="utf-8")))
        calibration.check_model(weights, num_classes)
    except (ValueError, TypeError, RecursionError) as error:
        raise WeightsError(f"{path}: {_reason(error)}; {_AGAIN}") from error
    return calibration


def _reason(error: Exception) -> str:
    broken = isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError)
    return f"not valid JSON ({error})" if broken else str(error)


def _from_tree(tree: object) -> Calibration:
    """The Calibration of what calibration.json holds."""
    values = _entries(tree, Calibration, "it", also=("library", "format"))
    if values.pop("library") != "gmmseg":
        raise ValueError("not a calibration of a gmmseg segmenter")
    found = values.pop("format")
    if type(found) is not int or found != CALIBRATION_FORMAT:
        raise ValueError(f"format {shown(found)}, this version of gmmseg reads format {CALIBRATION_FORMAT}")
    if broken_rule(values["thresholds"], dict):
        raise ValueError(f"thresholds must be an object, got {shown(values['thresholds'])}")
    values["thresholds"] = {
        promise: Threshold(**_entries(threshold, Threshold, f"thresholds/{promise}"))
        for promise, threshold in values["thresholds"].items()
    }
    moments = values.get("moments", {})
    if broken_rule(moments, dict):
        raise ValueError(f"moments must be an object, got {shown(moments)}")
    values["moments"] = {
        name: ScoreMoments(**_entries(found, ScoreMoments, f"moments/{name}"))
        for name, found in moments.items()
    }
    if values.get("inference") is not None:
        entries = _entries(values["inference"], InferenceSettings, "inference")
        values["inference"] = InferenceSettings(**entries)
    if values["data"] is not None:
        values["data"] = CalibrationData(**_entries(values["data"], CalibrationData, "data"))
    return Calibration(**values)


def _entries(tree: object, kind: type, where: str, also: tuple[str, ...] = ()) -> JSON:
    """The entries of a JSON object, which must be the fields of ``kind``; those with a default may lack."""
    if not isinstance(tree, dict):
        raise ValueError(f"{where} must be an object, got {shown(tree)}")
    defaults = {each.name: (each.default, each.default_factory) for each in fields(kind)}
    known = {*also, *defaults}
    needed = {*also, *(name for name, default in defaults.items() if default == (MISSING, MISSING))}
    missing, unknown = sorted(needed - tree.keys()), sorted(tree.keys() - known)
    if missing or unknown:
        fault = f"lacks {', '.join(missing)}" if missing else f"holds unknown {', '.join(unknown)[:80]}"
        raise ValueError(f"{where} {fault}")
    return dict(tree)


def calibration_of_format_1(config: Mapping[str, Value], weights: str) -> Calibration | None:
    """What config.json of format 1 says itself of ``weights``; None where nothing was found yet."""
    threshold, typical = config.get("threshold"), config.get("typical")
    temperature = config.get("temperature", 1.0)
    if threshold is None and typical is None and temperature == 1:
        return None
    thresholds = {} if threshold is None else {PIXELS: Threshold(threshold)}
    return Calibration(
        weights, thresholds, temperature, tuple(typical) if typical else None, data=None, time=None
    )
