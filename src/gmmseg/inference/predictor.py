"""A segmenter and an image in, a Prediction out."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gmmseg.inference.images import ImageSource, load_image
from gmmseg.inference.prediction import Prediction
from gmmseg.inference.windows import (
    Maps,
    Reading,
    sliding,
    sliding_strips,
    strangeness,
    upsample,
    whole,
    whole_scores,
)
from gmmseg.models import Segmenter

DEFAULT_WINDOW = 1024


class Predictor:
    """Predicts images of any size with ``segmenter``, which it leaves as it found it.

    Images whose longer side is at most ``whole_up_to`` are predicted in one pass; larger ones, and all of
    them when ``window`` is given, through windows of ``window`` pixels (default 1024), ``stride`` apart
    (default three quarters of the window). ``device`` moves the segmenter; by default it stays where it is.
    """

    def __init__(
        self,
        segmenter: Segmenter,
        *,
        window: int | None = None,
        stride: int | None = None,
        whole_up_to: int = 2048,
        device: torch.device | str | None = None,
    ) -> None:
        if stride is not None and window is None:
            raise ValueError("a window stride needs a window: give both, or only the window")
        self.segmenter = segmenter if device is None else segmenter.to(device)
        self.window = window or DEFAULT_WINDOW
        self.stride = stride or max(1, self.window * 3 // 4)
        self.whole_up_to = 0 if window else whole_up_to

    @property
    def device(self) -> torch.device:
        """Where the segmenter is, and where predictions are made."""
        return next((p.device for p in self.segmenter.parameters()), torch.device("cpu"))

    @torch.no_grad()
    def predict(self, image: ImageSource) -> Prediction:
        """The Prediction of a path, PIL image, array (h w 3) or tensor (3 h w) at its own size, on CPU."""
        pixels = load_image(image)
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
        images = pixels[None].to(self.device)
        if self._at_once(images):
            yield _prediction(whole(self.segmenter, images))
            return
        for maps in sliding_strips(self.segmenter, images, self.window, self.stride):
            yield _prediction(maps)

    @torch.no_grad()
    def maps(
        self,
        images: Tensor,
        size: tuple[int, int] | None = None,
        readings: Sequence[Reading] = (strangeness,),
    ) -> Maps:
        """Logits and scores of images (b 3 h w) in [0, 1] at ``size`` (their own unless given)."""
        images = images.to(self.device)
        if self._at_once(images):
            return whole(self.segmenter, images, size, readings)
        maps = sliding(self.segmenter, images, self.window, self.stride, readings)
        return maps if size is None else maps.map(lambda full: upsample(full, size))

    @torch.no_grad()
    def scores(self, images: Tensor, size: tuple[int, int], readings: Sequence[Reading]) -> Tensor:
        """The scores (b s h w) of `maps`, without the cost of full-size logits where that is possible."""
        images = images.to(self.device)
        if self._at_once(images):
            return whole_scores(self.segmenter, images, size, readings)
        return self.maps(images, size, readings).scores

    def _at_once(self, images: Tensor) -> bool:
        return max(images.shape[-2:]) <= self.whole_up_to


def _prediction(maps: Maps) -> Prediction:
    """The Prediction of the one image of a batch of maps."""
    posterior = maps.posterior[0].float()
    return Prediction(posterior.argmax(0).to(torch.uint8), posterior, maps.anomaly[0].float())
