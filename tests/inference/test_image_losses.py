"""Sums of false alarms over images against their definition, against MAPIE and against crepes."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from gmmseg import distributed
from gmmseg.inference.image_losses import EXACT, STEP, ImageLosses, alarm_level, large_components

ALPHAS = (0.5, 0.2, 0.1, 0.05)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def image_scores(rng, pixels):
    """Scores of one image: its pixels are much alike."""
    return (rng.normal() + 0.5 * rng.normal(size=pixels)).astype(np.float32)


def curve_of(images, bits=EXACT):
    losses = ImageLosses(bits)
    for scores in images:
        losses.add_image(np.zeros(len(scores), np.int64), np.asarray(scores, np.float32))
    return losses.curve(0)


def share_above(scores, level, *, or_equal=False):
    above = scores >= level if or_equal else scores > level
    return Fraction(int(above.sum()), len(scores))


def test_rates_are_those_of_the_definition_with_ties_and_infinities(rng):
    """The oracle: shares as fractions, one image after the other."""
    images = [image_scores(rng, size).round(1) for size in (1, 3, 7, 100, 11)]
    images.append(np.array([-math.inf, 0.3, 0.3, math.inf], np.float32))
    found = curve_of(images)
    assert found.images == 6
    assert found.levels.tolist() == sorted({float(s) for scores in images for s in scores})
    for level, rate in zip(found.levels, found.rates):
        exact = (1 + sum(share_above(scores, level) for scores in images)) / Fraction(7)
        assert exact - Fraction(11, 10**12) <= rate <= exact + Fraction(1, 10**12)


def test_the_threshold_is_the_smallest_that_keeps_the_promise(rng):
    """With 50 pixels in each of 39 images, a rate of 0.5 or 0.05 is met exactly."""
    images = [image_scores(rng, 50) for _ in range(39)]
    found = curve_of(images)
    candidates = [-math.inf, *np.unique(np.concatenate(images))]
    for alpha in ALPHAS:
        allowed = [
            level
            for level in candidates
            if (1 + sum(share_above(scores, level) for scores in images)) / Fraction(40)
            <= Fraction(str(alpha))
        ]
        assert found.threshold(alpha) == min(allowed)
    assert found.threshold(0.02) is None


def test_p_values_of_the_kept_curve_are_those_of_the_definition_rounded_up(rng):
    images = [image_scores(rng, 200) for _ in range(30)]
    kept = curve_of(images).kept(ALPHAS)
    scores = np.concatenate([np.concatenate(images), image_scores(rng, 300), [np.float32(99.0)]])
    p_values = kept.p_values(torch.from_numpy(scores)).numpy()
    exact = np.array(
        [(1 + sum((image >= score).mean() for image in images)) / 31 for score in scores.astype(np.float64)]
    )
    assert (p_values >= exact - 2e-11).all()
    # A rate of the curve is at most a STEP above the next one, and one pixel is 1 / 200 of an image.
    assert (p_values <= STEP * (exact + 1 / 200 / 31) + 1e-9).all()
    assert len(kept.levels) < 800


@pytest.mark.parametrize("bits", [EXACT, 22])
def test_a_p_value_is_at_most_alpha_exactly_above_the_threshold(rng, bits):
    images = [np.round(image_scores(rng, 80) * 3, 1) - 200 for _ in range(40)]
    found = curve_of(images, bits)
    kept = found.kept(ALPHAS)
    scores = torch.from_numpy(np.concatenate([*images, image_scores(rng, 500) - 200]).astype(np.float32))
    for alpha in ALPHAS:
        threshold = found.threshold(alpha)
        assert kept.threshold(alpha) == threshold
        assert torch.equal(kept.p_values(scores) <= alpha, scores > threshold)
        assert kept.rate(threshold) <= alpha


def test_bins_move_a_threshold_up_by_less_than_a_bin(rng):
    images = [image_scores(rng, 80) - 200 for _ in range(40)]
    exact, binned = curve_of(images), curve_of(images, 22)
    for alpha in ALPHAS:
        assert 0 <= binned.threshold(alpha) - exact.threshold(alpha) <= 200 / 8192
    assert len(curve_of(images * 50, 22).levels) == len(binned.levels)  # memory does not grow with images


def test_the_order_and_the_process_of_an_image_do_not_matter(rng, monkeypatch):
    images = [image_scores(rng, size) for size in (10, 33, 7, 120, 64, 9)]
    groups = [rng.integers(0, 3, len(scores)) for scores in images]

    def losses_of(indices):
        losses = ImageLosses()
        for index in indices:
            losses.add_image(groups[index], images[index])
        return losses

    alone = losses_of(range(6))
    alone.merge_processes()
    parts = [losses_of([5, 1]), losses_of([3, 2, 0, 4])]
    for part in parts:
        part._sum_up()
    rows = torch.cat([torch.from_numpy(np.stack([part.keys, part.units], axis=1)) for part in parts])
    monkeypatch.setattr(distributed, "gather_rows", lambda own: rows)
    parts[0].merge_processes()
    assert np.array_equal(parts[0].keys, alone.keys)
    assert np.array_equal(parts[0].units, alone.units)


def test_every_group_counts_the_images_that_hold_it(rng):
    losses = ImageLosses()
    losses.add_image(np.array([0, 0, 2]), np.array([1, 2, 3], np.float32))
    losses.add_image(np.array([0, 2, 2]), np.array([5, 6, 7], np.float32))
    losses.add_image(np.zeros(0, np.int64), np.zeros(0, np.float32))  # no known pixel: left out
    assert [losses.curve(group) and losses.curve(group).images for group in range(4)] == [2, None, 2, None]
    assert losses.curve(2).rates.tolist() == pytest.approx([(1 + 2) / 3 - 1 / 3, 0.5, 1 / 3])


def test_what_has_no_finite_threshold_is_kept_as_such():
    kept = curve_of([[math.inf], [math.inf]]).kept(ALPHAS)
    assert (kept.levels, kept.images) == ((), 2)
    kept = curve_of([[-math.inf], [-math.inf, 1.0], [math.inf]]).kept(ALPHAS)
    lowest = float(np.finfo(np.float32).min)
    assert kept.levels == (lowest, 1.0)
    assert kept.rates == (pytest.approx((1 + 0 + 0.5 + 1) / 4), 0.5)
    lowest_twice = curve_of([[-math.inf], [lowest], [0.0]]).kept(ALPHAS)
    assert lowest_twice.levels == (lowest, 0.0)


def test_mapie_controls_the_same_risk_at_the_same_threshold(rng):
    methods = pytest.importorskip("mapie.risk_control.methods")
    images = [image_scores(rng, 37) for _ in range(50)]
    found = curve_of(images)
    risks = np.stack([[(scores > level).mean() for level in found.levels] for scores in images])
    _, bound = methods.get_r_hat_plus(risks, found.levels, "crc", None, None, None)
    np.testing.assert_allclose(found.rates, bound, atol=1e-9)
    alphas = (0.45, 0.21, 0.1, 0.05)  # where a rate is met, MAPIE goes one level further
    chosen = methods.find_best_predict_param(found.levels, bound, np.array(alphas))
    assert [found.threshold(alpha) for alpha in alphas] == chosen.tolist()


def test_crepes_has_the_same_p_values_of_images(rng):
    base = pytest.importorskip("crepes.base")
    levels, unseen = rng.normal(size=60).round(1), rng.normal(size=40).round(1)
    expected = base.p_values_batch(levels, unseen, smoothing=False)
    kept = curve_of([[level] for level in levels]).kept(ALPHAS)
    np.testing.assert_allclose(
        kept.p_values(torch.from_numpy(unseen.astype(np.float32))), expected, rtol=STEP - 1
    )


def test_the_promise_holds_over_a_thousand_random_splits(rng):
    """Mean rates over 1,000 splits lie between what is promised and the price of finitely many images."""
    calibration, test, pixels, alpha = 29, 10, 12, 0.1
    shares, alarms = [], []
    for _ in range(1000):
        images = rng.normal(size=(calibration + test, 1)) + rng.normal(size=(calibration + test, pixels))
        images = images.astype(np.float32)
        per_pixel, per_image = ImageLosses(), ImageLosses(EXACT)
        for scores in images[:calibration]:
            per_pixel.add_image(np.zeros(pixels, np.int64), scores)
            per_image.add_image(np.zeros(1, np.int64), scores.max(keepdims=True))
        shares.append((images[calibration:] > per_pixel.curve(0).threshold(alpha)).mean())
        alarms.append((images[calibration:].max(1) > per_image.curve(0).threshold(alpha)).mean())
    for found, lowest in ((shares, alpha - 2 / (calibration + 1)), (alarms, 3 / (calibration + 1))):
        margin = 3 * np.std(found) / math.sqrt(1000)  # of the mean over splits, 3 standard errors
        assert margin < 0.012
        assert lowest - margin <= np.mean(found) <= alpha + margin


def slow_alarm_level(scores, region, min_area):
    """The definition: for each level from the top, grow every component pixel by pixel."""
    for level in sorted({float(score) for score in scores[region]}, reverse=True):
        left = {tuple(place) for place in np.argwhere(region & (scores >= level)).tolist()}
        while left:
            component, edge = set(), {left.pop()}
            while edge:
                y, x = edge.pop()
                component.add((y, x))
                near = {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
                left -= near
                edge |= near
            if len(component) >= min_area:
                return level
    return -math.inf


@pytest.mark.parametrize("min_area", [1, 2, 5, 17, 60])
def test_an_image_raises_an_alarm_exactly_below_its_level(rng, min_area):
    for step in (0.01, 0.5):  # with few and with many ties
        scores = (rng.normal(size=(9, 8)) / step).round().astype(np.float32) * np.float32(step)
        region = rng.random((9, 8)) < 0.8
        level = alarm_level(scores, region, min_area)
        assert level == slow_alarm_level(scores, region, min_area)
        for threshold in np.unique(scores):
            flagged = large_components(region & (scores > threshold), min_area)
            assert flagged.any() == (level > threshold)


def test_levels_of_nothing_of_infinity_and_of_too_little():
    scores = np.array([[math.inf, 1.0], [-math.inf, 2.0]], np.float32)
    everything = np.ones((2, 2), bool)
    assert [alarm_level(scores, everything, area) for area in (1, 2, 3, 4, 5)] == [
        math.inf,
        2.0,
        1.0,
        -math.inf,
        -math.inf,
    ]
    assert alarm_level(scores, ~everything, 1) == -math.inf


def test_regions_are_connected_over_corners():
    mask = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]], bool)
    assert large_components(mask, 2).tolist() == [
        [True, False, False, False],
        [False, True, False, False],
        [False] * 4,
    ]
    assert large_components(mask, 1) is mask
