"""Post-hoc EM: many passes over points that need not fit in memory."""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gmmseg.mixture.class_batch import ClassBatch
from gmmseg.mixture.gaussian import class_evidence
from gmmseg.mixture.memory import Moments
from gmmseg.mixture.sampling import draw
from gmmseg.mixture.sinkhorn import balanced_assignment, plain_assignment

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
    if restart:
        _start_(mixture, _reservoir(batches, mixture.num_classes, seed), variance_floor, seed)
    history: list[float] = []
    for _ in range(passes):
        known, log_likelihood = _expect(mixture, batches, balanced)
        _maximise_(mixture, known, variance_floor)
        if not balanced:  # where it is, components are even by definition
            mixture.log_weights.copy_(estimated_log_weights(known.weight, mixture.log_weights))
        history.append(log_likelihood)
        if len(history) > 1 and abs(history[-1] - history[-2]) < tolerance:
            break
    return history


def _expect(mixture: "ClassMixture", batches: Batches, balanced: bool) -> tuple[Moments, float]:
    """One pass: moments (c k ...) under the current responsibilities, and the mean log-likelihood."""
    c, k, d = mixture.means.shape
    zeros = torch.zeros(c, k, d, dtype=torch.float64, device=mixture.means.device)
    known = Moments(zeros[..., 0].clone(), zeros, zeros.clone())
    log_likelihood, count = 0.0, 0
    for points, labels in batches:
        for batch in _chunks(points, labels, mixture):
            classes = batch.classes
            log_weights = mixture.log_weights[classes][:, None]
            log_densities = batch.log_density(mixture.means[classes], mixture.variances[classes])
            joint = log_densities + log_weights
            assign = partial(balanced_assignment, tolerance=0.01, iterations=50)
            gained = batch.moments((assign if balanced else plain_assignment)(joint, batch.valid))
            for total, gain in zip(known, gained):
                total.index_add_(0, classes, gain)
            log_likelihood += float(
                class_evidence(log_densities, log_weights, winner=False)[batch.valid].sum()
            )
            count += int(batch.valid.sum())
    if count == 0:
        raise ValueError(
            "nothing to fit: the batches hold no point with a known label, or can be read only once"
        )
    return known, log_likelihood / count


def _maximise_(mixture: "ClassMixture", known: Moments, variance_floor: float) -> None:
    """Set means and variances from moments; a component that has seen nothing stays put."""
    seen = (known.weight > 0)[..., None]
    weight = torch.where(seen, known.weight[..., None], 1.0)
    means = known.total / weight
    variances = (known.squares / weight - means.square()).clamp_min(variance_floor)
    mixture.means.copy_(torch.where(seen, means.float(), mixture.means))
    mixture.variances.copy_(torch.where(seen, variances.float(), mixture.variances))


def estimated_log_weights(weight: Tensor, old: Tensor) -> Tensor:
    """log pi (p k) of how many points each component has, N_ck / N_c; a class without any keeps its own.

    A component without a point keeps a millionth, so that a later point can still choose it.
    """
    total = weight.sum(1, keepdim=True)
    shares = (weight / total.clamp_min(1e-12)).clamp_min(1e-6)
    shares = shares / shares.sum(1, keepdim=True)
    return torch.where(total > 0, shares.log().to(old.dtype), old)


def _start_(mixture: "ClassMixture", kept: ClassBatch, variance_floor: float, seed: int) -> None:
    """Start the components of each class as the clusters of its kept points (Lloyd's rounds)."""
    classes, count = kept.classes, kept.valid.sum(1)
    means = _spread_out(kept, mixture.num_components, seed)
    ones = torch.ones_like(means)
    for _ in range(_START_ROUNDS):
        clusters = plain_assignment(kept.log_density(means, ones), kept.valid, hard=True)
        weight, total, _ = kept.moments(clusters)
        filled = (weight > 0)[..., None]
        means = torch.where(filled, (total / weight.clamp_min(1.0)[..., None]).float(), means)
    _, total, squares = kept.moments(kept.valid[..., None].float())
    share = 1.0 / count[:, None, None]
    spread = (squares * share - (total * share).square()).clamp_min(variance_floor).float()
    mixture.means[classes] = means
    mixture.variances[classes] = spread.expand_as(means)
    mixture.log_weights.fill_(-math.log(mixture.num_components))


def _spread_out(kept: ClassBatch, k: int, seed: int) -> Tensor:
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


def _reservoir(batches: Batches, num_classes: int, seed: int) -> ClassBatch:
    """A uniform random choice of points per class, of all batches."""
    generator = torch.Generator().manual_seed(seed)
    kept: list[Tensor] = []
    for points, labels in batches:
        known = (labels >= 0) & (labels < num_classes)
        tickets = torch.randint(1 << 31, (int(known.sum()),), generator=generator).to(labels.device)
        arriving = [points[known].float(), labels[known], tickets]
        pool = [torch.cat(pair) for pair in zip(kept, arriving)] if kept else arriving
        drawn = draw(pool[1], pool[2], _START_POINTS)
        kept = [each[drawn] for each in pool]
    if not kept or len(kept[0]) == 0:
        raise ValueError("nothing to fit: the batches hold no point with a known label")
    return ClassBatch(kept[0], kept[1])


def _chunks(points: Tensor, labels: Tensor, mixture: "ClassMixture") -> Iterator[ClassBatch]:
    """The labelled points of a batch, by class, a bounded number at a time."""
    known = (labels >= 0) & (labels < mixture.num_classes)
    points, labels = points[known].float().to(mixture.means.device), labels[known].to(mixture.means.device)
    for start in range(0, len(points), _CHUNK):
        order = labels[start : start + _CHUNK].argsort(stable=True)
        yield ClassBatch(points[start : start + _CHUNK][order], labels[start : start + _CHUNK][order])
