"""One slider for several models: it never promises what a calibration does not."""

from dataclasses import replace

import numpy as np
import pytest

from gmmseg.inference.threshold_scale import threshold_scale
from gmmseg.models.calibration_file import PROMISED, Calibration, Threshold
from gmmseg.models.false_alarms import FalseAlarmCurve, FalseAlarms

SCORES = np.linspace(-3, 7, 500, dtype=np.float32).reshape(20, 25)


def made(images=99, alpha=0.05, per="pixel", offset=0.0, curves=("pixel", "image"), value=None):
    """A calibration whose rates fall from 1 to 1 / (n + 1) over the levels 0 to 6, shifted."""
    levels = tuple(offset + level for level in np.linspace(0, 6, 61))
    rates = tuple((1 + images * (1 - k / 60) ** 2) / (images + 1) for k in range(61))
    curve = FalseAlarmCurve(images, levels, rates)
    threshold = curve.threshold(alpha) if value is None else value
    asked = FalseAlarms(alpha, per)
    return Calibration(
        "w", {PROMISED: Threshold(threshold, None, asked, images)}, 1.0, None, None, None,
        false_alarms=dict.fromkeys(curves, curve),
    )  # fmt: skip


@pytest.mark.parametrize("per", ["pixel", "image"])
def test_it_starts_at_the_models_own_threshold_and_promise(per):
    calibration = made(per=per, alpha=0.03, value=5.13)  # found exactly, the curve knows some hundred levels
    scale = threshold_scale([calibration], [SCORES])
    assert (scale.unit, scale.start) == (per, 3.0)
    assert scale.threshold(scale.start, calibration, SCORES) == calibration.threshold == 5.13
    assert scale.words(3.0, 5.13, calibration) == calibration.promise_text()
    assert {"pixel": "pixels", "image": "images"}[per] in scale.label


def test_a_threshold_without_a_promise_starts_at_the_rate_that_is_known_of_it():
    """Ten images promise 9.1 % at best: a slider that began there would show nothing as unknown."""
    promised = made(images=10, alpha=0.2, value=4.43)
    (found,) = promised.thresholds.values()
    calibration = replace(promised, thresholds={PROMISED: replace(found, false_alarms=None, images=None)})
    assert calibration.promise is None
    scale = threshold_scale([calibration], [SCORES])
    rate = 100 * calibration.false_alarms["pixel"].rate(4.43)
    assert rate <= scale.start < rate + scale.step
    assert scale.threshold(scale.start, calibration, SCORES) == 4.43
    assert scale.threshold(scale.low, calibration, SCORES) > 4.43, "fewer false alarms, higher threshold"
    assert f"at most {scale.start:.3g} %" in scale.words(scale.start, 4.43, calibration)


def test_every_position_keeps_the_rate_it_shows():
    calibrations = [made(), made(images=30, offset=-2.0)]
    scale = threshold_scale(calibrations, [SCORES, SCORES])
    assert scale.low == 1.0
    last = [np.inf, np.inf]
    for value in np.arange(scale.low, scale.high, scale.step):
        for index, calibration in enumerate(calibrations):
            threshold = scale.threshold(float(value), calibration, SCORES)
            if threshold is None:
                assert calibration.false_alarms["pixel"].rates[-1] > value / 100
                continue
            assert calibration.false_alarm_rate(threshold) <= value / 100 + 1e-9
            assert threshold <= last[index], "more false alarms allowed, lower threshold"
            last[index] = threshold


def test_too_few_images_for_a_rate_are_said():
    few, many = made(images=9, alpha=0.2), made()
    scale = threshold_scale([many, few], [SCORES, SCORES])
    assert scale.threshold(5.0, few, SCORES) is None
    assert "9 calibration images allow 10 % at best" in scale.words(5.0, None, few)


def test_one_model_without_rates_counts_in_raw_scores():
    scale = threshold_scale([None], [SCORES])
    assert scale.unit == "raw"
    assert scale.low <= -3 < scale.start < 7 <= scale.high
    assert scale.threshold(1.25, None, SCORES) == 1.25
    assert "not calibrated" in scale.words(1.25, 1.25, None)
    old = made(curves=(), value=9.5)  # of an earlier version: a threshold and no rates
    scale = threshold_scale([old], [SCORES])
    assert (scale.unit, scale.start, scale.high) == ("raw", 9.5, 9.5)
    assert "knows no false-alarm rates" in scale.words(9.5, 9.5, old)


@pytest.mark.parametrize("values", [np.full((2, 2), 3.0), np.full((2, 2), np.inf)])
def test_a_flat_or_endless_picture_still_has_a_scale(values):
    scale = threshold_scale([None], [values.astype(np.float32)])
    assert scale.low < scale.start < scale.high


def test_models_without_rates_beside_others_take_a_share_of_the_picture():
    for calibrations, unit in (([None, None], "share"), ([None, made()], "pixel")):
        scale = threshold_scale(calibrations, [SCORES, 1000 * SCORES])
        assert scale.unit == unit
        threshold = scale.threshold(10.0, None, 1000 * SCORES)
        assert (threshold < 1000 * SCORES).mean() == pytest.approx(0.1, abs=0.003)
        assert "promises nothing" in scale.words(10.0, threshold, None)


def test_positions_hold_the_start_and_go_from_few_unknown_pixels_to_many():
    for calibrations in ([None], [None, None]):
        scale = threshold_scale(calibrations, [SCORES] * len(calibrations))
        assert scale.start in scale.positions
        assert len(set(scale.positions)) == len(scale.positions) < 255
        shares = [(scale.threshold(value, None, SCORES) < SCORES).mean() for value in scale.positions]
        assert shares == sorted(shares)
