"""What a prediction is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gmmseg.inference.image_losses import large_components
from gmmseg.models.calibration_file import Calibration
from gmmseg.models.false_alarms import Promise


@dataclass(frozen=True)
class Prediction:
    """One image, at the image's own size.

    ``labels`` (h w) uint8 train ids; ``posterior`` (c h w) float32 summing to one over ``c``;
    ``anomaly`` (h w) float32, higher = stranger. What is unknown is said by the model's ``calibration``.
    """

    labels: Tensor
    posterior: Tensor
    anomaly: Tensor
    calibration: Calibration | None = None

    @property
    def confidence(self) -> Tensor:
        """The posterior of the predicted class, (h w)."""
        return self.posterior.amax(0)

    @property
    def threshold(self) -> float | None:
        """From which anomaly score on a pixel is unknown; None where the model has no threshold."""
        return None if self.calibration is None else self.calibration.threshold

    @property
    def promise(self) -> Promise | None:
        """What the threshold promises; None where it promises nothing, or there is none."""
        return None if self.calibration is None else self.calibration.promise

    @property
    def p_values(self) -> Tensor | None:
        """How usual each pixel is among known ones, (h w) float64; None without a calibration that knows."""
        return None if self.calibration is None else self.calibration.p_values(self.anomaly)

    @property
    def unknown(self) -> Tensor | None:
        """Which pixels are unknown, (h w) bool, at the model's own threshold; None where it has none."""
        return None if self.threshold is None else self.above(self.threshold)

    @property
    def unknown_by_class(self) -> Tensor | None:
        """The same, (h w) bool, with a threshold for each predicted class; None where there are none."""
        own = None if self.calibration is None else self.calibration.class_thresholds()
        if own is None or self.calibration is None:
            return None
        above = self.anomaly > torch.tensor(own, dtype=torch.float32)[self.labels.long()]
        parts = [(self.labels == label) & above for label in range(len(own))]
        return torch.stack([in_regions(part, self.calibration.min_area) for part in parts]).any(0)

    def above(self, threshold: float) -> Tensor:
        """Which pixels would be unknown at another threshold, (h w) bool."""
        least = 1 if self.calibration is None else self.calibration.min_area
        return in_regions(self.anomaly > threshold, least)


def in_regions(flagged: Tensor, min_area: int) -> Tensor:
    """The pixels of a mask (h w) bool that lie in regions of at least ``min_area`` pixels."""
    return flagged if min_area == 1 else torch.from_numpy(large_components(flagged.cpu().numpy(), min_area))
