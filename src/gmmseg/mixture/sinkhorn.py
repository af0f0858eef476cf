"""Which component does a point belong to? Assignments (responsibilities) within each class. Pure functions.

Classes of a batch differ in size, so their points come padded: ``c`` classes, at most ``m`` points each,
``valid`` (c m) says which places hold a point. Rows of absent points come back as zeros.
"""

import torch
from torch import Tensor


@torch.no_grad()
def balanced_assignment(
    log_densities: Tensor,
    valid: Tensor | None = None,
    *,
    epsilon: float = 0.05,
    iterations: int = 10,
    scale_cost: bool = False,
    hard: bool = False,
) -> Tensor:
    """Assign each class's points evenly to its components; log densities (c m k) -> (c m k).

    The entropic optimal transport plan with cost ``-log N`` and regularisation ``epsilon``: rows sum to
    one, columns to (points of the class)/k. All classes run at once through Sinkhorn-Knopp in the log
    domain, so the result is finite for any finite input. The rows are exact after any number of
    ``iterations``; the columns converge with it.

    ``scale_cost`` divides the cost by its largest magnitude within the class first (the reference code's
    way; it makes ``epsilon`` relative). ``hard`` gives each point wholly to its largest share. In a class
    with fewer points than components, where balance says nothing, a hard point takes its likeliest
    component.
    """
    if log_densities.ndim != 3:
        raise ValueError(
            f"log densities must be (c m k), one block per class, got {tuple(log_densities.shape)}"
        )
    if valid is None:
        valid = torch.ones(log_densities.shape[:2], dtype=torch.bool, device=log_densities.device)
    k = log_densities.shape[2]
    # Components first: both reductions of Sinkhorn-Knopp then run along memory.
    utilities = _utilities(log_densities.float().transpose(1, 2).contiguous(), valid[:, None], scale_cost)
    log_plan = _log_plan(utilities / epsilon, valid[:, None], iterations)
    if hard:
        few = valid.sum(1) < k
        log_plan = torch.where(few[:, None, None], utilities, log_plan)
        plan = _one_hot(log_plan.max(1).indices, k)
    else:
        plan = log_plan.exp().transpose(1, 2)
    return plan * valid[..., None]


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


def _utilities(log_densities: Tensor, valid: Tensor, scale_cost: bool) -> Tensor:
    """-cost (c k m), finite everywhere, 0 at absent points. A constant added to a point changes no plan."""
    if scale_cost:
        largest = (log_densities.abs() * valid).amax(dim=(1, 2), keepdim=True)
        log_densities = log_densities / largest.clamp_min(torch.finfo(torch.float32).tiny)
    return (log_densities - log_densities.amax(1, keepdim=True)).masked_fill(~valid, 0.0)


def _log_plan(log_kernel: Tensor, valid: Tensor, iterations: int) -> Tensor:
    """Alternate components and points, (c k m); points come last, so that each is spent exactly once."""
    k = log_kernel.shape[1]
    log_share = (valid.sum(2, keepdim=True).clamp_min(1).float() / k).log()
    # Absent points weigh nothing in a component's sum; a class without points keeps potentials of zero.
    absent = torch.zeros_like(valid, dtype=torch.float32).masked_fill(~valid, -torch.inf)
    point = absent
    for _ in range(iterations):
        component = (log_share - (log_kernel + point).logsumexp(2, keepdim=True)).nan_to_num(posinf=0.0)
        point = absent - (log_kernel + component).logsumexp(1, keepdim=True)
    return log_kernel + component + point
