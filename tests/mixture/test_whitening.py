import pytest
import torch

from gmmseg.mixture import ClassMixture, OnlineEM
from gmmseg.mixture.class_batch import ClassBatch
from gmmseg.mixture.whitening import Whitening, from_sphere, on_sphere

C, D = 3, 5  # classes, channels of a feature


def draw(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (n d) of three classes with one long, slanted covariance, and their labels, sorted."""
    labels = torch.arange(n) % C
    labels = labels.sort().values
    slant = torch.randn(D, D, generator=generator) * torch.tensor([9.0, 3.0, 1.0, 0.5, 0.2])
    centres = torch.randn(C, D, generator=generator) * 2 + 7
    return centres[labels] + torch.randn(n, D, generator=generator) @ slant.T, labels


def settle(whitening: Whitening, features: torch.Tensor, labels: torch.Tensor, times: int = 3) -> None:
    for _ in range(times):
        whitening.update_(ClassBatch(features, labels), torch.ones(C))


def test_the_spread_within_classes_becomes_one(generator: torch.Generator) -> None:
    features, labels = draw(3000, generator)
    whitening = Whitening(D + 1, shrinkage=1e-6)
    settle(whitening, features, labels)
    rows = from_sphere(whitening(features))
    centres = torch.stack([rows[labels == c].mean(0) for c in range(C)])
    offsets = rows - centres[labels]
    torch.testing.assert_close(offsets.T @ offsets / len(rows), torch.eye(D), atol=2e-2, rtol=0)
    torch.testing.assert_close(rows.mean(0), torch.zeros(D), atol=1e-2, rtol=0)


def test_no_linear_map_of_the_features_matters(generator: torch.Generator) -> None:
    """Mahalanobis distances, and so everything the mixtures see, stay as they are."""
    features, labels = draw(3000, generator)
    mapped = features @ torch.randn(D, D, generator=generator) + 3
    found = []
    for each in (features, mapped):
        whitening = Whitening(D + 1, shrinkage=1e-7)
        settle(whitening, each, labels, times=5)
        found.append(torch.cdist(whitening(each[::10]), whitening(each[::10])))
    torch.testing.assert_close(found[0], found[1], atol=1e-2, rtol=0)


def test_the_nearest_mean_becomes_the_linear_discriminant(generator: torch.Generator) -> None:
    """Oracle: scikit-learn's linear discriminant analysis with equal priors, on points far from the pole."""
    discriminant = pytest.importorskip("sklearn.discriminant_analysis")
    features, labels = draw(3000, generator)
    whitening = Whitening(D + 1, shrinkage=1e-7)
    settle(whitening, features, labels)
    rows = from_sphere(whitening(features))
    centres = torch.stack([rows[labels == c].mean(0) for c in range(C)])
    oracle = discriminant.LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / C] * C)
    expected = oracle.fit(features.numpy(), labels.numpy()).predict(features.numpy())
    nearest = torch.cdist(rows, centres).argmin(1).numpy()
    assert (nearest == expected).mean() > 0.995
    assert (
        torch.cdist(features, features.new_tensor(oracle.means_)).argmin(1).numpy() == expected
    ).mean() < 0.9


def test_sphere_and_back(generator: torch.Generator) -> None:
    rows = 20 * torch.randn(50, 7, generator=generator)
    points = on_sphere(rows)
    torch.testing.assert_close(points.norm(dim=-1), torch.ones(50))
    torch.testing.assert_close(from_sphere(points), rows, atol=1e-3, rtol=1e-4)


def test_the_sphere_remembers_length(generator: torch.Generator) -> None:
    """Nothing lies at the pole; what is d coordinates of variance one lies half way down."""
    directions = torch.nn.functional.normalize(torch.randn(7, 15, generator=generator), dim=-1)
    for length, height in ((0.0, 1.0), (16**0.5, 0.5**0.5), (1e6, 0.0)):
        points = on_sphere(length * directions)
        torch.testing.assert_close(points[:, -1], torch.full((7,), height), atol=1e-5, rtol=0)


def test_em_moves_the_whitening_and_gradients_do_not(generator: torch.Generator) -> None:
    features, labels = draw(600, generator)
    mixture = ClassMixture(C, 2, D + 1, whitened=True)
    features.requires_grad_()
    points = mixture.points(features)
    mixture(points).sum().backward()
    assert bool(features.grad.abs().sum() > 0)
    before = mixture.whitening.basis.clone()
    OnlineEM(mixture).step(points.detach(), labels)
    assert not torch.equal(mixture.whitening.basis, before)
    assert not any(parameter.requires_grad for parameter in mixture.parameters())


def test_one_point_per_class_leaves_everything_finite() -> None:
    """No spread at all within classes: the floor of the variance keeps the basis finite."""
    whitening = Whitening(D + 1)
    settle(whitening, torch.randn(C, D), torch.arange(C))
    assert bool(whitening.basis.isfinite().all())
    assert bool(whitening(torch.randn(4, D)).isfinite().all())
