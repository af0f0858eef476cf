"""An exported file in the place of a `Predictor`: predictions of images and files, without a segmenter."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.class_colours import Colours
from gmmseg.images import MAX_PIXELS, ImageSource, load_image
from gmmseg.inference.export_metadata import ExportedFileError
from gmmseg.inference.exporting import ExportedModel, first_line
from gmmseg.inference.file_prediction import ImageNotPredicted
from gmmseg.inference.image_maps import Meaning
from gmmseg.inference.prediction import in_regions
from gmmseg.inference.predictor import at_short_side
from gmmseg.inference.windows import NOT_FINITE, upsample
from gmmseg.models import Calibration
from gmmseg.models.calibration_file import ANOMALY_MAP, calibration_of


@dataclass(frozen=True)
class ExportedPrediction:
    """What an exported model says of one image: ``labels`` (h w) uint8, ``confidence`` and ``anomaly`` (h w)
    float32, ``unknown`` (h w) bool; ``posterior`` (c h w) where the file has it, else None."""

    labels: Tensor
    confidence: Tensor
    anomaly: Tensor
    unknown: Tensor
    posterior: Tensor | None


class ExportedPredictor:
    """Predicts images with an exported model, each in one pass.

    Images are resized to the model's shorter side, if it has one, and predictions come at their own size; a
    file without posterior has its labels resized to it by nearest neighbour.
    """

    def __init__(self, model: ExportedModel, *, max_pixels: int = MAX_PIXELS) -> None:
        self.model, self.metadata, self.max_pixels = model, model.metadata, max_pixels
        if self.metadata.window:
            warnings.warn(
                f"the model was validated through windows of {self.metadata.window} pixels; an exported file "
                "sees each image as a whole, so predictions may differ",
                stacklevel=2,
            )
        if self.metadata.precision == "int8" and self.calibration is not None:
            warnings.warn(
                "what the threshold promises holds for the model it was found for, whose scores an eight-bit "
                "file only approximates",
                stacklevel=2,
            )

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the weights the file was written from; None where there was none."""
        tree = self.metadata.calibration
        return None if tree is None else calibration_of(tree)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.metadata.classes

    @property
    def colours(self) -> Colours:
        return self.metadata.colours

    def predict(self, image: ImageSource, threshold: float | None = None) -> ExportedPrediction:
        """What the model says of a path, PIL image, array (h w 3) or tensor (3 h w), at its own size.

        ImageNotPredicted where the runtime fails at this image.
        """
        self.meaning.with_threshold(threshold)  # refuses what is no number
        return self._of_pixels(load_image(image, max_pixels=self.max_pixels), threshold)

    def strips(self, pixels: Tensor) -> Iterator[ExportedPrediction]:
        """The one prediction of pixels (3 h w): a graph gives the whole image at once."""
        yield self._of_pixels(pixels, None)

    @property
    def meaning(self) -> Meaning:
        """What the numbers of its predictions mean."""
        known = self.calibration
        return Meaning(known, self.class_names, self.colours, ANOMALY_MAP if known is None else known.score)

    def batch_strips(self, images: Tensor) -> Iterator[list[ExportedPrediction]]:
        """The predictions of images (b 3 h w), as one strip; the graph sees them one after the other."""
        yield [self._of_pixels(pixels, None) for pixels in images]

    def _of_pixels(self, pixels: Tensor, threshold: float | None) -> ExportedPrediction:
        images = at_short_side(pixels[None], self.metadata.short_side)
        if min(images.shape[-2:]) < self.metadata.smallest_side:
            raise ImageNotPredicted(
                f"this exported network needs images with sides of at least {self.metadata.smallest_side}, "
                f"got {images.shape[-1]} x {images.shape[-2]}: enlarge them, or use the weights it came from"
            )
        found = self._run(images, threshold)
        largest, known = int(found["labels"].max()), len(self.class_names)
        if largest >= known:
            raise ExportedFileError(
                f"the graph gives class {largest}, its metadata name {known}: export the model again"
            )
        if bool(found["anomaly"].isnan().any()):
            raise ValueError(NOT_FINITE)
        at_size = found if images.shape[-2:] == pixels.shape[-2:] else _resized(found, pixels.shape[-2:])
        limit = self.metadata.default_threshold if threshold is None else threshold
        labels, confidence, anomaly = (at_size[name][0] for name in ("labels", "confidence", "anomaly"))
        posterior = at_size["posterior"][0] if "posterior" in at_size else None
        least = 1 if self.calibration is None else self.calibration.min_area
        unknown = in_regions(anomaly > limit, least)
        return ExportedPrediction(labels, confidence, anomaly, unknown, posterior)

    def _run(self, images: Tensor, threshold: float | None) -> dict[str, Tensor]:
        try:
            return self.model(images, threshold)
        except Exception as error:  # each runtime has exception classes of its own
            height, width = images.shape[-2:]
            raise ImageNotPredicted(
                f"the exported network failed at {width} x {height} pixels ({first_line(error)}); choose "
                "another size, or use the weights it came from"
            ) from error


def _resized(outputs: dict[str, Tensor], size: torch.Size) -> dict[str, Tensor]:
    """Outputs at another size; the posterior is interpolated in its logs, as a `Predictor` does logits."""
    anomaly = upsample(outputs["anomaly"][:, None], size)[:, 0]
    if "posterior" not in outputs:
        labels = F.interpolate(outputs["labels"][:, None], size=tuple(size), mode="nearest-exact")[:, 0]
        confidence = upsample(outputs["confidence"][:, None], size)[:, 0]
        return {"labels": labels, "confidence": confidence, "anomaly": anomaly}
    tiny = torch.finfo(torch.float32).tiny
    posterior = upsample(outputs["posterior"].clamp_min(tiny).log(), size).softmax(1)
    confidence, labels = posterior.max(1)
    named = {"labels": labels.to(torch.uint8), "confidence": confidence}
    return {**named, "anomaly": anomaly, "posterior": posterior}
