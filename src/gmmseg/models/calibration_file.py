"""What was found after training: thresholds, temperature and typical evidence, in a file beside the weights.

calibration.json names the weights it belongs to. Calibrating writes this file alone, and a file of other
weights, of other classes, or with a value that cannot be, is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path

from torch import Tensor

import gmmseg
from gmmseg.atomic import write_bytes
from gmmseg.bounds import Count, Positive, Share, Single, Temperature, Text, broken_rule, check_bounds, shown
from gmmseg.json_tree import JSON, Value
from gmmseg.labels import difference_of_classes
from gmmseg.models.false_alarms import PIXEL, ROUNDING, FalseAlarmCurve, FalseAlarms, Per, Promise
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.models.reference_images import ReferenceCounts
from gmmseg.models.weights import WeightsError

CALIBRATION_FILE = "calibration.json"
CALIBRATION_FORMAT = 2
READABLE_FORMATS = (1, CALIBRATION_FORMAT)
PIXELS = "pixels"
"""The threshold that at most ``share`` of known pixels, all images taken together, exceed: no promise."""
PROMISED = "promised"
"""The threshold that promises its ``false_alarms`` of a new image."""
ANOMALY_MAP = "anomaly_map"
"""The score thresholds are of: what a Prediction shows as ``anomaly``."""
FUSED = "fused"
"""The score of models with a density beside their head: energy and density, each standardised."""
FUSED_PARTS = ("energy", "density")
"""The scores whose moments the fused one needs."""
_AGAIN = "write it again with `gmmseg calibrate`, or remove it"


@dataclass(frozen=True)
class Threshold:
    """A pixel is unknown where its score exceeds ``value``."""

    value: Single
    share: Share | None = None
    """Of all known pixels of the calibration images together, how many exceed it; None: not recorded."""
    false_alarms: FalseAlarms | None = None
    """What it promises of a new image; None: nothing."""
    images: Count | None = None
    """How many images the promise rests on: those with a known pixel."""
    by_class: tuple[Single | None, ...] = ()
    """Thresholds with the same promise of the pixels that are predicted as each class, in images with such
    pixels; None for a class that too few images hold."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if (self.false_alarms is None) != (self.images is None):
            raise ValueError("a promise needs the number of images it rests on, and images a promise")
        if self.false_alarms is not None and self.images is not None:
            needed = self.false_alarms.images_needed
            if self.images < needed:
                raise ValueError(
                    f"{self.images} images cannot promise {self.false_alarms.alpha:g}: that takes {needed}"
                )


@dataclass(frozen=True)
class ScoreMoments:
    """Mean and standard deviation of a score over the known cells."""

    mean: Single
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
    """By kind, PROMISED or PIXELS; the former, where it is there, is what unknown masks are made with."""
    temperature: Temperature
    """What a Predictor divides logits by for its posterior."""
    typical: tuple[Single, ...] | None
    """Mean evidence of each class over its own pixels; None without mixtures."""
    data: CalibrationData | None
    """None where it was not recorded."""
    time: str | None = field(compare=False)
    """When, in UTC as ISO 8601; None where it was not recorded."""
    score: Text = ANOMALY_MAP
    """The name of the score that thresholds and quantiles are of."""
    quantiles: tuple[tuple[Share, Single], ...] = ()
    """Pairs (share, score): this share of known pixels has a higher score."""
    moments: Mapping[str, ScoreMoments] = field(default_factory=dict)
    """By name of a score; the fused one needs those of its parts."""
    inference: InferenceSettings | None = None
    """How images were looked at: in another size or other windows scores differ. None: not recorded."""
    false_alarms: Mapping[str, FalseAlarmCurve] = field(default_factory=dict)
    """What every threshold promises, per PIXEL and per IMAGE (regions of at least ``min_area`` pixels)."""
    image_statistics: Mapping[str, ReferenceCounts] = field(default_factory=dict)
    """Statistics of the calibration images as a whole, which `gmmseg monitor` compares others with."""
    version: str = field(default_factory=lambda: gmmseg.__version__)
    """Of the library that found it."""

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_values("thresholds", self.thresholds, Threshold)
        _check_values("moments", self.moments, ScoreMoments)
        _check_values("false_alarms", self.false_alarms, FalseAlarmCurve)
        _check_values("image_statistics", self.image_statistics, ReferenceCounts)
        self._check_promise()
        missing = [name for name in FUSED_PARTS if name not in self.moments]
        if self.score == FUSED and missing:
            raise ValueError(f"the fused score needs the moments of {' and '.join(missing)}")

    def _check_promise(self) -> None:
        """ValueError where a promise contradicts what else is known of the images it rests on."""
        counts = [each.images for each in self.false_alarms.values()]
        counts += [each.images for each in self.thresholds.values() if each.images is not None]
        most = max(counts, default=0)
        if self.data is not None and most > self.data.images:
            raise ValueError(f"it rests on {most} images, and there were {self.data.images}")
        for found in self.thresholds.values():
            asked = found.false_alarms
            curve = None if asked is None else self.false_alarms.get(asked.per)
            if asked is None or curve is None:
                continue
            rate = curve.least_rate(found.value)
            if rate > asked.alpha + ROUNDING:
                raise ValueError(
                    f"the threshold {found.value:g} does not keep its promise, {_percent(asked.alpha)} false "
                    f"alarms per {asked.per}: its curve says at least {_percent(rate)}"
                )

    @property
    def _shown(self) -> Threshold | None:
        """The threshold that unknown masks are made with."""
        return self.thresholds.get(PROMISED) or self.thresholds.get(PIXELS)

    @property
    def threshold(self) -> float | None:
        """From which anomaly score on a pixel is unknown."""
        return None if self._shown is None else self._shown.value

    @property
    def min_area(self) -> int:
        """The least number of pixels of an unknown region; smaller ones are no alarm."""
        promised = None if self._shown is None else self._shown.false_alarms
        return 1 if promised is None else promised.min_area

    @property
    def promise(self) -> Promise | None:
        """What the threshold promises of a new image; None where it promises nothing."""
        found = self._shown
        if found is None or found.false_alarms is None or found.images is None:
            return None
        asked = found.false_alarms
        return Promise(asked.per, asked.alpha, found.images, asked.min_area, self._data_name)

    @property
    def _data_name(self) -> str | None:
        return None if self.data is None else f"{self.data.name}/{self.data.split}"

    def promise_text(self) -> str:
        """What the threshold promises, for people: a phrase that completes "The threshold ..."."""
        promise, found = self.promise, self._shown
        if promise is not None:
            return _in_words(promise)
        if found is None:
            return "is not known yet"
        where = "" if self._data_name is None else f" of {self._data_name}"
        share = "an unknown share" if found.share is None else f"{_percent(found.share)}"
        return f"is exceeded by {share} of all known pixels{where} together, no promise of a new image"

    def promise_text_of(self, alpha: float, per: Per) -> str:
        """What the threshold of another rate promises, in the same words; it must have a curve."""
        return _in_words(Promise(per, alpha, self.false_alarms[per].images, self.min_area, self._data_name))

    def false_alarm_rate(self, threshold: float, per: Per = "pixel") -> float | None:
        """The rate of false alarms that ``threshold`` promises; None where no curve was recorded.

        Per image: the share of new images with an unknown region of at least ``min_area`` pixels.
        """
        curve = self.false_alarms.get(per)
        return None if curve is None else curve.rate(threshold)

    def p_values(self, scores: Tensor) -> Tensor | None:
        """How usual scores (...) are among known pixels, (...) float64 on the CPU; None where not recorded.

        With a promise per pixel, ``p_values(scores) <= alpha`` exactly where ``scores > threshold``.
        """
        curve = self.false_alarms.get(PIXEL)
        return None if curve is None else curve.p_values(scores)

    def class_thresholds(self) -> tuple[float, ...] | None:
        """A threshold for each predicted class, the common one for those without their own; None: no own."""
        found = self._shown
        if found is None or not found.by_class:
            return None
        return tuple(found.value if own is None else own for own in found.by_class)

    def classes_without_own_threshold(self) -> tuple[str, ...]:
        """Names of the classes that take the common threshold, as too few images hold them."""
        own = () if self._shown is None else self._shown.by_class
        names = self.data.classes if self.data else tuple(map(str, range(len(own))))
        return tuple(name for name, value in zip(names, own) if value is None)

    def check_model(
        self,
        weights: str,
        num_classes: int,
        label_names: Sequence[str] | None,
        scores: Sequence[str],
    ) -> None:
        """ValueError unless it was found for these weights (their digest), these classes and a score among
        ``scores``, which the model can show."""
        if self.weights != weights:
            raise ValueError(f"belongs to other weights ({shown(self.weights)}, these are {weights})")
        if self.typical is not None and len(self.typical) != num_classes:
            raise ValueError(f"typical has {len(self.typical)} entries for {num_classes} classes")
        if self.data is not None and len(self.data.classes) != num_classes:
            raise ValueError(f"was found on {len(self.data.classes)} classes, the model has {num_classes}")
        if self.data is not None and label_names is not None:
            difference = difference_of_classes(label_names, self.data.classes)
            if difference:
                raise ValueError(f"was found on {difference}")
        own = [len(each.by_class) for each in self.thresholds.values() if each.by_class]
        if any(count != num_classes for count in own):
            raise ValueError(f"by_class has {own[0]} entries for {num_classes} classes")
        if self.score not in scores:
            raise ValueError(f"is of the score {shown(self.score)}, this model shows {' or '.join(scores)}")


def possible_scores(has_density: bool) -> tuple[str, ...]:
    """The scores that a model can show, with or without a density beside its head."""
    return (ANOMALY_MAP, FUSED) if has_density else (ANOMALY_MAP,)


def _check_values(name: str, values: Mapping[str, object], kind: type) -> None:
    """ValueError unless all ``values`` are of ``kind``, by name."""
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, kind):
            raise ValueError(f"{name} must be {kind.__name__} objects by name, got {shown(key)}")


def _in_words(promise: Promise) -> str:
    like = "" if promise.data is None else f" like those of {promise.data}"
    rests = f"{promise.images} image{'' if promise.images == 1 else 's'}"
    if promise.per == PIXEL:
        share = _percent(promise.alpha)
        return f"flags on average at most {share} of the known pixels of a new image{like}, {rests}"
    area = f" of at least {promise.min_area} pixels" if promise.min_area > 1 else ""
    alarm = f"flags a region{area}" if area else "flags anything"
    return f"{alarm} in at most {_percent(promise.alpha)} of new normal images{like}, {rests}"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def write_calibration(calibration: Calibration, folder: Path) -> None:
    """Write calibration.json into ``folder``, whole or not at all; nothing else there changes."""
    text = json.dumps(calibration_tree(calibration), indent=2, allow_nan=False)
    write_bytes(folder / CALIBRATION_FILE, (text + "\n").encode())


def calibration_tree(calibration: Calibration) -> JSON:
    """What calibration.json holds of a calibration; `calibration_of` reads it."""
    return {"library": "gmmseg", "format": CALIBRATION_FORMAT, **asdict(calibration)}


def refuse_odd_calibration(folder: Path) -> None:
    """WeightsError where something else than a file lies in the place of calibration.json."""
    path = folder / CALIBRATION_FILE
    if path.exists() and not path.is_file():
        raise WeightsError(f"{path}: there is no regular file here; remove it")


def remove_calibration(folder: Path) -> None:
    """Remove calibration.json, which belongs to weights that are about to be replaced."""
    (folder / CALIBRATION_FILE).unlink(missing_ok=True)


def read_calibration(
    folder: Path,
    weights: str,
    num_classes: int,
    label_names: Sequence[str] | None,
    scores: Sequence[str],
) -> Calibration | None:
    """What calibration.json in ``folder`` says of the model that `Calibration.check_model` describes; None
    where there is no file."""
    refuse_odd_calibration(folder)
    path = folder / CALIBRATION_FILE
    if not path.exists():
        return None
    try:
        calibration = calibration_of(json.loads(path.read_text(encoding="utf-8")))
        calibration.check_model(weights, num_classes, label_names, scores)
    except (ValueError, TypeError, RecursionError) as error:
        raise WeightsError(f"{path}: {_reason(error)}; {_AGAIN}") from error
    return calibration


def stored_calibration(folder: Path) -> Calibration | None:
    """What calibration.json in ``folder`` says, whatever it belongs to; None where nothing readable is."""
    try:
        return calibration_of(json.loads((folder / CALIBRATION_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _reason(error: Exception) -> str:
    broken = isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError)
    return f"not valid JSON ({error})" if broken else str(error)


def calibration_of(tree: object) -> Calibration:
    """The Calibration of what calibration.json holds."""
    values = _entries(tree, Calibration, "it", also=("library", "format"))
    if values.pop("library") != "gmmseg":
        raise ValueError("not a calibration of a gmmseg segmenter")
    found = values.pop("format")
    if type(found) is not int or found not in READABLE_FORMATS:
        formats = " and ".join(map(str, READABLE_FORMATS))
        raise ValueError(f"format {shown(found)}, this version of gmmseg reads formats {formats}")
    values["thresholds"] = {
        name: _threshold(entry, f"thresholds/{name}") for name, entry in _object(values, "thresholds").items()
    }
    kinds = {"moments": ScoreMoments, "false_alarms": FalseAlarmCurve, "image_statistics": ReferenceCounts}
    for key, kind in kinds.items():
        values[key] = {
            name: kind(**_entries(entry, kind, f"{key}/{name}"))
            for name, entry in _object(values, key).items()
        }
    for key, single in (("inference", InferenceSettings), ("data", CalibrationData)):
        if values.get(key) is not None:
            values[key] = single(**_entries(values[key], single, key))
    return Calibration(**values)


def _object(values: JSON, key: str) -> JSON:
    """The object at ``key``; an empty one where there is none."""
    found = values.get(key, {})
    if broken_rule(found, dict):
        raise ValueError(f"{key} must be an object, got {shown(found)}")
    return found


def _threshold(tree: object, where: str) -> Threshold:
    entries = _entries(tree, Threshold, where)
    asked = entries.get("false_alarms")
    if asked is not None:
        entries["false_alarms"] = FalseAlarms(**_entries(asked, FalseAlarms, f"{where}/false_alarms"))
    return Threshold(**entries)


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
