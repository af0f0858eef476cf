"""False alarms: how often something known exceeds a threshold, promised from images of known things alone.

The promise is split conformal: of n calibration images and a new one like them, none is special, so what the
n have shown, with one image more that shows the worst, holds for the new one on average.
"""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gmmseg.bounds import Count, Rate, Share, check_bounds

PIXEL, IMAGE = "pixel", "image"
ROUNDING = 1e-10
"""Rates in files have eleven decimals."""
Per = Literal["pixel", "image"]
"""What false alarms are counted in."""


class TooFewImages(ValueError):
    """So few calibration images that nothing can be promised at the rate asked for."""


@dataclass(frozen=True)
class FalseAlarms:
    """How many false alarms a threshold may raise.

    Per pixel: of the known pixels of a new image, the expected share above it is at most ``alpha``. Per
    image: at most ``alpha`` of new images without anything unknown have a region above it, connected over
    sides and corners, of at least ``min_area`` known pixels.
    """

    alpha: Rate = 0.05
    per: Per = "pixel"
    min_area: Count = 1

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.per == PIXEL and self.min_area > 1:
            raise ValueError("a least area belongs to false alarms per image; pixels are counted one by one")

    @property
    def images_needed(self) -> int:
        """The least number n of calibration images: 1 / (n + 1) must not exceed ``alpha``."""
        needed = max(1, math.ceil(1 / self.alpha) - 2)
        while 1 / (needed + 1) > self.alpha:
            needed += 1
        return needed


@dataclass(frozen=True)
class Promise:
    """What the threshold of a calibration promises of a new image; the words are `Calibration.promise_text`.

    ``images``: how many calibration images it rests on, ``data``: of which data set, NAME/SPLIT.
    """

    per: Per
    alpha: Rate
    images: Count
    min_area: Count
    data: str | None


@dataclass(frozen=True)
class FalseAlarmCurve:
    """The false-alarm rate that each of some thresholds promises, rates falling as thresholds rise.

    ``rates[k]``: (1 + sum over the n ``images`` of the share above ``levels[k]``) / (n + 1); of false alarms
    per image, the share of an image is 0 or 1. Between two levels the rate of the lower one is said, which
    is never too low; below the first level it is 1.
    """

    images: Count
    levels: tuple[float, ...]
    rates: tuple[Share, ...]

    def __post_init__(self) -> None:
        check_bounds(self)
        if len(self.levels) != len(self.rates):
            raise ValueError(f"{len(self.levels)} levels and {len(self.rates)} rates are no curve")
        if any(low >= high for low, high in zip(self.levels, self.levels[1:])):
            raise ValueError("levels must rise")
        if any(high < low for high, low in zip(self.rates, self.rates[1:])):
            raise ValueError("rates must not rise")
        least = 1 / (self.images + 1)
        if any(rate < least - ROUNDING for rate in self.rates):
            raise ValueError(f"{self.images} images cannot promise a rate below {least:g}")

    def rate(self, threshold: float) -> float:
        """The rate that ``threshold`` promises."""
        index = bisect_right(self.levels, threshold)
        return self.rates[index - 1] if index else 1.0

    def least_rate(self, threshold: float) -> float:
        """The least rate that ``threshold`` can have: that of the next level from it on; 0 above them all."""
        index = bisect_left(self.levels, threshold)
        return self.rates[index] if index < len(self.rates) else 0.0

    def threshold(self, alpha: float) -> float | None:
        """The lowest level that promises at most ``alpha``; None where none does."""
        return next((level for level, rate in zip(self.levels, self.rates) if rate <= alpha), None)

    def p_values(self, scores: Tensor) -> Tensor:
        """How usual scores (...) are, (...) float64 on the CPU: the rate of all thresholds below the score.

        By definition (1 + sum over the images of the share that is at least the score) / (n + 1), rounded up
        to a rate of the curve. ``p_values(s) <= alpha`` exactly where ``s > threshold(alpha)``.
        """
        levels = torch.tensor(self.levels, dtype=torch.float64)
        rates = torch.tensor([1.0, *self.rates], dtype=torch.float64)
        return rates[torch.bucketize(scores.detach().cpu().double(), levels)]
