"""The graph that is exported: images of any size in, labels, confidence, anomaly and unknown out.

It is `Predictor.predict` in one pass, threshold included: padding, normalisation, network, mixtures,
upsampling and cropping, with the mixtures folded into a few products (`gmmseg.models.folding`).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.inference.windows import REPEATED, SMALLEST_SIDE, anomaly_reading, next_multiple, upsample
from gmmseg.models import Segmenter
from gmmseg.models.folding import folded

INPUTS = ("images", "threshold")
OUTPUTS = ("labels", "confidence", "anomaly", "unknown")
POSTERIOR = "posterior"

Sides = Callable[[int, int, int], tuple[int, int]]
"""Height, width and stride -> the sides of the padded image, in a way that a tracer can follow."""


class ExportGraph(nn.Module):
    """Images (b 3 h w) float32, RGB in [0, 1], and a threshold () -> the maps named in OUTPUTS, each (b h w).

    ``labels`` uint8, ``confidence`` and ``anomaly`` float32, ``unknown`` bool: anomaly above the threshold.
    With ``posterior`` one output more, (b c h w). ``sides`` does what `windows.fitting` does, without
    branches.
    """

    def __init__(self, segmenter: Segmenter, sides: Sides, *, posterior: bool = False) -> None:
        super().__init__()
        self.network = folded(segmenter)
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
        posterior = logits.softmax(1)
        confidence, labels = posterior.max(1)
        maps = (labels.to(torch.uint8), confidence, anomaly[:, 0], anomaly[:, 0] > threshold)
        return (*maps, posterior) if self.posterior else maps


def traced_sides(height: int, width: int, stride: int) -> tuple[int, int]:
    """`windows.fitting` in tensors, which is what sizes are while torch records a graph."""
    rows, columns = (torch.as_tensor(side).clamp_min(SMALLEST_SIDE) for side in (height, width))
    grows = (-rows % stride + -columns % stride).clamp_max(1)
    multiple = next_multiple(REPEATED, stride)
    return rows + grows * (-rows % multiple), columns + grows * (-columns % multiple)  # type: ignore[return-value]


def symbolic_sides(height: int, width: int, stride: int) -> tuple[int, int]:
    """`windows.fitting` in integers that may be symbols."""
    rows, columns = torch.sym_max(height, SMALLEST_SIDE), torch.sym_max(width, SMALLEST_SIDE)
    grows = torch.sym_min(-rows % stride + -columns % stride, 1)
    multiple = next_multiple(REPEATED, stride)
    return rows + grows * (-rows % multiple), columns + grows * (-columns % multiple)
