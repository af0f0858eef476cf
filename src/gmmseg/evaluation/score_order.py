"""Reads the tables of `score_counts` back: which scores are inside a crowded bin, and how sure that is.

Bins are fine enough where scores are spread. Where they crowd into a few bins, the folded tables tell what
is inside: the counter a run of keys is counted in is never below the run's own count, and the amount by
which the counters of a bin's runs exceed the bin's known total is how many pixels they can misplace. A bin
is *opened* into its runs, and a bin or run into its single keys, where that lowers the bound on the error.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gmmseg import float_order
from gmmseg.evaluation import score_counts
from gmmseg.evaluation.ranking import Array, Ranking, fpr_range
from gmmseg.evaluation.score_counts import Folding

_LOOKED_INTO = (
    1 << 21
)  # keys looked into at each stage; what lies beyond the heaviest nodes is too light to matter
_DOUBT = 0.5  # an order known up to this share of misplaced pairs is better than no order


@dataclass(frozen=True)
class _Nodes:
    """Intervals (g) of 2^``bits`` keys from ``start`` on, strangest first, with their pixels per class."""

    start: NDArray[np.int64]
    bits: NDArray[np.int64]
    positives: Array
    negatives: Array

    def at(self, places: NDArray) -> "_Nodes":
        return _Nodes(self.start[places], self.bits[places], self.positives[places], self.negatives[places])

    @property
    def blurred(self) -> NDArray[np.bool_]:
        """(g) whether order and ties inside matter: several keys, and a positive that is not alone."""
        return (self.bits > 0) & (self.positives > 0) & (self.positives + self.negatives > 1)


@dataclass(frozen=True)
class _Slack:
    """What opened nodes may misplace: pairs, precision summed over positives, pixels near 95 % recall."""

    pairs: float = 0.0
    precision: float = 0.0
    near_positives: float = 0.0
    near_negatives: float = 0.0


def ranking(bins: NDArray, folded: NDArray) -> tuple[Ranking, dict[str, float]]:
    """The ranking the tables hold, and bounds on the errors of its ``auroc``, ``ap`` and ``fpr95``."""
    by_class = np.stack([folded[:, 1], folded[:, 0] - folded[:, 1]])  # (2 tables slots): anomalous, normal
    groups, single = np.split(by_class, [len(score_counts.GROUPS)], axis=1)
    nodes, slack = _opened(_occupied(bins), _Slack(), score_counts.BIN_BITS, groups, score_counts.GROUPS)
    for bits in (score_counts.GROUPS[0].run_bits, score_counts.BIN_BITS):
        nodes, slack = _opened(nodes, slack, bits, single, score_counts.SINGLE)
    lowest = float_order.scores(nodes.start.astype(np.uint32))
    ranked = Ranking(lowest, nodes.positives, nodes.negatives, ~nodes.blurred)
    return ranked, _bounds(nodes, ranked, slack)


def _occupied(bins: NDArray) -> _Nodes:
    index = np.flatnonzero(bins[0])[::-1]
    positives = bins[1][index].astype(np.float64)
    negatives = (bins[0] - bins[1])[index].astype(np.float64)
    return _Nodes(
        index << score_counts.BIN_BITS, np.full(len(index), score_counts.BIN_BITS), positives, negatives
    )


def _opened(
    nodes: _Nodes, slack: _Slack, bits: int, folded: NDArray, foldings: tuple[Folding, ...]
) -> tuple[_Nodes, _Slack]:
    """The nodes, crowded ones of 2^``bits`` keys replaced by what ``folded`` (2 tables slots) holds."""
    spread, above = _precision_spread(nodes)
    chosen = _candidates(nodes, bits, spread)
    whole = nodes.at(chosen)
    starts = _runs(whole.start, bits, foldings[0].run_bits)
    hits, stray_hits = _inside(folded[0], foldings, starts, whole.positives)
    misses, stray_misses = _inside(folded[1], foldings, starts, whole.negatives)
    clear = stray_hits / whole.positives + stray_misses / np.maximum(whole.negatives, 1) < _DOUBT
    parts = _parts(starts[clear], hits[clear], misses[clear], foldings[0].run_bits)
    places, strays = chosen[clear], (stray_hits[clear], stray_misses[clear])
    slack = _loosened(slack, nodes, places, strays, spread[places], above[places])
    return _replaced(nodes, places, parts), slack


def _precision_spread(nodes: _Nodes) -> tuple[Array, Array]:
    """(g) the highest less the lowest precision a positive of the node may see, and (g) pixels above it."""
    tp = np.cumsum(nodes.positives) - nodes.positives
    fp = np.cumsum(nodes.negatives) - nodes.negatives
    highest = (tp + nodes.positives) / np.maximum(tp + nodes.positives + fp, 1)
    lowest = (tp + 1) / (tp + 1 + fp + nodes.negatives)
    return np.where(nodes.blurred, np.maximum(highest - lowest, 0), 0), tp + fp


def _crossing(nodes: _Nodes) -> int:
    found = np.cumsum(nodes.positives)
    return min(int(np.searchsorted(found, 0.95 * found[-1] * (1 - 1e-12))), len(found) - 1)


def _candidates(nodes: _Nodes, bits: int, spread: Array) -> NDArray[np.int64]:
    """Nodes of 2^``bits`` keys worth score_order: the largest parts in the error of AUROC, AP or FPR95."""
    share = nodes.positives / nodes.positives.sum()
    gain = share * (nodes.negatives / nodes.negatives.sum() + spread)
    gain[_crossing(nodes)] += 1
    possible = np.flatnonzero(nodes.blurred & (nodes.bits == bits))
    return possible[np.argsort(-gain[possible], kind="stable")[: _LOOKED_INTO >> bits]]


def _runs(start: NDArray[np.int64], bits: int, run_bits: int) -> NDArray[np.int64]:
    """(g m) first keys of the runs of 2^``run_bits`` keys inside nodes of 2^``bits`` keys."""
    return start[:, None] + (np.arange(1 << (bits - run_bits)) << run_bits)


def _inside(
    folded: NDArray, foldings: tuple[Folding, ...], starts: NDArray, totals: Array
) -> tuple[Array, Array]:
    """(g m) estimated counts of the runs, summing to ``totals`` (g), and (g) pixels that may be misplaced."""
    keys = starts.astype(np.uint32)
    counters = [table[folding.slots(keys)] for table, folding in zip(folded, foldings)]
    upper = np.minimum.reduce(counters).astype(np.float64)
    return _lowered(upper, totals), np.where(totals > 0, np.abs(upper.sum(1) - totals), 0)


def _lowered(upper: Array, totals: Array) -> Array:
    """Rows (g m) less one constant each, cut at zero, so that they sum to ``totals`` (g).

    Strangers that share the counters are many and far apart, so they raise all counters of a node about
    alike.
    """
    ordered = -np.sort(-upper, axis=1)
    excess = (np.cumsum(ordered, axis=1) - totals[:, None]) / np.arange(1, upper.shape[1] + 1)
    last = np.maximum((ordered > excess).sum(1) - 1, 0)
    return np.maximum(upper - np.take_along_axis(excess, last[:, None], 1), 0)


def _parts(starts: NDArray, hits: Array, misses: Array, run_bits: int) -> _Nodes:
    kept = (hits > 0) | (misses > 0)
    return _Nodes(starts[kept], np.full(int(kept.sum()), run_bits), hits[kept], misses[kept])


def _replaced(nodes: _Nodes, places: NDArray[np.int64], parts: _Nodes) -> _Nodes:
    rest = nodes.at(np.delete(np.arange(len(nodes.start)), places))
    both = _Nodes(
        np.concatenate([rest.start, parts.start]),
        np.concatenate([rest.bits, parts.bits]),
        np.concatenate([rest.positives, parts.positives]),
        np.concatenate([rest.negatives, parts.negatives]),
    )
    return both.at(np.argsort(-both.start, kind="stable"))


def _loosened(
    slack: _Slack, nodes: _Nodes, places: NDArray, strays: tuple[Array, Array], spread: Array, above: Array
) -> _Slack:
    """The slack after score_order ``places``, whose counters hold ``strays`` of either class too many."""
    hits, misses = strays
    opened = nodes.at(places)
    drift = np.minimum(
        opened.positives * spread, opened.positives * (hits + misses) / (above + 1) + hits * spread
    )
    near = places == _crossing(nodes)
    return _Slack(
        slack.pairs + float((opened.positives * misses + opened.negatives * hits).sum()),
        slack.precision + float(drift.sum()),
        slack.near_positives + float(hits[near].sum()),
        slack.near_negatives + float(misses[near].sum()),
    )


def _bounds(nodes: _Nodes, ranked: Ranking, slack: _Slack) -> dict[str, float]:
    """What is certain: no order of the pixels that the tables allow is further away than this."""
    positives, negatives = nodes.positives.sum(), nodes.negatives.sum()
    pairs = slack.pairs + (nodes.positives * nodes.negatives / 2)[nodes.blurred].sum()
    precision = slack.precision + (nodes.positives * _precision_spread(nodes)[0]).sum()
    reach = fpr_range(ranked, 0.95, slack.near_positives)
    return {
        "auroc": float(min(pairs / (positives * negatives), 1.0)),
        "ap": float(min(precision / positives, 1.0)),
        "fpr95": float(min(reach + slack.near_negatives / negatives, 1.0)),
    }
