"""The points of one batch sorted into their classes, and the two things EM asks of them."""

import torch
from torch import Tensor

from gmmseg.mixture.gaussian import coefficients, expand
from gmmseg.mixture.memory import Moments, accumulator_dtype


class ClassLayout:
    """Where rows sorted by class go when classes are padded to the largest.

    ``classes`` (p) present, ``counts`` (p) their rows, ``valid`` (p m) which places hold a row.
    """

    def __init__(self, labels: Tensor) -> None:
        """From labels (n) in ascending order; at least one."""
        self.classes, self.counts = labels.unique_consecutive(return_counts=True)
        place = torch.arange(int(self.counts.max()), device=labels.device)
        self.valid = place < self.counts[:, None]
        first = self.counts.cumsum(0) - self.counts
        self._source = torch.where(self.valid, first[:, None] + place, 0)

    def pad(self, rows: Tensor) -> Tensor:
        """Rows (n ...) -> (p m ...). Absent places repeat the first row, so that they are finite."""
        return rows[self._source]

    def unpad(self, padded: Tensor) -> Tensor:
        """The rows (n ...) that `pad` has made (p m ...) of."""
        return padded[self.valid]


class ClassBatch:
    """``classes`` (p) present, their ``points`` (p m d) padded to the largest, and ``valid`` (p m).

    Absent places hold some other point of the batch, so that they are finite; ``valid`` tells.
    """

    def __init__(self, points: Tensor, labels: Tensor) -> None:
        """From points (n d) and labels (n) sorted by label; at least one."""
        self.layout = ClassLayout(labels)
        self.classes, self.valid = self.layout.classes, self.layout.valid
        self.points = self.layout.pad(points)
        # Sums and densities are taken of offsets from the class's centre, which lose no digits.
        shares = self.valid[:, None].float() / self.layout.counts[:, None, None]
        self.centre = torch.bmm(shares, self.points)
        self._expanded = expand(self.points - self.centre)

    def log_density(self, means: Tensor, variances: Tensor) -> Tensor:
        """log N of each class's points under its own means, variances (p k d) -> (p m k)."""
        weight, bias = coefficients(means - self.centre, variances)
        return torch.baddbmm(bias[:, None], self._expanded, weight.transpose(1, 2))

    def moments(self, responsibilities: Tensor) -> Moments:
        """Sums over each class's points, weighted by responsibilities (p m k)."""
        dtype = accumulator_dtype(self.points.device)
        shares = responsibilities.transpose(1, 2)
        squares, total = torch.bmm(shares, self._expanded).to(dtype).chunk(2, dim=-1)
        weight, shift = shares.sum(-1).to(dtype), self.centre.to(dtype)
        mass = weight[..., None]
        return Moments(weight, total + mass * shift, squares + 2 * shift * total + mass * shift.square())
