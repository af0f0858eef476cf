"""Two reductions of the densities that never hold all n*c*k of them, neither forward nor backward.

`mixture_evidence` equals ``class_evidence(log_density(...), log_weights)``; `total_log_density` is the log of
the sum over all classes and components. Points pass in blocks whose densities stay in the processor's cache;
the backward pass computes each block once more, which is cheaper than to keep it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gmmseg.mixture.gaussian import coefficients, expand

_BLOCK_ELEMENTS = 1 << 19  # densities per block on a CPU: 2 MB
_BLOCK_ELEMENTS_ACCELERATOR = 1 << 27


def mixture_evidence(
    points: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor, *, winner: bool
) -> Tensor:
    """log p(x given class), (n c), of points (n d); differentiable in ``points`` alone.

    ``winner``: max_k [log pi + log N]; otherwise logsumexp_k of the same.
    """
    with _full_precision(points):
        return _Evidence.apply(*_operands(points, means, variances, log_weights), winner)


def total_log_density(points: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor) -> Tensor:
    """logsumexp_ck [log pi + log N], (n), of points (n d); differentiable in ``points`` alone."""
    with _full_precision(points):
        return _Total.apply(*_operands(points, means, variances, log_weights))


def _operands(points: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor) -> tuple[Tensor, ...]:
    """Centred points (n d), weight (k c 2d), bias (k c): log pi + log N = weight . [x^2, x] + bias."""
    centre = means.float().mean(dim=(0, 1))
    weight, bias = coefficients(means.float() - centre, variances.float())
    # (c k ...) -> (k c ...): the winner is then found between whole rows of classes.
    return points.float() - centre, weight.transpose(0, 1), (bias + log_weights).T


def _full_precision(points: Tensor) -> torch.autocast:
    """Float32 inside, forward and backward, also where the caller's loop keeps autocast on."""
    return torch.autocast(points.device.type, enabled=False)


class _Evidence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, points: Tensor, weight: Tensor, bias: Tensor, winner: bool) -> Tensor:
        k, c, _ = weight.shape
        flat_weight, flat_bias = weight.flatten(0, 1), bias.flatten()
        evidence = points.new_empty(len(points), c)
        for rows in _blocks(points, k * c):
            densities = torch.addmm(flat_bias, expand(points[rows]), flat_weight.T).view(-1, k, c)
            best = torch.amax(densities, dim=1, out=evidence[rows])
            if not winner:
                best += densities.sub_(best[:, None]).exp_().sum(1).log_()
        ctx.save_for_backward(points, flat_weight, flat_bias, evidence)
        ctx.winner = winner
        return evidence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        points, flat_weight, flat_bias, evidence = ctx.saved_tensors
        result = torch.empty_like(points)
        with _full_precision(points):
            for rows in _blocks(points, len(flat_bias)):
                densities = torch.addmm(flat_bias, expand(points[rows]), flat_weight.T)
                densities = densities.view(len(densities), -1, evidence.shape[1])
                # Share of each component in the evidence of its class: softmax, or all of it for the best,
                # which those that tie divide between them.
                if ctx.winner:
                    shares = (densities >= densities.amax(1, keepdim=True)).float()
                    of_classes = gradient[rows] / shares.sum(1)
                else:
                    shares = densities.sub_(evidence[rows][:, None]).exp_()
                    of_classes = gradient[rows]
                shares *= of_classes[:, None]
                _gradient_of_points(shares.flatten(1), flat_weight, points[rows], result[rows])
        return result, None, None, None


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
        with _full_precision(points):
            for rows in _blocks(points, len(flat_bias)):
                densities = torch.addmm(flat_bias, expand(points[rows]), flat_weight.T)
                shares = densities.sub_(total[rows, None]).exp_().mul_(gradient[rows, None])
                _gradient_of_points(shares, flat_weight, points[rows], result[rows])
        return result, None, None


def _gradient_of_points(of_densities: Tensor, flat_weight: Tensor, points: Tensor, out: Tensor) -> None:
    """Carry a gradient of densities (n kc) back through ``weight . [x^2, x]`` to points (n d)."""
    of_square, of_point = torch.mm(of_densities, flat_weight).chunk(2, dim=1)
    torch.addcmul(of_point, points, of_square, value=2.0, out=out)


def _blocks(points: Tensor, width: int) -> list[slice]:
    """Slices of points whose densities, ``width`` per point, fit the cache."""
    budget = _BLOCK_ELEMENTS if points.device.type == "cpu" else _BLOCK_ELEMENTS_ACCELERATOR
    rows = max(1, budget // width)
    return [slice(start, min(start + rows, len(points))) for start in range(0, len(points), rows)]
