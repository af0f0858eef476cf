"""Post-hoc EM: many passes over points that need not fit in memory."""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gmmseg.mixture.class_batch import ClassBatch
from gmmseg.mixture.em_settings import EMSettings
from gmmseg.mixture.memory import Moments, accumulator_dtype
from gmmseg.mixture.sampling import draw
from gmmseg.mixture.sinkhorn import plain_assignment
from gmmseg.mixture.steps import estimated_log_weights, expect, maximise

if TYPE_CHECKING:
    from gmmseg.mixture.mixture import ClassMixture

Batches = Iterable[tuple[Tensor, Tensor]]

_START_POINTS = 2048  # points per class kept to start the components on
_START_ROUNDS = 20
_CHUNK = 1 << 16  # points padded by class at a time: bounds the memory of one badly balanced batch


@torch.no_grad()
def fit_mixture(
    mixture: "ClassMixture",
    batches: Batches,
    *,
    passes: int,
    tolerance: float,
    balanced: bool,
    variance_floor: float,
    restart: bool,
    seed: int,
) -> list[float]:
    """See `ClassMixture.fit`."""
    mixture.refuse_em()
    if restart:
        _start_(mixture, _reservoir(batches, mixture, seed), variance_floor, seed)
    history: list[float] = []
    for _ in range(passes):
        known, log_likelihood = _moments(mixture, batches, EMSettings(balanced=balanced))
        means, variances = maximise(
            known, mixture.means, mixture.variances, mixture.coordinates, variance_floor=variance_floor
        )
        mixture.means.copy_(means)
        mixture.variances.copy_(variances)
        if not balanced:  # where it is, components are even by definition
            mixture.log_weights.copy_(estimated_log_weights(known.weight, mixture.log_weights))
        history.append(log_likelihood)
        if len(history) > 1 and abs(history[-1] - history[-2]) < tolerance:
            break
    return history


def _moments(mixture: "ClassMixture", batches: Batches, settings: EMSettings) -> tuple[Moments, float]:
    """One E-step over all batches: moments (c k ...) of all points, and their mean log-likelihood."""
    c, k, d = mixture.means.shape
    device = mixture.means.device
    zeros = torch.zeros(c, k, d, dtype=accumulator_dtype(device), device=device)
    known = Moments(zeros[..., 0].clone(), zeros, zeros.clone())
    log_likelihood, count = 0.0, 0
    for points, labels in batches:
        for batch in _chunks(points, labels, mixture):
            found = expect(mixture, batch, settings)
            for total, gain in zip(known, batch.moments(found.responsibilities)):
                total.index_add_(0, batch.classes, gain)
            log_likelihood += float(found.log_likelihoods.sum())
            count += len(found.log_likelihoods)
    if count == 0:
        raise ValueError(
            "nothing to fit: the batches hold no point with a known label, or can be read only once"
        )
    return known, log_likelihood / count


def _start_(mixture: "ClassMixture", kept: ClassBatch, variance_floor: float, seed: int) -> None:
    """Start the components of each class as the clusters of its kept points (Lloyd's rounds)."""
    classes, count = kept.classes, kept.valid.sum(1)
    means = _distant_points(kept, mixture.num_components, seed)
    ones = torch.ones_like(means)
    for _ in range(_START_ROUNDS):
        clusters = plain_assignment(kept.log_density(means, ones), kept.valid, hard=True)
        weight, total, _ = kept.moments(clusters)
        filled = (weight > 0)[..., None]
        means = torch.where(filled, (total / weight.clamp_min(1.0)[..., None]).float(), means)
    _, total, squares = kept.moments(kept.valid[..., None].float())
    share = 1.0 / count[:, None, None]
    variances = (squares * share - (total * share).square()).clamp_min(variance_floor).float()
    mixture.means[classes] = mixture.coordinates.valid_means(means)
    mixture.variances[classes] = variances.expand_as(means)
    mixture.log_weights.fill_(-math.log(mixture.num_components))


def _distant_points(kept: ClassBatch, k: int, seed: int) -> Tensor:
    """k points of each class (p k d), each drawn with the squared distance to those before (k-means++)."""
    generator = torch.Generator().manual_seed(seed)
    chosen = kept.points[:, :1]
    while chosen.shape[1] < k:
        distance = torch.cdist(kept.points, chosen).amin(-1).square() * kept.valid
        # A class of identical points has no distances to go by; any of them will do.
        chance = torch.where(distance.sum(1, keepdim=True) > 0, distance, kept.valid.float()).cpu()
        drawn = torch.multinomial(chance, 1, generator=generator).to(kept.points.device)
        following = kept.points.gather(1, drawn[..., None].expand(-1, -1, kept.points.shape[-1]))
        chosen = torch.cat([chosen, following], dim=1)
    return chosen


def _reservoir(batches: Batches, mixture: "ClassMixture", seed: int) -> ClassBatch:
    """A uniform random choice of points per class, of all batches."""
    generator = torch.Generator().manual_seed(seed)
    kept: list[Tensor] = []
    for batch in batches:
        points, labels = _labelled(*batch, mixture)
        tickets = torch.randint(1 << 31, (len(labels),), generator=generator).to(labels.device)
        arriving = [points, labels, tickets]
        pool = [torch.cat(pair) for pair in zip(kept, arriving)] if kept else arriving
        drawn = draw(pool[1], pool[2], _START_POINTS)
        kept = [each[drawn] for each in pool]
    if not kept or len(kept[0]) == 0:
        raise ValueError("nothing to fit: the batches hold no point with a known label")
    return ClassBatch(kept[0], kept[1])


def _chunks(points: Tensor, labels: Tensor, mixture: "ClassMixture") -> Iterator[ClassBatch]:
    """The labelled points of a batch, by class, a bounded number at a time."""
    points, labels = (each.to(mixture.means.device) for each in _labelled(points, labels, mixture))
    for start in range(0, len(points), _CHUNK):
        order = labels[start : start + _CHUNK].argsort(stable=True)
        yield ClassBatch(points[start : start + _CHUNK][order], labels[start : start + _CHUNK][order])


def _labelled(points: Tensor, labels: Tensor, mixture: "ClassMixture") -> tuple[Tensor, Tensor]:
    """The points (m d) with a known label, and these labels (m); points of other coordinates are refused."""
    known = (labels >= 0) & (labels < mixture.num_classes)
    mixture.check(points, labels)
    return points[known].float(), labels[known]
