"""The log prior of a new class: that of the highest IoU, and one that costs others no more than allowed."""

import pytest
import torch

from gmmseg.mixture.offsets import best_offset, harmless_offset


def iou(leads, is_new, offset):
    taken = [float(lead) + offset > 0 for lead in leads]
    both = sum(each and bool(new) for each, new in zip(taken, is_new))
    return both / sum(each or bool(new) for each, new in zip(taken, is_new))


@pytest.mark.parametrize("steps", [1, 1000])  # of a nat: with few, many points have the same lead
def test_no_offset_has_a_higher_iou(generator, steps):
    leads = (torch.randn(120, generator=generator) * 4 - 9).mul(steps).round().div(steps)
    is_new = torch.rand(120, generator=generator) < leads.add(8).sigmoid()
    every = [-float(lead) + shift for lead in leads for shift in (-1e-4, 1e-4)]
    best = max(iou(leads, is_new, offset) for offset in every)
    assert iou(leads, is_new, best_offset(leads, is_new)) == best


def test_an_offset_takes_points_that_all_look_alike():
    assert (
        iou(torch.ones(4), torch.tensor([1, 0, 0, 0]), best_offset(torch.ones(4), torch.arange(4) == 0)) > 0
    )


@pytest.mark.parametrize("value", [True, False])
def test_an_offset_needs_both_kinds(value):
    with pytest.raises(ValueError, match="points of the new class and"):
        best_offset(torch.zeros(5), torch.full((5,), value))


def old_points(generator, n=4000, c=4):
    labels = torch.randint(c, (n,), generator=generator)
    wrong = torch.rand(n, generator=generator) < 0.2
    predicted = torch.where(wrong, torch.randint(c, (n,), generator=generator), labels)
    return torch.randn(n, generator=generator) - 3, predicted, labels


def loop_miou(predicted, labels, c):
    values = []
    for each in range(c):
        both = ((predicted == each) & (labels == each)).sum()
        values.append(float(both / ((predicted == each) | (labels == each)).sum()))
    return sum(values) / c


@pytest.mark.parametrize("most_lost", [0.0, 0.004, 0.1])
def test_no_more_is_lost_than_allowed_and_no_less_taken_than_possible(generator, most_lost):
    leads, predicted, labels = old_points(generator)
    offset = harmless_offset(leads, predicted, labels, 4, highest=20.0, most_lost=most_lost, most_taken=1.0)
    before = loop_miou(predicted, labels, 4)

    def lost(value):
        return before - loop_miou(torch.where(leads + value > 0, 4, predicted), labels, 4)

    assert lost(offset) <= most_lost + 1e-7
    assert lost(offset + 0.2) > most_lost


def test_an_offset_that_costs_nothing_is_kept(generator):
    leads, predicted, labels = old_points(generator)
    assert (
        harmless_offset(leads - 100, predicted, labels, 4, highest=1.25, most_lost=0.0, most_taken=0.0)
        == 1.25
    )


def test_where_every_offset_costs_too_much_the_class_gets_nothing():
    labels = torch.tensor([0, 1, 1])
    found = harmless_offset(
        torch.full((3,), torch.inf), labels, labels, 2, highest=0.0, most_lost=0.01, most_taken=1.0
    )
    assert found < -1000


def test_no_class_gives_up_more_than_its_share(generator):
    """The mean allows it: a small class is all but taken, which costs a mean over twenty classes little."""
    labels = torch.cat([torch.arange(19).repeat_interleave(200), torch.full((100,), 19)])
    predicted = labels.clone()
    predicted[3900 - 20 :] = 0  # some of the small class are wrong already: there is nothing to take
    leads = torch.randn(3900, generator=generator) - 100
    small = slice(3800, 3880)
    leads[small] = torch.linspace(-8.0, 8.0, 80)

    def taken(**rules):
        offset = harmless_offset(leads, predicted, labels, 20, highest=6.0, **rules)
        return int((leads[small] + offset > 0).sum())

    assert taken(most_lost=1.0, most_taken=1.0) > 60
    assert taken(most_lost=1.0, most_taken=0.1) == 8
    assert taken(most_lost=1.0, most_taken=0.01) > 60  # eighty points cannot tell a share of a hundredth
