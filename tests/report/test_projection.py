import numpy as np
import pytest
import torch

from gmmseg.report.projection import main_plane, most_frequent


@pytest.fixture
def points(generator):
    return torch.randn(400, 5, generator=generator) * torch.tensor([1.0, 4.0, 0.5, 2.0, 0.1]) + 3


def test_the_plane_is_that_of_the_singular_value_decomposition(points):
    plane = main_plane(points)
    centred = (points - points.mean(0)).numpy()
    _, values, rows = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(plane.directions.numpy()), np.abs(rows[:2].T), atol=1e-3)
    np.testing.assert_allclose(plane.shares, (values**2 / (values**2).sum())[:2], rtol=1e-4)
    torch.testing.assert_close(plane.directions.T @ plane.directions, torch.eye(2), atol=1e-5, rtol=0)
    assert torch.equal(main_plane(points).directions, plane.directions)


def test_outlines_lie_two_deviations_out_in_the_projected_gaussian(points, generator):
    plane = main_plane(points)
    means, variances = torch.randn(3, 5, generator=generator), torch.rand(3, 5, generator=generator) + 0.1
    outlines = plane.outlines(means, variances)
    assert outlines.shape == (3, 60, 2)
    for outline, mean, variance in zip(outlines, means, variances):
        covariance = plane.directions.T @ variance.diag() @ plane.directions
        offsets = outline - plane.project(mean)
        distances = (offsets @ covariance.inverse() * offsets).sum(-1).sqrt()
        torch.testing.assert_close(distances, torch.full((60,), 2.0), atol=1e-3, rtol=0)


def test_the_most_frequent_classes_come_first_and_empty_ones_not_at_all():
    labels = torch.tensor([2, 2, 2, 0, 0, 4, 255])
    assert most_frequent(labels, 5, 2) == [2, 0]
    assert most_frequent(labels, 5, 9) == [2, 0, 4]
