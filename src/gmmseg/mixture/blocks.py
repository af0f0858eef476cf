"""Two reductions of the densities that never hold all n*c*k of them, neither forward nor backward.

`winning_evidence` equals ``class_evidence(log_density(...), log_weights)``; `total_log_density` is the log of
the sum over all classes and components. Points pass in blocks whose densities stay in the processor's cache.
For the backward pass the first keeps which component won, one byte per point and class, because only the
winner receives gradient; the second computes its block once more.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gmmseg.mixture.gaussian import coefficients, expand

_BLOCK_ELEMENTS = 1 << 18  # densities per block on a CPU: 1 MB
_BLOCK_ELEMENTS_ACCELERATOR = 1 << 27


def winning_evidence(points: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor) -> Tensor:
    """max_k [log pi + log N], (n c), of points (n d); differentiable in ``points`` alone."""
    if means.shape[1] > 255:
        raise ValueError(f"{means.shape[1]} components per class: at most 255 can be told apart in a byte")
    with torch.autocast(points.device.type, enabled=False):
        return _Winner.apply(*_operands(points, means, variances, log_weights))


def total_log_density(points: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor) -> Tensor:
    """logsumexp_ck [log pi + log N], (n), of points (n d); differentiable in ``points`` alone."""
    with torch.autocast(points.device.type, enabled=False):
        return _Total.apply(*_operands(points, means, variances, log_weights))


def _operands(points: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor) -> tuple[Tensor, ...]:
    """Centred points (n d), weight (k c 2d), bias (k c): log pi + log N = weight . [x^2, x] + bias."""
    centre = means.float().mean(dim=(0, 1))
    weight, bias = coefficients(means.float() - centre, variances.float())
    # (c k ...) -> (k c ...): the winner is then found between whole rows of classes.
    return points.float() - centre, weight.transpose(0, 1), (bias + log_weights).T


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
        k = ctx.num_components
        result = torch.empty_like(points)
        components = torch.arange(k, dtype=torch.uint8, device=points.device)[:, None]
        for rows in _blocks(points, len(flat_weight)):
            of_winners = torch.where(winners[rows][:, None] == components, gradient[rows][:, None], 0.0)
            _gradient_of_points(of_winners.flatten(1), flat_weight, points[rows], result[rows])
        return result, None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, points: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        flat_weight, flat_bias = weight.flatten(0, 1), bias.flatten()
        total = points.new_empty(len(points))
        for rows in _blocks(points, len(flat_bias)):
            densities = torch.addmm(flat_bias, expand(points[rows]), flat_weight.T)
            torch.logsumexp(densities, dim=1, out=total[rows])
        ctx.save_for_backward(points, flat_weight, flat_bias, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        points, flat_weight, flat_bias, total = ctx.saved_tensors
        result = torch.empty_like(points)
        for rows in _blocks(points, len(flat_bias)):
            densities = torch.addmm(flat_bias, expand(points[rows]), flat_weight.T)
            shares = densities.sub_(total[rows, None]).exp_().mul_(gradient[rows, None])
            _gradient_of_points(shares, flat_weight, points[rows], result[rows])
        return result, None, None


def _gradient_of_points(of_densities: Tensor, flat_weight: Tensor, points: Tensor, out: Tensor) -> None:
    """Carry a gradient of densities (n kc) back through ``weight . [x^2, x]`` to points (n d)."""
    of_square, of_point = torch.mm(of_densities, flat_weight).chunk(2, dim=1)
    torch.addcmul(of_point, points, of_square, value=2.0, out=out)


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
