"""Figures of single images: how sure the figures of the whole set are, and which images stand out."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmmseg import distributed
from gmmseg.evaluation.pooled import as_array
from gmmseg.inference.image_losses import Region
from gmmseg.json_tree import JSON
from gmmseg.labels import IGNORE

Array = NDArray[np.float64]
LISTED = 10
"""How many of the worst and of the strangest images are named."""
_TOP = 0.99
_ENOUGH = 1 << 18  # pixels
_LARGEST = float(np.finfo(np.float32).max)  # infinities have no quantiles between them
_REPLICATES, _LEVEL, _SEED = 1000, 0.95, 0
_DRAWN_AT_ONCE = 100


@dataclass(frozen=True)
class Intervals:
    """Percentile intervals (low, high) of figures of the set; ``iou`` (c 2), NaN where a class is absent."""

    figures: dict[str, tuple[float, float]]
    iou: Array


class ImageTable:
    """A row of numbers and a name for each image, by its place in the data set."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: dict[int, Tensor] = {}
        self._names: dict[int, str] = {}

    def add(self, index: int, name: str, row: Tensor) -> None:
        """Take in the numbers (width) of one image."""
        self._rows[index], self._names[index] = row.double().cpu(), name

    def merge_processes(self) -> None:
        """Take in the images of all processes."""
        own = [torch.cat([torch.tensor([index]).double(), row]) for index, row in self._rows.items()]
        rows = distributed.gather_rows(torch.stack(own) if own else torch.zeros(0, 1 + self.width).double())
        self._rows = {int(row[0]): row[1:] for row in rows}
        everywhere = distributed.gather_objects(self._names)
        self._names = {index: name for part in everywhere for index, name in part.items()}

    def rows(self) -> Array:
        """(n width) in the order of the set, so that it does not matter who has seen which image."""
        ordered = [self._rows[index] for index in sorted(self._rows)]
        return np.stack([row.numpy() for row in ordered]) if ordered else np.zeros((0, self.width))

    def listed(self, order: Array, figures: dict[str, Array]) -> list[JSON]:
        """The images with the largest ``order`` (n), with their names, places and ``figures`` (n)."""
        indices = sorted(self._rows)
        first = [place for place in np.argsort(-order, kind="stable") if not np.isnan(order[place])][:LISTED]
        return [
            {
                "image": self._names[indices[place]],
                "index": indices[place],
                **{name: float(values[place]) for name, values in figures.items()},
            }
            for place in first
        ]


def strangeness(scores: Tensor | NDArray) -> float:
    """How strange an image is, by its anomaly map (h w): the score that its strangest hundredth exceeds.

    Of large images it is that of an even part of the pixels, which tells a percentile well enough.
    """
    values = as_array(scores).ravel()
    return float(np.quantile(np.clip(values[:: max(1, len(values) // _ENOUGH)], -_LARGEST, _LARGEST), _TOP))


class KnownImages:
    """Images of a labelled set: hits, labelled and predicted pixels of each of ``num_classes`` classes."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.table = ImageTable(1 + 3 * num_classes)

    def update(self, index: int, name: str, predicted: Tensor, labels: Tensor, scores: Tensor) -> None:
        """Predicted and true train ids and the anomaly map of one image, (h w) each."""
        keep = labels != IGNORE
        true, guess = labels[keep].long(), predicted[keep].long()
        kinds = (true[true == guess], true, guess)
        counts = [torch.bincount(kind, minlength=self.num_classes).cpu() for kind in kinds]
        top = torch.tensor([strangeness(scores)], dtype=torch.float64)
        self.table.add(index, name, torch.cat([top, *(each.double() for each in counts)]))

    def _counts(self) -> Array:
        """(n 3 c): hits, labelled, predicted."""
        return self.table.rows()[:, 1:].reshape(-1, 3, self.num_classes)

    def intervals(self) -> Intervals | None:
        """Bootstrap over images; None with fewer than two, which say nothing of others."""
        counts = self._counts()
        return _bootstrap(counts) if len(counts) > 1 else None

    def ranked(self) -> JSON:
        """The images with the largest share of wrong pixels, and the strangest."""
        counts, top = self._counts(), self.table.rows()[:, 0]
        hits, true, _ = counts.sum(2).T
        wrong = 1 - _ratio(hits, true)  # NaN: nothing is labelled
        figures = {"wrong": wrong, "miou": _mean(_iou(counts)), "strangeness": top}
        return {"worst": self.table.listed(wrong, figures), "strangest": self.table.listed(top, figures)}


class StrangeImages:
    """Images of an anomaly set: what a threshold finds and flags in each."""

    def __init__(self) -> None:
        self.table = ImageTable(5)

    def update(self, index: int, name: str, scores: Tensor, mask: Tensor, flagged: Region) -> None:
        """The model's anomaly map, the mask (0, 1, IGNORE) of one image and what is flagged, (h w) each."""
        marks = as_array(mask)
        judged, unknown = marks != IGNORE, marks == 1
        counts = (unknown, unknown & flagged, judged & ~unknown, flagged & ~unknown)
        row = [strangeness(scores), *(float(each.sum()) for each in counts)]
        self.table.add(index, name, torch.tensor(row, dtype=torch.float64))

    def ranked(self) -> JSON:
        """The images with the largest share of pixels missed or flagged in vain, and the strangest."""
        top, unknown, found, known, flagged = self.table.rows().T
        wrong = _ratio(unknown - found + flagged, unknown + known)
        figures = {
            "wrong": wrong,
            "missed": 1 - _ratio(found, unknown),
            "flagged_known": _ratio(flagged, known),
            "strangeness": top,
        }
        return {"worst": self.table.listed(wrong, figures), "strangest": self.table.listed(top, figures)}


def _bootstrap(counts: Array) -> Intervals:
    """Intervals of counts (n 3 c) over images drawn with replacement."""
    images, kinds, classes = counts.shape
    generator, flat = np.random.default_rng(_SEED), counts.reshape(images, -1)
    drawn = []
    for _ in range(0, _REPLICATES, _DRAWN_AT_ONCE):
        times = generator.multinomial(images, np.full(images, 1 / images), size=_DRAWN_AT_ONCE)
        drawn.append((times @ flat).reshape(-1, kinds, classes))
    sums = np.concatenate(drawn)
    iou, hits, true = _iou(sums), sums[:, 0], sums[:, 1]
    figures = {
        "miou": _mean(iou),
        "pixel_accuracy": _ratio(hits.sum(1), true.sum(1)),
        "mean_accuracy": _mean(_ratio(hits, true)),
    }
    ends = _ends(np.stack(list(figures.values()), axis=1)).tolist()
    return Intervals({name: (low, high) for name, (low, high) in zip(figures, ends)}, _ends(iou))


def _iou(counts: Array) -> Array:
    """(n c) of counts (n 3 c), NaN where a class does not occur."""
    hits, true, guessed = counts[:, 0], counts[:, 1], counts[:, 2]
    return _ratio(hits, true + guessed - hits)


def _ratio(above: Array, below: Array) -> Array:
    """NaN where there is nothing to divide by."""
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)


def _mean(values: Array) -> Array:
    """(n) means of values (n c) that are numbers; NaN where none is."""
    known = ~np.isnan(values)
    return _ratio(np.where(known, values, 0.0).sum(1), known.sum(1).astype(np.float64))


def _ends(values: Array) -> Array:
    """(c 2): the interval of the numbers in each column of values (n c), NaN where there are none."""
    levels = [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]
    ends = np.full((values.shape[1], 2), np.nan)
    for column, numbers in enumerate(values.T):
        known = numbers[~np.isnan(numbers)]
        if len(known):
            ends[column] = np.quantile(known, levels)
    return ends
