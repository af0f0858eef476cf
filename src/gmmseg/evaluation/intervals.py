"""How sure a pooled figure is: bootstrap over images, from a short summary of each image."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gmmseg import float_order
from gmmseg.evaluation import ranking
from gmmseg.evaluation.ranking import Array

ATOMS = 512
GROUPS = 4096
_PLACE_BITS = 16  # scores fall into 2^16 places by their leading bits
_WORTH_BINNING = 1 << 16  # fewer scores are sorted as quickly


def summary(scores: NDArray) -> tuple[Array, Array]:
    """Scores (n) of one image and class as ATOMS weighted scores: (ATOMS) values and pixel counts.

    Each atom stands for consecutive ranks, short runs at the top (where precision is decided) and longer
    ones below; its value is the middle one. Surplus atoms have weight 0.
    """
    values, weights = np.zeros(ATOMS), np.zeros(ATOMS)
    edges = _edges(len(scores))
    if len(scores):
        values[: len(edges) - 1] = at_ranks(scores, (edges[:-1] + edges[1:] - 1) // 2)
        weights[: len(edges) - 1] = np.diff(edges)
    return values, weights


def at_ranks(scores: NDArray, ranks: NDArray[np.int64]) -> NDArray:
    """(m) scores at rising ``ranks`` (m) among all (n), 0 the strangest: as if all had been sorted."""
    if scores.dtype != np.float32 or len(scores) < _WORTH_BINNING:
        return np.sort(scores)[::-1][ranks]
    keys = float_order.keys(scores)
    lowest, highest = int(keys.min()), int(keys.max())
    places = (keys - np.uint32(lowest)) >> np.uint32(max((highest - lowest).bit_length() - _PLACE_BITS, 0))
    falling = np.bincount(places)[::-1]
    holders = np.searchsorted(falling.cumsum(), ranks, side="right")
    wanted = np.zeros(len(falling), dtype=bool)
    wanted[holders] = True
    # Only places that hold a wanted rank are sorted; pixels in other places above it are skipped.
    few = np.sort(keys[wanted[::-1][places]])[::-1]
    skipped = np.where(wanted, 0, falling).cumsum()[holders]
    return float_order.scores(few[ranks - skipped])


def _edges(count: int) -> NDArray[np.int64]:
    """Ranks at which the atoms of ``count`` sorted pixels begin, and the end."""
    if count <= ATOMS:
        return np.arange(count + 1)
    geometric = np.geomspace(1, count, ATOMS // 2 + 1)
    even = np.linspace(0, count, ATOMS // 2)
    return np.unique(np.concatenate([[0], geometric, even]).astype(np.int64))


def bootstrap(summaries: Array, replicates: int, level: float, seed: int) -> dict[str, tuple[float, float]]:
    """Percentile intervals of ``auroc``, ``ap`` and ``fpr95`` over images drawn with replacement.

    ``summaries`` (images 4 ATOMS): values and weights of the anomalous pixels, then of the normal ones. Draws
    without a single anomalous (or normal) pixel are drawn again.
    """
    generator = np.random.default_rng(seed)
    image, atom = np.nonzero(summaries[:, [1, 3]].reshape(len(summaries), -1))
    values = summaries[:, [0, 2]].reshape(len(summaries), -1)[image, atom]
    weights = summaries[:, [1, 3]].reshape(len(summaries), -1)[image, atom]
    distinct, group = np.unique(-values, return_inverse=True)
    # Neighbours in the pooled ranking are drawn as one group; their inner order is then taken as random.
    groups = min(len(distinct), GROUPS)
    place = np.arange(len(distinct)) * groups // len(distinct)
    last = np.searchsorted(place, np.arange(groups), side="right") - 1
    descending, group, tied = distinct[last], place[group], np.bincount(place) == 1
    positive, negative = (
        _Atoms(image[kind], weights[kind], group[kind], len(descending))
        for kind in (atom < ATOMS, atom >= ATOMS)
    )
    figures: list[tuple[float, float, float]] = []
    while len(figures) < replicates:
        times = np.bincount(generator.integers(len(summaries), size=len(summaries)), minlength=len(summaries))
        ranked = ranking.Ranking(-descending, positive.drawn(times), negative.drawn(times), tied)
        if ranked.true_positives[-1] and ranked.false_positives[-1]:
            figures.append(
                (ranking.auroc(ranked), ranking.average_precision(ranked), ranking.fpr_at_tpr(ranked))
            )
    low, high = np.quantile(np.array(figures), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {name: (float(a), float(b)) for name, a, b in zip(("auroc", "ap", "fpr95"), low, high)}


@dataclass(frozen=True)
class _Atoms:
    """The atoms (n) of one kind of pixel: their image, weight and place among all ``groups`` thresholds."""

    image: NDArray[np.int64]
    weights: Array
    group: NDArray[np.int64]
    groups: int

    def drawn(self, times: NDArray[np.int64]) -> Array:
        """Pixels (groups) at each threshold when the images (m) are drawn so many times."""
        weights = self.weights * times[self.image]
        return np.bincount(self.group, weights=weights, minlength=self.groups).astype(np.float64, copy=False)
