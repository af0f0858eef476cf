import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture

from gmmseg.labels import IGNORE
from gmmseg.mixture import PRESETS, ClassMixture, EMSettings, OnlineEM, Sphere

EVERYTHING = 100_000  # more samples per class than any batch here holds
PURE = EMSettings(
    samples_per_class=EVERYTHING,
    mean_momentum=0.0,
    variance_momentum=0.0,
    warm_momentum=False,
    variance_floor=1e-6,
)


def clusters(generator, n=400, c=3, k=2, d=4, shares=None):
    """Points and labels; ``shares`` (k) of the clusters in each class, drawn at random unless given."""
    centres = 5 * torch.randn(c, k, d, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(c, (n,), generator=generator)
    which = torch.randint(k, (n,), generator=generator)
    if shares is not None:
        labels = torch.arange(n) % c
        edges = torch.tensor(shares).cumsum(0)
        which = torch.searchsorted(edges, (torch.arange(n) // c + 0.5) / (n // c)).clamp_max(k - 1)
    return centres[labels, which] + torch.randn(n, d, generator=generator), labels


def mean_log_likelihood(mixture, points, labels):
    evidence = mixture.log_density(points).logsumexp(-1)
    return evidence[torch.arange(len(labels)), labels].mean().item()


def test_plain_em_without_memory_or_momentum_never_lowers_the_likelihood(generator):
    points, labels = clusters(generator)
    mixture = ClassMixture(3, 2, 4)
    em = OnlineEM(mixture, replace(PURE, balanced=False, memory_size=0))
    history = []
    for _ in range(30):
        em.step(points, labels)
        history.append(mean_log_likelihood(mixture, points, labels))
    assert all(later >= earlier - 1e-4 for earlier, later in itertools.pairwise(history))
    assert history[-1] > history[0]
    health = em.diagnostics()  # of a queue of no length, too
    assert (health["fill"], health["unseen"]) == (0.0, [])


@pytest.mark.parametrize("memory", ["queue", "statistics"])
def test_one_component_equals_the_moments_of_everything_seen(generator, memory):
    """k = 1 is Gaussian discriminant analysis: no E-step."""
    settings = replace(PURE, memory=memory, decay=1 - 1e-12)
    mixture = ClassMixture(3, 1, 4)
    em = OnlineEM(mixture, settings)
    seen = [clusters(generator) for _ in range(4)]
    for points, labels in seen:
        em.step(points, labels)
    points, labels = torch.cat([p for p, _ in seen]), torch.cat([y for _, y in seen])
    for c in range(3):
        own = points[labels == c]
        torch.testing.assert_close(mixture.means[c, 0], own.mean(0), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(mixture.variances[c, 0], own.var(0, correction=0), atol=1e-3, rtol=1e-3)


def test_rare_classes_remember_as_many_points_as_frequent_ones(generator):
    """Law: below ``decay_points`` the memory's length is counted in points, not in batches."""
    counts, decay, enough = torch.tensor([80, 20, 4]), 0.5, 100
    labels = torch.repeat_interleave(torch.arange(3), counts)
    remembered = {}
    for points_to_forget in (enough, None):
        em = OnlineEM(
            ClassMixture(3, 2, 4),
            replace(PURE, memory="statistics", decay=decay, decay_points=points_to_forget),
        )
        for _ in range(400):
            em.step(torch.randn(len(labels), 4, generator=generator), labels)
        remembered[points_to_forget] = em.memory.weight().sum(1)
    length = enough / (1 - decay)  # in points, the same for all
    torch.testing.assert_close(remembered[enough], torch.full((3,), length).double(), rtol=1e-3, atol=0.0)
    torch.testing.assert_close(remembered[None], counts / (1 - decay), rtol=1e-3, atol=0.0, check_dtype=False)


def test_a_network_that_stands_still_is_forgotten_nothing_of(generator):
    """Law: with anneal and a forgetting scale of 0 the statistics are those of everything seen."""
    seen = [clusters(generator) for _ in range(4)]
    means = {}
    for anneal, scale in ((True, 0.0), (True, 1.0), (False, 0.0)):
        mixture = ClassMixture(3, 1, 4)
        em = OnlineEM(mixture, replace(PURE, memory="statistics", decay=0.5, anneal=anneal))
        for points, labels in seen:
            em.step(points, labels, forgetting_scale=scale)
        means[anneal, scale] = mixture.means
    points, labels = torch.cat([p for p, _ in seen]), torch.cat([y for _, y in seen])
    everything = torch.stack([points[labels == c].mean(0) for c in range(3)])
    torch.testing.assert_close(means[True, 0.0][:, 0], everything, atol=1e-4, rtol=1e-4)
    assert (means[True, 1.0] - means[True, 0.0]).abs().max() > 1e-2
    assert torch.equal(means[True, 1.0], means[False, 0.0]), "without anneal the scale changes nothing"


def test_balanced_em_finds_the_clusters(generator):
    mixture = ClassMixture(3, 2, 4)
    em = OnlineEM(mixture, replace(PURE, scale_cost=True, memory="statistics", decay=0.9))
    for _ in range(60):
        em.step(*clusters(generator, n=402, shares=[0.5, 0.5]))
    centres = 5 * torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(7))
    assert torch.cdist(centres, mixture.means).amin(-1).max() < 0.4
    report = em.diagnostics()
    assert report["collapsed"] == report["starved"] == 0
    assert report["unseen"] == []
    assert report["separation"] > 1


@pytest.mark.parametrize("momentum", [0.0, 0.75])
@pytest.mark.parametrize("warm", [True, False])
def test_loops_equal_repeated_steps_on_the_same_points(generator, momentum, warm):
    """Each loop is an EM step with the momentum of one."""
    points, labels = clusters(generator)
    settings = replace(
        PURE,
        balanced=False,
        memory_size=0,
        mean_momentum=momentum,
        variance_momentum=momentum,
        warm_momentum=warm,
    )
    looped, repeated = ClassMixture(3, 2, 4), ClassMixture(3, 2, 4)
    OnlineEM(looped, replace(settings, loops=5)).step(points, labels)
    em = OnlineEM(repeated, settings)
    for _ in range(5):
        em.step(points, labels)
    for name in ("means", "variances", "log_weights"):
        torch.testing.assert_close(getattr(looped, name), getattr(repeated, name), atol=1e-4, rtol=1e-4)


def test_momentum_is_the_share_kept_of_the_old(generator):
    points, labels = clusters(generator)
    jump, slow = ClassMixture(3, 2, 4), ClassMixture(3, 2, 4)
    before = slow.means.clone()
    OnlineEM(jump, PURE).step(points, labels)
    OnlineEM(slow, replace(PURE, mean_momentum=0.75)).step(points, labels)
    torch.testing.assert_close(slow.means, 0.75 * before + 0.25 * jump.means)
    warm = ClassMixture(3, 2, 4)
    OnlineEM(warm, replace(PURE, mean_momentum=0.999, warm_momentum=True)).step(points, labels)
    torch.testing.assert_close(warm.means, jump.means)


def test_a_class_absent_from_the_batch_is_not_touched(generator):
    for name, settings in PRESETS.items():
        mixture = ClassMixture(3, 2, 4)
        em = OnlineEM(mixture, replace(settings, update_every=1))
        before = mixture.means.clone(), mixture.variances.clone()
        points, labels = clusters(generator)
        em.step(points, torch.where(labels == 1, IGNORE, labels))
        assert torch.equal(mixture.means[1], before[0][1]), name
        assert torch.equal(mixture.variances[1], before[1][1]), name
        assert em.diagnostics()["unseen"] == [1]


def test_an_all_ignored_or_empty_batch_changes_nothing():
    mixture = ClassMixture(3, 2, 4)
    em = OnlineEM(mixture)
    before = mixture.means.clone()
    em.step(torch.randn(10, 4), torch.full((10,), IGNORE))
    em.step(torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    assert torch.equal(mixture.means, before)


def test_permuting_the_components_permutes_the_result(generator):
    points, labels = clusters(generator)
    plain, permuted = ClassMixture(3, 2, 4), ClassMixture(3, 2, 4)
    permuted.means.copy_(plain.means.flip(1))
    for mixture in (plain, permuted):
        OnlineEM(mixture, PURE).step(points, labels)
    torch.testing.assert_close(permuted.means, plain.means.flip(1))


@pytest.mark.parametrize("name", PRESETS)
def test_state_resumes_exactly(generator, name):
    settings = replace(PRESETS[name], memory_size=50)
    original, resumed = ClassMixture(3, 2, 4), ClassMixture(3, 2, 4)
    first, second = OnlineEM(original, settings), OnlineEM(resumed, settings)
    for _ in range(7):
        first.step(*clusters(generator))
    resumed.load_state_dict(original.state_dict())
    second.load_state_dict(first.state_dict())
    for _ in range(7):
        batch = clusters(generator)
        first.step(*batch)
        second.step(*batch)
    assert torch.equal(original.means, resumed.means)
    assert torch.equal(original.variances, resumed.variances)


def test_component_weights_are_estimated_by_plain_em_and_even_where_balanced(generator):
    """Oracle: scikit-learn's weights on the same points from the same start."""
    points, labels = clusters(generator, n=900, shares=[0.8, 0.2])
    plain, balanced = ClassMixture(3, 2, 4), ClassMixture(3, 2, 4)
    start = 5 * torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(7))
    em = OnlineEM(plain, replace(PURE, balanced=False, memory_size=0))
    plain.means.copy_(start)
    OnlineEM(balanced, PURE).step(points, labels)
    for _ in range(6):
        em.step(points, labels)
    for c in range(3):
        oracle = GaussianMixture(
            2, covariance_type="diag", max_iter=6, reg_covar=0.0, tol=0.0, weights_init=[0.5, 0.5],
            means_init=start[c].numpy(), precisions_init=np.ones((2, 4)),
        )  # fmt: skip
        with pytest.warns(UserWarning, match="converge"):
            oracle.fit(points[labels == c].numpy())
        np.testing.assert_allclose(plain.log_weights[c].exp(), oracle.weights_, atol=1e-4)
        np.testing.assert_allclose(plain.means[c], oracle.means_, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(balanced.log_weights.exp(), torch.full((3, 2), 0.5))


@pytest.mark.parametrize("memory", ["queue", "statistics"])
def test_occupancy_tells_an_unused_component_also_when_the_queues_are_full(generator, memory):
    settings = replace(PURE, balanced=False, memory=memory, memory_size=20, decay=0.9)
    mixture = ClassMixture(3, 2, 4)
    mixture.means.copy_(5 * torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(7)))
    em = OnlineEM(mixture, settings)
    for _ in range(30):
        em.step(*clusters(generator, n=300, shares=[0.9, 0.1]))
    assert em.diagnostics()["occupancy"] == pytest.approx(0.2, abs=0.03)
    torch.testing.assert_close(mixture.log_weights.exp(), torch.tensor([[0.9, 0.1]] * 3), atol=0.02, rtol=0.1)


def test_on_points_of_any_length_the_means_are_those_of_the_points(generator):
    """The defaults keep means at unit length only where the mixture's points are."""
    points = torch.randn(600, 4, generator=generator)
    labels = torch.arange(600) % 3
    points += 6 * torch.nn.functional.one_hot(labels, 4)
    free, unit = ClassMixture(3, 1, 4), ClassMixture(3, 1, 4, coordinates=Sphere(4))
    for mixture, given in ((free, points), (unit, torch.nn.functional.normalize(points, dim=-1))):
        em = OnlineEM(mixture)
        for _ in range(20):
            em.step(given, labels)
    expected = torch.stack([points[labels == c].mean(0) for c in range(3)])
    torch.testing.assert_close(free.means[:, 0], expected, atol=0.2, rtol=0.1)
    torch.testing.assert_close(unit.means.norm(dim=-1), torch.ones(3, 1))


def test_whether_a_mixture_was_ever_fitted(generator):
    points, labels = clusters(generator)
    for settings in PRESETS.values():
        mixture = ClassMixture(3, 2, 4)
        assert not mixture.fitted.any()
        em = OnlineEM(mixture, replace(settings, correct_only=False))
        em.step(points, torch.where(labels == 1, IGNORE, labels))
        assert mixture.fitted.tolist() == [True, False, True]


def test_the_first_step_updates_and_then_every_fifth(generator):
    mixture = ClassMixture(3, 2, 4, coordinates=Sphere(4))
    em = OnlineEM(mixture, replace(PRESETS["reference"], correct_only=False))
    moved = []
    for _ in range(11):
        before = mixture.means.clone()
        points, labels = clusters(generator)
        em.step(mixture.points(points), labels)
        moved.append(not torch.equal(mixture.means, before))
    assert [step for step, each in enumerate(moved) if each] == [0, 5, 10]
    torch.testing.assert_close(mixture.means.norm(dim=-1), torch.ones(3, 2))
    assert mixture.variances.min() >= 0.01
    assert em.memory.weight().max() <= 11 * 20, "20 points per component and step at the most"


def test_only_correctly_classified_points_are_used():
    mixture = ClassMixture(2, 1, 1)
    mixture.means.copy_(torch.tensor([[[-1.0]], [[1.0]]]))
    points = torch.tensor([[-2.0], [3.0], [-1.5]])
    labels = torch.tensor([0, 0, 0])
    OnlineEM(mixture, replace(PURE, correct_only=True)).step(points, labels)
    torch.testing.assert_close(mixture.means[0, 0, 0], torch.tensor(-1.75))


def test_class_prior_follows_the_labels(generator):
    mixture = ClassMixture(2, 1, 1)
    em = OnlineEM(mixture, replace(PURE, estimate_prior=True))
    labels = torch.cat([torch.zeros(900), torch.ones(100)]).long()
    em.step(torch.randn(1000, 1, generator=generator), labels)
    torch.testing.assert_close(mixture.log_prior.exp(), torch.tensor([0.9, 0.1]), atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize("hard", [True, False])
def test_reseeding_cures_a_collapsed_component(generator, hard):
    settings = replace(PURE, memory="statistics", decay=0.9, balanced=False, hard=hard)
    mixtures = []
    for reseed in (False, True):
        mixture = ClassMixture(3, 2, 4)
        mixture.means.copy_(torch.zeros(3, 2, 4))  # both components on one spot: plain EM cannot part them
        em = OnlineEM(mixture, replace(settings, reseed=reseed))
        for _ in range(40):
            em.step(*clusters(generator))
        mixtures.append(em.diagnostics())
    without, cured = mixtures
    assert without["collapsed"] + without["starved"] > 0
    assert cured["collapsed"] + cured["starved"] == 0
    assert cured["log_likelihood"] > without["log_likelihood"]


def test_relative_floor_follows_the_data(generator):
    mixture = ClassMixture(3, 1, 4)
    em = OnlineEM(mixture, replace(PURE, relative_floor=0.5))
    for _ in range(3):
        points, labels = clusters(generator)
        points[:, 0] = 0.0
        em.step(points, labels)
    assert mixture.variances[..., 0].min() > 0.1 * mixture.variances.mean()


def test_a_memory_that_does_not_fit_is_refused_by_its_key():
    with pytest.raises(ValueError, match=r"^em\.memory_size=2000000000 takes [\d,.]+ GiB.*make it smaller"):
        OnlineEM(ClassMixture(19, 5, 64), EMSettings(memory_size=2_000_000_000))


def test_refusals():
    em = OnlineEM(ClassMixture(3, 2, 4))
    with pytest.raises(ValueError, match=r"expected points \(n 4\)"):
        em.step(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"labels \[3, 9\] are neither"):
        em.step(torch.randn(3, 4), torch.tensor([0, 3, 9]))
    with pytest.raises(ValueError, match="forgetting_scale must lie in"):
        em.step(torch.randn(3, 4), torch.tensor([0, 1, 2]), forgetting_scale=1.5)
    with pytest.raises(FloatingPointError, match="diverged"):
        em.step(torch.full((3, 4), float("nan")), torch.tensor([0, 1, 2]))
    for settings in PRESETS.values():
        huge = OnlineEM(ClassMixture(3, 2, 4), replace(settings, correct_only=False))
        before = huge.mixture.means.clone()
        with pytest.raises(FloatingPointError, match="diverged"):
            huge.step(1e20 * torch.randn(30, 4), torch.arange(30) % 3)
        assert torch.equal(huge.mixture.means, before)
    assert em.mixture.means.isfinite().all()
    with pytest.raises(ValueError, match="memory must be one of queue, statistics"):
        EMSettings(memory="ring")
    with pytest.raises(ValueError, match="mean_momentum"):
        EMSettings(mean_momentum=1.0)
    with pytest.raises(ValueError, match="classes, components"):
        em.load_state_dict(OnlineEM(ClassMixture(4, 2, 4)).state_dict())
