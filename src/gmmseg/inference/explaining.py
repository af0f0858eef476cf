"""Why a pixel is what the model says: evidence, posterior, the component it looks like, how strange it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gmmseg.images import ImageSource, load_image
from gmmseg.inference.prediction import in_regions
from gmmseg.inference.predictor import Predictor
from gmmseg.inference.windows import Reading
from gmmseg.models import SegmenterOutput
from gmmseg.models.exemplars import Exemplar


@dataclass(frozen=True)
class Explanation:
    """What a model has to say of one pixel, as `Predictor.predict` shows it.

    ``evidence`` is log p(pixel given class) of each class, or, of a softmax model, its logit: then
    ``generative`` is False and there are no components.
    """

    x: int
    y: int
    names: tuple[str, ...]
    generative: bool
    evidence: tuple[float, ...]
    posterior: tuple[float, ...]
    label: int
    """The class that is predicted."""
    nearest: int
    """The class with the most evidence: of an unknown pixel, the known class it is most like."""
    component: int | None
    """The component of the predicted class that the cell of the pixel looks like most."""
    component_shares: tuple[float, ...]
    """How much each component of that class contributes to the density of the cell; they sum to one."""
    anomaly: float
    """How strange the pixel is, higher = stranger."""
    threshold: float | None
    """From which score on it is unknown; None before calibration."""
    unknown: bool | None
    """Whether it is: above the threshold, in a region of the least area; None before calibration."""
    p_value: float | None
    """At most this share of known pixels is as strange; None where the calibration does not know."""
    exemplars: tuple[Exemplar, ...] = ()
    """Training pixels nearest to the mean of that component."""
    classifiers: int = 1
    """Of how many the posterior is the mean; evidence and components are those of the model's own head."""


@torch.no_grad()
def explain(
    predictor: Predictor, image: ImageSource, x: int, y: int, exemplars: Sequence[Exemplar] = ()
) -> Explanation:
    """Why the pixel in column x of row y, both from 0, is what it is.

    ``exemplars``: the index of the model, as `gmmseg.models.exemplars.read_exemplars` gives it.
    """
    segmenter = predictor.segmenter
    pixels = load_image(image, max_pixels=predictor.max_pixels)
    _refuse_outside(pixels, x, y)
    readings: list[Reading] = [
        predictor.anomaly_reading,
        *(partial(_scores_of, i) for i in range(segmenter.num_classes)),
    ]
    logits, scores = predictor.at(pixels, x, y, readings)
    label, anomaly = int(logits.argmax()), float(scores[0])
    shares = _component_shares(predictor, pixels, x, y, label)
    component = None if shares is None else int(shares.argmax())
    calibration = predictor.calibration  # none of a score that is not the model's own
    p_values = None if calibration is None else calibration.p_values(scores[0])
    return Explanation(
        x=x,
        y=y,
        names=segmenter.label_names or tuple(f"class {index}" for index in range(segmenter.num_classes)),
        generative=segmenter.mixture is not None,
        evidence=tuple(scores[1:].tolist()),
        posterior=tuple(logits.softmax(0).tolist()),
        label=label,
        nearest=int(scores[1:].argmax()),
        component=component,
        component_shares=() if shares is None else tuple(shares.tolist()),
        anomaly=anomaly,
        threshold=None if calibration is None else calibration.threshold,
        unknown=_unknown(predictor, pixels, x, y, anomaly),
        p_value=None if p_values is None else float(p_values),
        exemplars=tuple(each for each in exemplars if (each.label, each.component) == (label, component)),
        classifiers=1 + len(segmenter.companions),
    )


def _refuse_outside(pixels: Tensor, x: int, y: int) -> None:
    height, width = pixels.shape[-2:]
    if not (0 <= x < width and 0 <= y < height):
        raise ValueError(
            f"pixel {x},{y} is outside the image of {width}x{height}: x is 0 to {width - 1}, "
            f"y is 0 to {height - 1}"
        )


def _unknown(predictor: Predictor, pixels: Tensor, x: int, y: int, anomaly: float) -> bool | None:
    """Whether `Prediction.unknown` holds a pixel with this score."""
    calibration = predictor.calibration
    if calibration is None or calibration.threshold is None:
        return None
    if anomaly <= calibration.threshold or calibration.min_area == 1:
        return anomaly > calibration.threshold
    scores = torch.cat([strip.anomaly.cpu() for strip in predictor.strips(pixels)])
    return bool(in_regions(scores > calibration.threshold, calibration.min_area)[y, x])


def _scores_of(index: int, output: SegmenterOutput) -> Tensor:
    """The map (b h w) of one class's evidence, or of its logit without mixtures."""
    return (output.logits if output.evidence is None else output.evidence)[:, index]


def _component_shares(predictor: Predictor, pixels: Tensor, x: int, y: int, label: int) -> Tensor | None:
    """Share (k) of each component of a class in the density of the pixel's cell; None without such cells."""
    mixture = predictor.segmenter.mixture
    if mixture is None or not predictor.segmenter.points_are_cells:
        return None
    view, row, column = predictor.view_at(pixels, x, y)
    assert view.output.points is not None
    point = view.output.points[:, :, row, column]
    shares = (mixture.log_density(point)[0, label] + mixture.log_weights[label]).softmax(-1)
    used = [group.components for group in mixture.groups for _ in range(group.classes)][label]
    return shares[:used].cpu()
