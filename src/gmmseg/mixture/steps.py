"""The two halves of EM, the same for `OnlineEM` and `ClassMixture.fit`. Pure functions."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gmmseg.mixture.class_batch import ClassBatch
from gmmseg.mixture.coordinates import Coordinates
from gmmseg.mixture.em_settings import EMSettings
from gmmseg.mixture.gaussian import class_evidence
from gmmseg.mixture.memory import Moments
from gmmseg.mixture.sinkhorn import balanced_assignment, plain_assignment

if TYPE_CHECKING:
    from gmmseg.mixture.mixture import ClassMixture


class Expectation(NamedTuple):
    """What an E-step finds: responsibilities (p m k), zero at absent points, and log_likelihoods (s) of the
    s points that are present, each under its own class."""

    responsibilities: Tensor
    log_likelihoods: Tensor


def expect(
    mixture: "ClassMixture", batch: ClassBatch, settings: EMSettings, given: Tensor | None = None
) -> Expectation:
    """The E-step: how much of each point of the batch belongs to each component of its class.

    ``given``: responsibilities (p m k) that were computed elsewhere and are returned as they are.
    """
    means, variances, log_weights = (
        each[batch.classes] for each in (mixture.means, mixture.variances, mixture.log_weights)
    )
    log_densities = batch.log_density(means, variances)
    evidence = class_evidence(log_densities, log_weights[:, None], winner=False)
    if given is None:
        given = assign(log_densities, batch.valid, log_weights, settings)
    return Expectation(given, evidence[batch.valid])


def assign(log_densities: Tensor, valid: Tensor, log_weights: Tensor, settings: EMSettings) -> Tensor:
    """Responsibilities (p m k) from log densities (p m k), valid (p m) and component weights (p k)."""
    if not settings.balanced:
        return plain_assignment(log_densities + log_weights[:, None], valid, hard=settings.hard)
    return balanced_assignment(
        log_densities,
        valid,
        epsilon=settings.epsilon,
        iterations=settings.iterations,
        tolerance=settings.tolerance,
        scale_cost=settings.scale_cost,
        centre_cost=settings.centre_cost,
        hard=settings.hard,
    )


def maximise(
    known: Moments,
    means: Tensor,
    variances: Tensor,
    coordinates: Coordinates,
    *,
    variance_floor: float,
    variance_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The M-step: means and variances (p k d) from the moments of points.

    Variances are taken about the means that the coordinates allow. A component without any point keeps its
    old values, ``means`` and ``variances`` (p k d).
    """
    seen = (known.weight > 0)[..., None]
    weight = torch.where(seen, known.weight[..., None], 1.0)
    first, second = known.total / weight, known.squares / weight
    new_means = coordinates.valid_means(first)
    new_variances = second - 2 * new_means * first + new_means.square()
    new_variances = (new_variances.clamp_min(0.0) + variance_offset).clamp_min(variance_floor)
    return (
        torch.where(seen, new_means.to(means.dtype), means),
        torch.where(seen, new_variances.to(variances.dtype), variances),
    )


def estimated_log_weights(weight: Tensor, old: Tensor) -> Tensor:
    """log pi (p k), N_ck / N_c, from the number of points (p k) of each component.

    A class without points keeps its ``old`` log pi (p k). A component without points gets a millionth, so
    that a later point can still choose it.
    """
    total = weight.sum(1, keepdim=True)
    shares = (weight / total.clamp_min(1e-12)).clamp_min(1e-6)
    shares = shares / shares.sum(1, keepdim=True)
    return torch.where(total > 0, shares.log().to(old.dtype), old)
