"""Anomaly detection pooled over every pixel of a set, in constant memory."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmmseg.evaluation import intervals, ranking, score_counts, score_order
from gmmseg.evaluation.pooled import EvaluationError, PooledMetric, Scores, checked_pair, gather, where
from gmmseg.evaluation.ranking import Ranking
from gmmseg.labels import IGNORE

KEPT_PIXELS = 1 << 20
"""Up to this many pixels are also kept as they are, and then the figures are exact."""


class AnomalyCurve(PooledMetric):
    """AUROC, AP and FPR95 of anomaly scores (higher = stranger, any range) against masks of 0, 1 and IGNORE.

    Ties are collapsed, infinities are legal, nothing is squashed or clipped. The state is 46 MB of counters
    (see `score_counts`) however many pixels come, and it stays on the CPU. Sets of at most
    KEPT_PIXELS pixels are exact; ``exact=True`` makes any set exact at the price of keeping every pixel.
    ``per_image=True`` also keeps 16 kB per image, which ``confidence_intervals`` needs; each call of
    ``update`` is then one image, or a batch (b h w) of images.
    """

    bins: Tensor
    folded: Tensor
    pixels: Tensor
    ignored: Tensor
    images: Tensor
    kept_normal: list[Tensor]
    kept_anomalous: list[Tensor]
    summaries: list[Tensor]

    def __init__(self, *, exact: bool = False, per_image: bool = False) -> None:
        super().__init__()
        self.exact = exact
        self.per_image = per_image
        self._ranked: tuple[Ranking, dict[str, float]] | None = None
        self.add_state("bins", torch.zeros(2, score_counts.NUM_BINS, dtype=torch.int64), "sum")
        self.add_state(
            "folded",
            torch.zeros(len(score_counts.FOLDINGS), 2, score_counts.NUM_SLOTS, dtype=torch.int64),
            "sum",
        )
        self.add_state("pixels", torch.zeros(2, dtype=torch.int64), "sum")  # all, and the anomalous of them
        self.add_state("ignored", torch.zeros((), dtype=torch.int64), "sum")
        self.add_state("images", torch.zeros((), dtype=torch.int64), "sum")
        for kept in ("kept_normal", "kept_anomalous", "summaries"):
            self.add_state(kept, [], "cat")

    def update(self, scores: Tensor | NDArray, mask: Tensor | NDArray, source: str = "") -> None:
        """Scores and mask of one shape: (h w), or (b h w)."""
        values, marks = checked_pair(scores, mask, source)
        self._ranked = None
        valid = marks != IGNORE
        everything = bool(valid.all())  # picking is slow, and most images have nothing to ignore
        anomalous = (marks.ravel() if everything else marks[valid]) == 1
        picked = values.ravel() if everything else values[valid]
        single = _single(picked, source)
        score_counts.count_(self.bins.numpy(), self.folded.numpy(), single, anomalous)
        self.pixels += torch.tensor([anomalous.size, np.count_nonzero(anomalous)])
        self.ignored += marks.size - picked.size
        self.images += len(marks) if marks.ndim == 3 else 1
        if self.per_image:
            self.summaries += [_summary(v, m) for v, m in _one_by_one(values, marks)]
        self._keep(picked, single, anomalous)

    def _keep(self, picked: Scores, single: NDArray[np.float32], anomalous: NDArray[np.bool]) -> None:
        if self._is_exact():
            self.kept_anomalous.append(torch.from_numpy(picked[anomalous]))
            self.kept_normal.append(torch.from_numpy(picked[~anomalous]))
            return
        self._forget()
        if picked is not single and not np.array_equal(picked, single):
            _warn_of_rounding()

    def _forget(self) -> None:
        if any(part.dtype == torch.float64 for part in self.kept_normal):
            _warn_of_rounding()
        self.kept_normal, self.kept_anomalous = [], []

    def _is_exact(self) -> bool:
        """Whether all pixels are to be kept: a function of how many there are, not of how they came."""
        return self.exact or int(self.pixels[0]) <= KEPT_PIXELS

    def merge(self, other: Self) -> None:
        """Take in everything ``other`` has seen, as if this metric had seen it too."""
        super().merge(other)
        self._ranked = None
        if not self._is_exact():
            self._forget()

    def reset(self) -> None:
        """Forget everything seen."""
        super().reset()
        self._ranked = None

    def counts(self) -> dict[str, int]:
        """``images``, ``pixels`` judged, ``anomalous`` among them, and ``ignored`` pixels."""
        with self.sync_context():
            pixels, anomalous = self.pixels.tolist()
            return {
                "images": int(self.images),
                "pixels": pixels,
                "anomalous": anomalous,
                "ignored": int(self.ignored),
            }

    def compute(self) -> dict[str, float]:
        """``auroc``, ``ap``, ``fpr95`` in [0, 1], and ``auroc_bound`` ...: how far each may be from exact."""
        ranked, bounds = self._ranking()
        return {
            "auroc": ranking.auroc(ranked),
            "ap": ranking.average_precision(ranked),
            "fpr95": ranking.fpr_at_tpr(ranked, 0.95),
            **{f"{name}_bound": bound for name, bound in bounds.items()},
        }

    def curve(self, points: int = 1000) -> dict[str, NDArray[np.float64]]:
        """About ``points`` points of the ROC and precision-recall curves: thresholds, tpr, fpr, precision."""
        with self.sync_context():
            return ranking.points(self._ranking()[0], points)

    def threshold_at_tpr(self, tpr: float) -> float:
        """The highest threshold at which ``score >= threshold`` finds at least ``tpr`` of the anomalies."""
        with self.sync_context():
            return ranking.threshold_at_tpr(self._ranking()[0], tpr)

    def threshold_at_fpr(self, fpr: float) -> float:
        """The lowest threshold at which ``score >= threshold`` flags at most ``fpr`` of the normal pixels."""
        with self.sync_context():
            return ranking.threshold_at_fpr(self._ranking()[0], fpr)

    def threshold_at_best_f1(self) -> float:
        """The threshold of the best pixel F1, which component metrics start from."""
        with self.sync_context():
            return ranking.threshold_at_best_f1(self._ranking()[0])

    def confidence_intervals(
        self, *, replicates: int = 1000, level: float = 0.95, seed: int = 0
    ) -> dict[str, tuple[float, float]]:
        """Bootstrap percentile intervals of ``auroc``, ``ap`` and ``fpr95`` over images."""
        with self.sync_context():
            if not self.per_image:
                raise EvaluationError("confidence intervals need AnomalyCurve(per_image=True)")
            self._ranking_refusals()
            stacked = self.summaries if isinstance(self.summaries, Tensor) else torch.cat(self.summaries)
            return intervals.bootstrap(_canonical(stacked.numpy()), replicates, level, seed)

    def _ranking(self) -> tuple[Ranking, dict[str, float]]:
        """The ranking and its bounds, of all processes' pixels; worked out once for all who ask."""
        self._ranking_refusals()
        if self._ranked is None:
            self._ranked = self._ranked_now()
        return self._ranked

    def _ranked_now(self) -> tuple[Ranking, dict[str, float]]:
        if self._is_exact():
            kept = (_joined(self.kept_anomalous), _joined(self.kept_normal))
            return ranking.rank(*kept), {"auroc": 0.0, "ap": 0.0, "fpr95": 0.0}
        return score_order.ranking(self.bins.numpy(), self.folded.numpy())

    def _ranking_refusals(self) -> None:
        pixels, anomalous = self.pixels.tolist()
        if pixels == 0:
            raise EvaluationError("no pixel has been seen; call update first")
        if anomalous in (0, pixels):
            missing = "anomalous" if anomalous == 0 else "normal"
            raise EvaluationError(
                f"the {int(self.images)} images hold no {missing} pixel at all; detection is undefined on "
                "such a set (are the masks' values 0 = normal, 1 = anomaly, 255 = ignore?)"
            )

    def _sync_dist(
        self, dist_sync_fn: Callable[[Tensor, object], list[Tensor]] = gather, process_group: object = None
    ) -> None:
        # ranks gather tensors of one type and width, also from a rank that keeps nothing
        for name in ("kept_normal", "kept_anomalous"):
            setattr(self, name, [torch.from_numpy(_joined(getattr(self, name)))])
        if not self.summaries:
            self.summaries = [torch.zeros(0, 4, intervals.ATOMS, dtype=torch.float64)]
        super()._sync_dist(dist_sync_fn, process_group)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        return self  # the counters stay on the CPU, where counting them is fastest


def _joined(parts: list[Tensor] | Tensor) -> NDArray[np.float64]:
    """(n) float64 of the parts, also after they were gathered into one tensor."""
    parts = [parts] if isinstance(parts, Tensor) else parts
    return torch.cat([torch.zeros(0, dtype=torch.float64), *parts]).numpy()


def _warn_of_rounding() -> None:
    warnings.warn(
        f"float64 scores of more than {KEPT_PIXELS} pixels are ranked as float32; use exact=True if scores "
        "differ by less than float32 can tell",
        stacklevel=2,
    )


def _single(values: Scores, source: str) -> NDArray[np.float32]:
    """Scores as float32; finite float64 that float32 cannot hold are refused."""
    if values.dtype == np.float32:
        return cast(NDArray[np.float32], values)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if not np.array_equal(np.isinf(single), np.isinf(values)):
        raise EvaluationError(f"{where(source)}finite scores beyond the range of float32; rescale them")
    return single


def _one_by_one(values: Scores, marks: NDArray[np.uint8]) -> Iterator[tuple[Scores, NDArray[np.uint8]]]:
    batch = (values, marks) if marks.ndim == 3 else (values[None], marks[None])
    return zip(*batch)


def _summary(values: Scores, marks: NDArray[np.uint8]) -> Tensor:
    """(1 4 ATOMS) float64 summary of one image."""
    parts = [*intervals.summary(values[marks == 1]), *intervals.summary(values[marks == 0])]
    return torch.from_numpy(np.stack(parts))[None]


def _canonical(summaries: NDArray[np.float64]) -> NDArray[np.float64]:
    """Images in an order of their own, so that a seed draws the same sets however the images came."""
    flat = summaries.reshape(len(summaries), -1)
    return summaries[sorted(range(len(flat)), key=lambda i: flat[i].tobytes())]
