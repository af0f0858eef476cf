"""What a model's own threshold flags: known pixels, normal images, and of what is unknown how much."""

import torch
from numpy.typing import NDArray
from torch import Tensor

from gmmseg.evaluation.pooled import PooledMetric, as_array
from gmmseg.inference.image_losses import Region, large_components
from gmmseg.labels import IGNORE


class AlarmRates(PooledMetric):
    """Rates of flagged pixels and images at one threshold.

    Flagged are the pixels above ``threshold`` that lie in regions of at least ``min_area`` pixels; ignored
    pixels are in no region. Shares of known pixels are averaged over images, as the promise is about one.
    """

    images: Tensor
    flagged_shares: Tensor
    normal_images: Tensor
    alarms: Tensor
    anomalous: Tensor
    found: Tensor

    def __init__(self, threshold: float, min_area: int = 1) -> None:
        super().__init__()
        self.threshold, self.min_area = threshold, min_area
        self.add_state("flagged_shares", torch.zeros((), dtype=torch.float64), "sum")
        for name in ("images", "normal_images", "alarms", "anomalous", "found"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), "sum")

    def flagged(self, scores: Tensor | NDArray, labels: Tensor | NDArray) -> Region:
        """Which pixels (h w) of one image the threshold flags, by its scores and labels (h w)."""
        judged = as_array(labels) != IGNORE
        return large_components(judged & (as_array(scores) > self.threshold), self.min_area)

    def update(self, flagged: Region, labels: Tensor | NDArray, *, anomaly_set: bool) -> None:
        """What is `flagged` in one image and its labels (h w); 1 is unknown in an anomaly set, else known.

        Images without a known pixel count only for what is unknown in them.
        """
        judged = as_array(labels) != IGNORE
        unknown = (as_array(labels) == 1) & anomaly_set
        known = judged & ~unknown
        self.anomalous += int(unknown.sum())
        self.found += int((flagged & unknown).sum())
        if known.any():
            self.images += 1
            self.flagged_shares += float(flagged[known].mean())
            self.normal_images += int(not unknown.any())
            self.alarms += int(flagged.any() and not unknown.any())

    def compute(self) -> dict[str, float]:
        """``flagged_known``: mean share of an image's known pixels; ``images_with_alarm``: share of the
        ``normal_images``, those without anything unknown; ``recall``: share of the unknown pixels. What
        nothing was seen for is left out."""
        found: dict[str, float] = {"threshold": self.threshold, "normal_images": int(self.normal_images)}
        if self.images:
            found["flagged_known"] = float(self.flagged_shares / self.images)
        if self.normal_images:
            found["images_with_alarm"] = float(self.alarms / self.normal_images)
        if self.anomalous:
            found["recall"] = float(self.found / self.anomalous)
        return found
