"""One slider for the thresholds of several models: it counts in false alarms where calibrations know them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gmmseg.inference.heat import Scores
from gmmseg.models import Calibration
from gmmseg.models.false_alarms import IMAGE, PIXEL, FalseAlarmCurve, Per

_STEP = 0.1
_USUAL, _HIGHEST = 5.0, 25.0
_DIGITS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
_EVEN_STEPS = 40
RAW, SHARE = "raw", "share"
AGAIN = "`gmmseg calibrate MODEL --data NAME:ROOT:val` finds thresholds with a promise"


@dataclass(frozen=True)
class ThresholdScale:
    """What a slider counts in, from ``low`` to ``high`` in steps, and where it starts.

    ``unit``: PIXEL and IMAGE are the false alarms that are promised, in percent. Where no model has a
    calibration that knows them: RAW, the score itself, of one model; SHARE, of several, whose scores have
    nothing in common: the strangest pixels of the picture, in percent.
    """

    unit: Literal["pixel", "image", "raw", "share"]
    low: float
    high: float
    step: float
    start: float

    @property
    def label(self) -> str:
        """What the number on the slider is."""
        return {
            PIXEL: "False alarms promised, % of known pixels",
            IMAGE: "False alarms promised, % of normal images",
            RAW: "Threshold, raw anomaly score",
            SHARE: "Strangest pixels of this picture, %",
        }[self.unit]

    @property
    def positions(self) -> tuple[float, ...]:
        """Some values of the scale, the start among them, in an order in which more and more is unknown.

        Of rates, which matter most where they are low, in steps of about a fifth; of scores in equal steps.
        """
        if self.unit == RAW:
            even = np.linspace(self.low, self.high, _EVEN_STEPS).tolist()
            return tuple(sorted({self.start, *map(_short, even)}, reverse=True))
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = (_short(digit * 10.0**decade) for decade in decades for digit in _DIGITS)
        return tuple(sorted({self.start, *(each for each in values if self.low <= each <= self.high)}))

    def shown(self, value: float) -> str:
        """A value of the scale as people read it."""
        return f"{value:.4g}" if self.unit == RAW else f"{value:.4g} %"

    def threshold(
        self, value: float, calibration: Calibration | None, anomaly: Scores | None
    ) -> float | None:
        """The threshold of one model with the slider at ``value``; None where none promises so little.

        A model without the curve beside others that have one gets the score that this share of the picture's
        own pixels ``anomaly`` (h w) exceeds, and none while there is no picture.
        """
        if self.unit == RAW:
            return value
        curve = _curve(calibration, self.unit)
        if curve is None or calibration is None:
            return None if anomaly is None else float(np.quantile(anomaly, 1 - value / 100))
        own = _own_position(calibration, self.unit)
        if own is not None and math.isclose(own, value, rel_tol=1e-6):
            return calibration.threshold
        return curve.threshold(value / 100)

    def words(self, value: float, threshold: float | None, calibration: Calibration | None) -> str:
        """What a model's threshold at ``value`` promises, a phrase that completes "The threshold ..."."""
        curve = _curve(calibration, self.unit)
        if calibration is None or curve is None or self.unit == "raw" or self.unit == "share":
            return no_promise(calibration)
        if threshold is None:
            least = 100 * curve.rates[-1]
            seen = f"{curve.images} calibration images"
            return f"for {value:.4g} % is not known: {seen} allow {least:.3g} % at best"
        return calibration.promise_text_of(value / 100, self.unit)


def no_promise(calibration: Calibration | None) -> str:
    """Why the threshold of a model promises nothing, a phrase that completes "The threshold ..."."""
    if calibration is None:
        return f"promises nothing, since the model is not calibrated: {AGAIN}"
    return f"promises nothing, since the calibration knows no false-alarm rates: {AGAIN}"


def threshold_scale(calibrations: Sequence[Calibration | None], scores: Sequence[Scores]) -> ThresholdScale:
    """The scale of a slider for models with these calibrations; ``scores``: their maps of the picture."""
    known = scale_of_any_picture(calibrations)
    return _raw_scale(calibrations[0], scores[0]) if known is None else known


def scale_of_any_picture(calibrations: Sequence[Calibration | None]) -> ThresholdScale | None:
    """The scale for models with these calibrations where no picture is needed for it, else None.

    One model without false-alarm rates counts in scores, whose range only a picture tells.
    """
    promises = [each.promise for each in calibrations if each is not None and each.promise is not None]
    per: Per = promises[0].per if promises else "pixel"
    curves = [curve for each in calibrations if (curve := _curve(each, per)) is not None]
    if not curves:
        return None if len(calibrations) == 1 else _share_scale()
    least = min(100 * curve.rates[-1] for curve in curves)
    low = min(100.0, max(_STEP, _stepped_up(least)))
    own = [place for each in calibrations if (place := _own_position(each, per)) is not None]
    start = 100 * promises[0].alpha if promises else next(iter(own), max(_USUAL, low))
    high = min(100.0, max(_HIGHEST, 2 * low, start))
    return ThresholdScale(per, round(min(low, start), 6), round(high, 6), _STEP, round(start, 6))


def _own_position(calibration: Calibration | None, unit: str) -> float | None:
    """Where a model's own threshold is on a scale of rates, in percent; None where it is not on it.

    It is what was promised. A threshold found on too few images for a promise is at the rate that the curve
    knows of it, rounded up to a step, so that what the slider says there is true.
    """
    curve = _curve(calibration, unit)
    if calibration is None or calibration.threshold is None or curve is None:
        return None
    if calibration.promise is not None:
        return 100 * calibration.promise.alpha if calibration.promise.per == unit else None
    return min(100.0, _stepped_up(100 * curve.rate(calibration.threshold)))


def _stepped_up(percent: float) -> float:
    return round(math.ceil(round(percent / _STEP, 6)) * _STEP, 6)


def _share_scale() -> ThresholdScale:
    return ThresholdScale("share", _STEP, _HIGHEST, _STEP, _USUAL)


def _raw_scale(calibration: Calibration | None, scores: Scores) -> ThresholdScale:
    """From the least to the largest score of the picture; begins at the model's own threshold, if any."""
    finite = scores[np.isfinite(scores)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    high = high if high > low else low + 1
    known = None if calibration is None else calibration.threshold
    start = low + 0.95 * (high - low) if known is None else known
    low, high = min(low, start), max(high, start)
    step = 10.0 ** math.floor(math.log10((high - low) / 100))
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return ThresholdScale("raw", _short(low), _short(high), _short(step), _short(start))


def _short(value: float) -> float:
    """Six digits: what people read on a slider."""
    return float(f"{value:.6g}")


def _curve(calibration: Calibration | None, unit: str) -> FalseAlarmCurve | None:
    found = None if calibration is None else calibration.false_alarms.get(unit)
    return found if found is not None and found.rates else None
