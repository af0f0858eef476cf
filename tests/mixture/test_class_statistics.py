"""Oracle: numpy on all points at once, and the lowest tickets of all points sorted by hand."""

import numpy as np
import pytest
import torch

from gmmseg.mixture.class_statistics import ClassSample, ClassSums
from gmmseg.mixture.sampling import hashed

C, D, N = 4, 3, 500


@pytest.fixture
def cells(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points with correlated channels; class 3 has none."""
    labels = torch.randint(0, C - 1, (N,), generator=generator)
    mixing = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -2.0], [0.0, 0.0, 0.1]])
    return torch.randn(N, D, generator=generator) @ mixing + 3.0 * labels[:, None], labels


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_centre_and_covariance_are_those_of_numpy(cells: tuple, offset: float) -> None:
    points, labels = cells[0].double() + offset, cells[1]
    sums = ClassSums(C, D)
    for part in torch.arange(N).split(60):
        sums.update(points[part], labels[part])
    sums.update(points[:0], labels[:0])
    own = points.numpy()
    residuals = np.concatenate([own[labels == c] - own[labels == c].mean(0) for c in range(C - 1)])
    np.testing.assert_allclose(sums.centre().numpy(), own.mean(0), rtol=1e-12)
    np.testing.assert_allclose(sums.within().numpy(), residuals.T @ residuals / N, atol=1e-9)


def test_sums_of_two_parts_add_up_to_those_of_the_whole(cells: tuple) -> None:
    points, labels = cells
    whole, first, second = (ClassSums(C, D) for _ in range(3))
    whole.update(points, labels)
    first.update(points[:100], labels[:100])
    second.update(points[100:], labels[100:])
    first.add_(second)
    torch.testing.assert_close(first.centre(), whole.centre())
    torch.testing.assert_close(first.within(), whole.within())


@pytest.mark.parametrize("sizes", [500, 60, 7])
def test_a_sample_holds_the_lowest_tickets_however_points_arrive(cells: tuple, sizes: int) -> None:
    points, labels = cells
    sample = ClassSample(C, D, most=10, seed=3)
    parts = torch.arange(N).split(sizes)
    for batch in torch.randperm(len(parts)).tolist():
        sample.update(points[parts[batch]], labels[parts[batch]], batch)
    kept, known = sample.points_and_labels()
    numbers = [torch.arange(len(part)) + (batch << 32) for batch, part in enumerate(parts)]
    tickets = hashed(torch.cat(numbers), 3)
    expected = []
    for c in range(C - 1):
        own = (labels == c).nonzero()[:, 0]
        expected.append(own[tickets[own].argsort()[:10]])
    assert torch.equal(known, torch.arange(C - 1).repeat_interleave(10))
    assert torch.equal(kept, points[torch.cat(expected)])


def test_a_class_with_few_points_keeps_them_all(cells: tuple) -> None:
    points, labels = cells
    sample = ClassSample(C, D, most=1000)
    sample.update(points, labels, 0)
    kept, known = sample.points_and_labels()
    assert torch.equal(known.bincount(minlength=C), labels.bincount(minlength=C))
    assert torch.equal(kept.sort(0).values, points.sort(0).values)


def test_memory_stays_bounded(cells: tuple) -> None:
    points, labels = cells
    sample = ClassSample(C, D, most=5)
    for batch in range(40):
        sample.update(points, labels, batch)
        waiting = sum(len(each[1]) for each in sample.waiting)
        assert len(sample.kept[1]) + waiting <= 5 * C * 5 // 4
