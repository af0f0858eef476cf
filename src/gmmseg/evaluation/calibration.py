"""Does a confidence of 0.8 mean right four times in five? Exact, from three running sums per bin."""

import torch
from torch import Tensor

from gmmseg.evaluation.pooled import EvaluationError, PooledMetric, where
from gmmseg.labels import IGNORE


class CalibrationError(PooledMetric):
    """Expected calibration error of posteriors, pooled over all labelled pixels, in equal-width bins (lo,
    hi].

    With ``num_classes`` the class-wise error is computed too: every class's own probability against how
    often that class is the true one, averaged over classes.
    """

    counts: Tensor
    confidence: Tensor
    correct: Tensor
    class_counts: Tensor
    class_confidence: Tensor
    class_correct: Tensor

    def __init__(self, bins: int = 15, *, num_classes: int | None = None) -> None:
        super().__init__()
        self.bins = bins
        self.num_classes = num_classes
        for prefix, rows in (("", 1), ("class_", num_classes or 0)):
            self.add_state(f"{prefix}counts", torch.zeros(rows, bins, dtype=torch.int64), "sum")
            self.add_state(f"{prefix}confidence", torch.zeros(rows, bins, dtype=torch.float64), "sum")
            self.add_state(f"{prefix}correct", torch.zeros(rows, bins, dtype=torch.int64), "sum")

    def update(self, posterior: Tensor, labels: Tensor, source: str = "") -> None:
        """Posterior (b c h w), summing to one over c, and labels (b h w) at the same resolution."""
        self._check(posterior, labels, source)
        valid = labels != IGNORE
        probabilities = posterior.movedim(1, -1)[valid]
        true = labels[valid].long()
        top, guess = probabilities.max(1)
        self._add("", top[:, None], (guess == true)[:, None])
        if self.num_classes:
            classes = torch.arange(self.num_classes, device=true.device)
            self._add("class_", probabilities, true[:, None] == classes)

    def _check(self, posterior: Tensor, labels: Tensor, source: str) -> None:
        if posterior.shape[:1] + posterior.shape[2:] != labels.shape:
            raise EvaluationError(
                f"{where(source)}posterior {tuple(posterior.shape)} and labels {tuple(labels.shape)} differ "
                "in size; upsample the posterior to the labels"
            )
        if self.num_classes not in (None, posterior.shape[1]):
            raise EvaluationError(
                f"{where(source)}{posterior.shape[1]} classes where {self.num_classes} are expected"
            )
        total = posterior.float().sum(1)
        if not bool(torch.isfinite(total).all()) or float((total - 1).abs().max()) > 0.02:
            raise EvaluationError(
                f"{where(source)}not a posterior: it must sum to one over the classes (no logits)"
            )
        if bool(((labels != IGNORE) & ((labels >= posterior.shape[1]) | (labels < 0))).any()):
            raise EvaluationError(
                f"{where(source)}labels beyond the {posterior.shape[1]} classes of the posterior"
            )

    def _add(self, prefix: str, probabilities: Tensor, right: Tensor) -> None:
        """Sums over pixels of probabilities (n r) and of whether each came true (n r), per row and bin."""
        rows = probabilities.shape[1]
        place = (probabilities.double() * self.bins).ceil().long().clamp(1, self.bins) - 1
        place += torch.arange(rows, device=place.device) * self.bins
        flat = place.flatten()
        sums = {
            "counts": torch.bincount(flat, minlength=rows * self.bins),
            "confidence": torch.bincount(flat, probabilities.flatten().double(), minlength=rows * self.bins),
            "correct": torch.bincount(flat[right.flatten()], minlength=rows * self.bins),
        }
        for name, addition in sums.items():
            state = getattr(self, prefix + name)
            state += addition.view_as(state).to(state.device)

    def compute(self) -> dict[str, Tensor]:
        """``ece``; with classes also ``classwise_ece``."""
        if self.counts.sum() == 0:
            raise EvaluationError("no labelled pixel has been seen; check the labels and the ignore value")
        result = {"ece": _error(self.counts, self.confidence, self.correct).squeeze()}
        if self.num_classes:
            result["classwise_ece"] = _error(
                self.class_counts, self.class_confidence, self.class_correct
            ).mean()
        return result

    def reliability(self) -> dict[str, Tensor]:
        """The reliability table, (bins) each: ``lower`` and ``upper`` edge, ``count``, mean ``confidence``,
        ``accuracy``; NaN where a bin is empty."""
        with self.sync_context():
            count = self.counts[0]
            edges = torch.linspace(0, 1, self.bins + 1, dtype=torch.float64)
            return {
                "lower": edges[:-1],
                "upper": edges[1:],
                "count": count.clone(),
                "confidence": self.confidence[0] / count,
                "accuracy": self.correct[0] / count,
            }


def _error(counts: Tensor, confidence: Tensor, correct: Tensor) -> Tensor:
    """(r) sum over bins of (pixels in the bin / all pixels) x |accuracy - confidence|."""
    return (correct - confidence).abs().sum(1) / counts.sum(1)
