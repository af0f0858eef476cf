"""What a prediction is."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from gmmseg.atomic import write_bytes
from gmmseg.class_colours import Colours
from gmmseg.inference.image_losses import large_components
from gmmseg.inference.image_maps import ImageMaps, Meaning, explaining_pictures
from gmmseg.inference.pictures import encoded, stacked
from gmmseg.models.calibration_file import Calibration
from gmmseg.models.false_alarms import Promise

_NOTEBOOK = 1000
"""Pixels: the width of the picture in a notebook."""


@dataclass(frozen=True)
class Prediction:
    """One image, at the image's own size.

    ``labels`` (h w) uint8 train ids; ``posterior`` (c h w) float32 summing to one over ``c``;
    ``anomaly`` (h w) float32, higher = stranger. ``meaning`` says what they mean: classes, colours, score,
    threshold. ``photograph`` (h w 3) uint8 is what pictures are drawn over, ``name`` what files are called.
    """

    labels: Tensor
    posterior: Tensor
    anomaly: Tensor
    meaning: Meaning = field(default_factory=Meaning)
    photograph: Tensor | None = None
    name: str = "image"

    @property
    def calibration(self) -> Calibration | None:
        """What is known of the score; None where nothing is."""
        return self.meaning.calibration

    @property
    def class_names(self) -> tuple[str, ...]:
        """One for each class."""
        return self._meaning.names

    @property
    def colours(self) -> Colours:
        """One for each class, RGB."""
        return self._meaning.colours

    @property
    def score(self) -> str:
        """The name of the anomaly score."""
        return self.meaning.score

    @property
    def confidence(self) -> Tensor:
        """The posterior of the predicted class, (h w)."""
        return self.posterior.amax(0)

    @property
    def threshold(self) -> float | None:
        """From which anomaly score on a pixel is unknown; None where there is no threshold."""
        return self.meaning.threshold

    @property
    def promise(self) -> Promise | None:
        """What the threshold promises; None where it promises nothing, or there is none."""
        own = self.meaning.given_threshold is None
        return self.calibration.promise if self.calibration is not None and own else None

    @property
    def p_values(self) -> Tensor | None:
        """How usual each pixel is among known ones, (h w) float64; None without a calibration that knows."""
        return None if self.calibration is None else self.calibration.p_values(self.anomaly)

    @property
    def unknown(self) -> Tensor | None:
        """Which pixels are unknown, (h w) bool, at the threshold; None where there is none."""
        return None if self.threshold is None else self.above(self.threshold)

    @property
    def unknown_by_class(self) -> Tensor | None:
        """The same, (h w) bool, with a threshold for each predicted class; None where there are none."""
        own = None if self.calibration is None else self.calibration.class_thresholds()
        if own is None or self.calibration is None:
            return None
        above = self.anomaly > torch.tensor(own, dtype=torch.float32)[self.labels.long()]
        parts = [(self.labels == label) & above for label in range(len(own))]
        return torch.stack([in_regions(part, self.calibration.min_area) for part in parts]).any(0)

    def above(self, threshold: float) -> Tensor:
        """Which pixels would be unknown at another threshold, (h w) bool."""
        return in_regions(self.anomaly > threshold, self.meaning.min_area)

    def overlay(self, *, legend: bool = False) -> Image.Image:
        """The photograph under the colours of its classes, unknown regions with an outline."""
        maps = self.maps
        picture = maps.overlay()
        return stacked(picture, maps.legend(picture.width)) if legend else picture

    def heat_map(self) -> Image.Image:
        """The anomaly scores as colours, of exactly the image's size."""
        return self.maps.scale.picture(self.maps.anomaly)

    def to_pil(self) -> Image.Image:
        """The label map as a palette image: its indices are the labels, its palette the colours."""
        return self.maps.pictures()["labels"]

    def show(self) -> None:
        """Open photograph, overlay and heat map, with legend, in the machine's own viewer of images."""
        self.maps.overview().show(title=self.name)

    def save(self, folder: str | os.PathLike) -> list[Path]:
        """Write the files that `gmmseg predict` writes of an image, called ``name``; returns their paths."""
        pictures = {f"{kind}/{self.name}.png": made for kind, made in self.maps.pictures().items()}
        pictures |= {f"{name}.png": made for name, made in explaining_pictures(self._meaning).items()}
        paths = [Path(folder) / name for name in pictures]
        for path, picture in zip(paths, pictures.values()):
            write_bytes(path, encoded(picture))
        return paths

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        return encoded(self.maps.overview(_NOTEBOOK))

    def __repr__(self) -> str:
        height, width = self.labels.shape
        present = ", ".join(self.class_names[label] for label in self.maps.class_shares)
        unknown = self.unknown
        share = "no threshold" if unknown is None else f"{100 * float(unknown.float().mean()):.3g} % unknown"
        return f"Prediction of {json.dumps(self.name)}, {width}x{height}: {present}; {share} ({self.score})"

    @property
    def maps(self) -> ImageMaps:
        """The same as arrays, with all pictures; on black where there is no photograph."""
        photograph = self.photograph
        if photograph is None:
            photograph = torch.zeros(*self.labels.shape, 3, dtype=torch.uint8)
        photograph, labels, anomaly = (each.cpu() for each in (photograph, self.labels, self.anomaly))
        return ImageMaps(photograph.numpy(), labels.numpy(), anomaly.numpy(), self._meaning)

    @property
    def _meaning(self) -> Meaning:
        return self.meaning.for_classes(len(self.posterior))


def in_regions(flagged: Tensor, min_area: int) -> Tensor:
    """The pixels of a mask (h w) bool that lie in regions of at least ``min_area`` pixels."""
    return flagged if min_area == 1 else torch.from_numpy(large_components(flagged.cpu().numpy(), min_area))
