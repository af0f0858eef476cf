"""Points and mixtures seen from the two directions in which the points spread most."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Plane:
    """``centre`` (d), two orthonormal ``directions`` (d 2), and the share of the variance along each."""

    centre: Tensor
    directions: Tensor
    shares: tuple[float, float]

    def project(self, points: Tensor) -> Tensor:
        """Points (n d) -> (n 2)."""
        return (points - self.centre) @ self.directions

    def outlines(
        self, means: Tensor, variances: Tensor, deviations: float = 2.0, corners: int = 60
    ) -> Tensor:
        """The shadows of diagonal Gaussians, means and variances (k d), as ellipses (k corners 2)."""
        angle = torch.linspace(0, 2 * torch.pi, corners)
        circle = torch.stack([angle.cos(), angle.sin()])
        covariances = self.directions.T @ (variances[:, :, None] * self.directions)
        values, vectors = torch.linalg.eigh(covariances)
        offsets = vectors @ (deviations * values.clamp_min(0).sqrt()[:, :, None] * circle)
        return self.project(means)[:, None] + offsets.transpose(1, 2)


def main_plane(points: Tensor) -> Plane:
    """The first two principal components of points (n d), n and d at least 2."""
    centre = points.mean(0)
    values, vectors = torch.linalg.eigh((points - centre).T.cov())
    directions = vectors.flip(1)[:, :2]
    # The sign of a direction is arbitrary; fixed, so that the same points give the same picture.
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    first, second = (values.flip(0)[:2] / values.sum().clamp_min(1e-12)).tolist()
    return Plane(centre, directions * largest.sign(), (first, second))


def most_frequent(labels: Tensor, num_classes: int, count: int) -> Sequence[int]:
    """The ``count`` classes with most points among labels (n), those with any."""
    counts = torch.bincount(labels[labels < num_classes], minlength=num_classes)
    order = counts.argsort(descending=True, stable=True)[:count]
    return [int(index) for index in order if counts[index] > 0]
