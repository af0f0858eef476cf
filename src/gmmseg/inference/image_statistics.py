"""One image in two numbers, for comparing it with other images: how far its strangest part stands out, and
what its ordinary part looks like."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from gmmseg import distributed, float_order
from gmmseg.inference.windows import NOT_FINITE
from gmmseg.models.reference_images import CONDITIONS, OBJECTS, STORED_AS, ReferenceCounts

STATISTICS = (OBJECTS, CONDITIONS)
BITS = 20
"""Leading bits of a float32 that tell values apart: 1 part in 2048. The bins are fixed before any image is
seen, so that a binned value is as good a statistic as the value itself."""
_LARGEST = float(np.finfo(np.float32).max)
_ACROSS = 12
"""Windows side by side in the shorter side of an image: an object fills one, an outline does not."""


def image_statistics(scores: NDArray[np.float32]) -> dict[str, float]:
    """The statistics of an anomaly map (h w), of all its pixels: nobody knows which ones are labelled.

    Conditions: the score that a quarter of all windows exceeds. It moves with the whole image, and more than
    the median does, since scores spread or shrink together. Objects: how far the strangest windows lie above.
    """
    if bool(np.isnan(scores).any()):
        raise ValueError(NOT_FINITE)
    finite = np.clip(scores, -_LARGEST, _LARGEST).astype(np.float64)
    high, top = np.quantile(_window_means(finite), (0.75, 0.99))
    return {OBJECTS: float(np.clip(top - high, 0, _LARGEST)), CONDITIONS: float(high)}


def _window_means(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The means (n) of the windows of scores (h w), each half over its neighbours."""
    side = max(1, min(scores.shape) // _ACROSS)
    means = F.avg_pool2d(torch.from_numpy(scores)[None], side, stride=max(1, side // 2))
    return means.flatten().numpy()


def bin_of(value: float) -> int:
    """The number of a value's bin; the bins order like the values."""
    return int(float_order.keys(np.array([value], np.float32))[0] >> (32 - BITS))


def level_of(number: int) -> float:
    """The largest finite value of a bin, which stands for all of it."""
    key = np.array([((number + 1) << (32 - BITS)) - 1], np.uint32)
    return float(np.clip(float_order.scores(key)[0], -_LARGEST, _LARGEST))


class RunningRanks:
    """Ranks a value among all values before it; keeps counts of bins, however many values there were."""

    def __init__(self, counts: Mapping[int, int]) -> None:
        self.bins = np.array(sorted(counts), np.int64)
        self.counts = np.array([counts[each] for each in sorted(counts)], np.int64)
        self.total = int(self.counts.sum())

    @classmethod
    def from_reference(cls, reference: ReferenceCounts) -> "RunningRanks":
        """Ranks that begin with the calibration images."""
        return cls({bin_of(level): count for level, count in zip(reference.levels, reference.counts)})

    def step(self, value: float, tie_breaker: float) -> float:
        """The p-value of ``value`` among those before it and itself, which it then joins.

        The share that is larger, plus a random part (``tie_breaker``, uniform in [0, 1)) of the share that
        is equal: if all values are exchangeable, such p-values are independent and uniform.
        """
        number = bin_of(value)
        place = int(np.searchsorted(self.bins, number))
        if place == len(self.bins) or self.bins[place] != number:
            self.bins, self.counts = np.insert(self.bins, place, number), np.insert(self.counts, place, 0)
        self.counts[place] += 1
        self.total += 1
        larger = int(self.counts[place + 1 :].sum())
        return (larger + tie_breaker * int(self.counts[place])) / self.total

    def as_counts(self) -> dict[int, int]:
        """Counts by bin."""
        return dict(zip(self.bins.tolist(), self.counts.tolist()))


class ReferenceImages:
    """Collects the statistics of calibration images."""

    def __init__(self) -> None:
        self._values: list[list[float]] = []

    def update(self, scores: NDArray[np.float32]) -> None:
        """Take in the anomaly map (h w) of one image."""
        found = image_statistics(scores)
        self._values.append([found[name] for name in STATISTICS])

    def merge_processes(self) -> None:
        """Take in what all processes have seen."""
        rows = torch.tensor(self._values, dtype=torch.float64).reshape(-1, len(STATISTICS))
        self._values = distributed.gather_rows(rows).tolist()

    def counts(self) -> dict[str, ReferenceCounts]:
        """By the name of the statistic in calibration.json, none before an image was seen; the order of the
        images does not matter."""
        if not self._values:
            return {}
        return {
            STORED_AS[name]: _counted([row[index] for row in self._values])
            for index, name in enumerate(STATISTICS)
        }


def _counted(values: list[float]) -> ReferenceCounts:
    numbers, counts = np.unique([bin_of(value) for value in values], return_counts=True)
    return ReferenceCounts(tuple(level_of(int(each)) for each in numbers), tuple(counts.tolist()))
