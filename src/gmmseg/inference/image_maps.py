"""An image, what a model says of each of its pixels, and pictures of that."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gmmseg.class_colours import Colours, default_colours
from gmmseg.inference.heat import HeatScale, model_scale, scale_bar, scale_of
from gmmseg.inference.image_losses import large_components
from gmmseg.inference.pictures import (
    beside,
    label_picture,
    legend,
    mask_picture,
    overlay,
    stacked,
)
from gmmseg.models.calibration_file import ANOMALY_MAP, Calibration

PRESENT = 0.001
"""A class with a smaller share of the pixels than this is noise at borders, not something in the image."""


@dataclass(frozen=True)
class Meaning:
    """What the numbers of a prediction mean: the classes, the anomaly score, and where unknown begins.

    ``calibration`` is that of the score that is shown; None where nothing was found out about it.
    ``given_threshold`` is used instead of the calibration's, and promises nothing.
    """

    calibration: Calibration | None = None
    names: tuple[str, ...] = ()
    colours: Colours = ()
    score: str = ANOMALY_MAP
    given_threshold: float | None = None

    @property
    def threshold(self) -> float | None:
        """From which anomaly score on a pixel is unknown; None where nobody has said."""
        if self.given_threshold is not None or self.calibration is None:
            return self.given_threshold
        return self.calibration.threshold

    @property
    def min_area(self) -> int:
        """The least number of pixels of an unknown region."""
        return 1 if self.calibration is None else self.calibration.min_area

    def with_threshold(self, threshold: float | None) -> "Meaning":
        """The same with another threshold; as it is for None."""
        if threshold is not None and not math.isfinite(threshold):
            raise ValueError(f"a threshold is a finite number, got {threshold}")
        return self if threshold is None else replace(self, given_threshold=threshold)

    def for_classes(self, count: int) -> "Meaning":
        """The same with a name and a colour for each of ``count`` classes, made up where there are none."""
        names = self.names or tuple(f"class {index}" for index in range(count))
        return replace(self, names=names, colours=self.colours or default_colours(count))


@dataclass(frozen=True, eq=False)
class ImageMaps:
    """An image and its maps, all of one size.

    ``photograph`` (h w 3) uint8, ``labels`` (h w) uint8, ``anomaly`` (h w) float32, higher = stranger.
    """

    photograph: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    anomaly: NDArray[np.float32]
    meaning: Meaning

    def above(self, threshold: float | None) -> NDArray[np.bool]:
        """Which pixels are unknown at a threshold, (h w), as `Prediction.above`; without one none is."""
        if threshold is None:
            return np.zeros(self.anomaly.shape, dtype=bool)
        with np.errstate(over="ignore"):  # beyond all scores, which infinity is, too
            limit = np.float32(threshold)
        return large_components(self.anomaly > limit, self.meaning.min_area)

    @property
    def unknown(self) -> NDArray[np.bool] | None:
        """Which pixels are unknown, (h w); None without a threshold."""
        return None if self.meaning.threshold is None else self.above(self.meaning.threshold)

    @property
    def scale(self) -> HeatScale:
        """The colours of the anomaly scores; they follow the calibration, not a threshold that was given."""
        return scale_of(self.meaning.calibration, self.anomaly)

    @property
    def class_shares(self) -> dict[int, float]:
        """The share of the pixels of each class that has at least PRESENT of them, the largest first."""
        counts = np.bincount(self.labels.reshape(-1))
        order = np.argsort(-counts, kind="stable")
        shares = {int(label): float(counts[label] / self.labels.size) for label in order}
        return {label: share for label, share in shares.items() if share >= PRESENT}

    def overlay(self, opacity: float = 0.5) -> Image.Image:
        """The photograph under the colours of its classes, unknown regions with an outline."""
        return overlay(self.photograph, self.labels, self.meaning.colours, self.unknown, opacity=opacity)

    def legend(self, width: int) -> Image.Image:
        """The classes in the image with their colours."""
        shown = list(self.class_shares)
        names = [self.meaning.names[label] for label in shown]
        colours = [self.meaning.colours[label] for label in shown]
        return legend(names, colours, width=width, unknown=self.unknown is not None)

    def pictures(self) -> dict[str, Image.Image]:
        """By kind, pictures of exactly the image's size: labels, overlay, anomaly and, with a threshold,
        unknown."""
        made = {
            "labels": label_picture(self.labels, self.meaning.colours),
            "overlay": self.overlay(),
            "anomaly": self.scale.palette_picture(self.anomaly),
        }
        unknown = self.unknown
        return made if unknown is None else {**made, "unknown": mask_picture(unknown)}

    def overview(self, width: int = 1200) -> Image.Image:
        """Photograph, overlay and heat map side by side, with legend and colour bar."""
        heat = self.scale.picture(self.anomaly)
        row = beside([Image.fromarray(self.photograph), self.overlay(), heat], width)
        bar = scale_bar(self.scale, self.meaning.threshold, width=width // 2)
        return stacked(row, self.legend(width), bar)


def explaining_pictures(meaning: Meaning) -> dict[str, Image.Image]:
    """What the colours of all pictures of a model mean: its classes, and the scale of its heat maps."""
    known = legend(meaning.names, meaning.colours, width=480, unknown=meaning.threshold is not None)
    return {"legend": known, "anomaly_scale": scale_bar(model_scale(meaning.calibration), meaning.threshold)}
