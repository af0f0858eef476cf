"""Two reductions of the densities, in blocks that stay in the processor's cache.

`mixture_evidence` equals ``class_evidence(log_density(...), log_weights)``; `total_log_density` is the log of
the sum over all classes and components. Without a gradient to come neither holds all n*c*k densities. With
one, `mixture_evidence` keeps what each component adds to its class, k floats per class and point, which is
quicker than to compute the densities again. (The logits at the labels' resolution take stride^2 floats
per class and point.)
"""

from typing import Protocol

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


def product_form(means: Tensor, variances: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Centre (d), weight (k c 2d), bias (k c): log pi + log N = weight . [y^2, y] + bias, y = x - centre."""
    centre = means.float().mean(dim=(0, 1))
    weight, bias = coefficients(means.float() - centre, variances.float())
    # (c k ...) -> (k c ...): the winner is then found between whole rows of classes.
    return centre, weight.transpose(0, 1), (bias + log_weights).T


def _operands(points: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor) -> tuple[Tensor, ...]:
    """Centred points (n d), and weight and bias of `product_form`."""
    centre, weight, bias = product_form(means, variances, log_weights)
    return points.float() - centre, weight, bias


def _full_precision(points: Tensor) -> torch.autocast:
    """Float32 inside, forward and backward, also where the caller's loop keeps autocast on."""
    return torch.autocast(points.device.type, enabled=False)


class AutogradContext(Protocol):
    """What torch hands to both halves of an autograd function: the first keeps tensors for the second."""

    needs_input_grad: tuple[bool, ...]

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]: ...
    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


class _Evidence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: AutogradContext, points: Tensor, weight: Tensor, bias: Tensor, winner: bool) -> Tensor:
        k, c, _ = weight.shape
        flat_weight, flat_bias = weight.flatten(0, 1), bias.flatten()
        evidence = points.new_empty(len(points), c)
        # What each component adds to its class, and the sum of it, for a backward pass if there will be one.
        keep = ctx.needs_input_grad[0]
        kept = points.new_empty(len(points), k, c) if keep else None
        totals = points.new_empty(len(points), c) if keep else None
        for rows in _blocks(points, k * c):
            densities = torch.addmm(
                flat_bias,
                expand(points[rows]),
                flat_weight.T,
                out=None if kept is None else kept[rows].flatten(1),
            ).view(-1, k, c)
            best = torch.amax(densities, dim=1, out=evidence[rows])
            if winner and kept is None:
                continue
            # All of it for the best one, which those that tie divide between them; or a softmax.
            parts = densities.ge_(best[:, None]) if winner else densities.sub_(best[:, None]).exp_()
            total = torch.sum(parts, dim=1, out=None if totals is None else totals[rows])
            if not winner:
                best += total.log()
        ctx.save_for_backward(points, flat_weight, kept, totals)
        return evidence

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        points, flat_weight, kept, totals = ctx.saved_tensors
        result = torch.empty_like(points)
        with _full_precision(points):
            for rows in _blocks(points, len(flat_weight)):
                of_densities = kept[rows] * (gradient[rows] / totals[rows])[:, None]
                _gradient_of_points(of_densities.flatten(1), flat_weight, points[rows], result[rows])
        return result, None, None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: AutogradContext, points: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        flat_weight, flat_bias = weight.flatten(0, 1), bias.flatten()
        total = points.new_empty(len(points))
        for rows in _blocks(points, len(flat_bias)):
            densities = torch.addmm(flat_bias, expand(points[rows]), flat_weight.T)
            torch.logsumexp(densities, dim=1, out=total[rows])
        ctx.save_for_backward(points, flat_weight, flat_bias, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor | None, None, None]:
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


def _blocks(points: Tensor, width: int) -> "list[slice[int]]":
    """Slices of points whose densities, ``width`` per point, fit the cache."""
    budget = _BLOCK_ELEMENTS if points.device.type == "cpu" else _BLOCK_ELEMENTS_ACCELERATOR
    rows = max(1, budget // width)
    return [slice(start, min(start + rows, len(points))) for start in range(0, len(points), rows)]
