import itertools
from dataclasses import replace

import pytest
import torch

from gmmseg.labels import IGNORE
from gmmseg.mixture import PRESETS, ClassMixture, EMSettings, OnlineEM

EVERYTHING = 100_000  # more samples per class than any batch here holds
PURE = EMSettings(samples_per_class=EVERYTHING, mean_momentum=0.0, variance_momentum=0.0, variance_floor=1e-6)


def clusters(generator, n=400, c=3, k=2, d=4):
    centres = 5 * torch.randn(c, k, d, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(c, (n,), generator=generator)
    which = torch.randint(k, (n,), generator=generator)
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


def test_a_network_that_stands_still_is_forgotten_nothing_of(generator):
    """Law: with anneal and pace 0 the statistics are those of everything seen, whatever the decay."""
    seen = [clusters(generator) for _ in range(4)]
    means = {}
    for anneal, pace in ((True, 0.0), (True, 1.0), (False, 0.0)):
        mixture = ClassMixture(3, 1, 4)
        em = OnlineEM(mixture, replace(PURE, memory="statistics", decay=0.5, anneal=anneal))
        for points, labels in seen:
            em.step(points, labels, pace=pace)
        means[anneal, pace] = mixture.means
    points, labels = torch.cat([p for p, _ in seen]), torch.cat([y for _, y in seen])
    everything = torch.stack([points[labels == c].mean(0) for c in range(3)])
    torch.testing.assert_close(means[True, 0.0][:, 0], everything, atol=1e-4, rtol=1e-4)
    assert (means[True, 1.0] - means[True, 0.0]).abs().max() > 1e-2
    assert torch.equal(means[True, 1.0], means[False, 0.0]), "without anneal the pace changes nothing"


def test_balanced_em_finds_the_clusters(generator):
    mixture = ClassMixture(3, 2, 4)
    em = OnlineEM(mixture, replace(PURE, scale_cost=True, memory="statistics", decay=0.9))
    for _ in range(60):
        em.step(*clusters(generator))
    centres = 5 * torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(7))
    assert torch.cdist(centres, mixture.means).amin(-1).max() < 0.4
    report = em.diagnostics()
    assert report["collapsed"] == report["starved"] == 0
    assert report["unseen"] == []
    assert report["separation"] > 1


def test_loops_equal_repeated_steps_on_the_same_points(generator):
    points, labels = clusters(generator)
    settings = replace(PURE, balanced=False, memory_size=0)
    looped, repeated = ClassMixture(3, 2, 4), ClassMixture(3, 2, 4)
    OnlineEM(looped, replace(settings, loops=5)).step(points, labels)
    em = OnlineEM(repeated, settings)
    for _ in range(5):
        em.step(points, labels)
    torch.testing.assert_close(looped.means, repeated.means, atol=1e-4, rtol=1e-4)


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


def test_reference_preset_updates_every_fifth_step_with_unit_means(generator):
    mixture = ClassMixture(3, 2, 4)
    em = OnlineEM(mixture, replace(PRESETS["reference"], correct_only=False))
    before = mixture.means.clone()
    for _ in range(4):
        em.step(*clusters(generator))
    assert torch.equal(mixture.means, before)
    em.step(*clusters(generator))
    assert not torch.equal(mixture.means, before)
    torch.testing.assert_close(mixture.means.norm(dim=-1), torch.ones(3, 2))
    assert mixture.variances.min() >= 0.01
    # 20 points per component and step at the most
    assert em.memory.weight().max() == 100


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


def test_refusals():
    em = OnlineEM(ClassMixture(3, 2, 4))
    with pytest.raises(ValueError, match=r"expected points \(n 4\)"):
        em.step(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"labels \[3, 9\] are neither"):
        em.step(torch.randn(3, 4), torch.tensor([0, 3, 9]))
    with pytest.raises(ValueError, match="pace is a share"):
        em.step(torch.randn(3, 4), torch.tensor([0, 1, 2]), pace=1.5)
    with pytest.raises(FloatingPointError, match="diverged"):
        em.step(torch.full((3, 4), float("nan")), torch.tensor([0, 1, 2]))
    assert em.mixture.means.isfinite().all()
    with pytest.raises(ValueError, match="memory must be one of queue, statistics"):
        EMSettings(memory="ring")
    with pytest.raises(ValueError, match="mean_momentum"):
        EMSettings(mean_momentum=1.0)
    with pytest.raises(ValueError, match="classes, components"):
        em.load_state_dict(OnlineEM(ClassMixture(4, 2, 4)).state_dict())
