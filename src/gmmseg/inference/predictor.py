"""A segmenter and an image in, a Prediction out."""

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.class_colours import Colours, default_colours
from gmmseg.images import MAX_PIXELS, ImageSource, load_image, to_unit_range
from gmmseg.inference.image_maps import Meaning
from gmmseg.inference.inputs import images_in
from gmmseg.inference.pictures import photograph_of
from gmmseg.inference.prediction import Prediction
from gmmseg.inference.readings import score_named, shown_score
from gmmseg.inference.windows import (
    NOT_FINITE,
    Maps,
    Reading,
    anomaly_reading,
    fitting,
    forward,
    in_evaluation_mode,
    joined,
    pad,
    rows_at,
    sliding_strips,
    upsample,
    whole,
    whole_scores,
    window_starts,
)
from gmmseg.labels import IGNORE
from gmmseg.models import Calibration, Segmenter, SegmenterOutput
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.models.pairing import shrink_labels
from gmmseg.samples import Sample, collate

DEFAULT_WINDOW = 1024
UNFITTED = (
    "its mixtures have never been fitted, so its labels and scores would be noise: train it (`gmmseg train`, "
    "or OnlineEM in a loop of your own), or fit mixtures on a trained softmax model (`gmmseg fit`)"
)
LONGEST = 8


@dataclass(frozen=True, eq=False)
class View:
    """One pass of the network: its ``output``, the ``labels`` (1 h w) of what it saw, and where that was.

    ``start``: top and left of the window in the image as it was seen; ``scale``: height and width of the
    image itself over those of the image as it was seen.
    """

    output: SegmenterOutput
    labels: Tensor
    start: tuple[int, int]
    scale: tuple[float, float]

    def pixel(self, row: int, column: int) -> tuple[int, int]:
        """The pixel (x, y) of the image in the middle of a cell."""
        down, across = (
            (start + (place + 0.5) * step) * scale
            for start, place, step, scale in zip(self.start, (row, column), self._steps, self.scale)
        )
        return int(across), int(down)

    def cell(self, x: int, y: int) -> tuple[int, int]:
        """Row and column of the cell that a pixel of the image is in, or of the nearest one."""
        rows, columns = self.output.logits.shape[-2:]
        down, across = (
            ((place + 0.5) / scale - start) / step
            for start, place, step, scale in zip(self.start, (y, x), self._steps, self.scale)
        )
        return min(max(int(down), 0), rows - 1), min(max(int(across), 0), columns - 1)

    @property
    def _steps(self) -> tuple[float, float]:
        """Height and width of a cell in pixels as they were seen."""
        (height, width), (rows, columns) = self.labels.shape[-2:], self.output.logits.shape[-2:]
        return height / rows, width / columns


class Predictor:
    """Predicts images of any size with ``segmenter``, whose mode and state it never touches.

    How to look at an image is the model's own (``segmenter.inference``), as in its validation;
    ``short_side``, ``window`` and ``stride`` override it, 0 switches one off. Without a window, images
    (resized to the shorter side, if there is one) whose longer side is at most ``whole_up_to`` are predicted
    in one pass and larger ones through windows of 1024 pixels, three quarters of a window apart.
    ``device`` moves the segmenter; by default it stays where it is. ``score`` names the anomaly score that is
    shown, by default that of the model's calibration, which alone has a threshold.
    Files of more than ``max_pixels`` are refused. Several threads may use one predictor.
    """

    def __init__(
        self,
        segmenter: Segmenter,
        *,
        short_side: int | None = None,
        window: int | None = None,
        stride: int | None = None,
        whole_up_to: int = 2048,
        max_pixels: int = MAX_PIXELS,
        device: torch.device | str | None = None,
        score: str | None = None,
    ) -> None:
        if isinstance(segmenter, str | os.PathLike):
            raise TypeError(f'a Predictor takes a segmenter: gmmseg.from_pretrained("{segmenter}") reads one')
        if not segmenter.is_fitted:
            warnings.warn(UNFITTED, stacklevel=2)
        self.segmenter = segmenter if device is None else segmenter.to(device)
        self.inference = segmenter.inference.override(short_side, window, stride)
        self.window = self.inference.window or DEFAULT_WINDOW
        self.stride = self.inference.stride or max(1, self.window * 3 // 4)
        self.whole_up_to = 0 if self.inference.window else whole_up_to
        self.max_pixels = max_pixels
        self._warn_of_another_view()
        self._network = in_evaluation_mode(self.segmenter)
        if score is not None and score != shown_score(segmenter):
            score_named(score, segmenter.calibration)  # one that cannot be had is refused at once
        self._score = score

    def _warn_of_another_view(self) -> None:
        """A threshold found on images of another size is a threshold of other scores."""
        calibration = self.segmenter.calibration
        seen = None if calibration is None else calibration.inference
        if seen is not None and seen != self.inference:
            warnings.warn(
                f"threshold and temperature were found with {_shown(seen)}, images are now seen with "
                f"{_shown(self.inference)}: scores may differ; calibrate for this view, too",
                stacklevel=3,
            )

    @property
    def network(self) -> Segmenter:
        """The segmenter in evaluation mode: itself, or a copy that shares its weights."""
        self._network = in_evaluation_mode(self._network)
        self._network.calibration = self.segmenter.calibration  # may have been found since
        return self._network

    @property
    def score(self) -> str:
        """The name of what a Prediction shows as ``anomaly``."""
        return self._score or shown_score(self.segmenter)

    @property
    def anomaly_reading(self) -> Reading:
        """What makes that map of an output."""
        if self.score == shown_score(self.segmenter):
            return anomaly_reading(self.segmenter)
        return score_named(self.score, self.segmenter.calibration)

    @property
    def calibration(self) -> Calibration | None:
        """What is known of the score that is shown; None before it is calibrated, and of another score."""
        return self.segmenter.calibration if self.score == shown_score(self.segmenter) else None

    @property
    def meaning(self) -> Meaning:
        """What the numbers of its predictions mean."""
        return Meaning(self.calibration, self.class_names or (), self.colours, self.score).for_classes(
            self.segmenter.num_classes
        )

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes; None where the model has none."""
        return self.segmenter.label_names

    @property
    def colours(self) -> Colours:
        """One for each class: the model's, or made up where it has none."""
        return self.segmenter.colours or default_colours(self.segmenter.num_classes)

    @property
    def device(self) -> torch.device:
        """Where the segmenter is, and where predictions are made."""
        return next((p.device for p in self.segmenter.parameters()), torch.device("cpu"))

    @overload
    def predict(  # type: ignore[overload-overlap]  # a str is a sequence, too, and here it is a path
        self, image: ImageSource, threshold: float | None = None
    ) -> Prediction: ...
    @overload
    def predict(self, image: Sequence[ImageSource], threshold: float | None = None) -> list[Prediction]: ...

    def predict(
        self, image: ImageSource | Sequence[ImageSource], threshold: float | None = None
    ) -> Prediction | list[Prediction]:
        """The Prediction of a path, PIL image, array (h w 3) or tensor (3 h w) at its own size, on CPU.

        Of several, a list of Predictions, as of a folder (its images, deep down, in the order of their
        names); type checkers take every path for that of one image. Each holds a posterior: for many images
        `gmmseg.inference.predict_files` needs less memory. ``threshold`` replaces the calibrated one.
        """
        meaning = self.meaning.with_threshold(threshold)
        if isinstance(image, list | tuple):
            return [self._predict(each, meaning, _name(each, f"image{n}")) for n, each in enumerate(image)]
        if isinstance(image, str | os.PathLike) and Path(image).is_dir():
            return [self._predict(each.path, meaning, each.output) for each in images_in(Path(image))]
        one = cast(ImageSource, image)
        return self._predict(one, meaning, _name(one, "image"))

    @torch.no_grad()
    def _predict(self, image: ImageSource, meaning: Meaning, name: str) -> Prediction:
        """The Prediction of one image, called ``name``."""
        pixels = load_image(image, max_pixels=self.max_pixels)
        height, width = pixels.shape[-2:]
        labels = torch.empty(height, width, dtype=torch.uint8)
        posterior = torch.empty(self.segmenter.num_classes, height, width)
        anomaly = torch.empty(height, width)
        top = 0
        for strip in self.strips(pixels):
            rows = slice(top, top + strip.labels.shape[0])
            labels[rows], posterior[:, rows], anomaly[rows] = strip.labels, strip.posterior, strip.anomaly
            top = rows.stop
        photograph = torch.from_numpy(photograph_of(pixels.cpu()))
        return Prediction(labels, posterior, anomaly, meaning, photograph, name)

    def strips(self, pixels: Tensor) -> Iterator[Prediction]:
        """The Prediction of pixels (3 h w) in [0, 1] as strips of rows from top to bottom.

        For images so large that the posterior of all of it would not fit in memory. What is unknown is said
        of the whole alone, so strips carry no calibration.
        """
        for strips in self.batch_strips(pixels[None]):
            rows = strips[0]
            yield Prediction(rows.labels, rows.posterior, rows.anomaly)

    def batch_strips(self, images: Tensor) -> Iterator[list["_Rows"]]:
        """Strips of images (b 3 h w), rows of each in every one; posteriors are made on demand."""
        size = (images.shape[-2], images.shape[-1])
        for maps in self._strips(images.to(self.device), size, (self.anomaly_reading,)):
            yield [_Rows(maps.logits[place], _checked(maps.anomaly[place])) for place in range(len(images))]

    @torch.no_grad()
    def maps(self, sample: Sample, readings: Sequence[Reading] | None = None) -> Maps:
        """Logits (1 c h w) and one score (1 s h w) per reading of a sample, at the size of its labels.

        Without readings, the anomaly map alone.
        """
        readings = (self.anomaly_reading,) if readings is None else readings
        images = self._images(sample)
        return joined(self._strips(images, (images.shape[-2], images.shape[-1]), readings))

    def outputs(self, sample: Sample) -> Iterator[tuple[SegmenterOutput, Tensor]]:
        """The network's outputs for a sample, and labels (1 h w) at the size it saw: for statistics.

        One pair for the whole image or for each window, as the predictor looks at it.
        """
        return ((view.output, view.labels) for view in self.views(sample))

    def views(self, sample: Sample) -> Iterator[View]:
        """What `outputs` gives, with its place in the image."""
        batch = collate([sample]).to(self.device)
        seen = at_short_side(batch.images, self.inference.short_side)
        known = shrink_labels(batch.labels, seen.shape[-2:])
        tops, lefts = self._window_starts(seen)
        for top, left in itertools.product(tops, lefts):
            yield self._view(seen, known, (top, left), sample.labels.shape)

    def view_at(self, pixels: Tensor, x: int, y: int) -> tuple[View, int, int]:
        """The view of pixels (3 h w) with its middle nearest to a pixel; row and column of its cell."""
        seen = at_short_side(pixels[None].to(self.device), self.inference.short_side)
        side = self._side(seen)
        starts = [
            min(begins, key=lambda begin, at=at: abs(begin + side / 2 - at))  # type: ignore[misc]
            for begins, at in zip(
                self._window_starts(seen),
                (
                    (y + 0.5) * seen.shape[-2] / pixels.shape[-2],
                    (x + 0.5) * seen.shape[-1] / pixels.shape[-1],
                ),
            )
        ]
        nothing = torch.full((1, *seen.shape[-2:]), IGNORE, device=seen.device)
        view = self._view(seen, nothing, (starts[0], starts[1]), pixels.shape[-2:])
        return view, *view.cell(x, y)

    def _view(self, seen: Tensor, known: Tensor, start: tuple[int, int], size: torch.Size) -> View:
        """The network's view of a window of what is seen (1 3 h w), of an image of ``size``."""
        side, (top, left) = self._side(seen), start
        part = (..., slice(top, top + side), slice(left, left + side))
        window = seen[part]
        fits = fitting((window.shape[-2], window.shape[-1]), self.segmenter.stride)
        below, right = fits[0] - window.shape[-2], fits[1] - window.shape[-1]
        padded = F.pad(known[part], (0, right, 0, below), value=IGNORE)
        scale = (size[0] / seen.shape[-2], size[1] / seen.shape[-1])
        return View(forward(self.network, pad(window, *fits)), padded, start, scale)

    def _side(self, seen: Tensor) -> int:
        """The side of windows over what is seen: all of it where that is done in one pass."""
        return max(seen.shape[-2:]) if self._at_once(seen) else self.window

    @torch.no_grad()
    def at(self, pixels: Tensor, x: int, y: int, readings: Sequence[Reading]) -> tuple[Tensor, Tensor]:
        """Logits (c) and one score (s) per reading of one of pixels (3 h w), as in `maps`, on the CPU."""
        top = 0
        for strip in self._strips(
            pixels[None].to(self.device), (pixels.shape[-2], pixels.shape[-1]), readings
        ):
            if y - top < strip.logits.shape[-2]:
                return strip.logits[0, :, y - top, x].cpu(), strip.scores[0, :, y - top, x].cpu()
            top += strip.logits.shape[-2]
        raise IndexError(f"row {y} of an image of {top} rows")

    def _strips(self, images: Tensor, size: tuple[int, int], readings: Sequence[Reading]) -> Iterator[Maps]:
        """Maps at ``size`` as strips of rows; evaluation and prediction both come this way."""
        seen = at_short_side(images, self.inference.short_side)
        strips: Iterable[Maps]
        if self._at_once(seen):
            strips = (whole(self.network, seen, readings),)
        else:
            strips = sliding_strips(self.network, seen, self.window, self.stride, readings)
        return iter(strips) if seen.shape[-2:] == size else rows_at(joined(strips), size)

    def _window_starts(self, images: Tensor) -> tuple[list[int], list[int]]:
        if self._at_once(images):
            return [0], [0]
        return window_starts((images.shape[-2], images.shape[-1]), self.window, self.stride)

    @torch.no_grad()
    def scores(self, sample: Sample, readings: Sequence[Reading]) -> Tensor:
        """The scores (1 s h w) of `maps`, without the cost of full-size logits where that is possible."""
        images = self._images(sample)
        seen = at_short_side(images, self.inference.short_side)
        if self._at_once(seen):
            return upsample(whole_scores(self.network, seen, readings), images.shape[-2:])
        return self.maps(sample, readings).scores

    def _images(self, sample: Sample) -> Tensor:
        """The one image (1 3 h w) in [0, 1], where the network is."""
        return to_unit_range(sample.image.to(self.device))[None]

    def _at_once(self, images: Tensor) -> bool:
        return max(images.shape[-2:]) <= self.whole_up_to


def _name(image: ImageSource, otherwise: str) -> str:
    """What the file of an image is called, without suffix; ``otherwise`` where there is no file."""
    return Path(image).stem if isinstance(image, str | os.PathLike) else otherwise


def _shown(inference: InferenceSettings) -> str:
    """Settings as a user gives them."""
    return ", ".join(f"{name}={value or 0}" for name, value in vars(inference).items())


def at_short_side(images: Tensor, short_side: int | None) -> Tensor:
    """Images (b 3 h w) with the shorter side as given, aspect kept; as they are without one.

    Nothing is enlarged beyond LONGEST times ``short_side``: a strip a few pixels wide would become a giant.
    """
    if short_side is None or min(images.shape[-2:]) == short_side:
        return images
    largest = max(1.0, LONGEST * short_side / max(images.shape[-2:]))
    factor = min(short_side / min(images.shape[-2:]), largest)
    height, width = (max(1, round(side * factor)) for side in images.shape[-2:])
    return F.interpolate(images, size=(height, width), mode="bilinear", align_corners=False, antialias=True)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows of an image: logits (c h w) and anomaly (h w), and what follows from them."""

    logits: Tensor
    anomaly: Tensor

    @property
    def labels(self) -> Tensor:
        """The likeliest class, (h w) uint8."""
        return self.logits.max(0).indices.to(torch.uint8)  # as in `Maps.labels`

    @property
    def posterior(self) -> Tensor:
        """p(class given pixel), (c h w)."""
        return self.logits.softmax(0).float()


def _checked(anomaly: Tensor) -> Tensor:
    """Scores (h w) as float32; infinity is one, the strangest or the most ordinary, NaN is none."""
    if bool(anomaly.isnan().any()):
        raise ValueError(NOT_FINITE)
    return anomaly.float()
