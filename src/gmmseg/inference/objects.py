"""From unknown pixels to unknown objects: connected regions, each with its box, scores and nearest class."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from gmmseg.inference.image_losses import EIGHT_CONNECTED
from gmmseg.inference.prediction import Prediction
from gmmseg.models.false_alarms import IMAGE

SMALLEST_SHARE = 1 / 2000
"""Of the pixels of an image: the least area of an object where the threshold promises nothing of areas."""


@dataclass(frozen=True, eq=False)
class UnknownObject:
    """A region of unknown pixels, connected over sides and corners.

    ``box``: (left, top, width, height) in pixels; ``mask`` (height width) bool: its pixels in the box;
    ``peak`` and ``mean``: of the anomaly scores inside; ``nearest_class``: the train id with the largest
    mean posterior inside; ``p_value``: how usual the peak is among known pixels, None where the calibration
    does not know.
    """

    box: tuple[int, int, int, int]
    mask: NDArray[np.bool_]
    area: int
    peak: float
    mean: float
    nearest_class: int
    p_value: float | None


def least_area(prediction: Prediction) -> int:
    """The least area of an object by default: what a promise per image counts, else SMALLEST_SHARE."""
    promise = prediction.promise
    if promise is not None and promise.per == IMAGE:
        return promise.min_area
    return max(1, round(SMALLEST_SHARE * prediction.anomaly.numel()))


def unknown_objects(prediction: Prediction, *, min_area: int | None = None) -> list[UnknownObject]:
    """The unknown objects of a prediction, the one with the highest peak first.

    They are the connected regions of ``prediction.unknown`` with at least ``min_area`` pixels (default:
    `least_area`); at 1 their areas sum to the number of unknown pixels. ValueError without a threshold.
    """
    unknown = prediction.unknown
    if unknown is None:
        raise ValueError(
            "the model has no threshold, so nothing is unknown; find one with `gmmseg calibrate`"
        )
    least = least_area(prediction) if min_area is None else min_area
    labels, _ = ndimage.label(unknown.cpu().numpy(), structure=EIGHT_CONNECTED)
    places = [place for place in ndimage.find_objects(labels) if place is not None]
    masks = [labels[place] == 1 + index for index, place in enumerate(places)]
    found = [
        _described(prediction, place, mask)
        for place, mask in zip(places, masks)
        if np.count_nonzero(mask) >= least
    ]
    return sorted(found, key=lambda each: -each.peak)


def _described(
    prediction: Prediction, place: tuple["slice[int]", "slice[int]"], mask: NDArray[np.bool_]
) -> UnknownObject:
    """The object whose pixels are ``mask`` in the box at ``place``."""
    inside = torch.from_numpy(mask)
    scores = prediction.anomaly[place].cpu()[inside]
    posterior = prediction.posterior[(slice(None), *place)].cpu()[:, inside]
    peak = scores.max()
    p_values = None if prediction.calibration is None else prediction.calibration.p_values(peak)
    rows, columns = place
    return UnknownObject(
        (columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start),
        mask,
        int(mask.sum()),
        float(peak),
        float(scores.double().mean()),
        int(posterior.double().mean(1).argmax()),
        None if p_values is None else float(p_values),
    )
