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

from gmmseg.mixture.gaussian import coefficients
from gmmseg.mixture.products import product

_BLOCK_ELEMENTS = 1 << 20  # densities per block and thread of a CPU: 4 MB
_BLOCK_ELEMENTS_ACCELERATOR = 1 << 27


def mixture_evidence(
    points: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor, *, winner: bool
) -> Tensor:
    """log p(x given class), (n c), of points (n d); differentiable in ``points`` alone.

    ``winner``: max_k [log pi + log N]; otherwise logsumexp_k of the same.
    """
    with _full_precision(points):
        return _Evidence.apply(points.float(), *product_form(means, variances, log_weights), winner)


def total_log_density(points: Tensor, means: Tensor, variances: Tensor, log_weights: Tensor) -> Tensor:
    """logsumexp_ck [log pi + log N], (n), of points (n d); differentiable in ``points`` alone."""
    with _full_precision(points):
        return _Total.apply(points.float(), *product_form(means, variances, log_weights))


def product_form(means: Tensor, variances: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Centre (d), weight (k c 2d), bias (k c): log pi + log N = weight . [y^2, y] + bias, y = x - centre."""
    centre = means.float().mean(dim=(0, 1))
    weight, bias = coefficients(means.float() - centre, variances.float())
    # (c k ...) -> (k c ...): the winner is then found between whole rows of classes.
    return centre, weight.transpose(0, 1), (bias + log_weights).T


def _full_precision(points: Tensor) -> torch.autocast:
    """Float32 inside, forward and backward, also where the caller's loop keeps autocast on."""
    return torch.autocast(points.device.type, enabled=False)


class AutogradContext(Protocol):
    """What torch hands to both halves of an autograd function: the first keeps tensors for the second."""

    needs_input_grad: tuple[bool, ...]

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]: ...
    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


class _Densities:
    """Densities of points, block after block."""

    def __init__(self, points: Tensor, centre: Tensor, weight: Tensor, bias: Tensor) -> None:
        self.points, self.centre = points, centre
        self.weight, self.bias = weight.flatten(0, 1), bias.flatten()
        self.blocks = _blocks(points, len(self.bias))
        most = self.blocks[0].stop if self.blocks else 0
        # Taken once: fresh pages cost more than arithmetic on them.
        self._expanded = points.new_empty(most, 2 * points.shape[1])

    def of(self, rows: "slice[int]") -> Tensor:
        """log pi + log N (rows kc)."""
        expanded = self._expanded[: rows.stop - rows.start]
        squares, centred = expanded.chunk(2, dim=1)  # [y^2, y]
        torch.sub(self.points[rows], self.centre, out=centred)
        torch.mul(centred, centred, out=squares)
        return product(expanded, self.weight, self.bias)


class _Evidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: AutogradContext, points: Tensor, centre: Tensor, weight: Tensor, bias: Tensor, winner: bool
    ) -> Tensor:
        k, c, _ = weight.shape
        densities = _Densities(points, centre, weight, bias)
        evidence = points.new_empty(len(points), c)
        kept: list[Tensor] = []
        for rows in densities.blocks:
            kept += _reduced(
                densities.of(rows).view(-1, k, c), evidence[rows], winner, ctx.needs_input_grad[0]
            )
        ctx.save_for_backward(points, centre, densities.weight, *kept)
        return evidence

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        points, centre, flat_weight, *kept = ctx.saved_tensors
        result, start = torch.empty_like(points), 0
        with _full_precision(points):
            for parts, total in zip(kept[::2], kept[1::2], strict=True):
                rows = slice(start, start + len(parts))  # as they were cut, whatever the threads are now
                of_densities = parts * (gradient[rows] / total)[:, None]
                _gradient_of_points(of_densities.flatten(1), flat_weight, points[rows] - centre, result[rows])
                start = rows.stop
        return result, None, None, None, None


def _reduced(block: Tensor, best: Tensor, winner: bool, keep: bool) -> list[Tensor]:
    """Put the evidence of a block of densities (n k c) into ``best`` (n c); the block is used up.

    With ``keep``, returns what each component adds to its class (n k c), and the sum of it (n c).
    """
    _over_components(torch.maximum, block, out=best)
    if winner and not keep:
        return []
    # All of it for the best one, which those that tie divide between them; or a softmax.
    parts = block.ge_(best[:, None]) if winner else block.sub_(best[:, None]).exp_()
    total = _over_components(torch.add, parts, out=torch.empty_like(best))
    if not winner:
        best += total.log()
    return [parts, total] if keep else []


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: AutogradContext, points: Tensor, centre: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        densities = _Densities(points, centre, weight, bias)
        total = points.new_empty(len(points))
        for rows in densities.blocks:
            torch.logsumexp(densities.of(rows), dim=1, out=total[rows])
        ctx.save_for_backward(points, centre, weight, bias, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        points, centre, weight, bias, total = ctx.saved_tensors
        densities, result = _Densities(points, centre, weight, bias), torch.empty_like(points)
        with _full_precision(points):
            for rows in densities.blocks:
                shares = densities.of(rows).sub_(total[rows, None]).exp_().mul_(gradient[rows, None])
                _gradient_of_points(shares, densities.weight, points[rows] - centre, result[rows])
        return result, None, None, None


class _Join(Protocol):
    """A function of two tensors and a place for its result, such as torch.maximum."""

    def __call__(self, one: Tensor, other: Tensor, /, *, out: Tensor) -> Tensor: ...


def _over_components(join: _Join, parts: Tensor, out: Tensor) -> Tensor:
    """Parts (n k c) of the components joined for each class, in ``out`` (n c).

    One component after the other: twice as quick as a reduction over the axis in the middle.
    """
    first, *others = parts.unbind(1)
    if not others:
        return out.copy_(first)
    join(first, others[0], out=out)
    for other in others[1:]:
        join(out, other, out=out)
    return out


def _gradient_of_points(of_densities: Tensor, flat_weight: Tensor, centred: Tensor, out: Tensor) -> None:
    """Carry a gradient of densities (n kc) back through ``weight . [y^2, y]`` to centred points y (n d)."""
    of_square, of_point = product(of_densities, flat_weight.T).chunk(2, dim=1)
    torch.addcmul(of_point, centred, of_square, value=2.0, out=out)


def _blocks(points: Tensor, width: int) -> "list[slice[int]]":
    """Slices of points whose densities, ``width`` per point, fit the cache."""
    on_cpu = points.device.type == "cpu"
    budget = _BLOCK_ELEMENTS * torch.get_num_threads() if on_cpu else _BLOCK_ELEMENTS_ACCELERATOR
    rows = max(1, budget // width)
    return [slice(start, min(start + rows, len(points))) for start in range(0, len(points), rows)]
