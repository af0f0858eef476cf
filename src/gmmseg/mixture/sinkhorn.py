"""Which component does a point belong to? Assignments (responsibilities) within each class. Pure functions.

Classes of a batch differ in size, so their points come padded: ``c`` classes, at most ``m`` points each,
``valid`` (c m) says which places hold a point. Rows of absent points come back as zeros.
"""

import math

import torch
from torch import Tensor


@torch.no_grad()
def balanced_assignment(
    log_densities: Tensor,
    valid: Tensor | None = None,
    *,
    epsilon: float = 0.05,
    iterations: int = 10,
    tolerance: float | None = None,
    scale_cost: bool = False,
    centre_cost: bool = True,
    hard: bool = False,
) -> Tensor:
    """Assign each class's points evenly to its components; log densities (c m k) -> (c m k).

    The entropic optimal transport plan with cost ``-log N`` and regularisation ``epsilon``: rows sum to
    one, columns to (points of the class)/k. The rows are exact. The columns are what an iteration is for:

    - ``tolerance`` None: ``iterations`` rounds of Sinkhorn-Knopp in the log domain, balanced or not;
    - otherwise Newton's method until no column is further than this share from even, after at most
      ``iterations`` steps at the final ``epsilon``. Where the densities differ by many epsilons, as raw
      ones do, Sinkhorn-Knopp would need thousands of rounds, this needs tens.

    ``scale_cost`` divides the cost by its largest magnitude within the class first (the reference code's
    way; it makes ``epsilon`` relative). ``centre_cost`` subtracts each point's largest log density first,
    which changes no converged plan but the first rounds of Sinkhorn-Knopp. ``hard`` gives all of a point to
    its largest share. In a class with fewer points than components, where balance says nothing, a hard
    point takes its likeliest component.
    """
    valid = _checked(log_densities, valid)
    # Components first: both reductions of Sinkhorn-Knopp then run along memory.
    utilities = log_densities.float().transpose(1, 2).contiguous()
    utilities = _utilities(utilities, valid[:, None], scale_cost, centre_cost or tolerance is not None)
    if tolerance is None:
        scores = _sinkhorn(utilities / epsilon, valid[:, None], iterations)
    else:
        scores = _newton(utilities, valid[:, None], epsilon, iterations, tolerance)
    plan = _hard_plan(scores, utilities, valid) if hard else scores.softmax(1).transpose(1, 2)
    return plan * valid[..., None]


def _checked(log_densities: Tensor, valid: Tensor | None) -> Tensor:
    """``valid`` (c m) of log densities (c m k), all true if None is given; other shapes are refused."""
    if log_densities.ndim != 3:
        raise ValueError(
            f"log densities must be (c m k), one block per class, got {tuple(log_densities.shape)}"
        )
    if valid is not None:
        return valid
    return torch.ones(log_densities.shape[:2], dtype=torch.bool, device=log_densities.device)


def _hard_plan(scores: Tensor, utilities: Tensor, valid: Tensor) -> Tensor:
    """All of each point to the component with its largest score (c k m) -> (c m k).

    In a class with fewer points than components its largest utility (c k m) decides.
    """
    k = scores.shape[1]
    few = valid.sum(1) < k
    scores = torch.where(few[:, None, None], utilities, scores)
    return _one_hot(scores.max(1).indices, k)


@torch.no_grad()
def plain_assignment(log_densities: Tensor, valid: Tensor | None = None, *, hard: bool = False) -> Tensor:
    """Independent responsibilities, the E-step of ordinary EM; log densities (c m k) -> (c m k)."""
    if hard:
        plan = _one_hot(log_densities.argmax(-1), log_densities.shape[-1])
    else:
        plan = log_densities.float().softmax(-1)
    return plan if valid is None else plan * valid[..., None]


def _one_hot(index: Tensor, k: int) -> Tensor:
    """Float rows (... k), one at ``index`` (...) and zero elsewhere."""
    return torch.zeros(*index.shape, k, device=index.device).scatter_(-1, index[..., None], 1.0)


def _utilities(log_densities: Tensor, valid: Tensor, scale: bool, centre: bool) -> Tensor:
    """-cost (c k m), finite everywhere, 0 at absent points."""
    if scale:
        largest = (log_densities.abs() * valid).amax(dim=(1, 2), keepdim=True)
        log_densities = log_densities / largest.clamp_min(torch.finfo(torch.float32).tiny)
    if centre:
        log_densities = log_densities - log_densities.amax(1, keepdim=True)
    return log_densities.masked_fill(~valid, 0.0)


def _sinkhorn(log_kernel: Tensor, valid: Tensor, iterations: int) -> Tensor:
    """Log plan (c k m), up to a constant per point, after rounds that scale components, then points."""
    k = log_kernel.shape[1]
    log_share = (valid.sum(2, keepdim=True).clamp_min(1).float() / k).log()
    # Absent points weigh nothing in a component's sum; a class without points keeps potentials of zero.
    absent = torch.zeros_like(valid, dtype=torch.float32).masked_fill(~valid, -torch.inf)
    point = absent
    for _ in range(iterations):
        component = (log_share - (log_kernel + point).logsumexp(2, keepdim=True)).nan_to_num(posinf=0.0)
        point = absent - (log_kernel + component).logsumexp(1, keepdim=True)
    return log_kernel + component


_COARSER = 4.0  # from one epsilon to the next finer one
_STEPS = 5  # Newton steps at each but the last: the next one starts there


def _newton(utilities: Tensor, valid: Tensor, epsilon: float, iterations: int, tolerance: float) -> Tensor:
    """Log plan (c k m), up to a constant per point, whose columns are even to ``tolerance``.

    One potential per component is sought, (c k): the plan gives each point a softmax over components of
    (utility + potential) / epsilon. The problem is concave; it is solved for a coarse epsilon first, where
    it is smooth, then for finer ones.
    """
    k = utilities.shape[1]
    share = valid.sum(2).clamp_min(1).float() / k
    potential = torch.zeros_like(utilities[..., 0])
    coarse = max(float(-utilities.min()) / 4, epsilon)
    levels = max(0, math.ceil(math.log(coarse / epsilon, _COARSER)))
    for level in reversed(range(levels + 1)):
        width = epsilon * _COARSER**level
        for _ in range(_STEPS if level else iterations):
            plan = ((utilities + potential[..., None]) / width).softmax(1) * valid
            missing = (share - plan.sum(2)) * valid.any(2)
            if bool((missing.abs() <= tolerance * share).all()):
                break
            # The ridge: a constant added to all potentials changes nothing, so that direction is flat.
            curvature = torch.diag_embed(plan.sum(2) + 1e-3 * share) - plan @ plan.transpose(1, 2)
            step = torch.linalg.solve(curvature, missing) * width
            potential += step.clamp(-3 * width, 3 * width)
    return (utilities + potential[..., None]) / epsilon
