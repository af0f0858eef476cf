"""A slider over pictures: what is unknown at each of its positions, worked out before the page is written."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gmmseg.class_colours import UNKNOWN_COLOUR
from gmmseg.inference.image_losses import large_components
from gmmseg.inference.threshold_scale import ThresholdScale, threshold_scale
from gmmseg.report.panels import Example, ModelMaps
from gmmseg.report.parts import NEVER, Slider

if TYPE_CHECKING:
    from gmmseg.models import Calibration

Calibrations = Mapping[str, "Calibration | None"]


def with_slider(examples: Sequence[Example], calibrations: Calibrations) -> tuple[list[Example], Slider]:
    """The examples with levels, and the slider they are of; calibrations by name of a model.

    It counts in false alarms where calibrations know them, see `ThresholdScale`.
    """
    seen = [
        np.concatenate([example.models[name].anomaly.ravel() for example in examples])
        for name in calibrations
    ]
    scale = threshold_scale(list(calibrations.values()), seen)
    live = [_with_levels(example, scale, calibrations) for example in examples]
    slider = Slider(
        scale.label,
        tuple(scale.shown(value) for value in scale.positions),
        tuple(_note(scale, value, dict(zip(calibrations, seen)), calibrations) for value in scale.positions),
        scale.positions.index(scale.start),
        UNKNOWN_COLOUR,
    )
    return live, slider


def _note(
    scale: ThresholdScale, value: float, scores: Mapping[str, np.ndarray], calibrations: Calibrations
) -> str:
    """What the thresholds of all models promise at one position."""
    words: dict[str, list[str]] = {}
    for name, calibration in calibrations.items():
        threshold = scale.threshold(value, calibration, scores[name])
        words.setdefault(scale.words(value, threshold, calibration), []).append(name)
    return " ".join(f"The threshold of {' and of '.join(names)} {each}." for each, names in words.items())


def _with_levels(example: Example, scale: ThresholdScale, calibrations: Calibrations) -> Example:
    models = {name: _levelled(maps, scale, calibrations[name]) for name, maps in example.models.items()}
    return replace(example, models=models)


def _levelled(maps: ModelMaps, scale: ThresholdScale, calibration: "Calibration | None") -> ModelMaps:
    thresholds = [scale.threshold(value, calibration, maps.anomaly) for value in scale.positions]
    return replace(maps, levels=levels(maps.anomaly, thresholds, calibration.min_area if calibration else 1))


def levels(anomaly: np.ndarray, thresholds: Sequence[float | None], min_area: int) -> np.ndarray:
    """The first of falling ``thresholds`` at which each pixel is unknown, (h w) uint8; NEVER: at none.

    Unknown are pixels above it in regions of at least ``min_area``; a threshold of None makes none unknown.
    """
    found = np.full(anomaly.shape, NEVER, np.uint8)
    for position in reversed(range(len(thresholds))):
        threshold = thresholds[position]
        if threshold is not None:
            found[large_components(anomaly > np.float32(threshold), min_area)] = position
    return found
