"""What models make of an image, picture beside picture."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from gmmseg.class_colours import Colours
from gmmseg.inference.heat import HeatScale, confidence_colours, heat_overlay, image_scale
from gmmseg.inference.pictures import encoded, overlay, palette, unknown_picture
from gmmseg.labels import IGNORE
from gmmseg.report.parts import Figure, Gallery

LONGEST_SIDE = 480  # pixels: pictures in a report are looked at, not measured
PHOTOGRAPH_SIDE = 800  # the one picture in which people look for details


@dataclass(frozen=True)
class ModelMaps:
    """What one model says: ``labels`` (h w) uint8, ``confidence`` (h w) in [0, 1], ``anomaly`` (h w).

    ``unknown`` (h w) bool: what it calls unknown, by its ``threshold``; None for a model without one.
    ``scale``: the colours of its scores; None: those of the image's own percentiles.
    ``levels`` (h w) uint8: the first position of the report's slider at which a pixel is unknown, or NEVER;
    None where there is no slider.
    """

    labels: np.ndarray
    confidence: np.ndarray
    anomaly: np.ndarray
    threshold: float | None = None
    unknown: np.ndarray | None = None
    scale: HeatScale | None = None
    levels: np.ndarray | None = None


@dataclass(frozen=True)
class Example:
    """An image (h w 3) uint8 and what each model makes of it, the subject first and its twin after it.

    ``labels`` (h w): train ids and IGNORE. ``unknown`` (h w): an anomaly set's mask, 0, 1 and IGNORE.
    """

    name: str
    image: np.ndarray
    models: Mapping[str, ModelMaps]
    labels: np.ndarray | None = None
    unknown: np.ndarray | None = None


def panel(example: Example, colours: Colours, start: int = 0) -> Gallery:
    """Rows: image or ground truth, then prediction, confidence and anomaly of each model.

    With a slider, ``start`` being where it begins, rows end with a picture of what is unknown there.
    """
    example = _enlarged(example)
    left = [_tile(Image.fromarray(example.image), "image", example, PHOTOGRAPH_SIDE)]
    if example.labels is not None:
        left.append(_tile(overlay(example.image, example.labels, colours, opacity=0.85), "labels", example))
    if example.unknown is not None:
        left.append(_tile(_mask(example.unknown), "unknown objects (white)", example))
    pictures: list[Figure] = []
    rows = [
        _model_row(example, name, maps, colours) + _live(example, name, maps, colours, start)
        for name, maps in example.models.items()
    ]
    for number in range(max(len(left), len(rows))):
        pictures += left[number : number + 1] + (rows[number] if number < len(rows) else [])
    return Gallery(example.name, tuple(pictures), 1 + max(map(len, rows), default=0), compared=True)


def side_by_side(example: Example, colours: Colours) -> Gallery:
    """Rows of three: the image, or what is unknown in it; then classes and anomaly score of a model."""
    example = _enlarged(example)
    left = [_tile(Image.fromarray(example.image), "image", example)]
    if example.unknown is not None:
        truth = unknown_picture(example.image, example.unknown == 1)
        left.append(_tile(truth, "the truth: what no training image shows", example))
    pictures: list[Figure] = []
    for number, (name, maps) in enumerate(example.models.items()):
        scale = maps.scale or image_scale(maps.anomaly, maps.threshold)
        classes = overlay(example.image, maps.labels, colours, maps.unknown, opacity=0.6)
        pictures += [
            *left[number : number + 1],
            _tile(classes, f"{name}: classes, unknown outlined", example),
            _tile(heat_overlay(example.image, maps.anomaly, scale), f"{name}: anomaly score", example),
        ]
    return Gallery(example.name, tuple(pictures), columns=3)


def _enlarged(example: Example) -> Example:
    """Small images with every pixel repeated, so that neither outlines nor a browser blur them."""
    factor = max(1, LONGEST_SIDE // max(example.image.shape[:2]))

    def repeat(values: np.ndarray) -> np.ndarray:
        return values.repeat(factor, 0).repeat(factor, 1)

    models = {
        name: replace(
            maps,
            labels=repeat(maps.labels),
            confidence=repeat(maps.confidence),
            anomaly=repeat(maps.anomaly),
            unknown=None if maps.unknown is None else repeat(maps.unknown),
            levels=None if maps.levels is None else repeat(maps.levels),
        )
        for name, maps in example.models.items()
    }
    labels = None if example.labels is None else repeat(example.labels)
    unknown = None if example.unknown is None else repeat(example.unknown)
    return Example(example.name, repeat(example.image), models, labels, unknown)


def _model_row(example: Example, name: str, maps: ModelMaps, colours: Colours) -> list[Figure]:
    scale = maps.scale or image_scale(maps.anomaly, maps.threshold)
    outlined = ", unknown outlined" if maps.unknown is not None else ""
    prediction = overlay(palette(colours)[maps.labels], maps.labels, colours, maps.unknown)
    ends = f"{scale.low:.3g} (dark) to {scale.high:.3g} (bright)"
    return [
        _tile(prediction, f"{name}: prediction{outlined}", example),
        _tile(
            Image.fromarray(confidence_colours(maps.confidence)),
            f"{name}: confidence, 0 (dark) to 1 (bright)",
            example,
        ),
        _tile(scale.picture(maps.anomaly), f"{name}: anomaly score, {ends}", example),
    ]


def _live(example: Example, name: str, maps: ModelMaps, colours: Colours, start: int) -> list[Figure]:
    """The image with what is unknown at the slider's start, and the levels by which a script moves it."""
    if maps.levels is None:
        return []
    marked = overlay(example.image, maps.labels, colours, maps.levels <= start, opacity=0.0)
    figure = _tile(marked, f"{name}: what is unknown", example)
    with Image.open(io.BytesIO(figure.data)) as shown:
        small = Image.fromarray(maps.levels).resize(shown.size, Image.Resampling.NEAREST)
    return [replace(figure, levels=encoded(small, "png"))]


def _mask(unknown: np.ndarray) -> Image.Image:
    """White where unknown, black where known, grey where it does not count."""
    grey = np.select([unknown == 1, unknown == IGNORE], [255, 110], default=0)
    return Image.fromarray(grey.astype(np.uint8)).convert("RGB")


def _tile(picture: Image.Image, caption: str, example: Example, longest: int = LONGEST_SIDE) -> Figure:
    picture.thumbnail((longest, longest))
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=88)
    return Figure(buffer.getvalue(), "jpeg", f"{caption} of {example.name}", caption)
