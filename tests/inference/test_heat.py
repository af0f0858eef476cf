"""Scores as colours, the same for all images of a calibrated model."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from gmmseg.inference.heat import (
    THRESHOLD_AT,
    HeatScale,
    confidence_colours,
    heat_overlay,
    image_scale,
    model_scale,
    scale_bar,
    scale_of,
)

QUANTILES = ((0.5, 1.0), (0.05, 3.0), (0.001, 9.0))


def brightness(colours: np.ndarray) -> np.ndarray:
    return colours.astype(int) @ np.array([299, 587, 114])


def test_heat_grows_brighter_with_the_score_and_clips():
    light = brightness(HeatScale(-3, 5).colours(np.linspace(-5, 7, 50)))
    assert (np.diff(light) >= 0).all()
    assert light[0] < 1000 < 200_000 < light[-1]


def test_confidence_is_cool_and_anomaly_warm():
    shares = np.linspace(0, 1, 101)
    cool, warm = confidence_colours(shares).astype(int), HeatScale(0, 1).colours(shares).astype(int)
    assert (np.diff(brightness(cool)) >= 0).all()
    assert (cool[:, 0] <= cool[:, 1:].max(1)).all(), "never red"
    assert (warm[40:, 0] > warm[40:, 2]).all(), "red or yellow from the middle on"
    assert np.abs(cool - warm).sum(1).min() > 60, "nowhere alike"


def test_the_scale_of_a_model_is_anchored_at_its_threshold(calibration):
    known = replace(calibration(3.0), quantiles=QUANTILES)
    scale = model_scale(known)
    assert scale is not None
    assert scale.low == 1.0
    assert scale.shares(np.array(3.0)) == pytest.approx(THRESHOLD_AT)
    calm, strange = np.full((2, 2), -5.0), np.full((2, 2), 50.0)
    assert scale_of(known, calm) == scale_of(known, strange) == scale
    # Half of all known pixels have the darkest colour, and all unknown ones a brighter one than any known.
    colours = brightness(scale.colours(np.array([-9.0, 1.0, 2.9, 3.1, 8.0])))
    assert colours[0] == colours[1] < colours[2] < colours[3] < colours[4]


def test_without_quantiles_below_the_threshold_images_have_their_own_scale(calibration):
    scores = np.linspace(0, 1, 1001)
    for known in (None, calibration(3.0), replace(calibration(0.5), quantiles=QUANTILES)):
        assert model_scale(known) is None
        assert scale_of(known, scores) == image_scale(scores, known and known.threshold)


def test_limits_of_an_image_ignore_outliers_and_reach_the_threshold():
    scores = np.r_[np.linspace(0, 1, 1001), 1e9, np.inf, -np.inf].astype(np.float32)
    own = image_scale(scores)
    assert (own.low, own.high) == pytest.approx((0.01, 0.99), abs=0.01)
    assert image_scale(scores, 7.0) == HeatScale(own.low, 7.0)
    assert image_scale(scores, -7.0) == own
    assert image_scale(np.array([np.inf])) == HeatScale(0.0, 1.0)


@pytest.mark.parametrize("size", [(1, 1), (37, 500), (3, 8192)])
def test_a_heat_map_has_the_size_of_the_scores(size):
    scores = np.random.default_rng(0).random(size, np.float32)
    scale = image_scale(scores)
    assert np.array_equal(np.asarray(scale.picture(scores)), scale.colours(scores))
    assert np.array_equal(np.asarray(scale.palette_picture(scores).convert("RGB")), scale.colours(scores))
    assert heat_overlay(np.zeros((*size, 3), np.uint8), scores, scale).size == size[::-1]


def test_scores_without_spread_or_finite_values_have_colours_too():
    for scores in (np.full((4, 4), 3.0), np.full((4, 4), np.inf), np.full((4, 4), -np.inf)):
        colours = image_scale(scores, 2.0).colours(scores)
        assert (colours == colours[0, 0]).all()


def test_an_overlay_of_heat_leaves_the_usual_as_a_grey_photograph():
    photograph = np.full((4, 6, 3), (200, 100, 0), np.uint8)
    scores = np.zeros((4, 6), np.float32)
    scores[:, 3:] = 1
    seen = np.asarray(heat_overlay(photograph, scores, HeatScale(0, 1)))
    assert (seen[:, :3] == 80).all()
    assert (seen[:, 3:] == (0.75 * np.array([252, 255, 164]) + 0.25 * 80).round()).all()


@pytest.mark.parametrize("threshold", [None, 0.5, 9.0, -np.inf])
def test_a_bar_has_colours_numbers_and_a_mark_at_the_threshold(threshold):
    bar = np.asarray(scale_bar(HeatScale(0, 1), threshold, width=400)).astype(int)
    row = bar[bar.shape[0] // 3, 12:-12]
    assert (np.diff(brightness(row)) < 0).sum() <= (0 if threshold is None else 2)
    numbers = bar[-bar.shape[0] // 2 :]
    assert (numbers.sum(-1) < 300).sum() > 20, "ink"
    assert (np.asarray(scale_bar(None)) != np.asarray(scale_bar(HeatScale(0, 1)))).any()
    assert isinstance(scale_bar(None, 3.0, width=1), Image.Image)
