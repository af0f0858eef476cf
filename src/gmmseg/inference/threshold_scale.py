"""One slider for the thresholds of several models: it counts in false alarms where calibrations know them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gmmseg.inference.pictures import Scores
from gmmseg.models import Calibration
from gmmseg.models.false_alarms import PIXEL, FalseAlarmCurve, Per

_STEP = 0.1
_USUAL, _HIGHEST = 5.0, 25.0
NOT_CALIBRATED = (
    "not calibrated: `gmmseg calibrate MODEL --data NAME:ROOT:val` finds thresholds with a promise"
)


@dataclass(frozen=True)
class ThresholdScale:
    """What a slider counts in, from ``low`` to ``high`` in steps, and where it starts.

    ``per``: it counts the false alarms that are promised, in percent of pixels or of images. None: no model
    has such a calibration, and it counts in raw scores.
    """

    per: Per | None
    low: float
    high: float
    step: float
    start: float

    @property
    def label(self) -> str:
        """What the number on the slider means."""
        if self.per is None:
            return (
                "Threshold: raw anomaly score from which on a pixel is unknown (no promise: not calibrated)"
            )
        what = "known pixels of a new image" if self.per == PIXEL else "new normal images with an alarm"
        return f"Threshold: promises at most this many false alarms, in % of {what}"

    def threshold(self, value: float, calibration: Calibration | None, anomaly: Scores) -> float | None:
        """The threshold of one model with the slider at ``value``; None where none promises so little.

        A model without the curve beside others that have one gets the score that this share of the picture's
        own pixels ``anomaly`` (h w) exceeds.
        """
        if self.per is None:
            return value
        curve = _curve(calibration, self.per)
        if curve is None or calibration is None:
            return float(np.quantile(anomaly, 1 - value / 100))
        promise = calibration.promise
        if promise and promise.per == self.per and math.isclose(promise.alpha, value / 100, rel_tol=1e-6):
            return calibration.threshold
        return curve.threshold(value / 100)

    def words(self, value: float, threshold: float | None, calibration: Calibration | None) -> str:
        """What a model's threshold at ``value`` promises, a phrase that completes "The threshold ..."."""
        if self.per is None:
            return f"promises nothing; the model is {NOT_CALIBRATED}"
        curve = _curve(calibration, self.per)
        if curve is None or calibration is None:
            return f"flags {value:.4g} % of this picture and promises nothing; the model is {NOT_CALIBRATED}"
        if threshold is None:
            least = 100 * curve.rates[-1]
            return (
                f"cannot promise {value:.4g} %: {curve.images} calibration images allow {least:.3g} % at best"
            )
        return calibration.promise_text_of(value / 100, self.per)


def threshold_scale(calibrations: Sequence[Calibration | None], scores: Sequence[Scores]) -> ThresholdScale:
    """The scale of a slider for models with these calibrations; ``scores``: their maps of the picture."""
    promises = [each.promise for each in calibrations if each is not None and each.promise is not None]
    per: Per = promises[0].per if promises else PIXEL
    curves = [curve for each in calibrations if (curve := _curve(each, per)) is not None]
    if not curves:
        return _raw_scale(calibrations, scores)
    least = min(100 * curve.rates[-1] for curve in curves)
    low = min(100.0, max(_STEP, math.ceil(round(least / _STEP, 6)) * _STEP))
    start = 100 * promises[0].alpha if promises else max(_USUAL, low)
    high = min(100.0, max(_HIGHEST, 2 * low, start))
    low = min(low, start)
    return ThresholdScale(per, round(low, 6), round(high, 6), _STEP, round(start, 6))


def _raw_scale(calibrations: Sequence[Calibration | None], scores: Sequence[Scores]) -> ThresholdScale:
    finite = [each[np.isfinite(each)] for each in scores]
    filled = [each for each in finite if each.size]
    low = min((float(each.min()) for each in filled), default=0.0)
    high = max((float(each.max()) for each in filled), default=1.0)
    high = high if high > low else low + 1
    known = [each.threshold for each in calibrations if each is not None and each.threshold is not None]
    start = known[0] if known else low + 0.95 * (high - low)
    low, high = min(low, start), max(high, start)
    return ThresholdScale(None, low, high, (high - low) / 1000, start)


def _curve(calibration: Calibration | None, per: Per) -> FalseAlarmCurve | None:
    found = None if calibration is None else calibration.false_alarms.get(per)
    return found if found is not None and found.rates else None
