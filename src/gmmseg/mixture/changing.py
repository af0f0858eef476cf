"""Mixtures with one class more, one less, or two as one. Pure functions: the mixture given is left alone."""

import math

import torch
from torch import Tensor

from gmmseg.mixture.few_samples import NewClass
from gmmseg.mixture.mixture import ClassMixture, Group

UNUSED = -1e4
"""The log weight of a component slot that a class does not use: exp of it is zero, and files can hold it."""


@torch.no_grad()
def appended(mixture: ClassMixture, new: NewClass, log_prior: float) -> ClassMixture:
    """``mixture`` with one more class, the last; all others keep their densities and priors, bit for bit."""
    mixture.refuse_em()
    k = max(mixture.num_components, len(new.means))
    old, rows = _padded(mixture, k), _slots(new, k)
    state = tuple(torch.cat([each, row[None].to(each)]) for each, row in zip(old, rows))
    prior = torch.cat([mixture.log_prior, mixture.log_prior.new_tensor([log_prior])])
    return _assembled(mixture, state, prior, (*mixture.groups, Group(1, len(new.means))))


@torch.no_grad()
def without(mixture: ClassMixture, index: int) -> ClassMixture:
    """``mixture`` without one class; the densities of the others stay, but for rounding."""
    mixture.refuse_em()
    if mixture.num_classes < 2:
        raise ValueError("a mixture needs at least one class: its last one cannot be removed")
    kept = [each for each in range(mixture.num_classes) if each != index]
    groups = _groups_without(mixture.groups, index)
    k = max(group.components for group in groups)
    state = tuple(each[kept] for each in _padded(mixture, k))
    return _assembled(mixture, state, mixture.log_prior[kept], groups)


@torch.no_grad()
def merged(
    mixture: ClassMixture, index: int, other: int, log_shares: Tensor, log_prior: float
) -> ClassMixture:
    """``mixture`` with the class ``other`` taken into the class ``index``, at the place of the latter.

    Its density is the sum of both, weighted by their shares (log_shares, two); of a mixture whose evidence is
    that of the best component, the larger of both.
    """
    both = _union(mixture, index, other, log_shares)
    rest = without(mixture, other)
    place = index - (other < index)
    k = max(rest.num_components, len(both.means))
    old, rows = _padded(rest, k), _slots(both, k)
    for each, row in zip(old, rows):
        each[place] = row.to(each)
    prior = rest.log_prior.clone()
    prior[place] = log_prior
    # One class of a group has more components than the others now: they are computed as one group.
    return _assembled(mixture, old, prior, (Group(rest.num_classes, k),))


@torch.no_grad()
def as_one_group_(mixture: ClassMixture) -> None:
    """Give every component slot a weight, and all classes one group: for EM, which moves them all.

    A class with free slots has even weights from now on.
    """
    free = (mixture.log_weights == UNUSED).any(1)
    mixture.log_weights[free] = -math.log(mixture.num_components)
    mixture.groups = (Group(mixture.num_classes, mixture.num_components),)


def _union(mixture: ClassMixture, index: int, other: int, log_shares: Tensor) -> NewClass:
    """The components of both classes, each weighted by the share of its class."""
    used = _components_used(mixture)
    rows = [(each, used[each]) for each in (index, other)]
    weights = [mixture.log_weights[row, :k] + share for (row, k), share in zip(rows, log_shares)]
    return NewClass(
        torch.cat([mixture.means[row, :k] for row, k in rows]),
        torch.cat([mixture.variances[row, :k] for row, k in rows]),
        torch.cat(weights),
    )


def _components_used(mixture: ClassMixture) -> list[int]:
    return [group.components for group in mixture.groups for _ in range(group.classes)]


def _groups_without(groups: tuple[Group, ...], index: int) -> tuple[Group, ...]:
    """The groups when the class ``index`` is gone, and with it its group if it was alone in it."""
    left, first = [], 0
    for group in groups:
        inside = first <= index < first + group.classes
        left.append(group._replace(classes=group.classes - inside))
        first += group.classes
    return tuple(group for group in left if group.classes)


def _padded(mixture: ClassMixture, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means, variances (c k d) and log weights (c k) with k slots per class, more or fewer than it has."""
    classes = [
        NewClass(mixture.means[row, :used], mixture.variances[row, :used], mixture.log_weights[row, :used])
        for row, used in enumerate(_components_used(mixture))
    ]
    means, variances, log_weights = (
        torch.stack(each) for each in zip(*(_slots(each, k) for each in classes))
    )
    return means, variances, log_weights


def _slots(new: NewClass, k: int) -> NewClass:
    """The same class in k slots; those it does not use repeat its first component without any weight."""
    free = k - len(new.means)
    if free <= 0:
        return NewClass(new.means[:k], new.variances[:k], new.log_weights[:k])
    means, variances = (torch.cat([each, each[:1].repeat(free, 1)]) for each in (new.means, new.variances))
    return NewClass(means, variances, torch.cat([new.log_weights, new.log_weights.new_full((free,), UNUSED)]))


def _assembled(
    like: ClassMixture, state: tuple[Tensor, ...], log_prior: Tensor, groups: tuple[Group, ...]
) -> ClassMixture:
    """A mixture of this state, in the coordinates of ``like``, which both share."""
    means, variances, log_weights = state
    made = ClassMixture(*means.shape, winner=like.winner, coordinates=like.coordinates).to(means.device)
    made.means.copy_(means)
    made.variances.copy_(variances)
    made.log_weights.copy_(log_weights)
    made.log_prior.copy_(log_prior)
    made.groups = groups
    return made.train(like.training)
