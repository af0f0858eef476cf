"""What is left to find out once a network is trained, on labelled images it was not trained on.

Where known ends and unknown begins, how sure the posterior may be, and how likely each class's own pixels
are as a rule. A network knows its training images too well to tell.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg import distributed
from gmmseg.images import load_image
from gmmseg.inference.predictor import Predictor
from gmmseg.inference.thresholds import ScoreHistogram
from gmmseg.inference.windows import Reading, anomaly_map
from gmmseg.labels import IGNORE
from gmmseg.models import Segmenter, SegmenterOutput

PIXELS_PER_IMAGE = 2000
"""Neighbouring pixels say much the same: this many, evenly spread, speak for the image."""


class LabelledImage(Protocol):
    """An image (3 h w) uint8 and its labels (h w), IGNORE where unlabelled."""

    @property
    def image(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...


@dataclass(frozen=True)
class Choices:
    """The ``threshold`` of the anomaly score, the ``temperature`` of the posterior and, with mixtures, the
    ``typical`` evidence of each class, its mean over the class's own pixels."""

    threshold: float
    temperature: float
    typical: tuple[float, ...] | None = None

    def give_to(self, segmenter: Segmenter) -> None:
        """Make them the segmenter's own, saved with its weights."""
        segmenter.threshold, segmenter.temperature = self.threshold, self.temperature
        segmenter.typical = self.typical


class TemperatureFit:
    """The loss of labels at temperatures from 1/8 to 256, of which `best` is the least; no logits are kept.

    Likelihoods of many channels are surer by far than they are right: mixtures fitted afterwards may well
    want a temperature of 50.
    """

    def __init__(self) -> None:
        self.exponents = torch.linspace(-3, 8, 89, dtype=torch.float64)
        self.losses = torch.zeros_like(self.exponents)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take in logits (n c) of pixels with labels (n) int64."""
        for index, exponent in enumerate(self.exponents):
            scaled = logits.float() / 2 ** float(exponent)
            self.losses[index] += F.cross_entropy(scaled, labels, reduction="sum").double()

    def merge_processes(self) -> None:
        """Take in what all processes have seen."""
        self.losses = distributed.sum_over_processes(self.losses)

    def best(self) -> float:
        """What to divide logits by so that labels are likeliest: 1 before anything was seen.

        Warns where the best lies beyond the range and its end is what comes back.
        """
        if not bool(self.losses.any()):
            return 1.0
        self._warn_at_the_ends()
        least = int(self.losses.argmin().clamp(1, len(self.losses) - 2))
        # The bottom of the parabola through the least loss and its neighbours.
        before, here, after = self.losses[least - 1 : least + 2].tolist()
        curvature = before - 2 * here + after
        shift = 0.5 * (before - after) / curvature if curvature > 0 else 0.0
        step = float(self.exponents[1] - self.exponents[0])
        return 2 ** (float(self.exponents[least]) + step * min(max(shift, -1.0), 1.0))

    def _warn_at_the_ends(self) -> None:
        least = int(self.losses.argmin())
        if least == len(self.losses) - 1:
            warnings.warn(
                f"temperature {2 ** float(self.exponents[-1]):g} is the highest that is tried: the posterior "
                "says next to nothing about these labels. Are they of the model's classes, in its order, "
                "and was the model trained or fitted?",
                stacklevel=3,
            )
        elif least == 0:
            warnings.warn(
                f"temperature {2 ** float(self.exponents[0]):g} is the lowest that is tried: hardly a pixel "
                "is wrong here, so nothing speaks against being surer. Calibrate on images not trained on",
                stacklevel=3,
            )


class TypicalEvidence:
    """Mean evidence of each class over its own pixels."""

    def __init__(self, num_classes: int) -> None:
        self.sums = torch.zeros(num_classes, dtype=torch.float64)
        self.counts = torch.zeros(num_classes, dtype=torch.float64)

    def update(self, evidence: Tensor, labels: Tensor) -> None:
        """Take in evidence (n c) of pixels with labels (n) int64."""
        own = evidence.gather(1, labels[:, None])[:, 0].double()
        self.sums.index_add_(0, labels, own)
        self.counts.index_add_(0, labels, torch.ones_like(own))

    def merge_processes(self) -> None:
        """Take in what all processes have seen."""
        self.sums = distributed.sum_over_processes(self.sums)
        self.counts = distributed.sum_over_processes(self.counts)

    def means(self) -> tuple[float, ...]:
        """One number per class; a class without a pixel takes the mean of the others'."""
        seen = self.counts > 0
        means = self.sums / self.counts.clamp_min(1)
        return tuple(torch.where(seen, means, means[seen].mean()).tolist())


@torch.no_grad()
def choose(predictor: Predictor, samples: Iterable[LabelledImage], share: float = 0.05) -> Choices:
    """The threshold that ``share`` of the labelled pixels of ``samples`` exceed, and the rest of `Choices`.

    One pass over the images, as the predictor sees them. Nothing chosen here changes a label. With several
    processes each is given its share of the images, and all come to the same choices.
    """
    segmenter = predictor.segmenter
    classes = range(0 if segmenter.mixture is None else segmenter.num_classes)
    readings: list[Reading] = [anomaly_map, *(partial(_evidence_of, index) for index in classes)]
    histogram, fit, typical = ScoreHistogram(), TemperatureFit(), TypicalEvidence(len(classes))
    for sample in samples:
        size = (int(sample.labels.shape[-2]), int(sample.labels.shape[-1]))
        maps = predictor.maps(load_image(sample.image)[None], size, readings)
        known = (sample.labels != IGNORE).flatten().nonzero().squeeze(1)
        histogram.update(maps.anomaly[0].cpu().flatten()[known])
        if len(known):
            chosen = known[_evenly(len(known), PIXELS_PER_IMAGE)]
            here = chosen.to(maps.logits.device)
            labels = sample.labels.flatten()[chosen].long()
            fit.update(maps.logits[0].flatten(1)[:, here].T.cpu(), labels)
            if classes:
                typical.update(maps.scores[0, 1:].flatten(1)[:, here].T.cpu(), labels)
    for part in (histogram, fit, typical):
        part.merge_processes()
    threshold = histogram.threshold(share)
    return Choices(threshold, segmenter.temperature * fit.best(), typical.means() if classes else None)


def _evenly(total: int, most: int) -> Tensor:
    """At most ``most`` of the indices 0 .. total - 1, first and last among them."""
    count = min(most, total)
    return torch.arange(count) * (total - 1) // max(count - 1, 1)


def _evidence_of(index: int, output: SegmenterOutput) -> Tensor:
    """The map (b h w) of one class's evidence."""
    assert output.evidence is not None
    return output.evidence[:, index]
