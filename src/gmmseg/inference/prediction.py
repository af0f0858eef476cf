"""What a prediction is."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    """One image, at the image's own size.

    ``labels`` (h w) uint8 train ids; ``posterior`` (c h w) float32 summing to one over ``c``;
    ``anomaly`` (h w) float32, higher = stranger.
    """

    labels: Tensor
    posterior: Tensor
    anomaly: Tensor
