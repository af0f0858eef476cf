"""What predicts files, and the maps of a few images of one size."""

import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmmseg.inference.image_maps import ImageMaps, Meaning
from gmmseg.inference.pictures import photograph_of
from gmmseg.inference.prediction import Prediction


class ImageNotPredicted(ValueError):
    """An image that a model cannot predict, for a reason that others need not have."""


class PredictedRows(Protocol):
    """Some rows of an image: labels and anomaly (h w), posterior (c h w) or None where there is none."""

    @property
    def labels(self) -> Tensor: ...
    @property
    def anomaly(self) -> Tensor: ...
    @property
    def posterior(self) -> Tensor | None: ...


class FilePredictor(Protocol):
    """What predicts files: a `Predictor`, or an `ExportedPredictor`.

    ImageNotPredicted says that it was the image, and that it is worth going on with others.
    """

    max_pixels: int

    @property
    def meaning(self) -> Meaning: ...
    @property
    def class_names(self) -> Sequence[str] | None: ...
    def batch_strips(self, images: Tensor) -> Iterator[Sequence[PredictedRows]]: ...


@dataclass(frozen=True, eq=False)
class RawMaps:
    """Pixels (3 h w) in [0, 1] of an image, its labels and anomaly (h w), its posterior (c h w) where it was
    asked for, and the seconds of the network."""

    pixels: Tensor
    labels: Tensor
    anomaly: Tensor
    posterior: Tensor | None
    meaning: Meaning
    seconds: float

    @property
    def maps(self) -> ImageMaps:
        """With the photograph, for pictures."""
        return ImageMaps(photograph_of(self.pixels), self.labels.numpy(), self.anomaly.numpy(), self.meaning)

    @property
    def prediction(self) -> Prediction:
        """As a Prediction; the posterior must have been asked for."""
        assert self.posterior is not None
        return Prediction(self.labels, self.posterior, self.anomaly, self.meaning)

    def npz(self) -> bytes:
        """A file of raw values: labels, anomaly, posterior, and p_values where the calibration knows them."""
        arrays: dict[str, NDArray] = {"labels": self.labels.numpy(), "anomaly": self.anomaly.numpy()}
        if self.posterior is not None:
            arrays["posterior"] = self.posterior.numpy()
        p_values = self.prediction.p_values
        if p_values is not None:
            arrays["p_values"] = p_values.numpy()
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()


@torch.no_grad()
def predicted(
    predictor: FilePredictor, pixels: Sequence[Tensor], meaning: Meaning, *, posterior: bool
) -> list[RawMaps]:
    """The maps of images (3 h w) of one size; the posterior, which is large, when it is asked for."""
    begun = time.perf_counter()
    parts: list[list[tuple[Tensor, Tensor, Tensor | None]]] = [[] for _ in pixels]
    for strips in predictor.batch_strips(torch.stack(list(pixels))):
        for part, strip in zip(parts, strips):
            kept = _posterior_of(strip) if posterior else None
            part.append((strip.labels.cpu(), strip.anomaly.cpu(), kept))
    seconds = (time.perf_counter() - begun) / len(pixels)
    return [_joined(each, part, meaning, seconds) for each, part in zip(pixels, parts)]


def _joined(
    pixels: Tensor, strips: list[tuple[Tensor, Tensor, Tensor | None]], meaning: Meaning, seconds: float
) -> RawMaps:
    """Strips of rows, from top to bottom, as one."""
    labels, anomaly = (torch.cat([strip[place] for strip in strips]) for place in (0, 1))  # type: ignore[misc]
    kept = [part for _, _, part in strips if part is not None]
    return RawMaps(pixels, labels, anomaly, torch.cat(kept, dim=1) if kept else None, meaning, seconds)


def _posterior_of(strip: PredictedRows) -> Tensor:
    if strip.posterior is None:
        raise ValueError(
            "raw values and objects need the posterior, and this model was exported without it: export it "
            "with --posterior, or leave out --raw and --objects"
        )
    return strip.posterior.cpu()
