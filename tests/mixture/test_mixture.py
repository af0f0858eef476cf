import itertools

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from gmmseg.labels import IGNORE
from gmmseg.mixture import ClassMixture, DiscriminativeMixture, OnlineEM, class_evidence


def three_clusters(generator, n=600, d=4):
    """Two classes of three well separated clusters each."""
    centres = torch.randn(2, 3, d, generator=generator) * 6
    labels = torch.randint(2, (n,), generator=generator)
    cluster = torch.randint(3, (n,), generator=generator)
    return centres[labels, cluster] + torch.randn(n, d, generator=generator), labels, centres


def test_one_pass_equals_scikit_learn_from_the_same_start(generator):
    points, labels, _ = three_clusters(generator)
    mixture = ClassMixture(2, 3, 4)
    start = torch.randn(2, 3, 4, generator=generator)
    mixture.means.copy_(start)
    mixture.fit([(points, labels)], passes=1, restart=False)
    for c in range(2):
        oracle = GaussianMixture(
            3, covariance_type="diag", max_iter=1, reg_covar=0.0, weights_init=np.full(3, 1 / 3),
            means_init=start[c].numpy(), precisions_init=np.ones((3, 4)), tol=0.0,
        )  # fmt: skip
        with pytest.warns(UserWarning, match="converge"):
            oracle.fit(points[labels == c].numpy())
        np.testing.assert_allclose(mixture.means[c], oracle.means_, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(mixture.variances[c], oracle.covariances_, rtol=1e-3, atol=1e-4)


def test_fit_never_lowers_the_likelihood_and_finds_the_clusters(generator):
    points, labels, centres = three_clusters(generator)
    mixture = ClassMixture(2, 3, 4)
    history = mixture.fit([(points, labels)], passes=30, tolerance=0.0)
    assert all(later >= earlier - 1e-5 for earlier, later in itertools.pairwise(history))
    assert torch.cdist(centres, mixture.means).amin(-1).max() < 0.5


def test_fit_is_the_same_in_one_batch_or_many(generator):
    points, labels, _ = three_clusters(generator)
    start = torch.randn(2, 3, 4, generator=generator)
    whole, parts = ClassMixture(2, 3, 4), ClassMixture(2, 3, 4)
    for mixture, batches in (
        (whole, [(points, labels)]),
        (parts, list(zip(points.split(37), labels.split(37)))),
    ):
        mixture.means.copy_(start)
        mixture.fit(batches, passes=5, restart=False)
    torch.testing.assert_close(whole.means, parts.means, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(whole.variances, parts.variances, atol=1e-4, rtol=1e-4)


def test_fit_takes_tensors_as_well_as_batches(generator):
    points, labels, _ = three_clusters(generator)
    tensors, batches = ClassMixture(2, 3, 4), ClassMixture(2, 3, 4)
    assert tensors.fit(points, labels) == batches.fit([(points, labels)])
    assert torch.equal(tensors.means, batches.means)


def test_one_component_is_the_moments_of_the_class(generator):
    points, labels, _ = three_clusters(generator)
    labels[:50] = IGNORE
    mixture = ClassMixture(2, 1, 4)
    mixture.fit([(points, labels)])
    for c in range(2):
        own = points[labels == c]
        torch.testing.assert_close(mixture.means[c, 0], own.mean(0), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mixture.variances[c, 0], own.var(0, correction=0), atol=1e-4, rtol=1e-4)


def test_samples_give_the_moments_back(generator):
    mixture = ClassMixture(2, 3, 4)
    mixture.means.copy_(torch.randn(2, 3, 4, generator=generator))
    mixture.variances.copy_(torch.rand(2, 3, 4, generator=generator) + 0.1)
    drawn = mixture.sample(1, 200_000, generator)
    mean = mixture.means[1].mean(0)
    variance = (mixture.variances[1] + mixture.means[1].square()).mean(0) - mean.square()
    torch.testing.assert_close(drawn.mean(0), mean, atol=0.02, rtol=0.02)
    torch.testing.assert_close(drawn.var(0), variance, atol=0.02, rtol=0.02)


def test_refit_on_own_samples_returns_the_mixture(generator):
    mixture = ClassMixture(1, 2, 3)
    mixture.means.copy_(torch.tensor([[[5.0, 0, 0], [-5, 0, 0]]]))
    samples = mixture.sample(0, 20_000, generator)
    fitted = ClassMixture(1, 2, 3)
    fitted.fit([(samples, torch.zeros(20_000, dtype=torch.int64))])
    assert torch.cdist(mixture.means[0], fitted.means[0]).amin(1).max() < 0.05
    torch.testing.assert_close(fitted.variances, torch.ones(1, 2, 3), atol=0.05, rtol=0.05)


def test_no_gradient_reaches_the_mixture_unless_it_is_discriminative():
    points = torch.randn(10, 4).requires_grad_()
    generative, discriminative = ClassMixture(2, 3, 4), DiscriminativeMixture(2, 3, 4)
    assert list(generative.parameters()) == []
    generative(points).sum().backward()
    assert points.grad is not None
    discriminative(points).sum().backward()
    assert discriminative.means.grad.abs().sum() > 0
    assert discriminative.log_variances.grad.abs().sum() > 0
    assert set(dict(generative.named_buffers())) == {"means", "variances", "log_weights", "log_prior"}


def test_evidence_honours_the_choice_of_reduction():
    points = torch.randn(10, 4)
    for winner in (True, False):
        mixture = ClassMixture(2, 3, 4, winner=winner)
        expected = class_evidence(mixture.log_density(points), winner=winner)
        torch.testing.assert_close(mixture(points), expected)


def test_refusals():
    with pytest.raises(ValueError, match="at least one"):
        ClassMixture(0, 5, 64)
    with pytest.raises(IndexError, match="2 classes"):
        ClassMixture(2, 3, 4).sample(2, 1)
    with pytest.raises(ValueError, match="nothing to fit"):
        ClassMixture(2, 3, 4).fit([(torch.randn(3, 4), torch.full((3,), IGNORE))])
    spent_after_one_pass = iter([(torch.randn(30, 4), torch.zeros(30, dtype=torch.int64))])
    with pytest.raises(ValueError, match="only once"):
        ClassMixture(2, 3, 4).fit(spent_after_one_pass)


def test_em_is_refused_where_gradients_move_the_mixture():
    mixture = DiscriminativeMixture(2, 3, 4)
    before = mixture.means.clone()
    for learn in (lambda: OnlineEM(mixture), lambda: mixture.fit(torch.ones(2, 4), torch.tensor([0, 1]))):
        with pytest.raises(ValueError, match="EM does not: make a ClassMixture"):
            learn()
    assert torch.equal(mixture.means, before)


def test_a_fit_names_the_channels_it_expects():
    with pytest.raises(ValueError, match=r"expected points \(n 4\) and labels \(n\), got \(5, 3\)"):
        ClassMixture(2, 3, 4).fit(torch.ones(5, 3), torch.zeros(5, dtype=torch.int64))
