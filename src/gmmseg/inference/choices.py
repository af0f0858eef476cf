"""What is left to choose once a network is trained, on labelled images it was not trained on.

Where known ends and unknown begins, and how sure the posterior may be. A network knows its training images
too well to tell either.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.inference.images import load_image
from gmmseg.inference.predictor import Predictor
from gmmseg.inference.thresholds import LabelledImage, ScoreHistogram
from gmmseg.labels import IGNORE
from gmmseg.models import Segmenter

PIXELS_PER_IMAGE = 2000
"""Neighbouring pixels say much the same: this many, evenly spread, speak for the image."""


@dataclass(frozen=True)
class Choices:
    """The ``threshold`` of the anomaly score and the ``temperature`` of the posterior."""

    threshold: float
    temperature: float

    def give_to(self, segmenter: Segmenter) -> None:
        """Make them the segmenter's own, saved with its weights."""
        segmenter.threshold, segmenter.temperature = self.threshold, self.temperature


class TemperatureFit:
    """The loss of labels at temperatures from 1/4 to 8, of which `best` is the least; no logits are kept."""

    def __init__(self) -> None:
        self.exponents = torch.linspace(-2, 3, 41, dtype=torch.float64)
        self.losses = torch.zeros_like(self.exponents)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take in logits (n c) of pixels with labels (n) int64."""
        for index, exponent in enumerate(self.exponents):
            scaled = logits.float() / 2 ** float(exponent)
            self.losses[index] += F.cross_entropy(scaled, labels, reduction="sum").double()

    def best(self) -> float:
        """What to divide logits by so that labels are likeliest: 1 before anything was seen."""
        if not bool(self.losses.any()):
            return 1.0
        least = int(self.losses.argmin().clamp(1, len(self.losses) - 2))
        # The bottom of the parabola through the least loss and its neighbours.
        before, here, after = self.losses[least - 1 : least + 2].tolist()
        curvature = before - 2 * here + after
        shift = 0.5 * (before - after) / curvature if curvature > 0 else 0.0
        step = float(self.exponents[1] - self.exponents[0])
        return 2 ** (float(self.exponents[least]) + step * min(max(shift, -1.0), 1.0))


@torch.no_grad()
def choose(predictor: Predictor, samples: Iterable[LabelledImage], share: float = 0.05) -> Choices:
    """The threshold that ``share`` of the labelled pixels of ``samples`` exceed, and the best temperature.

    One pass over the images. Neither choice changes a label, and the temperature changes no anomaly score.
    """
    histogram, fit = ScoreHistogram(), TemperatureFit()
    for sample in samples:
        size = (int(sample.labels.shape[-2]), int(sample.labels.shape[-1]))
        maps = predictor.maps(load_image(sample.image)[None], size)
        known = (sample.labels != IGNORE).flatten().nonzero().squeeze(1)
        histogram.update(maps.anomaly[0].cpu().flatten()[known])
        if len(known):
            chosen = known[torch.linspace(0, len(known) - 1, min(PIXELS_PER_IMAGE, len(known))).long()]
            logits = maps.logits[0].flatten(1)[:, chosen.to(maps.logits.device)].T.cpu()
            fit.update(logits, sample.labels.flatten()[chosen].long())
    return Choices(histogram.threshold(share), predictor.segmenter.temperature * fit.best())
