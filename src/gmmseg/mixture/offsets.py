"""The log prior of a class that is added to others: likely, and not at their cost. Pure functions."""

import torch
from torch import Tensor

_FAR = 1e4  # nats: an offset so low gives a class nothing, one so high gives it everything
_ROUNDS = 60


def best_offset(leads: Tensor, is_new: Tensor) -> float:
    """The offset at which the points the new class takes agree best, by IoU, with the points that are its.

    ``leads`` (n): the new class's logit at offset zero less the best of the others'; ``is_new`` (n), bool.
    Both kinds must occur. A class takes the points whose lead and offset sum to more than zero; the offset
    lies midway between the last lead that is taken and the first that is not.
    """
    if not bool(is_new.any()) or bool(is_new.all()):
        raise ValueError("an offset needs points of the new class and points of others")
    ordered, order = leads.double().sort(descending=True)
    hits = is_new[order].cumsum(0)
    taken = torch.arange(1, len(ordered) + 1, device=leads.device)
    iou = hits / (taken - hits + hits[-1])
    below = torch.cat([ordered[1:], ordered[-1:] - 1.0])
    last = int(iou.masked_fill(below == ordered, -1.0).argmax())  # points of the same lead go together
    return -float(ordered[last] + below[last]) / 2


def harmless_offset(
    leads: Tensor,
    predicted: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    highest: float,
    most_lost: float,
    most_taken: float,
) -> float:
    """The highest offset up to ``highest`` that costs the old classes little.

    They lose at most ``most_lost`` of mean IoU, and none of them more than the share ``most_taken`` of the
    points that it has right. Where a class has so few that one is more than this share, only the first rule
    holds. Of points of old classes: ``leads`` (n), the new class's logit at offset zero less the best of the
    others', which is that of ``predicted`` (n); ``labels`` (n). -_FAR where every offset costs more.
    """
    before = _mean_iou(predicted, labels, num_classes)
    right = predicted == labels
    enough = torch.bincount(labels[right], minlength=num_classes) * most_taken >= 1

    def harmless(offset: float) -> bool:
        taken = leads + offset > 0
        after = _mean_iou(torch.where(taken, num_classes, predicted), labels, num_classes)
        shares = _shares(taken[right], labels[right], num_classes)[enough]
        return before - after <= most_lost and bool((shares <= most_taken).all())

    if harmless(highest):
        return highest
    low, high = -_FAR, highest
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if harmless(middle) else (low, middle)
    return low


def _shares(taken: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Of each class (c), the share of its points that are ``taken`` (n)."""
    counts = torch.bincount(labels, minlength=num_classes)
    return torch.bincount(labels[taken], minlength=num_classes) / counts.clamp_min(1)


def _mean_iou(predicted: Tensor, labels: Tensor, num_classes: int) -> float:
    """Mean over the classes that occur of intersection over union; ``predicted`` may also be num_classes."""
    pairs = torch.bincount(labels * (num_classes + 1) + predicted, minlength=num_classes * (num_classes + 1))
    counts = pairs.view(num_classes, num_classes + 1).double()
    hits, true, guessed = counts.diagonal(), counts.sum(1), counts[:, :num_classes].sum(0)
    union = true + guessed - hits
    return float((hits / union)[union > 0].mean())
