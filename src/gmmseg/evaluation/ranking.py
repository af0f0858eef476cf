"""Pixels ranked by score: what a curve says, as pure functions of counts per score."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Nodes and weights on [0, 1] that integrate precision over a group of unknown inner order.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2


@dataclass(frozen=True)
class Ranking:
    """Groups (g) of pixels, strangest first.

    ``thresholds``: the lowest score of the group. ``positives`` and ``negatives``: its anomalous and normal
    pixels. ``tied``: all pixels share one score; otherwise the group is an interval of scores whose inner
    order is unknown and taken to be random.
    """

    thresholds: Array
    positives: Array
    negatives: Array
    tied: NDArray[np.bool_]

    @cached_property
    def true_positives(self) -> Array:
        """(g) anomalous pixels at or above each threshold."""
        return np.cumsum(self.positives)

    @cached_property
    def false_positives(self) -> Array:
        """(g) normal pixels at or above each threshold."""
        return np.cumsum(self.negatives)


def rank(positives: NDArray, negatives: NDArray) -> Ranking:
    """The exact ranking of the scores (p) of anomalous and (n) of normal pixels."""
    scores = np.concatenate([positives, negatives]).astype(np.float64)
    thresholds, group = np.unique(scores, return_inverse=True)
    hits = np.bincount(group[: len(positives)], minlength=len(thresholds)).astype(np.float64)
    misses = np.bincount(group[len(positives) :], minlength=len(thresholds)).astype(np.float64)
    return Ranking(thresholds[::-1], hits[::-1], misses[::-1], np.ones(len(thresholds), dtype=bool))


def auroc(ranking: Ranking) -> float:
    """Area under the ROC curve by the trapezoid over distinct thresholds."""
    above = ranking.true_positives - ranking.positives / 2
    return float((ranking.negatives * above).sum() / (ranking.positives.sum() * ranking.negatives.sum()))


def average_precision(ranking: Ranking) -> float:
    """Sum of precision x recall step over distinct thresholds; never the trapezoid, which is optimistic."""
    tp, fp = ranking.true_positives, ranking.false_positives
    precision = tp / np.maximum(tp + fp, 1e-300)
    mixed = ~ranking.tied & (ranking.positives > 0)
    precision[mixed] = _mean_precision(
        (tp - ranking.positives)[mixed],
        (fp - ranking.negatives)[mixed],
        ranking.positives[mixed],
        ranking.negatives[mixed],
    )
    return float((ranking.positives * precision).sum() / ranking.positives.sum())


def _mean_precision(tp: Array, fp: Array, positives: Array, negatives: Array) -> Array:
    """(g) mean precision at the positives of groups in random order, below ``tp`` and ``fp`` others."""
    mean = np.zeros_like(tp)
    per_positive = negatives / (positives + 1)
    for node, weight in zip(_NODES, _WEIGHTS):
        found = 0.5 + node * positives
        mean += weight * (tp + found) / (tp + found + fp + per_positive * found)
    return mean


def crossing(ranking: Ranking, tpr: float) -> int:
    """Index of the first group that brings the true positive rate to ``tpr`` or above."""
    tp = ranking.true_positives
    return min(int(np.searchsorted(tp, tpr * tp[-1] * (1 - 1e-12))), len(tp) - 1)


def fpr_at_tpr(ranking: Ranking, tpr: float = 0.95) -> float:
    """False positive rate at the first threshold whose true positive rate is >= ``tpr``."""
    group = crossing(ranking, tpr)
    fp = ranking.false_positives
    taken = ranking.negatives[group]
    if not ranking.tied[group]:
        missing = tpr * ranking.positives.sum() - (ranking.true_positives - ranking.positives)[group]
        taken = taken * min(1.0, missing / ranking.positives[group])
    return float((fp[group] - ranking.negatives[group] + taken) / fp[-1])


def fpr_range(ranking: Ranking, tpr: float, misplaced: float) -> float:
    """How far ``fpr_at_tpr`` can move while ``misplaced`` positives and the order in groups are unknown."""
    margin = misplaced / ranking.positives.sum()
    first, last = crossing(ranking, max(tpr - margin, 0.0)), crossing(ranking, min(tpr + margin, 1.0))
    if first == last and ranking.tied[first]:
        return 0.0
    return float(ranking.negatives[first : last + 1].sum() / ranking.negatives.sum())


def threshold_at_tpr(ranking: Ranking, tpr: float) -> float:
    """The highest threshold at which ``score >= threshold`` finds at least ``tpr`` of the anomalies."""
    return float(ranking.thresholds[crossing(ranking, tpr)])


def threshold_at_fpr(ranking: Ranking, fpr: float) -> float:
    """The lowest threshold at which ``score >= threshold`` flags at most ``fpr`` of the normal pixels.

    Infinity where even the strangest score flags more.
    """
    fp = ranking.false_positives
    kept = int(np.searchsorted(fp, fpr * fp[-1] * (1 + 1e-12), side="right"))
    return float(ranking.thresholds[kept - 1]) if kept else float("inf")


def threshold_at_best_f1(ranking: Ranking) -> float:
    """The threshold whose pixel F1 = 2 TP / (2 TP + FP + FN) is largest (the highest such threshold)."""
    tp, fp = ranking.true_positives, ranking.false_positives
    return float(ranking.thresholds[np.argmax(2 * tp / (tp + fp + tp[-1]))])


def points(ranking: Ranking, count: int) -> dict[str, Array]:
    """At most ``count`` + 1 points of the curves: ``thresholds``, ``tpr``, ``fpr``, ``precision``.

    Evenly spread in the sum of the two rates, so that neither curve has gaps; the last point is always there.
    """
    tp, fp = ranking.true_positives, ranking.false_positives
    tpr, fpr = tp / tp[-1], fp / fp[-1]
    wanted = np.searchsorted(tpr + fpr, np.linspace(0, 2, count, endpoint=False)[1:])
    chosen = np.unique(np.append(np.minimum(wanted, len(tp) - 1), [0, len(tp) - 1]))
    precision = tp / np.maximum(tp + fp, 1e-300)
    return {
        "thresholds": ranking.thresholds[chosen],
        "tpr": tpr[chosen],
        "fpr": fpr[chosen],
        "precision": precision[chosen],
    }
