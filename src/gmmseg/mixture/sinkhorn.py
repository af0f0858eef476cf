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
    utilities = _utilities(log_densities.float(), valid, scale_cost)
    log_plan = _log_plan(utilities / epsilon, valid, iterations)
    if hard:
        few = valid.sum(1) < log_densities.shape[2]
        log_plan = torch.where(few[:, None, None], utilities, log_plan)
        plan = torch.nn.functional.one_hot(log_plan.argmax(-1), log_densities.shape[2]).float()
    else:
        plan = log_plan.exp()
    return plan * valid[..., None]


@torch.no_grad()
def plain_assignment(log_densities: Tensor, valid: Tensor | None = None, *, hard: bool = False) -> Tensor:
    """Independent responsibilities, the E-step of ordinary EM; log densities (c m k) -> (c m k)."""
    if hard:
        plan = torch.nn.functional.one_hot(log_densities.argmax(-1), log_densities.shape[-1]).float()
    else:
        plan = log_densities.float().softmax(-1)
    return plan if valid is None else plan * valid[..., None]


def _utilities(log_densities: Tensor, valid: Tensor, scale_cost: bool) -> Tensor:
    """-cost, finite everywhere, with 0 at absent points. Adding a constant to a row changes no plan."""
    if scale_cost:
        largest = (log_densities.abs() * valid[..., None]).amax(dim=(1, 2), keepdim=True)
        log_densities = log_densities / largest.clamp_min(torch.finfo(torch.float32).tiny)
    utilities = log_densities - log_densities.amax(-1, keepdim=True)
    return utilities.masked_fill(~valid[..., None], 0.0)


def _log_plan(log_kernel: Tensor, valid: Tensor, iterations: int) -> Tensor:
    """Alternate columns and rows; the last word is the rows', so that each point is spent exactly once."""
    c, _, k = log_kernel.shape
    log_column_sum = (valid.sum(1).clamp_min(1).float() / k).log()[:, None, None]
    absent = ~valid[..., None]
    row = torch.zeros_like(log_kernel[..., :1])
    column = log_kernel.new_zeros(c, 1, k)
    for _ in range(iterations):
        masked = (log_kernel + row).masked_fill(absent, -torch.inf)
        # A class with no point at all has an empty sum; its column potential is kept at zero.
        column = (log_column_sum - masked.logsumexp(1, keepdim=True)).nan_to_num(posinf=0.0)
        row = -(log_kernel + column).logsumexp(2, keepdim=True)
    return log_kernel + column + row
