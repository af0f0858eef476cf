"""A segmenter and an image in, a Prediction out."""

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.images import MAX_PIXELS, ImageSource, load_image, to_unit_range
from gmmseg.inference.pictures import Colours, default_colours
from gmmseg.inference.prediction import Prediction
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
from gmmseg.models import Segmenter, SegmenterOutput
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.models.pairing import shrink_labels
from gmmseg.samples import Sample, collate

DEFAULT_WINDOW = 1024
UNFITTED = (
    "its mixtures have never been fitted, so its labels and scores would be noise: train it (`gmmseg train`, "
    "or OnlineEM in a loop of your own), or fit mixtures on a trained softmax model (`gmmseg fit`)"
)
LONGEST = 8


class Predictor:
    """Predicts images of any size with ``segmenter``, whose mode and state it never touches.

    How to look at an image is the model's own (``segmenter.inference``), as in its validation;
    ``short_side``, ``window`` and ``stride`` override it, 0 switches one off. Without a window, images
    (resized to the shorter side, if there is one) whose longer side is at most ``whole_up_to`` are predicted
    in one pass and larger ones through windows of 1024 pixels, three quarters of a window apart.
    ``device`` moves the segmenter; by default it stays where it is.
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
    ) -> None:
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
    def anomaly_reading(self) -> Reading:
        """What a Prediction shows as ``anomaly``, see `gmmseg.inference.windows.anomaly_reading`."""
        return anomaly_reading(self.segmenter)

    @property
    def threshold(self) -> float | None:
        """Above which anomaly score a pixel is unknown; None before calibration."""
        calibration = self.segmenter.calibration
        return None if calibration is None else calibration.threshold

    @property
    def colours(self) -> Colours:
        """One for each class: the model's, or made up where it has none."""
        return self.segmenter.colours or default_colours(self.segmenter.num_classes)

    @property
    def device(self) -> torch.device:
        """Where the segmenter is, and where predictions are made."""
        return next((p.device for p in self.segmenter.parameters()), torch.device("cpu"))

    @torch.no_grad()
    def predict(self, image: ImageSource) -> Prediction:
        """The Prediction of a path, PIL image, array (h w 3) or tensor (3 h w) at its own size, on CPU."""
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
        return Prediction(labels, posterior, anomaly)

    def strips(self, pixels: Tensor) -> Iterator[Prediction]:
        """The Prediction of pixels (3 h w) in [0, 1] as strips of rows from top to bottom.

        For images so large that the posterior of all of it would not fit in memory.
        """
        size = (pixels.shape[-2], pixels.shape[-1])
        for maps in self._strips(pixels[None].to(self.device), size, (self.anomaly_reading,)):
            yield _prediction(maps)

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
        batch = collate([sample]).to(self.device)
        seen = at_short_side(batch.images, self.inference.short_side)
        known = shrink_labels(batch.labels, seen.shape[-2:])
        tops, lefts = ([0], [0]) if self._at_once(seen) else self._window_starts(seen)
        side = max(seen.shape[-2:]) if self._at_once(seen) else self.window
        for top, left in itertools.product(tops, lefts):
            part = (..., slice(top, top + side), slice(left, left + side))
            window = seen[part]
            size = fitting((window.shape[-2], window.shape[-1]), self.segmenter.stride)
            below, right = size[0] - window.shape[-2], size[1] - window.shape[-1]
            padded = F.pad(known[part], (0, right, 0, below), value=IGNORE)
            yield forward(self.network, pad(window, *size)), padded

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


def _prediction(maps: Maps) -> Prediction:
    """The Prediction of the one image of a batch of maps."""
    posterior, anomaly = maps.posterior[0].float(), maps.anomaly[0].float()
    if bool(anomaly.isnan().any()):  # infinity is a score, the strangest or the most ordinary one
        raise ValueError(NOT_FINITE)
    return Prediction(posterior.argmax(0).to(torch.uint8), posterior, anomaly)
