"""What every threshold would cost on calibration images: the false alarms of each image, summed exactly.

Images, not pixels, are what calibration is over: the pixels of one image are much alike, so a thousand
of them say little more than one. Each image counts alike, however many known pixels it has.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from gmmseg import distributed, float_order
from gmmseg.inference.thresholds import BITS
from gmmseg.models.false_alarms import FalseAlarmCurve

UNIT = 1 << 40
"""One image, in whole numbers: sums of them are the same in any order and on any number of processes."""
DECIMALS = 11
"""Rates have so many, rounded down: fewer than the sums are exact to, so that a rate that is met is met."""
EXACT = 32
"""Leading bits of a score that tell all scores apart."""
STEP = 1.01
"""Of a curve that is kept, a rate is at most this many times the next one, unless there is none between."""
_LOWEST = float(np.finfo(np.float32).min)
_MOST_WAITING = 1 << 22  # entries not summed up yet: 64 MB
EIGHT_CONNECTED = np.ones((3, 3), dtype=np.int64)

Scores = NDArray[np.float32]
Region = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LossCurve:
    """Rates (m) float64 that the thresholds ``levels`` (m), rising and perhaps infinite, promise."""

    images: int
    levels: NDArray[np.float64]
    rates: NDArray[np.float64]

    def threshold(self, alpha: float) -> float | None:
        """The lowest level that promises at most ``alpha``; None where there are too few images."""
        allowed = np.flatnonzero(self.rates <= alpha)
        return float(self.levels[allowed[0]]) if len(allowed) else None

    def kept(self, alphas: tuple[float, ...]) -> FalseAlarmCurve:
        """A curve small enough for a file: thresholds of ``alphas`` exact, rates elsewhere a STEP too high.

        No threshold is +inf: what has this score is above all others. -inf becomes the lowest number.
        """
        least = float(self.rates[-1])
        spaced = np.geomspace(1, least, 2 + int(np.log(1 / least) / np.log(STEP)))
        wanted = np.concatenate([spaced, [least], [alpha for alpha in alphas if alpha >= least]])
        # The first level whose rate is at most the one wanted; the rates fall.
        places = np.unique(np.searchsorted(-self.rates, -wanted))
        places = places[
            (places < len(self.rates)) & (self.levels[np.minimum(places, len(self.rates) - 1)] < np.inf)
        ]
        levels, rates = np.maximum(self.levels[places], _LOWEST), self.rates[places]
        last_of_equals = np.append(np.diff(levels) > 0, True)[: len(levels)]
        return FalseAlarmCurve(
            self.images, tuple(levels[last_of_equals].tolist()), tuple(rates[last_of_equals].tolist())
        )


class ImageLosses:
    """For each group (0: all pixels, 1 + c: those predicted as class c) the share of an image at each score,
    summed over the images in which the group occurs.

    ``bits``: as in `gmmseg.inference.thresholds`, scores that agree in so many leading bits are one, the
    largest of them. Memory grows with the number of such bins that occur, not with the number of pixels.
    """

    def __init__(self, bits: int = BITS) -> None:
        self.low = np.uint32((1 << (32 - bits)) - 1)
        self.keys, self.units = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._waiting: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def add_image(self, groups: NDArray[np.int64], scores: Scores) -> None:
        """Take in one image: the scores (m) of its known pixels and the groups (m) they belong to."""
        if not len(scores):
            return
        keys = (groups << 32) | (float_order.keys(scores) | self.low).astype(np.int64)
        found, counts = np.unique(keys, return_counts=True)
        self._waiting.append((found, _units(found >> 32, counts)))
        if sum(len(each) for each, _ in self._waiting) > _MOST_WAITING:
            self._sum_up()

    def merge_processes(self) -> None:
        """Take in what all processes have seen."""
        self._sum_up()
        rows = distributed.gather_rows(torch.from_numpy(np.stack([self.keys, self.units], axis=1)))
        self.keys, self.units = _summed(*rows.numpy().T)

    def curve(self, group: int) -> LossCurve | None:
        """What every threshold promises of a group; None where no image holds it."""
        self._sum_up()
        first, last = np.searchsorted(self.keys, [group << 32, (group + 1) << 32])
        if first == last:
            return None
        units = self.units[first:last]
        images, rest = divmod(int(units.sum()), UNIT)
        assert rest == 0  # every image gave one unit
        above = units.sum() - units.cumsum()
        levels = float_order.scores((self.keys[first:last] & 0xFFFFFFFF).astype(np.uint32))
        return LossCurve(images, levels, _rates(above, images))

    def _sum_up(self) -> None:
        parts = [(self.keys, self.units), *self._waiting]
        self.keys, self.units = _summed(*(np.concatenate(column) for column in zip(*parts)))
        self._waiting = []


def _units(groups: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The parts (m) of a UNIT that bins of one image have, by counts (m); bins in order of group and score.

    What lies above a bin is rounded, not the bin, so that a group has one UNIT altogether.
    """
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    sizes = np.diff(np.append(starts, len(groups)))
    totals = np.add.reduceat(counts, starts).repeat(sizes)
    before = counts.cumsum() - counts
    at_least = totals - (before - before[starts].repeat(sizes))
    reached, above = (
        np.rint(UNIT * (part / totals)).astype(np.int64) for part in (at_least, at_least - counts)
    )
    return reached - above


def _rates(above: NDArray[np.int64], images: int) -> NDArray[np.float64]:
    """(1 + what lies above) / (images + 1), what lies above being in UNITs."""
    scale = 10**DECIMALS
    almost = 1e-3  # of the last decimal, so that 0.29 stays 0.29
    return np.floor((above + UNIT) / ((images + 1) * UNIT) * scale + almost) / scale


def _summed(keys: NDArray[np.int64], units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each key once, in order, with the sum of its units."""
    distinct, place = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, place, units)
    return distinct, sums


def alarm_level(scores: Scores, region: Region, min_area: int = 1) -> float:
    """The level under which an image raises an alarm: there is one exactly at thresholds below it.

    That is the highest score v such that the pixels of ``region`` (h w) with scores (h w) of at least v have
    a component, connected over sides and corners, of ``min_area`` pixels; -inf where there is none.
    """
    inside = scores[region]
    if len(inside) < min_area:
        return -np.inf
    if min_area == 1:
        return float(inside.max())
    rows, columns = (np.flatnonzero(region.any(axis)) for axis in (1, 0))
    box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    inner, values = np.where(region[box], scores[box], -np.inf), np.unique(inside)[::-1]
    region = region[box]
    low, high = _first_large_enough(inside, values, min_area), len(values)
    while low < high:  # the highest level at which a component is large enough
        middle = (low + high) // 2
        if has_component(region & (inner >= values[middle]), min_area):
            high = middle
        else:
            low = middle + 1
    return float(values[low]) if low < len(values) else -np.inf


def _first_large_enough(inside: Scores, falling: Scores, min_area: int) -> int:
    """The first of the falling levels that ``min_area`` scores reach, wherever they are."""
    reached = np.partition(inside, len(inside) - min_area)[len(inside) - min_area]
    return int(np.searchsorted(-falling, -reached))


def has_component(region: Region, min_area: int) -> bool:
    """Whether a region (h w) has a component of at least ``min_area`` pixels."""
    return bool(large_components(region, min_area).any())


def large_components(region: Region, min_area: int) -> Region:
    """The parts (h w) of a region (h w) that lie in components of at least ``min_area`` pixels."""
    if min_area == 1:
        return region
    labels, count = ndimage.label(region, structure=EIGHT_CONNECTED)
    large = np.bincount(labels.ravel(), minlength=count + 1) >= min_area
    large[0] = False
    return large[labels]
