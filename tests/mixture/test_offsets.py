"""The log prior of a new class: the likeliest, and one that costs the others no more than allowed."""

import pytest
import torch
from torch.nn import functional as F

from gmmseg.mixture.offsets import harmless_offset, likeliest_offset


def test_the_likeliest_offset_has_the_least_loss(generator):
    margins = torch.randn(500, generator=generator).double() * 4 - 9
    is_new = torch.rand(500, generator=generator) < margins.add(8).sigmoid()
    found = likeliest_offset(margins, is_new)

    def loss(offset):
        return float(F.binary_cross_entropy_with_logits(margins + offset, is_new.double()))

    assert loss(found) <= min(loss(found - 1e-3), loss(found + 1e-3))
    torch.testing.assert_close((margins + found).sigmoid().sum(), is_new.double().sum())


@pytest.mark.parametrize("value", [True, False])
def test_an_offset_needs_both_kinds(value):
    with pytest.raises(ValueError, match="points of the new class and"):
        likeliest_offset(torch.zeros(5), torch.full((5,), value))


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
    offset = harmless_offset(leads, predicted, labels, 4, highest=20.0, most_lost=most_lost)
    before = loop_miou(predicted, labels, 4)

    def lost(value):
        return before - loop_miou(torch.where(leads + value > 0, 4, predicted), labels, 4)

    assert lost(offset) <= most_lost + 1e-7
    assert lost(offset + 0.2) > most_lost


def test_an_offset_that_costs_nothing_is_kept(generator):
    leads, predicted, labels = old_points(generator)
    assert harmless_offset(leads - 100, predicted, labels, 4, highest=1.25, most_lost=0.0) == 1.25


def test_where_every_offset_costs_too_much_the_class_gets_nothing():
    labels = torch.tensor([0, 1, 1])
    found = harmless_offset(torch.full((3,), torch.inf), labels, labels, 2, highest=0.0, most_lost=0.01)
    assert found < -1000
