"""Winner-take-all evidence without ever holding all n*c*k densities, neither forward nor backward.

Equal to ``class_evidence(log_density(points, means, variances), log_weights)``. Points pass in blocks whose
densities stay in the processor's cache; what is kept for the backward pass is which component won, one
byte per point and class, because only the winner receives gradient.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gmmseg.mixture.gaussian import coefficients, expand

_BLOCK_ELEMENTS = 1 << 20  # densities per block on a CPU: 4 MB
_BLOCK_ELEMENTS_ACCELERATOR = 1 << 27


def winning_evidence(points: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor) -> Tensor:
    """max_k [log pi + log N], (n c), of points (n d); differentiable in ``points`` alone."""
    if means.shape[1] > 255:
        raise ValueError(f"{means.shape[1]} components per class: at most 255 can be told apart in a byte")
    with torch.autocast(points.device.type, enabled=False):
        centre = means.float().mean(dim=(0, 1))
        weight, bias = coefficients(means.float() - centre, variances.float())
        # (c k ...) -> (k c ...): the winner is then found between whole rows of classes.
        return _Winner.apply(points.float() - centre, weight.transpose(0, 1), (bias + log_weights).T)


class _Winner(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, points: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        k, c, _ = weight.shape
        flat_weight, flat_bias = weight.reshape(k * c, -1), bias.reshape(k * c)
        evidence = points.new_empty(len(points), c)
        keep = ctx.needs_input_grad[0]
        winners = torch.empty(len(points), c, dtype=torch.uint8, device=points.device) if keep else None
        for rows in _blocks(points, k * c):
            densities = torch.addmm(flat_bias, expand(points[rows]), flat_weight.T).view(-1, k, c)
            if winners is None:
                torch.amax(densities, dim=1, out=evidence[rows])
            else:
                _find_winners(densities, evidence[rows], winners[rows])
        ctx.save_for_backward(points, flat_weight, winners)
        ctx.num_components = k
        return evidence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        points, flat_weight, winners = ctx.saved_tensors
        k, d = ctx.num_components, points.shape[1]
        result = torch.empty_like(points)
        components = torch.arange(k, dtype=torch.uint8, device=points.device)[:, None]
        for rows in _blocks(points, len(flat_weight)):
            of_winners = torch.where(winners[rows][:, None] == components, gradient[rows][:, None], 0.0)
            of_square, of_point = torch.mm(of_winners.flatten(1), flat_weight).split(d, dim=1)
            torch.addcmul(of_point, points[rows], of_square, value=2.0, out=result[rows])
        return result, None, None


def _find_winners(densities: Tensor, best: Tensor, winners: Tensor) -> None:
    """Write the largest of densities (n k c) over k, and which it was, into (n c) tensors."""
    best.copy_(densities[:, 0])
    winners.zero_()
    for component in range(1, densities.shape[1]):
        challenger = densities[:, component]
        winners.masked_fill_(challenger > best, component)
        torch.maximum(best, challenger, out=best)


def _blocks(points: Tensor, width: int) -> list[slice]:
    """Slices of points whose densities, ``width`` per point, fit the cache."""
    budget = _BLOCK_ELEMENTS if points.device.type == "cpu" else _BLOCK_ELEMENTS_ACCELERATOR
    rows = max(1, budget // width)
    return [slice(start, min(start + rows, len(points))) for start in range(0, len(points), rows)]
