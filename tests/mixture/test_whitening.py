import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from gmmseg.mixture import ClassMixture, EMSettings, OnlineEM
from gmmseg.mixture.whitening import Spread, Whitening, from_sphere, on_sphere

C, D = 3, 5  # classes, channels of a feature


def draw(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (n d) of three classes with one long, slanted covariance, and their labels, sorted."""
    labels = torch.arange(n) % C
    labels = labels.sort().values
    slant = torch.randn(D, D, generator=generator) * torch.tensor([9.0, 3.0, 1.0, 0.5, 0.2])
    centres = torch.randn(C, D, generator=generator) * 2 + 7
    return centres[labels] + torch.randn(n, D, generator=generator) @ slant.T, labels


def settled(features: torch.Tensor, labels: torch.Tensor, shrinkage: float) -> Whitening:
    spread, whitening = Spread(D + 1, decay=0.95), Whitening(D + 1)
    spread.update(features, labels, torch.ones(C))
    whitening.follow_(spread, shrinkage)
    return whitening


def test_the_spread_within_classes_becomes_one(generator: torch.Generator) -> None:
    features, labels = draw(3000, generator)
    rows = from_sphere(settled(features, labels, 1e-6)(features))
    centres = torch.stack([rows[labels == c].mean(0) for c in range(C)])
    offsets = rows - centres[labels]
    torch.testing.assert_close(offsets.T @ offsets / len(rows), torch.eye(D), atol=2e-2, rtol=0)
    torch.testing.assert_close(rows.mean(0), torch.zeros(D), atol=1e-2, rtol=0)


def test_no_linear_map_of_the_features_matters_without_shrinkage(generator: torch.Generator) -> None:
    """Mahalanobis distances, and so everything the mixtures see, stay as they are."""
    features, labels = draw(3000, generator)
    mapped = features @ torch.randn(D, D, generator=generator) + 3
    found = []
    for each in (features, mapped):
        points = settled(each, labels, 1e-7)(each[::10])
        found.append(torch.cdist(points, points))
    torch.testing.assert_close(found[0], found[1], atol=1e-2, rtol=0)


def test_the_nearest_mean_becomes_the_linear_discriminant(generator: torch.Generator) -> None:
    """Oracle: scikit-learn's linear discriminant analysis with equal priors."""
    features, labels = draw(3000, generator)
    rows = from_sphere(settled(features, labels, 1e-7)(features))
    centres = torch.stack([rows[labels == c].mean(0) for c in range(C)])
    oracle = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / C] * C)
    expected = oracle.fit(features.numpy(), labels.numpy()).predict(features.numpy())
    assert (torch.cdist(rows, centres).argmin(1).numpy() == expected).mean() > 0.995
    unwhitened = torch.cdist(features, features.new_tensor(oracle.means_)).argmin(1).numpy()
    assert (unwhitened == expected).mean() < 0.9


def test_spread_is_the_weighted_covariance_of_its_batches(generator: torch.Generator) -> None:
    """Oracle: numpy's, class by class; the first batches are averaged, then the older ones fade."""
    spread = Spread(D + 1, decay=0.6)
    expected, weight = torch.zeros(D, D, dtype=torch.float64), torch.tensor([1.0, 2.0, 5.0])
    for rate, pace in ((1.0, 1.0), (0.5, 1.0), (0.4, 1.0), (0.4, 1.0), (0.28, 0.7), (1 / 6, 0.0)):
        features, labels = draw(90, generator)
        each = [torch.from_numpy(np.cov(features[labels == c].numpy().T)) for c in range(C)]
        expected.lerp_(sum(w * e for w, e in zip(weight / weight.sum(), each)), rate)
        spread.update(features, labels, weight, pace)
        torch.testing.assert_close(spread.covariance, expected, rtol=1e-4, atol=1e-4)


def test_single_points_say_nothing_of_the_spread(generator: torch.Generator) -> None:
    features, labels = draw(60, generator)
    alone = torch.cat([features, torch.full((1, D), 100.0)]), torch.cat([labels, torch.tensor([C])])
    with_one, without = Spread(D + 1, decay=0.9), Spread(D + 1, decay=0.9)
    with_one.update(*alone, torch.ones(C + 1))
    without.update(features, labels, torch.ones(C))
    torch.testing.assert_close(with_one.covariance, without.covariance)
    only_single = Spread(D + 1, decay=0.9)
    only_single.update(torch.randn(C, D), torch.arange(C), torch.ones(C))
    assert torch.equal(only_single.covariance, torch.eye(D, dtype=torch.float64))


def test_classes_without_any_spread_leave_everything_finite() -> None:
    whitening = settled(torch.ones(2 * C, D), torch.arange(C).repeat_interleave(2), 0.1)
    assert bool(whitening(torch.randn(4, D)).isfinite().all())


def test_sphere_and_back(generator: torch.Generator) -> None:
    rows = 20 * torch.randn(50, 7, generator=generator)
    points = on_sphere(rows)
    torch.testing.assert_close(points.norm(dim=-1), torch.ones(50))
    torch.testing.assert_close(from_sphere(points), rows, atol=1e-3, rtol=1e-4)


def test_the_sphere_remembers_length(generator: torch.Generator) -> None:
    """Nothing lies at the pole; what is as long as the pole is high lies half way down."""
    directions = torch.nn.functional.normalize(torch.randn(7, 15, generator=generator), dim=-1)
    for length, height in ((0.0, 1.0), (16**0.5, 0.5**0.5), (1e6, 0.0)):
        points = on_sphere(length * directions)
        torch.testing.assert_close(points[:, -1], torch.full((7,), height), atol=1e-5, rtol=0)


def test_em_fits_the_mixtures_in_the_coordinates_the_next_pass_will_use(generator: torch.Generator) -> None:
    features, labels = draw(90, generator)
    mixture = ClassMixture(C, 1, D + 1, whitened=True)
    em = OnlineEM(
        mixture, EMSettings(memory_size=0, mean_momentum=0.0, variance_momentum=0.0, warm_momentum=False)
    )
    for _ in range(3):
        em.step(mixture.points(features), labels)
    points = mixture.points(features)
    expected = torch.stack([points[labels == c].mean(0) for c in range(C)])
    expected = torch.nn.functional.normalize(expected, dim=-1)  # points lie on the sphere, and so do means
    torch.testing.assert_close(mixture.means[:, 0], expected, atol=1e-5, rtol=0)


def test_a_projection_is_folded_in_exactly_and_learns_the_same(generator: torch.Generator) -> None:
    features, labels = draw(200, generator)
    whitening = settled(features, labels, 0.1)
    wide = torch.randn(50, 7, generator=generator)
    upstream = torch.randn(50, D + 1, generator=generator)
    projection = torch.randn(D, 7, generator=generator)
    results = []
    for fold in (True, False):
        weight = projection.clone().requires_grad_()
        points = whitening(wide, weight) if fold else whitening(wide @ weight.T)
        (points * upstream).sum().backward()
        results.append((points.detach(), weight.grad))
    for folded, in_turn in zip(*results):
        torch.testing.assert_close(folded, in_turn, atol=1e-5, rtol=1e-5)


def test_a_class_weighs_by_the_root_of_its_pixels(generator: torch.Generator) -> None:
    features, _ = draw(100, generator)
    labels = torch.tensor([0] * 10 + [1] * 90)
    mixture = ClassMixture(2, 1, D + 1, whitened=True)
    em = OnlineEM(mixture)
    em.step(mixture.points(features), labels)
    each = [torch.from_numpy(np.cov(features[labels == c].numpy().T)) for c in range(2)]
    weight = torch.tensor([10.0, 90.0]).sqrt()
    expected = (weight[0] * each[0] + weight[1] * each[1]) / weight.sum()
    torch.testing.assert_close(em.spread.covariance, expected, rtol=1e-3, atol=1e-3)


def test_em_moves_the_whitening_and_gradients_do_not(generator: torch.Generator) -> None:
    """Also when EM steps between the forward and the backward pass."""
    features, labels = draw(600, generator)
    mixture = ClassMixture(C, 2, D + 1, whitened=True)
    before = mixture.whitening.basis.clone()
    features.requires_grad_()
    points = mixture.points(features)
    evidence = mixture(points)
    OnlineEM(mixture).step(points.detach(), labels)
    evidence.sum().backward()
    assert bool(features.grad.abs().sum() > 0)
    assert not torch.equal(mixture.whitening.basis, before)
    assert not any(parameter.requires_grad for parameter in mixture.parameters())


def test_a_model_in_half_precision_has_points() -> None:
    mixture = ClassMixture(C, 2, D + 1, whitened=True).bfloat16()
    projection = torch.nn.Linear(7, D, bias=False).bfloat16()
    for points in (
        mixture.points(torch.randn(4, D, dtype=torch.bfloat16)),
        mixture.points(torch.randn(4, 7, dtype=torch.bfloat16), projection),
    ):
        assert points.shape == (4, D + 1)
        assert points.dtype == torch.float32


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least two channels"):
        ClassMixture(C, 2, 1, whitened=True)
    mixture = ClassMixture(C, 2, D + 1, whitened=True)
    with pytest.raises(ValueError, match="make them with its `points`"):
        OnlineEM(mixture).step(-torch.ones(4, D + 1), torch.zeros(4, dtype=torch.int64))
