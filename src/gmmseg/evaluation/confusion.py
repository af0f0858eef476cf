"""Closed-set segmentation: one confusion matrix over the whole set."""

import torch
from torch import Tensor

from gmmseg.evaluation.pooled import EvaluationError, PooledMetric, where
from gmmseg.labels import IGNORE


class ConfusionMatrix(PooledMetric):
    """Counts (c c) of pixels by true class (row) and predicted class (column); ignored pixels are dropped."""

    counts: Tensor
    ignored: Tensor
    images: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.add_state("counts", torch.zeros(num_classes, num_classes, dtype=torch.int64), "sum")
        self.add_state("ignored", torch.zeros((), dtype=torch.int64), "sum")
        self.add_state("images", torch.zeros((), dtype=torch.int64), "sum")

    def update(self, predicted: Tensor, labels: Tensor, source: str = "") -> None:
        """Predicted and true train ids, (b h w) or (h w), at label resolution."""
        if predicted.shape != labels.shape:
            raise EvaluationError(
                f"{where(source)}predictions {tuple(predicted.shape)} and labels {tuple(labels.shape)} "
                "differ in size; upsample the prediction to the labels"
            )
        valid = labels != IGNORE
        true, guess = labels[valid].long(), predicted[valid].long()
        self._check(true, "labels", source)
        self._check(guess, "predictions", source)
        pairs = torch.bincount(true * self.num_classes + guess, minlength=self.num_classes**2)
        self.counts += pairs.view_as(self.counts).to(self.counts.device)
        self.ignored += labels.numel() - true.numel()
        self.images += len(labels) if labels.ndim == 3 else 1

    def _check(self, ids: Tensor, what: str, source: str) -> None:
        odd = ids[(ids < 0) | (ids >= self.num_classes)].unique().tolist()
        if odd:
            raise EvaluationError(
                f"{where(source)}{what} hold {odd[:8]}, but there are {self.num_classes} classes, "
                f"0..{self.num_classes - 1}, and {IGNORE} for ignored labels"
            )

    def compute(self) -> dict[str, Tensor]:
        """``miou``, ``pixel_accuracy``, ``mean_accuracy`` and (c) ``iou``, ``accuracy``, NaN where undefined.

        ``miou`` is the mean over classes that occur, in the labels or in the predictions.
        """
        counts = self.counts.double()
        if counts.sum() == 0:
            raise EvaluationError("no labelled pixel has been seen; check the labels and the ignore value")
        hits, true, guessed = counts.diag(), counts.sum(1), counts.sum(0)
        iou = hits / (true + guessed - hits)
        accuracy = hits / true
        return {
            "miou": iou.nanmean(),
            "pixel_accuracy": hits.sum() / counts.sum(),
            "mean_accuracy": accuracy.nanmean(),
            "iou": iou,
            "accuracy": accuracy,
        }
