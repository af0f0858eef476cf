"""Coordinates in which classes are as round as they can be made: where the mixtures live, if asked for.

The nearest mean is the best guess only where a class spreads alike in all directions; elsewhere, a direction
in which all classes spread drowns one in which they differ. Linear discriminant analysis divides by the
spread within classes first. So does this, for features that move while the network learns.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.mixture.memory import accumulator_dtype

LEAST_VARIANCE = 1e-6
"""Least mean variance within classes that is believed: a batch of single points shows none at all."""


class Whitening(nn.Module):
    """Features (n d-1) -> points (n d) of unit length: whitened within classes, then laid on a sphere.

    Two buffers, ``centre`` (d-1) and ``basis`` (d-1 d-1), which EM moves and no gradient reaches.
    """

    centre: Tensor
    basis: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(dim - 1))
        self.register_buffer("basis", torch.eye(dim - 1))

    def forward(self, features: Tensor, projection: Tensor | None = None) -> Tensor:
        """Points (n d) of features (n d-1).

        With ``projection`` (d-1 f) it takes what that linear map would make the features of, (n f). Both maps
        and the pole are then one product over the points, which runs at the precision of the caller's loop.
        Points are float32.
        """
        with torch.autocast(features.device.type, enabled=False):
            # A copy, because EM may move the basis before the backward pass needs it.
            basis = self.basis.float().clone()
            matrix = basis.T if projection is None else basis.T @ projection.float()
            shift = -(self.centre.float() @ basis)
            matrix, bias = F.pad(matrix, (0, 0, 0, 1)), F.pad(shift, (0, 1), value=_pole(len(shift) + 1))
            if projection is None:
                return F.normalize(F.linear(features.float(), matrix, bias), dim=-1)
        return F.normalize(F.linear(features.float(), matrix, bias).float(), dim=-1)

    def features(self, points: Tensor) -> Tensor:
        """The features (n d-1) that these coordinates have made these points (n d) of."""
        inverse = torch.linalg.inv(self.basis.cpu().double()).to(points)
        return from_sphere(points) @ inverse + self.centre

    @torch.no_grad()
    def follow_(self, spread: "Spread", shrinkage: float) -> None:
        """Take the coordinates in which ``spread`` is one in all directions, but for ``shrinkage``."""
        self.centre.copy_(spread.centre)
        self.basis.copy_(_inverse_root(spread.covariance, shrinkage))


class Spread:
    """What EM remembers of how features (n d-1) lie: their ``centre`` and ``covariance`` within classes.

    Each batch adds its own; at full pace ``decay`` is left of what was known. No batch counts for less than
    its share of all so far, so the first ones are averaged, and all of them where nothing is forgotten.
    """

    def __init__(self, dim: int, *, decay: float, device: torch.device | str = "cpu") -> None:
        dtype = accumulator_dtype(torch.device(device))
        self.decay, self.batches = decay, 0
        self.centre = torch.zeros(dim - 1, dtype=dtype, device=device)
        self.covariance = torch.eye(dim - 1, dtype=dtype, device=device)

    def update(self, features: Tensor, labels: Tensor, weight: Tensor, pace: float = 1.0) -> None:
        """Take in a batch of features (n d-1) with labels (n), classes counting by ``weight`` (c).

        A class with a single point has no spread to show and is passed over. ``pace``: share of the usual
        rate of forgetting.
        """
        counts = torch.bincount(labels, minlength=len(weight))
        weight = torch.where(counts > 1, weight, 0.0)
        if not bool(weight.any()):
            return
        share = weight / weight.sum() / counts.clamp_min(1)  # of each point of a class, (c)
        totals = features.new_zeros(len(weight), features.shape[1]).index_add_(0, labels, features)
        unbiased = share * counts / (counts - 1).clamp_min(1)
        offsets = features - (totals / counts.clamp_min(1)[:, None])[labels]
        offsets = offsets * unbiased.sqrt()[labels, None]
        self.batches += 1
        rate = max((1.0 - self.decay) * pace, 1.0 / self.batches)
        self.centre.lerp_((share[:, None] * totals).sum(0).to(self.centre), rate)
        self.covariance.lerp_((offsets.T @ offsets).to(self.covariance), rate)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "centre": self.centre.clone(), "covariance": self.covariance.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]
        self.centre.copy_(state["centre"])
        self.covariance.copy_(state["covariance"])


def on_sphere(rows: Tensor) -> Tensor:
    """Rows (... d-1) -> unit vectors (... d): one coordinate more, the same for all, then unit length.

    Plain unit length forgets how long a row was, and the length of a feature says how sure the network is.
    Here short rows come to lie near the pole, where no class is, and long ones near the equator.
    """
    height = rows.new_full((*rows.shape[:-1], 1), _pole(rows.shape[-1] + 1))
    return F.normalize(torch.cat([rows, height], dim=-1), dim=-1)


def from_sphere(points: Tensor) -> Tensor:
    """The rows (... d-1) that `on_sphere` made these points (... d) of."""
    return points[..., :-1] * (_pole(points.shape[-1]) / points[..., -1:])


def _pole(dim: int) -> float:
    """The coordinate that all points (n dim) have in common before unit length: as long as a typical one."""
    return math.sqrt(dim)


def _inverse_root(covariance: Tensor, shrinkage: float) -> Tensor:
    """(covariance + shrinkage * its mean variance) ^ (-1/2), symmetric: the mildest basis that whitens."""
    matrix = covariance.cpu().double()  # a small matrix: quickest there, and in double precision everywhere
    ridge = shrinkage * matrix.diagonal().mean().clamp_min(LEAST_VARIANCE)
    values, vectors = torch.linalg.eigh(matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype))
    return (vectors * values.clamp_min(ridge).rsqrt()) @ vectors.T
