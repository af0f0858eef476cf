"""Batch norm over the images of all processes, as if one process had them all."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gmmseg import distributed
from gmmseg.mixture.blocks import AutogradContext


def synchronised_batch_norm() -> AbstractContextManager[object]:
    """While it is entered, batch norm in training mode takes its statistics over all processes.

    No module is replaced, so that kinds of batch norm that other libraries define are covered, saved weights
    keep their names, and norms in evaluation mode (a frozen backbone's) stay as they are. Every process must
    run the same norms in the same order. With a single process nothing changes.
    """
    return _Synchronised() if distributed.several() else nullcontext()


class _Synchronised(TorchFunctionMode):
    """Sees every call of a torch function; answers those of `F.batch_norm` in training mode itself."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        if func is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    input: Tensor,  # named as in F.batch_norm, which may be called by name
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`F.batch_norm`, its statistics in training mode those of all processes."""
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    count, mean, variance = _global_moments(input.detach())
    if count < 2:
        raise ValueError(f"batch norm needs more than one value per channel, got {tuple(input.shape)}")
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean.to(running_mean), momentum)
        running_var.lerp_((variance * (count / (count - 1))).to(running_var), momentum)
    return _Normalise.apply(input, weight, bias, mean.float(), variance.float(), count, eps)


def _global_moments(values: Tensor) -> tuple[float, Tensor, Tensor]:
    """How many values (b c ...) each channel has in all processes, their means (c) and variances (c)."""
    axes = [axis for axis in range(values.ndim) if axis != 1]
    variance, mean = (each.double() for each in torch.var_mean(values.float(), axes, correction=0))
    count = values.numel() // values.shape[1]
    # Sums in double precision: the difference of squares below would lose the variance in single precision.
    sums = torch.cat([mean.new_ones(1), mean, variance + mean.square()]) * count
    sums = distributed.sum_over_processes(sums)
    mean, square = (sums[1:] / sums[0]).chunk(2)
    return float(sums[0]), mean, (square - mean.square()).clamp_min(0)


class _Moments(AutogradContext, Protocol):
    """Keeps beside tensors how many values each channel has."""

    count: float


class _Normalise(torch.autograd.Function):
    """(values - mean) / sqrt(variance + eps) * weight + bias, mean and variance being those of the values."""

    @staticmethod
    def forward(
        ctx: _Moments,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: float,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(values, weight, bias, mean, (variance + eps).rsqrt())
        ctx.count = count
        return F.batch_norm(values, mean, variance, weight, bias, eps=eps)

    @staticmethod
    def backward(ctx: _Moments, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, bias, mean, inverse_std = ctx.saved_tensors
        shape = [1, -1] + [1] * (values.ndim - 2)
        axes = [axis for axis in range(values.ndim) if axis != 1]
        gradient = gradient.float()
        normed = (values.float() - mean.view(shape)) * inverse_std.view(shape)
        own = torch.stack([gradient.sum(axes), (gradient * normed).sum(axes)])
        # Each value moves the mean and the variance that the values of every process are normalised with.
        shift, stretch = distributed.sum_over_processes(own) / ctx.count
        gain = inverse_std if weight is None else inverse_std * weight.float()
        inner = gradient - shift.view(shape) - normed * stretch.view(shape)
        along = (inner * gain.view(shape)).to(values.dtype)
        of_weight = own[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
        of_bias = own[0].to(bias.dtype) if ctx.needs_input_grad[2] else None
        return along, of_weight, of_bias, None, None, None, None
