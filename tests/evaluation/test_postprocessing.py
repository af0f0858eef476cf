"""SML's steps against loops written from its description: one pixel, one neighbour at a time."""

import math

import numpy as np
import pytest
import torch

from gmmseg.evaluation.postprocessing import BoundarySuppression, DilatedSmoothing


def neighbours(y, x, shape, offsets):
    return [(y + dy, x + dx) for dy, dx in offsets if 0 <= y + dy < shape[0] and 0 <= x + dx < shape[1]]


CROSS = [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)]
SQUARE = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]


def suppressed_by_definition(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Width 4 in 4 rounds: diamonds of radius 3, 2, 1, 0 around the boundary, filled from outside them."""
    pixels = list(np.ndindex(labels.shape))
    boundary = [
        (y, x)
        for y, x in pixels
        if max(labels[p] for p in neighbours(y, x, labels.shape, CROSS))
        != min(labels[p] for p in neighbours(y, x, labels.shape, SQUARE))
    ]
    for radius in (3, 2, 1, 0):
        wide = {(y, x) for y, x in pixels if any(abs(y - v) + abs(x - u) <= radius for v, u in boundary)}
        before = scores.copy()
        for y, x in wide:
            around = [  # the image is continued by its border pixels
                (min(max(y + dy, 0), labels.shape[0] - 1), min(max(x + dx, 0), labels.shape[1] - 1))
                for dy, dx in SQUARE
            ]
            outside = [before[p] for p in around if p not in wide]
            if outside:
                scores[y, x] = np.mean(outside)
    return scores


def smoothed_by_definition(scores: np.ndarray) -> np.ndarray:
    """A 7x7 Gaussian of deviation 1 that sums to one, its taps 6 pixels apart."""
    height, width = scores.shape
    taps = {(i, j): math.exp(-(i * i + j * j) / 2) for i in range(-3, 4) for j in range(-3, 4)}
    total = sum(taps.values())
    smooth = np.zeros_like(scores)
    for y, x in np.ndindex(scores.shape):
        for (i, j), weight in taps.items():
            row, column = min(max(y + 6 * i, 0), height - 1), min(max(x + 6 * j, 0), width - 1)
            smooth[y, x] += weight / total * scores[row, column]
    return smooth


def patches(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels (21 26) with rectangles, single pixels and corners that touch."""
    rng = np.random.default_rng(seed)
    labels = np.zeros((21, 26), dtype=np.int64)
    for label in rng.integers(0, 5, size=4):
        y, x, h, w = rng.integers([0, 0, 1, 1], [21, 26, 12, 12])
        labels[y : y + h, x : x + w] = label
    return rng.normal(size=labels.shape), labels


@pytest.mark.parametrize("seed", range(4))
def test_boundary_suppression_equals_the_definition(seed: int) -> None:
    scores, labels = patches(seed)
    found = BoundarySuppression()(torch.from_numpy(scores)[None], torch.from_numpy(labels)[None])[0]
    np.testing.assert_allclose(found, suppressed_by_definition(scores, labels), atol=1e-10)


def test_smoothing_equals_the_definition() -> None:
    scores = patches(0)[0]
    found = DilatedSmoothing()(torch.from_numpy(scores)[None], torch.zeros(1, 21, 26))[0]
    np.testing.assert_allclose(found, smoothed_by_definition(scores), atol=1e-10)


def test_a_ridge_along_a_class_boundary_disappears_and_an_object_inside_stays() -> None:
    predicted = torch.zeros(1, 40, 60, dtype=torch.long)
    predicted[:, :, 30:] = 1
    scores = torch.zeros(1, 40, 60)
    scores[:, :, 27:33] = 5  # unsure where the classes meet
    scores[:, 10:20, 5:15] = 9  # an object well inside a class
    after = BoundarySuppression()(scores, predicted)
    assert float(after[:, :, 27:33].abs().max()) == 0
    assert torch.equal(after[:, 10:20, 5:15], scores[:, 10:20, 5:15])


@pytest.mark.parametrize("fill", [0.0, float("inf")])
def test_an_image_of_one_class_is_untouched(fill: float) -> None:
    scores = torch.randn(1, 20, 20)
    scores[0, 3, 3] = fill
    assert torch.equal(BoundarySuppression()(scores, torch.zeros(1, 20, 20)), scores)


def test_an_infinite_score_on_a_boundary_does_not_become_nan() -> None:
    predicted = torch.zeros(1, 20, 30)
    predicted[:, :, 15:] = 1
    scores = torch.zeros(1, 20, 30)
    scores[:, :, 14:16] = float("inf")
    assert torch.equal(BoundarySuppression()(scores, predicted), torch.zeros(1, 20, 30))
