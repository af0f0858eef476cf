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

    @property
    def confidence(self) -> Tensor:
        """The posterior of the predicted class, (h w)."""
        return self.posterior.amax(0)

    def unknown(self, threshold: float) -> Tensor:
        """Which pixels are stranger than ``threshold``, (h w) bool."""
        return self.anomaly > threshold
