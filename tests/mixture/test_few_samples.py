"""A mixture from few points: shrinkage as written, fewer components, always finite."""

import pytest
import torch

from gmmseg.mixture import ClassMixture, Sphere
from gmmseg.mixture.few_samples import FewSamples, fit_class, pooled_variance


@pytest.fixture
def beside(generator):
    mixture = ClassMixture(3, 4, 5)
    mixture.variances.copy_(torch.rand(3, 4, 5, generator=generator) + 0.2)
    mixture.log_weights.copy_(torch.randn(3, 4, generator=generator).log_softmax(-1))
    return mixture


def test_one_component_is_the_mean_of_points_and_of_the_pooled_variance(beside, generator):
    points = torch.randn(30, 5, generator=generator) * 2 + 1
    settings = FewSamples(points_per_component=30, mean_points=10, variance_points=60)
    new = fit_class(points, beside, settings=settings)
    weights = beside.log_weights.exp()[..., None]
    pooled = (weights * beside.variances).sum((0, 1)) / weights.sum()
    torch.testing.assert_close(pooled_variance(beside), pooled)
    torch.testing.assert_close(new.means[0], points.mean(0), rtol=1e-4, atol=1e-5)
    expected = (30 * points.var(0, unbiased=False) + 60 * pooled) / 90
    torch.testing.assert_close(new.variances[0], expected, rtol=1e-4, atol=1e-4)


COUNTS = [(1, None, 1), (99, None, 1), (200, None, 2), (5000, None, 4), (5000, 6, 6), (5000, 2, 2)]


@pytest.mark.parametrize(("count", "components", "expected"), COUNTS)
def test_few_points_get_few_components(beside, generator, count, components, expected):
    points = torch.randn(count, 5, generator=generator)
    new = fit_class(points, beside, components=components, settings=FewSamples(points_per_component=100))
    assert new.means.shape == (expected, 5)
    torch.testing.assert_close(new.log_weights.exp().sum(), torch.tensor(1.0))


@pytest.mark.parametrize(("images", "expected"), [(1, 1), (7, 1), (8, 2), (15, 3), (400, 4)])
def test_points_of_few_images_get_few_components(beside, generator, images, expected):
    settings = FewSamples(points_per_component=50, images_per_component=4)
    new = fit_class(torch.randn(900, 5, generator=generator), beside, images=images, settings=settings)
    assert len(new.means) == expected


def test_the_more_points_the_less_shrinkage(beside, generator):
    centres = torch.tensor([[-8.0] * 5, [8.0] * 5])
    gaps = []
    for count in (100, 1000, 20_000):
        which = torch.randint(2, (count,), generator=generator)
        points = centres[which] + 0.1 * torch.randn(count, 5, generator=generator)
        new = fit_class(points, beside, components=2, settings=FewSamples(points_per_component=20))
        nearest = torch.cdist(new.means, centres).min(1).values.mean()
        gaps.append((float(nearest), float((new.variances.mean() - 0.01).abs())))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[0][1] > gaps[1][1] > gaps[2][1]


def test_identical_points_have_a_variance(beside):
    new = fit_class(torch.ones(7, 5), beside)
    assert bool(new.variances.gt(0).all())
    assert all(bool(each.isfinite().all()) for each in new)


def test_means_stay_where_points_can_lie(generator):
    mixture = ClassMixture(2, 3, 6, coordinates=Sphere(6))
    mixture.variances.fill_(0.5)
    points = torch.nn.functional.normalize(torch.randn(500, 6, generator=generator), dim=-1)
    new = fit_class(points, mixture)
    torch.testing.assert_close(new.means.norm(dim=-1), torch.ones(len(new.means)))


def test_refusals(beside):
    with pytest.raises(ValueError, match="no point of the new class"):
        fit_class(torch.zeros(0, 5), beside)
    with pytest.raises(ValueError, match="expected points"):
        fit_class(torch.zeros(4, 6), beside)
    with pytest.raises(ValueError, match="never been fitted"):
        fit_class(torch.zeros(4, 5), ClassMixture(2, 1, 5))
