"""Rates that thresholds promise, and p-values, from a curve that is worked out by hand."""

import math

import pytest
import torch

from gmmseg.models.false_alarms import FalseAlarmCurve, FalseAlarms

CURVE = FalseAlarmCurve(images=3, levels=(-2.0, 0.5, 7.0), rates=(0.75, 0.5, 0.25))


def test_between_two_levels_the_rate_of_the_lower_one_is_promised():
    thresholds = (-math.inf, -2.1, -2.0, 0.0, 0.5, 6.9, 7.0, math.inf)
    assert [CURVE.rate(each) for each in thresholds] == [1, 1, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25]
    assert [CURVE.threshold(alpha) for alpha in (1.0, 0.75, 0.6, 0.25, 0.2)] == [-2.0, -2.0, 0.5, 7.0, None]


def test_p_values_are_small_exactly_above_the_threshold():
    scores = torch.tensor([[-math.inf, -2.0, -1.9, 0.5], [0.6, 7.0, 7.1, math.inf]])
    p_values = CURVE.p_values(scores)
    assert p_values.tolist() == [[1, 1, 0.75, 0.75], [0.5, 0.5, 0.25, 0.25]]
    for alpha in (0.25, 0.3, 0.5, 0.75, 0.9):
        assert torch.equal(p_values <= alpha, scores > CURVE.threshold(alpha))
    assert not (p_values <= 0.2).any()


def test_a_curve_without_levels_knows_nothing():
    empty = FalseAlarmCurve(5, (), ())
    assert empty.rate(3.0) == 1.0
    assert empty.threshold(0.99) is None
    assert empty.p_values(torch.zeros(2)).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("levels", "rates", "reason"),
    [
        ((1.0,), (), "1 levels and 0 rates"),
        ((1.0, 1.0), (0.5, 0.4), "levels must rise"),
        ((1.0, 2.0), (0.4, 0.5), "rates must not rise"),
        ((1.0,), (1.5,), "rates must be at most 1"),
        ((math.inf,), (0.5,), "levels must be finite"),
    ],
)
def test_what_is_no_curve_is_refused(levels, rates, reason):
    with pytest.raises(ValueError, match=reason):
        FalseAlarmCurve(3, levels, rates)


@pytest.mark.parametrize(
    ("alpha", "needed"),
    [(0.01, 99), (0.05, 19), (0.1, 9), (0.3, 3), (0.07, 14), (0.5, 1), (0.9, 1), (1e-6, 999_999)],
)
def test_how_many_images_a_rate_needs(alpha, needed):
    assert FalseAlarms(alpha).images_needed == needed
    assert 1 / (needed + 1) <= alpha
    assert needed == 1 or 1 / needed > alpha


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"alpha": 0}, "alpha must be at least 1e-06"),
        ({"alpha": 1}, "alpha must be less than 1"),
        ({"alpha": math.nan}, "alpha must be finite"),
        ({"per": "scene"}, "per must be one of pixel, image"),
        ({"min_area": 0, "per": "image"}, "min_area must be at least 1"),
        ({"min_area": 20}, "belongs to false alarms per image"),
    ],
)
def test_false_alarms_that_cannot_be_asked_for_are_refused(given, reason):
    with pytest.raises(ValueError, match=reason):
        FalseAlarms(**given)
