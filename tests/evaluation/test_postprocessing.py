import numpy as np
import pytest
import torch
from scipy import ndimage

from gmmseg.evaluation.postprocessing import BoundarySuppression, GaussianSmoothing


def test_smoothing_equals_scipy() -> None:
    scores = torch.randn(2, 30, 40)
    smooth = GaussianSmoothing(1.5)(scores, torch.zeros(2, 30, 40))
    for ours, one in zip(smooth, scores):
        expected = ndimage.gaussian_filter(one.numpy(), 1.5, mode="nearest", radius=4)
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_smoothing_keeps_a_constant_and_names_itself() -> None:
    step = GaussianSmoothing(3)
    assert torch.allclose(step(torch.full((1, 9, 9), 7.0), torch.zeros(1, 9, 9)), torch.tensor(7.0))
    assert step.name == "smoothed_3"


def test_a_ridge_along_a_class_boundary_disappears_and_an_object_inside_stays() -> None:
    predicted = torch.zeros(1, 40, 60, dtype=torch.long)
    predicted[:, :, 30:] = 1
    scores = torch.zeros(1, 40, 60)
    scores[:, :, 27:33] = 5  # unsure where the classes meet
    scores[:, 10:20, 5:15] = 9  # an object well inside a class
    after = BoundarySuppression(width=8, step=2)(scores, predicted)
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
