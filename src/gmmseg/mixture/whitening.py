"""Coordinates in which classes are as round as they can be made: where the mixtures live, if asked for.

The nearest mean is the best guess only where a class spreads alike in all directions; elsewhere, a direction
in which all classes spread drowns one in which they differ. Linear discriminant analysis divides by the
spread within classes first. So does this, for features that move while the network learns.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.mixture.class_batch import ClassBatch

LEAST_VARIANCE = 1e-6
"""Least mean variance within classes that is believed: a batch of single points shows none at all."""


class Whitening(nn.Module):
    """Features (n d-1) -> points (n d) of unit length: whitened within classes, then laid on a sphere.

    Buffers alone, which `update_` moves (EM calls it) and no gradient: ``centre`` (d-1) and the pooled
    ``covariance`` (d-1 d-1) within classes, forgotten by ``decay``, and the ``basis`` that follows from it.
    """

    centre: Tensor
    covariance: Tensor
    basis: Tensor
    updates: Tensor

    def __init__(self, dim: int, *, decay: float = 0.95, shrinkage: float = 0.1) -> None:
        super().__init__()
        self.decay, self.shrinkage = decay, shrinkage
        self.register_buffer("centre", torch.zeros(dim - 1))
        self.register_buffer("covariance", torch.eye(dim - 1))
        self.register_buffer("basis", torch.eye(dim - 1))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        """Points (n d) of features (n d-1)."""
        with torch.autocast(features.device.type, enabled=False):
            return on_sphere((features.float() - self.centre) @ self.basis)

    def features(self, points: Tensor) -> Tensor:
        """The features (n d-1) that these points (n d) were made of."""
        inverse = torch.linalg.inv(self.basis.double()).float()
        return from_sphere(points) @ inverse + self.centre

    @torch.no_grad()
    def update_(self, batch: ClassBatch, weight: Tensor) -> None:
        """Take in the spread of a batch of features (p m d-1) about the centres of their classes.

        ``weight`` (p) says how much each class counts.
        """
        features = batch.points.double()
        share = batch.valid / batch.valid.sum(1, keepdim=True)  # of a point in its class, (p m)
        centres = torch.einsum("pm,pmd->pd", share.double(), features)
        share = (share * (weight / weight.sum())[:, None]).double()
        offsets = features - centres[:, None]
        spread = torch.einsum("pm,pmd,pme->de", share, offsets, offsets)
        self.updates += 1
        # The first batches are averaged, so that the start is not remembered.
        rate = max(1.0 - self.decay, 1.0 / int(self.updates))
        self.centre.lerp_(torch.einsum("pm,pmd->d", share, features).float(), rate)
        self.covariance.lerp_(spread.float(), rate)
        self.basis.copy_(_inverse_root(self.covariance, self.shrinkage))


def on_sphere(rows: Tensor) -> Tensor:
    """Rows (... d-1) -> unit vectors (... d): one coordinate more, the same for all, then unit length.

    Plain unit length forgets how long a row was, and the length of a feature says how sure the network is.
    Here short rows come to lie near the pole, where no class is, and long ones near the equator.
    """
    height = rows.new_full((*rows.shape[:-1], 1), math.sqrt(rows.shape[-1] + 1))
    return F.normalize(torch.cat([rows, height], dim=-1), dim=-1)


def from_sphere(points: Tensor) -> Tensor:
    """The rows (... d-1) that `on_sphere` made these points (... d) of."""
    return points[..., :-1] * (math.sqrt(points.shape[-1]) / points[..., -1:])


def _inverse_root(covariance: Tensor, shrinkage: float) -> Tensor:
    """(covariance + shrinkage * its mean variance) ^ (-1/2), symmetric: the mildest basis that whitens."""
    matrix = covariance.double().cpu()  # a small matrix: quickest there, and in double precision everywhere
    ridge = shrinkage * matrix.diagonal().mean().clamp_min(LEAST_VARIANCE)
    values, vectors = torch.linalg.eigh(matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype))
    return (vectors * values.clamp_min(ridge).rsqrt()) @ vectors.T
