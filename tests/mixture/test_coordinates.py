from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from gmmseg.mixture import (
    PRESETS,
    ClassMixture,
    DiscriminativeMixture,
    EMSettings,
    OnlineEM,
    WhitenedSphere,
    make_coordinates,
)
from gmmseg.mixture.coordinates import COORDINATES, WithinClassCovariance, from_sphere, on_sphere

C, D = 3, 5  # classes, channels of a feature


def draw(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (n d) of three classes with one long, slanted covariance, and their labels, sorted."""
    labels = torch.arange(n) % C
    labels = labels.sort().values
    slant = torch.randn(D, D, generator=generator) * torch.tensor([9.0, 3.0, 1.0, 0.5, 0.2])
    centres = torch.randn(C, D, generator=generator) * 2 + 7
    return centres[labels] + torch.randn(n, D, generator=generator) @ slant.T, labels


def settled(features: torch.Tensor, labels: torch.Tensor, shrinkage: float) -> WhitenedSphere:
    within, coordinates = WithinClassCovariance(D + 1, decay=0.95), WhitenedSphere(D + 1)
    within.update(features, labels, torch.ones(C))
    coordinates.whiten_(within, shrinkage)
    return coordinates


def whitened_mixture(classes: int, components: int) -> ClassMixture:
    return ClassMixture(classes, components, D + 1, coordinates=WhitenedSphere(D + 1))


def test_the_covariance_within_classes_becomes_the_identity(generator: torch.Generator) -> None:
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


def test_it_is_the_weighted_covariance_of_its_batches(generator: torch.Generator) -> None:
    """Oracle: numpy's, class by class; the first batches are averaged, then the older ones fade."""
    within = WithinClassCovariance(D + 1, decay=0.6)
    expected, weight = torch.zeros(D, D, dtype=torch.float64), torch.tensor([1.0, 2.0, 5.0])
    for rate, scale in ((1.0, 1.0), (0.5, 1.0), (0.4, 1.0), (0.4, 1.0), (0.28, 0.7), (1 / 6, 0.0)):
        features, labels = draw(90, generator)
        each = [torch.from_numpy(np.cov(features[labels == c].numpy().T)) for c in range(C)]
        expected.lerp_(sum(w * e for w, e in zip(weight / weight.sum(), each)), rate)
        within.update(features, labels, weight, scale)
        torch.testing.assert_close(within.covariance, expected, rtol=1e-4, atol=1e-4)


def test_single_points_say_nothing_of_the_covariance(generator: torch.Generator) -> None:
    features, labels = draw(60, generator)
    alone = torch.cat([features, torch.full((1, D), 100.0)]), torch.cat([labels, torch.tensor([C])])
    with_one, without = WithinClassCovariance(D + 1, decay=0.9), WithinClassCovariance(D + 1, decay=0.9)
    with_one.update(*alone, torch.ones(C + 1))
    without.update(features, labels, torch.ones(C))
    torch.testing.assert_close(with_one.covariance, without.covariance)
    only_single = WithinClassCovariance(D + 1, decay=0.9)
    only_single.update(torch.randn(C, D), torch.arange(C), torch.ones(C))
    assert torch.equal(only_single.covariance, torch.eye(D, dtype=torch.float64))


def test_classes_without_any_variance_leave_everything_finite() -> None:
    coordinates = settled(torch.ones(2 * C, D), torch.arange(C).repeat_interleave(2), 0.1)
    assert bool(coordinates(torch.randn(4, D)).isfinite().all())


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
    mixture = whitened_mixture(C, 1)
    em = OnlineEM(
        mixture, EMSettings(memory_size=0, mean_momentum=0.0, variance_momentum=0.0, warm_momentum=False)
    )
    for _ in range(3):
        em.step(mixture.points(features), labels)
    points = mixture.points(features)
    expected = torch.stack([points[labels == c].mean(0) for c in range(C)])
    expected = torch.nn.functional.normalize(expected, dim=-1)  # points lie on the sphere, and so do means
    torch.testing.assert_close(mixture.means[:, 0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("bias", [False, True])
def test_a_projection_is_folded_in_exactly_and_learns_the_same(
    generator: torch.Generator, bias: bool
) -> None:
    features, labels = draw(200, generator)
    coordinates = settled(features, labels, 0.1)
    wide = torch.randn(50, 7, generator=generator)
    upstream = torch.randn(50, D + 1, generator=generator)
    results = []
    for fold in (True, False):
        torch.manual_seed(0)
        projection = torch.nn.Linear(7, D, bias=bias)
        # A sequence of one layer is no linear layer to the coordinates, so that it is applied in turn.
        points = coordinates(wide, projection if fold else torch.nn.Sequential(projection))
        (points * upstream).sum().backward()
        results.append((points.detach(), *(each.grad for each in projection.parameters())))
    for folded, in_turn in zip(*results):
        torch.testing.assert_close(folded, in_turn, atol=1e-5, rtol=1e-5)


def test_a_class_weighs_by_the_root_of_its_pixels(generator: torch.Generator) -> None:
    features, _ = draw(100, generator)
    labels = torch.tensor([0] * 10 + [1] * 90)
    mixture = whitened_mixture(2, 1)
    em = OnlineEM(mixture)
    em.step(mixture.points(features), labels)
    each = [torch.from_numpy(np.cov(features[labels == c].numpy().T)) for c in range(2)]
    weight = torch.tensor([10.0, 90.0]).sqrt()
    expected = (weight[0] * each[0] + weight[1] * each[1]) / weight.sum()
    torch.testing.assert_close(em.follower.within.covariance, expected, rtol=1e-3, atol=1e-3)


def test_em_moves_the_whitening_and_gradients_do_not(generator: torch.Generator) -> None:
    """Also when EM steps between the forward and the backward pass."""
    features, labels = draw(600, generator)
    mixture = whitened_mixture(C, 2)
    before = mixture.coordinates.basis.clone()
    features.requires_grad_()
    points = mixture.points(features)
    evidence = mixture(points)
    OnlineEM(mixture).step(points.detach(), labels)
    evidence.sum().backward()
    assert bool(features.grad.abs().sum() > 0)
    assert not torch.equal(mixture.coordinates.basis, before)
    assert not any(parameter.requires_grad for parameter in mixture.parameters())


def test_a_model_in_half_precision_has_points() -> None:
    mixture = whitened_mixture(C, 2).bfloat16()
    projection = torch.nn.Linear(7, D, bias=False).bfloat16()
    for points in (
        mixture.points(torch.randn(4, D, dtype=torch.bfloat16)),
        mixture.points(torch.randn(4, 7, dtype=torch.bfloat16), projection),
    ):
        assert points.shape == (4, D + 1)
        assert points.dtype == torch.float32


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", COORDINATES)
def test_em_is_right_in_all_coordinates_on_features_of_any_scale(
    generator: torch.Generator, name: str, preset: str, scale: float
) -> None:
    """Law: means stay where points lie, the likelihood rises, every class is fitted and told apart."""
    mixture = ClassMixture(C, 2, D + 1, coordinates=make_coordinates(name, D + 1))
    # The reference's momentum would need thousands of steps to leave the random start.
    settings = replace(PRESETS[preset], correct_only=False, update_every=1, mean_momentum=0.5)
    em = OnlineEM(mixture, settings)
    channels = mixture.coordinates.feature_channels
    centres = 3 * torch.nn.functional.one_hot(torch.arange(C), channels)
    likelihoods = []
    for _ in range(60):
        labels = torch.arange(300) % C
        features = scale * (centres[labels] + 0.3 * torch.randn(300, channels, generator=generator))
        em.step(mixture.points(features), labels)
        likelihoods.append(float(em.log_likelihood))
        if name != "plain":
            torch.testing.assert_close(mixture.means.norm(dim=-1), torch.ones(C, 2))
    assert mixture.fitted.all()
    assert likelihoods[-1] > likelihoods[0]
    points = mixture.points(features)
    mixture.coordinates.check(points)
    if (name, scale) != ("pole", 1e-3):  # so near the pole all classes are one
        assert (mixture(points).argmax(1) == labels).float().mean() > 0.95


@pytest.mark.parametrize("name", COORDINATES)
def test_a_post_hoc_fit_keeps_means_valid_too(generator: torch.Generator, name: str) -> None:
    mixture = ClassMixture(C, 2, D, coordinates=make_coordinates(name, D))
    labels = torch.arange(300) % C
    features = torch.randn(300, mixture.coordinates.feature_channels, generator=generator)
    features[torch.arange(300), labels] += 5
    history = mixture.fit(mixture.points(features), labels)
    assert history[-1] > history[0]
    if name != "plain":
        torch.testing.assert_close(mixture.means.norm(dim=-1), torch.ones(C, 2))
        with pytest.raises(ValueError, match=f"not points of {name} coordinates"):
            mixture.fit(torch.full((300, D), -9.0), labels)


@pytest.mark.parametrize("name", COORDINATES)
def test_em_goes_on_from_its_state_in_all_coordinates(generator: torch.Generator, name: str) -> None:
    """Round trip; states of earlier versions kept the covariance under another name."""
    batches = [torch.randn(90, D + 1, generator=generator) for _ in range(4)]
    labels = torch.arange(90) % C

    def run(mixture: ClassMixture, em: OnlineEM, parts: list[torch.Tensor]) -> None:
        for part in parts:
            em.step(mixture.points(part[:, : mixture.coordinates.feature_channels]), labels)

    whole = ClassMixture(C, 2, D + 1, coordinates=make_coordinates(name, D + 1))
    em = OnlineEM(whole)
    run(whole, em, batches[:2])
    state, weights = em.state_dict(), {key: value.clone() for key, value in whole.state_dict().items()}
    run(whole, em, batches[2:])
    old = {key: value for key, value in state.items() if key != "follower"}
    for saved in (state, {**old, "spread": state["follower"] or None}):
        resumed = ClassMixture(C, 2, D + 1, coordinates=make_coordinates(name, D + 1))
        resumed.load_state_dict(weights)
        again = OnlineEM(resumed)
        again.load_state_dict(saved)
        run(resumed, again, batches[2:])
        assert all(torch.equal(value, resumed.state_dict()[key]) for key, value in whole.state_dict().items())


def test_points_of_no_length_and_points_that_are_not_finite_pass_the_check() -> None:
    """The former are features of zeros; the latter have an error of their own."""
    make_coordinates("sphere", 2).check(
        torch.tensor([[0.0, 0.0], [0.6, 0.8], [torch.nan, 1.0], [torch.inf, 0.0]])
    )


@pytest.mark.parametrize("name", ["sphere", "pole", "whitened"])
def test_em_refuses_points_of_other_coordinates(name: str) -> None:
    mixture = ClassMixture(C, 2, D, coordinates=make_coordinates(name, D))
    before, labels = mixture.means.clone(), torch.zeros(4, dtype=torch.int64)
    for points in (-torch.ones(4, D), torch.ones(4, D)):  # the latter as features after a ReLU
        for learn in (OnlineEM(mixture).step, mixture.fit):
            with pytest.raises(ValueError, match=f"not points of {name} coordinates: make them .* `points`"):
                learn(points, labels)
    assert torch.equal(mixture.means, before)


def test_refusals() -> None:
    for name in ("pole", "whitened"):
        with pytest.raises(ValueError, match=f"{name} coordinates need dim at least 2, got 1"):
            make_coordinates(name, 1)
    with pytest.raises(
        ValueError, match=r"unknown coordinates 'torus': choose plain, sphere, pole, whitened"
    ):
        make_coordinates("torus", D)
    with pytest.raises(ValueError, match="have 4 channels, of the mixture 6: make both with the same dim"):
        ClassMixture(C, 2, 6, coordinates=WhitenedSphere(4))
    with pytest.raises(ValueError, match=r"only EM can fit whitened coordinates.*: choose pole"):
        DiscriminativeMixture(C, 2, D, coordinates=WhitenedSphere(D))


def test_channels_are_scaled_before_their_correlations_are_whitened(generator):
    """Oracle: numpy, B = diag(1/s) (R + 0.5 I)^(-1/2); a channel's unit of measure must not matter."""
    mixing = torch.randn(4, 4, generator=generator).double()
    scales = torch.tensor([1.0, 10.0, 0.5, 5.0]).double()
    covariance = scales[:, None] * (mixing @ mixing.T) * scales
    centre = torch.tensor([1.0, 200.0, 0.0, -3.0])
    coordinates = WhitenedSphere(5)
    coordinates.whiten_channels_(centre, covariance, 0.5)
    deviations = np.sqrt(covariance.numpy().diagonal())
    values, vectors = np.linalg.eigh(covariance.numpy() / np.outer(deviations, deviations) + 0.5 * np.eye(4))
    basis = np.diag(1 / deviations) @ (vectors / np.sqrt(values)) @ vectors.T
    features = centre + torch.randn(6, 4, generator=generator) * scales.float()
    rows = np.concatenate([(features - centre).numpy() @ basis, np.full((6, 1), np.sqrt(5))], axis=1)
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(coordinates(features).numpy(), expected, atol=1e-3)
