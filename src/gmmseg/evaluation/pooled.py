"""What all metrics here share: sums over every pixel of a set, merged exactly, and checked inputs."""

from typing import Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from gmmseg.distributed import collective_device
from gmmseg.labels import IGNORE


class EvaluationError(ValueError):
    """Scores, masks or predictions that cannot be evaluated; the message names the file and the fix."""


class PooledMetric(Metric):
    """A metric pooled over all pixels of all images, so that ranks, shards and orders cannot matter."""

    full_state_update = False
    is_differentiable = False

    def __init__(self) -> None:
        super().__init__(dist_sync_fn=gather)

    def merge(self, other: Self) -> None:
        """Take in everything ``other`` has seen, as if this metric had seen it too."""
        self.merge_state(other)
        self._update_count += other._update_count
        self._computed = None


def gather(state: Tensor, group: object = None) -> list[Tensor]:
    """``state`` of every rank, on the state's own device, whatever device the process group talks on."""
    gathered = gather_all_tensors(state.to(collective_device()), group)
    return [part.to(state.device) for part in gathered]


Scores = NDArray[np.float32] | NDArray[np.float64]
"""Anomaly scores as they are judged."""


def where(source: str) -> str:
    """The beginning of a message about ``source``, empty where the caller named none."""
    return f"{source}: " if source else ""


def as_array(values: Tensor | NDArray) -> NDArray:
    """The values on the CPU; bfloat16, which NumPy lacks, becomes float32."""
    if isinstance(values, np.ndarray):
        return values
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def checked_pair(
    scores: Tensor | NDArray, mask: Tensor | NDArray, source: str
) -> tuple[Scores, NDArray[np.uint8]]:
    """Scores (...) float32 or float64, mask (...) uint8 of 0, 1, IGNORE; or an error naming ``source``."""
    values, marks = as_array(scores), as_array(mask)
    if values.shape != marks.shape:
        raise EvaluationError(
            f"{where(source)}scores {values.shape} and mask {marks.shape} differ in size; "
            "upsample the scores to the mask (never the mask to the scores)"
        )
    return _checked_scores(values, source), _checked_mask(marks, source)


def _checked_scores(scores: NDArray, source: str) -> Scores:
    if scores.dtype == bool or np.iscomplexobj(scores) or not np.issubdtype(scores.dtype, np.number):
        raise EvaluationError(f"{where(source)}scores of type {scores.dtype}; real numbers are needed")
    if np.issubdtype(scores.dtype, np.integer):
        exact = scores.dtype.itemsize <= 2  # whether float32 holds them all
        return scores.astype(np.float32) if exact else scores.astype(np.float64)
    if np.isnan(scores).any():
        raise EvaluationError(
            f"{where(source)}{int(np.isnan(scores).sum())} scores are NaN; fix what made them"
        )
    if scores.dtype == np.float16:
        if np.isinf(scores).any():
            raise EvaluationError(
                f"{where(source)}float16 scores overflowed to infinity; compute and save them as float32"
            )
        return scores.astype(np.float32)
    return cast(Scores, scores) if scores.dtype == np.float32 else scores.astype(np.float64)


def _checked_mask(mask: NDArray, source: str) -> NDArray[np.uint8]:
    if mask.dtype == bool:
        mask = mask.astype(np.uint8)
    normal, anomalous, ignored = (np.count_nonzero(mask == value) for value in (0, 1, IGNORE))
    if normal + anomalous + ignored != mask.size:
        odd = sorted({value.item() for value in np.unique(mask)} - {0, 1, IGNORE})
        raise EvaluationError(
            f"{where(source)}mask values {odd[:8]} are not defined; 0 is normal, 1 anomaly, {IGNORE} ignore"
        )
    if ignored == mask.size:
        raise EvaluationError(
            f"{where(source)}every pixel is ignored, nothing can be judged; leave the image out"
        )
    return mask.astype(np.uint8, copy=False)
