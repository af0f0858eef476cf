"""SegmentMeIfYouCan component metrics: are anomalies found as objects, not only as pixels?"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from gmmseg.evaluation.pooled import EvaluationError, PooledMetric, checked_pair
from gmmseg.labels import IGNORE

TAUS = tuple(step / 20 for step in range(5, 16))
"""The thresholds 0.25, 0.30 .. 0.75 on sIoU and PPV."""

_EIGHT_CONNECTED = np.ones((3, 3), dtype=np.int64)


@dataclass(frozen=True)
class Preset:
    """Sizes in pixels under which a predicted component is dropped and a true one becomes ignore."""

    smallest_predicted: int
    smallest_true: int


PRESETS = {"anomaly": Preset(500, 100), "obstacle": Preset(50, 10)}


class ComponentMetrics(PooledMetric):
    """Mean sIoU and PPV and F1* of the components where ``score >= threshold``.

    ``preset`` is "anomaly" or "obstacle", or a Preset. The protocol's threshold is the best pixel F1 on the
    same split, ``AnomalyCurve.threshold_at_best_f1()``, so a set is gone through twice.
    """

    hits: Tensor
    misses: Tensor
    false_alarms: Tensor
    siou_sum: Tensor
    ppv_sum: Tensor
    true_components: Tensor
    predicted_components: Tensor

    def __init__(self, preset: str | Preset, *, threshold: float) -> None:
        super().__init__()
        if isinstance(preset, str) and preset not in PRESETS:
            raise EvaluationError(f"no component preset {preset!r}; there are {', '.join(PRESETS)}")
        self.preset = PRESETS[preset] if isinstance(preset, str) else preset
        self.threshold = threshold
        for name in ("hits", "misses", "false_alarms"):
            self.add_state(name, torch.zeros(len(TAUS), dtype=torch.int64), "sum")
        for name in ("siou_sum", "ppv_sum"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), "sum")
        for name in ("true_components", "predicted_components"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), "sum")

    def update(self, scores: Tensor | NDArray, mask: Tensor | NDArray, source: str = "") -> None:
        """Scores and mask of one image (h w), or of a batch (b h w), each image on its own."""
        values, marks = checked_pair(scores, mask, source)
        for one, truth in zip(values.reshape(-1, *values.shape[-2:]), marks.reshape(-1, *marks.shape[-2:])):
            self._add(*component_overlaps(one >= self.threshold, truth, self.preset))

    def _add(self, siou: NDArray, ppv: NDArray) -> None:
        taus = np.array(TAUS)[:, None]
        device = self.hits.device
        self.hits += torch.from_numpy((siou >= taus).sum(1)).to(device)
        self.misses += torch.from_numpy((siou < taus).sum(1)).to(device)
        self.false_alarms += torch.from_numpy((ppv < taus).sum(1)).to(device)
        self.siou_sum += float(siou.sum())
        self.ppv_sum += float(ppv.sum())
        self.true_components += len(siou)
        self.predicted_components += len(ppv)

    def compute(self) -> dict[str, float]:
        """``f1_star``, ``siou``, ``ppv`` (means over components), and the counts of components.

        ``ppv`` is NaN where nothing at all was predicted.
        """
        if self.true_components == 0:
            raise EvaluationError(
                "no anomalous component of the whole set is large enough to be judged; "
                "check the masks and the preset"
            )
        f1 = 2 * self.hits / (2 * self.hits + self.misses + self.false_alarms)
        return {
            "f1_star": float(f1.double().mean()),
            "siou": float(self.siou_sum / self.true_components),
            "ppv": float(self.ppv_sum / self.predicted_components),
            "true_components": int(self.true_components),
            "predicted_components": int(self.predicted_components),
            "threshold": self.threshold,
        }


def component_overlaps(flagged: NDArray[np.bool_], mask: NDArray, preset: Preset) -> tuple[NDArray, NDArray]:
    """sIoU of every true component and PPV of every predicted one, of one image (h w).

    Predicted components are formed off the ignored pixels and dropped where they are too small; true ones
    that are too small are taken out after that, and with them the pixels predicted on them.
    """
    guess, count, _ = _components(flagged & (mask != IGNORE), preset.smallest_predicted)
    true, true_count, small = _components(mask == 1, preset.smallest_true)
    guess = np.where(small, 0, guess)
    true_sizes = np.bincount(true.ravel(), minlength=true_count + 1)[1:]
    guess_sizes = np.bincount(guess.ravel(), minlength=count + 1)[1:]
    overlap = np.bincount(
        (true.astype(np.int64) * (len(guess_sizes) + 1) + guess).ravel(),
        minlength=(len(true_sizes) + 1) * (len(guess_sizes) + 1),
    ).reshape(len(true_sizes) + 1, -1)[1:, 1:]
    touching = overlap > 0
    covered = overlap.sum(1)
    # |K u P| - |A|: the component, and the touching predictions less their pixels on any true component
    off_truth = touching @ (guess_sizes - overlap.sum(0))
    left = guess_sizes > 0  # a prediction all on truth that is too small is neither right nor wrong
    return covered / (true_sizes + off_truth), overlap.sum(0)[left] / guess_sizes[left]


def _components(region: NDArray[np.bool_], smallest: int) -> tuple[NDArray, int, NDArray[np.bool_]]:
    """Components (h w) of at least ``smallest`` pixels, from 1; how many; where (h w) smaller ones are."""
    labels, count = ndimage.label(region, structure=_EIGHT_CONNECTED)
    sizes = np.bincount(labels.ravel(), minlength=count + 1)
    large = np.append(False, sizes[1:] >= smallest)
    numbers = np.where(large, np.cumsum(large), 0)
    return numbers[labels], int(large.sum()), region & ~large[labels]
