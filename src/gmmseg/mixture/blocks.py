"""Two reductions of the densities, in blocks that stay in the processor's cache.

`mixture_evidence` equals ``class_evidence(log_density(...), log_weights)``; `total_log_density` is the log of
the sum over all classes and components. Without a gradient to come neither holds all n*c*k densities. With
one, `mixture_evidence` keeps what each component adds to its class, k floats per class and point, which is
quicker than to compute the densities again. (The logits at the labels' resolution take stride^2 floats
per class and point.)

Points are columns within a block: the densities of a component, for all its classes and points, lie side by
side, so that components are joined along memory. Sums of exponentials are taken in powers of two, for which
the product's weights are scaled: of a density far below the largest torch's ``exp`` takes many times as long
as ``exp2``.
"""

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gmmseg.mixture.gaussian import coefficients
from gmmseg.mixture.products import product_of_columns

_BLOCK_ELEMENTS = 1 << 19  # densities per block and thread of a CPU: 2 MB
_BLOCK_ELEMENTS_ACCELERATOR = 1 << 27
_BIT = math.log(2)  # nats


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
    # (c k ...) -> (k c ...): components are then joined as whole rows of classes.
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
    """Densities of points, block after block: log pi + log N in nats, or in ``bits``.

    ``weight`` (kc 2d): what the squares and the points of a block are multiplied with.
    """

    def __init__(self, points: Tensor, centre: Tensor, weight: Tensor, bias: Tensor, *, bits: bool) -> None:
        self.points, self.centre = points, centre
        with_bias = torch.cat([weight, bias[..., None]], dim=-1).flatten(0, 1)
        self._with_bias = with_bias / _BIT if bits else with_bias
        self.weight = self._with_bias[:, :-1]
        self.blocks = _blocks(points, len(with_bias))
        most = self.blocks[0].stop if self.blocks else 0
        # Taken once: fresh pages cost more than arithmetic on them.
        self._expanded = points.new_ones(most, 2 * points.shape[1] + 1)
        self._place = points.new_empty(len(with_bias) * most)

    def of(self, rows: "slice[int]", *, keep: bool = False) -> Tensor:
        """Densities (kc r) of a block of points; those that are not to ``keep`` the next block overwrites."""
        n, d = rows.stop - rows.start, self.points.shape[1]
        expanded = self._expanded[:n]  # [y^2, y, 1]
        torch.sub(self.points[rows], self.centre, out=expanded[:, d:-1])
        torch.mul(expanded[:, d:-1], expanded[:, d:-1], out=expanded[:, :d])
        shape = len(self._with_bias), n
        place = self.points.new_empty(shape) if keep else self._place[: math.prod(shape)].view(shape)
        return product_of_columns(self._with_bias, expanded.T, place)


class _Evidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: AutogradContext, points: Tensor, centre: Tensor, weight: Tensor, bias: Tensor, winner: bool
    ) -> Tensor:
        k, c, _ = weight.shape
        keep = ctx.needs_input_grad[0]
        densities = _Densities(points, centre, weight, bias, bits=not winner)
        # Losses read rows. Who predicts goes on with maps of classes, so these come as a view of columns.
        evidence = points.new_empty(len(points), c) if keep else points.new_empty(c, len(points)).T
        kept: list[Tensor] = []
        for rows in densities.blocks:
            block = densities.of(rows, keep=keep).unflatten(0, (k, c))
            kept += _reduced(block, evidence[rows].T, winner, keep)
        ctx.save_for_backward(points, centre, densities.weight, *kept)
        return evidence

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        points, centre, weight, *kept = ctx.saved_tensors
        result, start = torch.empty_like(points), 0
        with _full_precision(points):
            for parts, total in zip(kept[::2], kept[1::2], strict=True):
                rows = slice(start, start + parts.shape[-1])  # as they were cut, whatever the threads are now
                of_densities = parts * (gradient[rows].T.contiguous() / total)
                _gradient_of_points(of_densities.flatten(0, 1), weight, points[rows] - centre, result[rows])
                start = rows.stop
        return result, None, None, None, None


def _reduced(block: Tensor, evidence: Tensor, winner: bool, keep: bool) -> list[Tensor]:
    """Put that of a block of densities (k c r) into ``evidence`` (c r); the block is used up.

    Without ``winner`` densities are in bits. With ``keep``, returns what each component adds to its class
    (k c r), and the sum of it (c r), so that parts over sum, times ``weight``, is the gradient.
    """
    if winner and not keep:
        torch.amax(block, dim=0, out=evidence)
        return []
    best = block.amax(0)
    if winner:
        evidence.copy_(best)
        # All of it for the best one, which those that tie divide between them.
        return [block.ge_(best), block.sum(0)]
    total = block.sub_(best).exp2_().sum(0)
    torch.add(total.log(), best, alpha=_BIT, out=evidence)
    return [block, total.div_(_BIT)] if keep else []  # weights are of bits, gradients of nats


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: AutogradContext, points: Tensor, centre: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        densities = _Densities(points, centre, weight, bias, bits=True)
        total = points.new_empty(len(points))
        for rows in densities.blocks:
            block = densities.of(rows)
            best = torch.amax(block, dim=0, out=total[rows])
            best += block.sub_(best).exp2_().sum(0).log2_()
        ctx.save_for_backward(points, centre, weight, bias, total)
        return total * _BIT

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        points, centre, weight, bias, total = ctx.saved_tensors
        result = torch.empty_like(points)
        with _full_precision(points):
            densities = _Densities(points, centre, weight, bias, bits=True)
            for rows in densities.blocks:
                shares = densities.of(rows).sub_(total[rows]).exp2_().mul_(gradient[rows] * _BIT)
                _gradient_of_points(shares, densities.weight, points[rows] - centre, result[rows])
        return result, None, None, None


def _gradient_of_points(of_densities: Tensor, weight: Tensor, centred: Tensor, out: Tensor) -> None:
    """Carry a gradient of densities (kc r) back through ``weight . [y^2, y]`` to centred points y (r d)."""
    of_square, of_point = product_of_columns(weight.T, of_densities).T.chunk(2, dim=1)
    torch.addcmul(of_point, centred, of_square, value=2.0, out=out)


def _blocks(points: Tensor, width: int) -> "list[slice[int]]":
    """Slices of points whose densities, ``width`` per point, fit the cache."""
    on_cpu = points.device.type == "cpu"
    budget = _BLOCK_ELEMENTS * torch.get_num_threads() if on_cpu else _BLOCK_ELEMENTS_ACCELERATOR
    rows = max(1, budget // width)
    return [slice(start, min(start + rows, len(points))) for start in range(0, len(points), rows)]
