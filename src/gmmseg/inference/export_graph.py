"""The graph that is exported: images of any size in, labels, confidence, anomaly and unknown out.

It is `Predictor.predict` in one pass, threshold included: padding, normalisation, network, mixtures,
upsampling and cropping, with the mixtures folded into a few products (`gmmseg.models.folding`).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.inference.windows import (
    REPEATED,
    SMALLEST_SIDE,
    anomaly_reading,
    fitting,
    next_multiple,
    upsample,
)
from gmmseg.models import Segmenter
from gmmseg.models.folding import folded
from gmmseg.models.free_sizes import free_sizes_

INPUTS = ("images", "threshold")
OUTPUTS = ("labels", "confidence", "anomaly", "unknown")
POSTERIOR = "posterior"

Sides = Callable[[int, int, int], tuple[int, int]]
"""Height, width and stride -> the sides of the padded image, in a way that a tracer can follow."""

Decide = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Logits (b c h w) -> labels and their posterior (b h w), and that of all classes (b c h w)."""


def by_softmax(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Labels (b h w), their posterior (b h w) and that of all classes (b c h w), of logits (b c h w)."""
    posterior = logits.softmax(1)
    confidence, labels = posterior.max(1)
    return labels, confidence, posterior


def in_steps(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same for runtimes that are slow at a softmax over channels, and at their sum, as onnxruntime is."""
    odds = (logits - logits.amax(1, keepdim=True)).exp()
    ones = odds.new_ones(1, int(odds.shape[1]), 1, 1)
    confidence = F.conv2d(odds, ones)[:, 0].reciprocal()
    return logits.argmax(1), confidence, odds * confidence[:, None]


class ExportGraph(nn.Module):
    """Images (b 3 h w) float32, RGB in [0, 1], and a threshold () -> the maps named in OUTPUTS, each (b h w).

    ``labels`` uint8, ``confidence`` and ``anomaly`` float32, ``unknown`` bool: anomaly above the threshold.
    With ``posterior`` one output more, (b c h w). ``sides`` does what `windows.fitting` does, without
    branches. ``decide``: `by_softmax`, or `in_steps` for runtimes that are quicker so.
    """

    def __init__(
        self, segmenter: Segmenter, sides: Sides, *, posterior: bool = False, decide: Decide = by_softmax
    ) -> None:
        super().__init__()
        self.decide = decide
        self.network = free_sizes_(folded(segmenter))
        self.reading = anomaly_reading(segmenter)
        self.sides, self.posterior = sides, posterior

    def forward(self, images: Tensor, threshold: Tensor) -> tuple[Tensor, ...]:
        height, width = images.shape[-2:]
        below, right = self.sides(height, width, self.network.stride)
        padded = F.pad(images, (0, right - width, 0, below - height), mode="replicate")
        output = self.network(padded)
        logits, anomaly = (
            upsample(maps, (below, right), align_corners=self.network.align_corners)[..., :height, :width]
            for maps in (output.logits / self.network.temperature, self.reading(output)[:, None])
        )
        labels, confidence, posterior = self.decide(logits)
        maps = (labels.to(torch.uint8), confidence, anomaly[:, 0], anomaly[:, 0] > threshold)
        return (*maps, posterior) if self.posterior else maps


def traced_sides(height: int, width: int, stride: int) -> tuple[int, int]:
    """`windows.fitting` in tensors, which is what sizes are while torch records a graph."""
    return _padded(torch.as_tensor(height), torch.as_tensor(width), stride)  # type: ignore[return-value]


def symbolic_sides(height: int, width: int, stride: int) -> tuple[int, int]:
    """`windows.fitting` for sizes that may be symbols: the sides come back as new symbols times the stride.

    As expressions of the image's sides they would grow from layer to layer, until torch.export needs minutes
    to compare two of them. A new symbol has no value of its own, so it is told that of the example, which
    decides branches as it does for a recorded graph.
    """
    rows, columns = (torch.scalar_tensor(side, dtype=torch.int64) for side in (height, width))
    cells = [(side // stride).item() for side in _padded(rows, columns, stride)]
    if isinstance(height, torch.SymInt) and isinstance(width, torch.SymInt):
        example = fitting((height.node.hint, width.node.hint), stride)
        for symbol, side in zip(cells, example):
            assert isinstance(symbol, torch.SymInt)
            symbol.node.shape_env.set_real_tensor_prop_unbacked_vals(symbol.node.expr, side // stride)
    for count, side in zip(cells, (height, width)):
        torch._check(count >= -(-SMALLEST_SIDE // stride))
        torch._check(count * stride >= side)
    return cells[0] * stride, cells[1] * stride  # type: ignore[return-value]


def _padded(height: Tensor, width: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """What `windows.fitting` does, without branches."""
    rows, columns = (side.clamp_min(SMALLEST_SIDE) for side in (height, width))
    grows = (-rows % stride + -columns % stride).clamp_max(1)
    multiple = next_multiple(REPEATED, stride)
    return rows + grows * (-rows % multiple), columns + grows * (-columns % multiple)
