"""The E-step and the M-step that online EM and the post-hoc fit share."""

import pytest
import torch
from torch.distributions import Independent, Normal

from gmmseg.mixture import ClassMixture, EMSettings, OnlineEM, Sphere
from gmmseg.mixture.class_batch import ClassBatch
from gmmseg.mixture.coordinates import Plain
from gmmseg.mixture.memory import Moments
from gmmseg.mixture.steps import estimated_log_weights, expect, maximise

C, K, D = 3, 2, 4


@pytest.fixture
def mixture(generator: torch.Generator) -> ClassMixture:
    made = ClassMixture(C, K, D)
    made.means.copy_(torch.randn(C, K, D, generator=generator))
    made.variances.copy_(0.5 + torch.rand(C, K, D, generator=generator))
    made.log_weights.copy_(torch.randn(C, K, generator=generator).log_softmax(-1))
    return made


def draw(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (n d) and labels (n) of two of the three classes, sorted, one class larger than the other."""
    labels = torch.tensor([0] * 7 + [2] * 12)
    return torch.randn(len(labels), D, generator=generator), labels


def test_the_e_step_is_bayes_rule_within_a_class(generator: torch.Generator, mixture: ClassMixture) -> None:
    """Oracle: torch's own densities, point by point."""
    points, labels = draw(generator)
    batch = ClassBatch(points, labels)
    found = expect(mixture, batch, EMSettings(balanced=False))
    rows = batch.layout.unpad(found.responsibilities)
    for point, label, row, log_likelihood in zip(points, labels, rows, found.log_likelihoods):
        components = Independent(Normal(mixture.means[label], mixture.variances[label].sqrt()), 1)
        joint = components.log_prob(point) + mixture.log_weights[label]
        torch.testing.assert_close(row, joint.softmax(-1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(log_likelihood, joint.logsumexp(-1), rtol=1e-4, atol=1e-4)
    assert not found.responsibilities[~batch.valid].any()


def test_given_responsibilities_are_returned_and_the_likelihood_is_the_same(
    generator: torch.Generator, mixture: ClassMixture
) -> None:
    batch = ClassBatch(*draw(generator))
    given = torch.rand(*batch.valid.shape, K, generator=generator)
    found = expect(mixture, batch, EMSettings(), given)
    assert found.responsibilities is given
    assert torch.equal(found.log_likelihoods, expect(mixture, batch, EMSettings()).log_likelihoods)


@pytest.mark.parametrize("coordinates", [Plain(D), Sphere(D)], ids=lambda each: each.name)
def test_the_m_step_is_the_mean_and_the_variance_about_it(generator: torch.Generator, coordinates) -> None:
    """Oracle: a loop over components. On the sphere the mean is the direction, and variances are about it."""
    points = coordinates(torch.randn(20, D, generator=generator) + 1)
    shares = torch.rand(20, K, generator=generator, dtype=torch.float64)
    rows = points.double()
    known = Moments(shares.sum(0)[None], (shares.T @ rows)[None], (shares.T @ rows.square())[None])
    old = torch.zeros(1, K, D)
    means, variances = maximise(known, old, old, coordinates, variance_floor=0.2, variance_offset=0.01)
    for k in range(K):
        weight = shares[:, k : k + 1] / shares[:, k].sum()
        mean = coordinates.valid_means((weight * rows).sum(0))
        variance = ((weight * (rows - mean).square()).sum(0) + 0.01).clamp_min(0.2)
        torch.testing.assert_close(means[0, k], mean.float())
        torch.testing.assert_close(variances[0, k], variance.float())


def test_a_component_without_points_keeps_its_own() -> None:
    known = Moments(torch.tensor([[0.0, 2.0]]), torch.ones(1, K, D), torch.ones(1, K, D))
    old = torch.full((1, K, D), 7.0)
    for found in maximise(known, old, old, Plain(D), variance_floor=0.0):
        assert torch.equal(found[0, 0], old[0, 0])
        assert not torch.equal(found[0, 1], old[0, 1])


def test_component_weights_are_shares_and_none_is_ever_out() -> None:
    old = torch.tensor([[0.3, 0.7], [0.3, 0.7]]).log()
    found = estimated_log_weights(torch.tensor([[30.0, 0.0], [0.0, 0.0]]), old).exp()
    torch.testing.assert_close(found, torch.tensor([[1.0, 1e-6], [0.3, 0.7]]))


@pytest.mark.parametrize("balanced", [False, True])
def test_an_online_step_without_memory_and_momentum_is_a_pass_of_the_fit(
    generator: torch.Generator, mixture: ClassMixture, balanced: bool
) -> None:
    """Law: both are the same EM."""
    points, labels = draw(generator)
    other = ClassMixture(C, K, D)
    other.load_state_dict(mixture.state_dict())
    settings = EMSettings(
        balanced=balanced, memory_size=0, mean_momentum=0.0, variance_momentum=0.0, warm_momentum=False
    )
    em = OnlineEM(mixture, settings)
    em.step(points, labels)
    history = other.fit(
        points, labels, passes=1, restart=False, balanced=balanced, variance_floor=settings.variance_floor
    )
    assert history[0] == pytest.approx(float(em.log_likelihood), abs=1e-4)
    for name, value in mixture.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-4, atol=1e-4)
