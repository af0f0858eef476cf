import math

import pytest
import torch
from scipy.stats import multivariate_normal

from gmmseg.mixture import anomaly_score, class_evidence, log_density, log_posterior


def slow_log_density(points, means, variances):
    """The obvious loop, in double precision."""
    result = torch.empty(len(points), *means.shape[:2], dtype=torch.float64)
    for c in range(means.shape[0]):
        for k in range(means.shape[1]):
            normal = torch.distributions.Normal(means[c, k].double(), variances[c, k].double().sqrt())
            result[:, c, k] = normal.log_prob(points.double()).sum(-1)
    return result


def hard_case(distance, offset, seed=0):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(4, 3, 16, generator=generator) + offset
    variances = 10 ** (6 * torch.rand(4, 3, 16, generator=generator) - 3)
    points = distance * torch.randn(50, 16, generator=generator) + offset
    points[:12] = means.flatten(0, 1) + 1e-2 * torch.randn(12, 16, generator=generator)
    return points, means, variances


@pytest.mark.parametrize("distance", [0.1, 1.0, 1e3])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_equals_torch_distributions_over_six_decades_of_variance(distance, offset):
    points, means, variances = hard_case(distance, offset)
    expected = slow_log_density(points, means, variances)
    actual = log_density(points, means, variances)
    assert actual.shape == (50, 4, 3)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-3 if offset else 1e-4 * 16)


def test_equals_scipy():
    points, means, variances = hard_case(1.0, 0.0)
    density = multivariate_normal(means[2, 1].numpy(), variances[2, 1].numpy())
    expected = torch.from_numpy(density.logpdf(points.numpy()))
    torch.testing.assert_close(
        log_density(points, means, variances)[:, 2, 1].double(), expected, rtol=1e-4, atol=1e-3
    )


def test_gradient_in_points_equals_the_slow_one():
    points, means, variances = hard_case(1.0, 0.0)
    variances = variances.clamp_min(0.1)
    quick, slow = points.clone().requires_grad_(), points.clone().requires_grad_()
    log_density(quick, means, variances).logsumexp((1, 2)).sum().backward()
    slow_log_density(slow, means, variances).logsumexp((1, 2)).sum().backward()
    torch.testing.assert_close(quick.grad, slow.grad, rtol=1e-3, atol=1e-4)


def test_autocast_does_not_touch_it():
    points, means, variances = hard_case(1.0, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        inside = log_density(points, means, variances)
    assert torch.equal(inside, log_density(points, means, variances))


def test_evidence_is_the_best_or_the_sum_of_weighted_components():
    log_densities = torch.randn(7, 3, 5)
    best = (log_densities + math.log(1 / 5)).max(-1).values
    total = (log_densities.exp() / 5).sum(-1).log()
    torch.testing.assert_close(class_evidence(log_densities), best)
    torch.testing.assert_close(class_evidence(log_densities, winner=False), total)
    weights = torch.rand(3, 5)
    torch.testing.assert_close(
        class_evidence(log_densities, weights.log()), (log_densities.exp() * weights).amax(-1).log()
    )


@pytest.mark.parametrize("winner", [True, False])
def test_permuting_components_changes_nothing(winner):
    log_densities = torch.randn(7, 3, 5)
    shuffled = log_densities[..., torch.randperm(5)]
    torch.testing.assert_close(
        class_evidence(log_densities, winner=winner), class_evidence(shuffled, winner=winner)
    )


def test_posterior_is_bayes_rule():
    evidence, prior = torch.randn(6, 4), torch.tensor([0.1, 0.2, 0.3, 0.4])
    joint = evidence.exp() * prior
    torch.testing.assert_close(
        log_posterior(evidence, prior.log()).exp(), joint / joint.sum(-1, keepdim=True)
    )


def test_far_points_are_stranger():
    means, variances = torch.zeros(2, 1, 3), torch.ones(2, 1, 3)
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1e6, 0, 0]])
    scores = anomaly_score(class_evidence(log_density(points, means, variances)))
    assert scores.isfinite().all()
    assert scores[0] < scores[1] < scores[2]
