"""Layers of other libraries that no graph for images of any size can hold, each as one that a graph can.

A layer keeps its parameters and its place; only how it goes about sizes is exchanged. So the answers are
those of the original, and whoever holds the layer holds the new one.
"""

from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.json_tree import JSON, Value

Network = TypeVar("Network", bound=nn.Module)
Paddings = tuple[int, int, int, int, int, int]
"""As F.pad takes them, for three axes."""


class SamePaddedConv2d(nn.Conv2d):
    """timm's Conv2dSame: zeros around a map (b f h w) so that ceil(h / stride) rows come out.

    timm rounds a quotient of floats, which torch.export cannot write into a file; here all is in integers.
    """

    def forward(self, maps: Tensor) -> Tensor:
        axes = list(zip(maps.shape[-2:], self.kernel_size, self.stride, self.dilation))
        above_below, left_right = (_same_padding(*axis) for axis in axes)
        padded = F.pad(maps, (*left_right, *above_below))
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def _same_padding(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Zeros before and after ``size`` cells; of two unequal halves the second is the larger."""
    if kernel == 1:
        return 0, 0
    outputs = (size - 1) // stride + 1  # rounded up; ONNX does not divide negative integers as torch does
    needed = (outputs - 1) * stride + (kernel - 1) * dilation + 1 - size
    return needed // 2, needed - needed // 2


class PooledByProducts(nn.AdaptiveAvgPool2d):
    """Averages maps (b f h w) to a fixed number of cells by two products with small matrices.

    Runtimes have an operator for it only where h and w are known; one product for each side does for all.
    """

    def forward(self, maps: Tensor) -> Tensor:
        rows, columns = _fixed_cells(self)
        above, beside = (
            _bin_weights(size, cells, maps) for size, cells in zip(maps.shape[-2:], (rows, columns))
        )
        return above @ maps @ beside.T


class PyramidBlock(nn.Module):
    """smp's PSPBlock: one level of a pyramid of averages, (b f h w) -> (b g h w).

    While a graph is made the original takes averages by another operator, which knows fixed sizes alone.
    """

    pool: nn.Module

    def forward(self, maps: Tensor) -> Tensor:
        size = maps.shape[-2:]
        return F.interpolate(self.pool(maps), size=size, mode="bilinear", align_corners=True)


def _bin_weights(size: int, cells: int, like: Tensor) -> Tensor:
    """Rows (cells size) whose product with ``size`` values gives the mean of each of ``cells`` bins.

    Bin i goes from floor(i size / cells) to ceil((i + 1) size / cells), so that neighbours may overlap.
    """
    index = torch.arange(cells, device=like.device)[:, None]
    place = torch.arange(size, device=like.device)
    first, behind = index * size // cells, ((index + 1) * size + cells - 1) // cells
    inside = ((place >= first) & (place < behind)).to(like.dtype)
    return inside / (behind - first).to(like.dtype)


def _fixed_cells(pooling: nn.AdaptiveAvgPool2d) -> tuple[int, int]:
    """Rows and columns that come out; 0 for a side that keeps its size."""
    size = pooling.output_size
    rows, columns = size if isinstance(size, tuple) else (size, size)
    return rows or 0, columns or 0


def _has_cells(pooling: nn.AdaptiveAvgPool2d) -> bool:
    """Whether both sides have a fixed number of cells, other than one cell for the whole map."""
    return 0 not in _fixed_cells(pooling) and _fixed_cells(pooling) != (1, 1)


def padded_to_even(cells: Tensor, height: int, width: int) -> Tensor:
    """Cells (b h w f) of a Swin transformer, with zeros below and to the right where a side is odd.

    Always padded, by nothing where it is even: a question would be answered once for all images.
    """
    return F.pad(cells, (0, 0, 0, width % 2, 0, height % 2))


def padded_to_windows(cells: Tensor, height: int, width: int, *, window: int) -> tuple[Tensor, Paddings]:
    """Cells (b h w f) of a Swin transformer, with zeros so that ``window`` divides both sides.

    The second answer is read for one thing, whether to crop afterwards: always, by nothing where all fits.
    """
    return F.pad(cells, (0, 0, 0, -width % window, 0, -height % window)), (0, 0, 0, 1, 0, 1)


def points_as_boxes(
    attention: nn.Module, given: tuple[()], named: dict[str, Value]
) -> tuple[tuple[()], JSON]:
    """What Mask2Former's deformable attention is called with, reference points (b q l 2) as boxes (b q l 4).

    Offsets from a point are counted in cells of level l, for which a recorded graph would keep the numbers of
    cells of its example. Offsets from a box are counted in its sides over twice the number of samples, so
    boxes with sides of that many cells say the same, in numbers that a graph computes.
    """
    points, shapes = named["reference_points"], named["spatial_shapes_list"]
    side = points.new_full((), 2.0 * attention.n_points)  # type: ignore[operator]
    sides = torch.stack([torch.stack([side / width, side / height]) for height, width in shapes])
    boxes = torch.cat([points, sides.expand_as(points)], dim=-1)
    return given, {**named, "reference_points": boxes}


def free_sizes_(network: Network) -> Network:
    """Exchange what a graph of ``network`` could not hold, in place, and return the network."""
    for layer in network.modules():
        kind = type(layer).__name__
        if kind == "Conv2dSame" and isinstance(layer, nn.Conv2d) and _reaches_neighbours(layer):
            layer.__class__ = SamePaddedConv2d
        elif type(layer) is nn.AdaptiveAvgPool2d and _has_cells(layer):
            layer.__class__ = PooledByProducts
        elif kind == "PSPBlock":
            layer.__class__ = PyramidBlock
        elif kind == "SwinPatchMerging":
            layer.maybe_pad = padded_to_even  # type: ignore[assignment]
        elif kind == "Mask2FormerPixelDecoderEncoderMultiscaleDeformableAttention":
            layer.register_forward_pre_hook(points_as_boxes, with_kwargs=True)
        elif kind == "SwinLayer":
            layer.maybe_pad = partial(padded_to_windows, window=layer.window_size)  # type: ignore[arg-type,assignment]
    return network


def _reaches_neighbours(convolution: nn.Conv2d) -> bool:
    """Whether windows touch or overlap, or are single cells: then the padding needed is never negative."""
    axes = zip(convolution.kernel_size, convolution.stride, convolution.dilation)
    return all(kernel == 1 or (kernel - 1) * dilation + 1 >= stride for kernel, stride, dilation in axes)
