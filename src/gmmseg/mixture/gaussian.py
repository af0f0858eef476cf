"""Densities of diagonal Gaussians, and what follows from them. Pure functions.

Axes: ``n`` points, ``c`` classes, ``k`` components per class, ``d`` channels of a point.
"""

import math

import torch
from torch import Tensor

from gmmseg.mixture.products import product


def log_density(points: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """log N(x; component) of points (n d) under means, variances (c k d) -> (n c k), float32.

    The square is expanded, so this is one matrix product with 2d inputs and c*k outputs and never an
    (n c k d) tensor. Differentiable in ``points``. Autocast is overruled: half-precision operands would
    cost up to 0.4 nats.

    The columns of the product are ordered (k c), so the result is a transposed view in which the
    densities of a component lie side by side for all classes: reducing over k then runs along memory.
    """
    c, k, _ = means.shape
    with torch.autocast(points.device.type, enabled=False):
        centre = means.float().mean(dim=(0, 1))
        weight, bias = coefficients(means.float() - centre, variances.float())
        expanded = expand(points.float() - centre)
        densities = product(expanded, weight.transpose(0, 1).flatten(0, 1), bias.T.flatten())
        return densities.view(-1, k, c).transpose(1, 2)


_ROWS = 1 << 14  # points whose (k d) offsets are held at a time


def own_log_density(points: Tensor, labels: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """log N of points (n d) under the k components of their own class, labels (n) -> (n k), float32.

    Costs k*d per point instead of c*k*d: for those who need no other class.
    """
    blocks = [
        _own_block(rows.float(), means[classes].float(), variances[classes].float())
        for rows, classes in zip(points.split(_ROWS), labels.split(_ROWS))
    ]
    return torch.cat(blocks) if blocks else points.new_zeros(0, means.shape[1])


def _own_block(points: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """log N (n k) of points (n d) under a set of components each, (n k d)."""
    offsets = points[:, None] - means
    return -0.5 * (offsets.square() / variances + variances.log() + math.log(2 * math.pi)).sum(-1)


def expand(points: Tensor) -> Tensor:
    """[x^2, x], (... 2d), of points (... d).

    Hand it points relative to a centre of the components: far from the origin, x^2 would cancel.
    """
    return torch.cat([points.square(), points], dim=-1)


def coefficients(means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (... 2d) and bias (...) with ``log N(x) = weight . [x^2, x] + bias``, of (... d) parameters."""
    precisions = variances.reciprocal()
    weight = torch.cat([-0.5 * precisions, means * precisions], dim=-1)
    constant = means.shape[-1] * math.log(2 * math.pi)
    bias = -0.5 * ((means.square() * precisions + variances.log()).sum(-1) + constant)
    return weight, bias


def class_evidence(
    log_densities: Tensor, log_weights: Tensor | None = None, *, winner: bool = True
) -> Tensor:
    """log p(x given class), (n c), from log densities (n c k).

    ``winner``: the best component alone, max_k [log pi + log N] (the paper's choice); otherwise the
    exact logsumexp_k. ``log_weights`` (c k) are the log pi; None means uniform, pi = 1/k.
    """
    k = log_densities.shape[-1]
    if log_weights is not None:
        log_densities = log_densities + log_weights
    evidence = log_densities.amax(-1) if winner else log_densities.logsumexp(-1)
    return evidence if log_weights is not None else evidence - math.log(k)


def log_posterior(evidence: Tensor, log_prior: Tensor) -> Tensor:
    """log p(class given x), (n c), by Bayes' rule from evidence (n c) and the class prior (c)."""
    return torch.log_softmax(evidence + log_prior, dim=-1)


def anomaly_score(evidence: Tensor) -> Tensor:
    """How unlike anything known a point is, (n), from evidence (n c): higher = stranger, always.

    Monotone in the paper's -max_c p(x given c), and finite where that underflows.
    """
    return -evidence.amax(-1)
