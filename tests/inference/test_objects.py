"""Unknown objects against a slow flood fill, and the law that no unknown pixel is lost."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from gmmseg.inference import Meaning, Prediction, unknown_objects
from gmmseg.inference.objects import least_area


@pytest.fixture
def prediction(promised):
    """40 x 50 scores with many small regions above the threshold of 6, and a posterior of three classes."""
    rng = np.random.default_rng(0)
    scores = ndimage.gaussian_filter(rng.normal(size=(40, 50)), 1.2) * 20
    posterior = torch.from_numpy(rng.dirichlet(np.ones(3), (40, 50)).astype(np.float32)).movedim(-1, 0)
    anomaly = torch.from_numpy(scores.astype(np.float32))
    return Prediction(posterior.argmax(0).to(torch.uint8), posterior, anomaly, Meaning(promised(6.0)))


def flooded(unknown):
    """Sets of (row, column), one per 8-connected region: one pixel after the other."""
    left = {tuple(place) for place in np.argwhere(unknown).tolist()}
    while left:
        waiting, region = [left.pop()], set()
        while waiting:
            row, column = waiting.pop()
            region.add((row, column))
            for near in ((row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)):
                if near in left:
                    left.remove(near)
                    waiting.append(near)
        yield region


def pixels(each):
    left, top, _, _ = each.box
    return {(top + row, left + column) for row, column in np.argwhere(each.mask).tolist()}


@pytest.mark.parametrize("min_area", [1, 7])
def test_objects_are_the_regions_of_a_flood_fill(prediction, min_area):
    found = unknown_objects(prediction, min_area=min_area)
    expected = [each for each in flooded(prediction.unknown.numpy()) if len(each) >= min_area]
    assert len(expected) > 5
    assert sorted(map(sorted, map(pixels, found))) == sorted(map(sorted, expected))
    for each in found:
        rows, columns = (np.array(axis) for axis in zip(*pixels(each)))
        scores = prediction.anomaly.numpy()[rows, columns].astype(np.float64)
        assert each.box == (columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1)
        assert (each.area, each.peak) == (len(rows), scores.max())
        assert each.mean == pytest.approx(scores.mean())
        assert each.nearest_class == prediction.posterior.numpy()[:, rows, columns].mean(1).argmax()
        assert each.p_value == prediction.p_values[rows, columns].min()
    assert [each.peak for each in found] == sorted((each.peak for each in found), reverse=True)


@pytest.mark.parametrize("calibrated_area", [1, 6])
def test_areas_sum_to_the_unknown_pixels(prediction, promised, calibrated_area):
    told = Prediction(
        prediction.labels, prediction.posterior, prediction.anomaly, Meaning(promised(6.0, calibrated_area))
    )
    found = unknown_objects(told, min_area=1)
    assert sum(each.area for each in found) == int(told.unknown.sum()) > 0
    assert min(each.area for each in found) >= calibrated_area


def test_the_least_area_is_the_promised_one_else_a_share_of_the_image(prediction, promised, calibration):
    parts = (prediction.labels, prediction.posterior, prediction.anomaly)
    assert least_area(Prediction(*parts, Meaning(promised(6.0, 9)))) == 9
    assert least_area(Prediction(*parts, Meaning(promised(6.0)))) == 1  # 2000 pixels
    large = torch.zeros(200, 300)
    assert least_area(Prediction(large.to(torch.uint8), large[None], large, Meaning(calibration(3.0)))) == 30


def test_nothing_unknown_is_no_object_and_no_threshold_is_refused(prediction, calibration):
    parts = (prediction.labels, prediction.posterior, prediction.anomaly)
    assert unknown_objects(Prediction(*parts, Meaning(calibration(1e6)))) == []
    assert unknown_objects(Prediction(*parts, Meaning(calibration(3.0))))[0].p_value is None
    with pytest.raises(ValueError, match="gmmseg calibrate"):
        unknown_objects(Prediction(*parts))
