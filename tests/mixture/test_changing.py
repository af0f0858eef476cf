"""A class more, a class less, two as one: what others keep, bit for bit or but for rounding."""

import pytest
import torch

from gmmseg.mixture import ClassMixture, DiscriminativeMixture, OnlineEM, WhitenedSphere
from gmmseg.mixture.changing import appended, as_one_group_, merged, without
from gmmseg.mixture.few_samples import NewClass
from gmmseg.mixture.mixture import Group

SIZES = [(1, 1, 2, 7), (3, 5, 64, 1000), (10, 5, 64, 4096), (19, 3, 33, 2500), (7, 1, 16, 31)]


def random_mixture(c, k, d, generator, winner=False):
    mixture = ClassMixture(c, k, d, winner=winner)
    mixture.means.copy_(torch.randn(c, k, d, generator=generator) * 2)
    mixture.variances.copy_(torch.rand(c, k, d, generator=generator) + 0.3)
    mixture.log_weights.copy_(torch.randn(c, k, generator=generator).log_softmax(-1))
    return mixture


def new_class(k, d, generator):
    weights = torch.randn(k, generator=generator).log_softmax(-1)
    return NewClass(
        torch.randn(k, d, generator=generator), torch.rand(k, d, generator=generator) + 0.3, weights
    )


@pytest.mark.parametrize("winner", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("components", [1, 5, 8])
def test_old_classes_stay_bit_for_bit(size, components, winner, generator):
    c, k, d, n = size
    old, points = random_mixture(c, k, d, generator, winner), torch.randn(n, d, generator=generator) * 3
    first = appended(old, new_class(components, d, generator), 0.0)
    second = appended(first, new_class(2, d, generator), 0.0)
    for grown in (first, second):
        assert torch.equal(grown(points)[:, :c], old(points))
        assert torch.equal(grown.log_density(points)[:, :c, :k], old.log_density(points))
        assert torch.equal(grown.log_prior[:c], old.log_prior)
    assert torch.equal(second(points)[:, : c + 1], first(points))


def test_the_new_class_has_its_own_density(generator):
    old, new = random_mixture(4, 3, 8, generator), new_class(2, 8, generator)
    points = torch.randn(50, 8, generator=generator)
    alone = ClassMixture(1, 2, 8, winner=False)
    for name, value in zip(("means", "variances", "log_weights"), new):
        getattr(alone, name).copy_(value[None])
    grown = appended(old, new, -1.5)
    torch.testing.assert_close(grown(points)[:, 4:], alone(points))
    torch.testing.assert_close(grown.evidence(grown.log_density(points)), grown(points))
    torch.testing.assert_close(grown.total(points), grown(points).logsumexp(1))
    assert float(grown.log_prior[4]) == -1.5


def test_gradients_of_points_go_through_all_groups(generator):
    grown = appended(random_mixture(3, 2, 6, generator), new_class(4, 6, generator), 0.0)
    points = torch.randn(9, 6, generator=generator, requires_grad=True)
    (blocks,) = torch.autograd.grad(grown(points).square().sum(), points)
    (plain,) = torch.autograd.grad(grown.evidence(grown.log_density(points)).square().sum(), points)
    torch.testing.assert_close(blocks, plain, rtol=1e-4, atol=1e-3)


def test_unused_slots_take_no_part_for_those_who_know_no_groups(generator):
    grown = appended(random_mixture(3, 2, 6, generator), new_class(4, 6, generator), 0.0)
    points = torch.randn(9, 6, generator=generator)
    whole = ClassMixture(4, 4, 6, winner=False)
    whole.load_state_dict(grown.state_dict())
    torch.testing.assert_close(whole(points), grown(points))


@pytest.mark.parametrize("index", [0, 2, 3])
def test_without_a_class_the_others_stay_but_for_rounding(index, generator):
    grown = appended(random_mixture(3, 2, 6, generator), new_class(4, 6, generator), 0.0)
    points = torch.randn(40, 6, generator=generator)
    kept = [each for each in range(4) if each != index]
    less = without(grown, index)
    torch.testing.assert_close(less(points), grown(points)[:, kept], rtol=1e-4, atol=1e-3)
    assert less.num_components == (2 if index == 3 else 4)


def test_a_class_added_and_removed_leaves_the_mixture_as_it_was(generator):
    old = random_mixture(3, 2, 6, generator)
    back = without(appended(old, new_class(4, 6, generator), 0.0), 3)
    assert back.groups == old.groups
    for name, value in old.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name


@pytest.mark.parametrize("winner", [False, True])
@pytest.mark.parametrize(("index", "other"), [(0, 2), (3, 1)])
def test_the_union_is_the_sum_of_both_by_share(index, other, winner, generator):
    grown = appended(random_mixture(3, 2, 6, generator, winner), new_class(4, 6, generator), 0.0)
    points = torch.randn(40, 6, generator=generator)
    shares = torch.tensor([0.3, 0.7]).log()
    both = merged(grown, index, other, shares, -2.0)
    kept = [each for each in range(4) if each != other]
    evidence = grown(points)
    parts = torch.stack([evidence[:, index] + shares[0], evidence[:, other] + shares[1]])
    evidence[:, index] = parts.amax(0) if winner else parts.logsumexp(0)
    torch.testing.assert_close(both(points), evidence[:, kept], rtol=1e-4, atol=1e-3)
    assert float(both.log_prior[kept.index(index)]) == -2.0


def test_em_gets_one_group_in_which_every_slot_has_a_weight(generator):
    old = random_mixture(3, 4, 6, generator)
    grown = appended(old, new_class(1, 6, generator), 0.0)
    points = torch.randn(40, 6, generator=generator)
    before = grown(points)
    as_one_group_(grown)
    assert grown.groups == ((4, 4),)
    torch.testing.assert_close(grown(points), before)  # the one component of the new class, four times
    assert torch.equal(grown.log_weights[:3], old.log_weights)
    em = OnlineEM(grown)
    em.step(points, torch.randint(4, (40,), generator=generator))
    assert bool(grown.log_weights.exp().sum(1).isclose(torch.ones(4)).all())


def test_coordinates_are_shared(generator):
    mixture = ClassMixture(2, 2, 6, coordinates=WhitenedSphere(6))
    assert appended(mixture, new_class(1, 6, generator), 0.0).coordinates is mixture.coordinates


def test_what_cannot_be_is_refused(generator):
    with pytest.raises(ValueError, match="last one cannot be removed"):
        without(random_mixture(1, 2, 6, generator), 0)
    with pytest.raises(ValueError, match="gradients train a discriminative mixture"):
        appended(DiscriminativeMixture(2, 2, 6), new_class(1, 6, generator), 0.0)
    mixture = random_mixture(3, 2, 6, generator)
    for groups in ((Group(2, 2),), (Group(3, 3),), (Group(3, 2), Group(0, 1))):
        with pytest.raises(ValueError, match=r"groups|each group"):
            mixture.groups = groups
