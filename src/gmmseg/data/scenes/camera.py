"""A pinhole camera above a street: metres to pixels, and pixels back to metres on the street's planes.

World axes: x to the right, y up from the ground, z ahead. The camera stands at x = z = 0.
"""

from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np

NEAR = 1.0
"""Nothing closer than this many metres is drawn."""


@dataclass(frozen=True)
class Camera:
    """``focal``, ``horizon`` and ``centre`` in pixels, ``eye`` (height above the ground) in metres."""

    height: int
    width: int
    focal: float
    horizon: float
    centre: float
    eye: float

    @classmethod
    def draw(cls, rng: Random, size: tuple[int, int]) -> "Camera":
        """A random camera for images of ``size`` (height, width); the same view at every size."""
        height, width = size
        return cls(
            height,
            width,
            focal=height * rng.uniform(0.75, 1.25),
            horizon=height * rng.uniform(0.36, 0.54),
            centre=width * rng.uniform(0.35, 0.65),
            eye=rng.uniform(1.3, 2.3),
        )

    def project(self, x: float, y: float, z: float) -> tuple[float, float]:
        """World metres -> (column, row) in pixels."""
        scale = self.focal / max(z, NEAR)
        return self.centre + x * scale, self.horizon + (self.eye - y) * scale

    def sees(self, x: float, z: float, radius: float) -> bool:
        """Whether something ``radius`` metres to both sides of (x, z) is in view."""
        return self.project(x + radius, 0, z)[0] > 0 and self.project(x - radius, 0, z)[0] < self.width

    @cached_property
    def rows(self) -> np.ndarray:
        """Height below the horizon of every pixel row, (h 1), in focal lengths."""
        rows = np.arange(self.height, dtype=np.float32)[:, None] + 0.5
        return (rows - np.float32(self.horizon)) / np.float32(self.focal)

    @cached_property
    def columns(self) -> np.ndarray:
        """Distance right of the vanishing point of every pixel column, (1 w), in focal lengths."""
        columns = np.arange(self.width, dtype=np.float32)[None, :] + 0.5
        return (columns - np.float32(self.centre)) / np.float32(self.focal)

    def ground(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each pixel's ray meets the ground: x (h w) and z (h 1); z is huge above the horizon."""
        z = np.float32(self.eye) / np.maximum(self.rows, np.float32(1e-4))
        return self.columns * z, z

    def wall(self, x: float) -> tuple[np.ndarray, np.ndarray]:
        """Where rays meet the upright plane along the street at ``x``: z (1 w), negative behind, and y (h
        w)."""
        columns = self.columns
        safe = np.where(np.abs(columns) < 1e-4, np.float32(1e-4), columns)
        z = np.float32(x) / safe
        return z, np.float32(self.eye) - self.rows * z

    def front(self, z: float) -> tuple[np.ndarray, np.ndarray]:
        """Where rays meet the upright plane across the street at ``z``: x (1 w) and y (h 1)."""
        return self.columns * np.float32(z), np.float32(self.eye) - self.rows * np.float32(z)
