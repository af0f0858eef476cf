"""Ranks against a slow loop over all values, and the law that they are uniform and independent."""

import numpy as np
import pytest
from scipy import stats

from gmmseg.inference.image_statistics import (
    ReferenceImages,
    RunningRanks,
    bin_of,
    image_statistics,
    level_of,
)
from gmmseg.models.reference_images import CONDITIONS, OBJECTS, ReferenceCounts


def test_p_values_are_those_of_a_loop_over_all_values():
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=120), 1)  # with ties
    ranks = RunningRanks({})
    for index, value in enumerate(values):
        tie = rng.random()
        seen = [bin_of(each) for each in values[: index + 1]]
        larger = sum(each > bin_of(value) for each in seen)
        equal = sum(each == bin_of(value) for each in seen)
        assert ranks.step(value, tie) == (larger + tie * equal) / (index + 1)


def test_p_values_after_a_reference_are_uniform_and_independent():
    """Over many references and streams: the first, second and third p-value of a stream."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(1500):
        values = np.round(rng.gamma(2.0, size=13), 1)
        counted = {}
        for value in values[:10]:
            counted[bin_of(value)] = counted.get(bin_of(value), 0) + 1
        ranks = RunningRanks(counted)
        found.append([ranks.step(value, rng.random()) for value in values[10:]])
    columns = np.array(found).T
    for column in columns:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    assert np.abs(np.corrcoef(columns) - np.eye(3)).max() < 0.1


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -73.21, 1e-30, 3e38, -3e38])
def test_a_level_stands_for_its_bin(value):
    assert bin_of(level_of(bin_of(value))) == bin_of(value)
    assert abs(level_of(bin_of(value)) - value) <= 1e-3 * abs(value) + 1e-37


def test_things_and_conditions_move_their_own_statistic():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(60, 80)).astype(np.float32)
    usual = image_statistics(scores)
    thing = scores.copy()
    thing[:9, :9] += 20
    found = image_statistics(thing)
    assert found[OBJECTS] > usual[OBJECTS] + 10
    assert abs(found[CONDITIONS] - usual[CONDITIONS]) < 0.1
    night = image_statistics(scores + 20)
    assert night[CONDITIONS] == pytest.approx(usual[CONDITIONS] + 20, rel=1e-4)
    assert night[OBJECTS] == pytest.approx(usual[OBJECTS], rel=1e-4)


def test_an_outline_is_no_object():
    """As many strange pixels, as strange: in one place they fill a window, in a line they do not."""
    scores = np.random.default_rng(0).normal(size=(240, 320)).astype(np.float32)
    together, line = scores.copy(), scores.copy()
    together[100:140, 100:148] += 10
    line[:, 100:106] += 10
    line[120:122, :] += 10
    assert image_statistics(together)[OBJECTS] > 2 * image_statistics(line)[OBJECTS]


def test_windows_are_means_of_squares_a_twelfth_of_the_shorter_side():
    scores = np.random.default_rng(0).normal(size=(50, 36)).astype(np.float32)
    windows = [
        scores[top : top + 3, left : left + 3].mean(dtype=np.float64)
        for top in range(48)
        for left in range(34)
    ]
    high, top = np.quantile(windows, (0.75, 0.99))
    assert image_statistics(scores) == pytest.approx({OBJECTS: top - high, CONDITIONS: high})


def test_infinity_is_a_score_and_nan_is_none():
    scores = np.zeros((4, 4), np.float32)
    scores[0] = np.inf
    assert np.isfinite(list(image_statistics(scores).values())).all()
    scores[0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        image_statistics(scores)


def test_references_count_every_image_in_any_order():
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(8, 9)).astype(np.float32) for _ in range(20)]
    counted = []
    for order in (maps, maps[::-1]):
        images = ReferenceImages()
        for each in order:
            images.update(each)
        images.merge_processes()
        counted.append(images.counts())
    assert counted[0] == counted[1]
    assert all(each.images == 20 for each in counted[0].values())


@pytest.mark.parametrize("broken", [((), ()), ((1.0,), (1, 2)), ((2.0, 1.0), (1, 1)), ((1.0,), (0,))])
def test_counts_that_cannot_be_are_refused(broken):
    with pytest.raises(ValueError, match=r"levels|counts"):
        ReferenceCounts(*broken)
