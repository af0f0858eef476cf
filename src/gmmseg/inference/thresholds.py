"""Where known ends and unknown begins, chosen on known pixels alone."""

import math

import numpy as np
import torch
from torch import Tensor

from gmmseg import distributed, float_order

BITS = 22
"""Leading bits of a float32 that tell bins apart: sign, exponent and 13 of the mantissa, 1 part in 8192."""


class ScoreHistogram:
    """Counts of scores of any range and sign, in 32 MB however many there are."""

    def __init__(self) -> None:
        self.counts = np.zeros(2**BITS, np.int64)

    def update(self, scores: Tensor) -> None:
        """Count scores of any shape; infinities are legal, NaN is not."""
        if scores.isnan().any():
            raise ValueError("anomaly scores hold NaN: the model's weights or the image are broken")
        keys = float_order.keys(scores.detach().flatten().float().cpu().numpy())
        self.counts += np.bincount(keys >> (32 - BITS), minlength=2**BITS)

    def merge_processes(self) -> None:
        """Take in what all processes have counted."""
        self.counts = distributed.sum_over_processes(torch.from_numpy(self.counts)).numpy()

    def threshold(self, share: float) -> float:
        """The smallest threshold, to a bin, that at most ``share`` of the scores exceed."""
        if not 0 <= share < 1:
            raise ValueError(f"share of flagged pixels must be in [0, 1), got {share}")
        total = int(self.counts.sum())
        if total == 0:
            raise ValueError(
                "no known pixels to choose a threshold on: give images with labels other than ignore"
            )
        exceeding = total - self.counts.cumsum()
        chosen = int(np.flatnonzero(exceeding <= math.floor(share * total))[0])
        largest_key = ((chosen + 1) << (32 - BITS)) - 1
        return float(float_order.scores(np.array([largest_key], np.uint32))[0])
