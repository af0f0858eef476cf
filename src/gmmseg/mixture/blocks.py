"""Two reductions of the densities, in blocks that stay in the processor's cache.

`mixture_evidence` equals ``class_evidence(log_density(...), log_weights)``; `total_log_density` is the log of
the sum over all classes and components. Without a gradient to come neither holds all n*c*k densities. With
one, `mixture_evidence` keeps what each component adds to its class, k floats per class and point, which is
quicker than to compute the densities again. (The logits at the labels' resolution take stride^2 floats
per class and point.)

Points are columns within a block. Where the product leaves them so in memory, too, the densities of a
component lie side by side for all classes and points, and components are joined along memory; where it does
not, nothing here turns them. Sums of exponentials are taken in powers of two, for which the product's weights
are scaled: of a density far below the largest torch's ``exp`` takes many times as long as ``exp2``.
"""

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gmmseg.mixture.gaussian import coefficients
from gmmseg.mixture.products import Factor, stays_in_columns

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

    ``weight`` (kc 2d): what the squares and the points of a block are multiplied with. Unless they are to
    ``keep``, the densities of a block overwrite those of the one before.
    """

    def __init__(
        self,
        points: Tensor,
        centre: Tensor,
        weight: Tensor,
        bias: Tensor,
        *,
        bits: bool,
        keep: bool = False,
    ) -> None:
        self.points, self.centre = points, centre
        with_bias = torch.cat([weight, bias[..., None]], dim=-1).flatten(0, 1)
        with_bias = with_bias / _BIT if bits else with_bias
        self.weight = with_bias[:, :-1]
        self._factor, self._count = Factor(with_bias), len(with_bias)
        self.blocks = _blocks(points, self._count)
        most = self.blocks[0].stop if self.blocks else 0
        # Taken once: fresh pages cost more than arithmetic on them.
        self._expanded = points.new_ones(most, 2 * points.shape[1] + 1)
        self._place = None if keep else points.new_empty(self._count * most)

    def of(self, rows: "slice[int]") -> Tensor:
        """Densities (kc r) of a block of points."""
        n, d = rows.stop - rows.start, self.points.shape[1]
        expanded = self._expanded[:n]  # [y^2, y, 1]
        torch.sub(self.points[rows], self.centre, out=expanded[:, d:-1])
        torch.mul(expanded[:, d:-1], expanded[:, d:-1], out=expanded[:, :d])
        place = None if self._place is None else self._place[: self._count * n].view(self._count, n)
        return self._factor.times(expanded.T, place)


class _Evidence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: AutogradContext, points: Tensor, centre: Tensor, weight: Tensor, bias: Tensor, winner: bool
    ) -> Tensor:
        k, c, _ = weight.shape
        keep = ctx.needs_input_grad[0]
        densities = _Densities(points, centre, weight, bias, bits=not winner, keep=keep)
        # Losses read rows. Who predicts goes on with maps of classes, which a view of columns is already.
        in_rows = keep or not stays_in_columns(points)
        evidence = points.new_empty(len(points), c) if in_rows else points.new_empty(c, len(points)).T
        kept: list[Tensor] = []
        for rows in densities.blocks:
            block = densities.of(rows).unflatten(0, (k, c))
            kept += _reduced(block, evidence[rows].T, winner, keep)
        ctx.save_for_backward(points, centre, densities.weight, *kept)
        return evidence

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        points, centre, weight, *kept = ctx.saved_tensors
        result, start, back = torch.empty_like(points), 0, Factor(weight.T)
        with _full_precision(points):
            for parts, total in zip(kept[::2], kept[1::2], strict=True):
                rows = slice(start, start + parts.shape[-1])  # as they were cut, whatever the threads are now
                of_classes = torch.empty_like(total).copy_(gradient[rows].T).div_(total)
                of_densities = parts * of_classes
                _gradient_of_points(of_densities.flatten(0, 1), back, points[rows] - centre, result[rows])
                start = rows.stop
        return result, None, None, None, None


def _reduced(block: Tensor, evidence: Tensor, winner: bool, keep: bool) -> list[Tensor]:
    """Put that of a block of densities (k c r) into ``evidence`` (c r); the block is used up.

    Without ``winner`` densities are in bits. With ``keep``, returns what each component adds to its class
    (k c r), and the sum of it (c r), so that parts over sum, times ``weight``, is the gradient.
    """
    if winner and not keep:
        _over_components(torch.maximum, block, out=evidence)
        return []
    best = _over_components(torch.maximum, block)
    if winner:
        evidence.copy_(best)
        # All of it for the best one, which those that tie divide between them.
        return [block.ge_(best), _over_components(torch.add, block)]
    total = _over_components(torch.add, block.sub_(best).exp2_())
    torch.add(total.log(), best, alpha=_BIT, out=evidence)
    return [block, total.div_(_BIT)] if keep else []  # weights are of bits, gradients of nats


class _Join(Protocol):
    """A function of two tensors and a place for its result, such as torch.maximum."""

    def __call__(self, one: Tensor, other: Tensor, /, *, out: Tensor) -> Tensor: ...


def _over_components(join: _Join, parts: Tensor, out: Tensor | None = None) -> Tensor:
    """Parts (k c r) of the components joined for each class (c r), by default in the order they lie in.

    One component after the other: as quick as a reduction that runs along memory, twice as quick as others.
    """
    first, *others = parts.unbind(0)
    joined = torch.empty_like(first) if out is None else out
    if not others:
        return joined.copy_(first)
    join(first, others[0], out=joined)
    for other in others[1:]:
        join(joined, other, out=joined)
    return joined


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
            back = Factor(densities.weight.T)
            for rows in densities.blocks:
                shares = densities.of(rows).sub_(total[rows]).exp2_().mul_(gradient[rows] * _BIT)
                _gradient_of_points(shares, back, points[rows] - centre, result[rows])
        return result, None, None, None


def _gradient_of_points(of_densities: Tensor, back: Factor, centred: Tensor, out: Tensor) -> None:
    """Carry a gradient of densities (kc r) back through ``weight . [y^2, y]`` to centred points y (r d).

    ``back`` is the weight, turned.
    """
    of_square, of_point = back.times(of_densities).T.chunk(2, dim=1)
    torch.addcmul(of_point, centred, of_square, value=2.0, out=out)


def _blocks(points: Tensor, width: int) -> "list[slice[int]]":
    """Slices of points whose densities, ``width`` per point, fit the cache."""
    on_cpu = points.device.type == "cpu"
    budget = _BLOCK_ELEMENTS * torch.get_num_threads() if on_cpu else _BLOCK_ELEMENTS_ACCELERATOR
    rows = max(1, budget // width)
    return [slice(start, min(start + rows, len(points))) for start in range(0, len(points), rows)]
