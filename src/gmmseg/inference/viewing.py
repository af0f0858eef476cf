"""One image as a person looks at it: the maps of a model, pictures of them, and all of it as files."""

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from gmmseg.inference.heat import confidence_colours, scale_bar
from gmmseg.inference.image_maps import ImageMaps
from gmmseg.inference.pictures import overlay, photograph_of, unknown_picture
from gmmseg.inference.predictor import Predictor
from gmmseg.json_tree import JSON

WIDEST, NARROWEST = 1024, 480
"""Longer sides of pictures on a screen; files have the size of the image."""


@dataclass(frozen=True, eq=False)
class ImageView(ImageMaps):
    """What a model makes of one image; also its ``confidence`` (h w) float32 in [0, 1]."""

    confidence: NDArray[np.float32]


def view(predictor: Predictor, pixels: Tensor) -> ImageView:
    """What a model makes of pixels (3 h w) in [0, 1]; no posterior of the whole image is kept."""
    parts = [
        (strip.labels.cpu(), strip.confidence.cpu(), strip.anomaly.cpu())
        for strip in predictor.strips(pixels)
    ]
    labels, confidence, anomaly = (torch.cat(maps).numpy() for maps in zip(*parts))
    return ImageView(photograph_of(pixels), labels, anomaly, predictor.meaning, confidence)


def panels(seen: ImageView) -> dict[str, Image.Image]:
    """Labels, confidence and anomaly as pictures for a screen."""
    pictures = {
        "labels": overlay(seen.photograph, seen.labels, seen.meaning.colours, opacity=0.7),
        "confidence": Image.fromarray(confidence_colours(seen.confidence)),
        "anomaly": seen.scale.picture(seen.anomaly),
    }
    return {name: for_screen(picture) for name, picture in pictures.items()}


def unknown_panel(seen: ImageView, threshold: float | None) -> Image.Image:
    """What is unknown at a threshold, as a picture for a screen."""
    return for_screen(unknown_picture(seen.photograph, seen.above(threshold)))


def for_screen(picture: Image.Image) -> Image.Image:
    """The picture: smaller where it is larger than WIDEST, with whole pixels enlarged below NARROWEST."""
    if max(picture.size) > WIDEST:
        small = picture.copy()
        small.thumbnail((WIDEST, WIDEST))
        return small
    factor = -(-NARROWEST // max(picture.size))
    larger = (picture.width * factor, picture.height * factor)
    return picture if factor == 1 else picture.resize(larger, Image.Resampling.NEAREST)


def marked(photograph: NDArray[np.uint8], x: int, y: int) -> Image.Image:
    """Pixels (h w 3) uint8 as a picture for a screen, with a ring around (x, y)."""
    picture = for_screen(Image.fromarray(photograph)).copy()
    across, down = (
        (at + 0.5) * new / old for at, new, old in zip((x, y), picture.size, photograph.shape[1::-1])
    )
    draw = ImageDraw.Draw(picture)
    radius = max(6, min(picture.size) // 24)
    for colour, width in (((30, 33, 38), 5), ((255, 255, 255), 2)):  # seen on dark and on bright pictures
        box = (across - radius, down - radius, across + radius, down + radius)
        draw.ellipse(box, outline=colour, width=width)
    return picture


def pixel_at(size: tuple[int, int], shown: tuple[int, int], place: tuple[int, int]) -> tuple[int, int]:
    """The pixel (x, y) of an image of ``size`` (width, height) at a place of its picture of size ``shown``.

    The nearest one where the place is outside.
    """
    x, y = (int((at + 0.5) * length / other) for at, length, other in zip(place, size, shown))
    return min(max(x, 0), size[0] - 1), min(max(y, 0), size[1] - 1)


def archive(views: Mapping[str, ImageView], thresholds: Mapping[str, float | None]) -> bytes:
    """A zip file: for each model label map, overlay, legend, confidence, heat map, its scale and mask; and
    results.json."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        about = {}
        for name, seen in views.items():
            threshold = thresholds[name]
            about[name] = _about(seen, threshold)
            for part, picture in _files(seen, threshold).items():
                content = io.BytesIO()
                picture.save(content, "png")
                file.writestr(f"{name}/{part}.png", content.getvalue())
        file.writestr("results.json", json.dumps(about, indent=2) + "\n")
    return buffer.getvalue()


def _files(seen: ImageView, threshold: float | None) -> dict[str, Image.Image]:
    # At no threshold nothing is unknown, also where the calibration has one.
    given = math.inf if threshold is None else threshold
    at_threshold = replace(seen, meaning=replace(seen.meaning, given_threshold=given))
    return {
        "image": Image.fromarray(seen.photograph),
        **at_threshold.pictures(),
        "confidence": Image.fromarray((seen.confidence * 255).round().astype(np.uint8)),
        "legend": at_threshold.legend(480),
        "anomaly_scale": scale_bar(seen.scale, threshold),
    }


def _about(seen: ImageView, threshold: float | None) -> JSON:
    """What results.json says of one model: its classes, their shares of the image, and the threshold."""
    counts = np.bincount(seen.labels.reshape(-1), minlength=len(seen.meaning.names))
    calibration = seen.meaning.calibration
    pixel = None if calibration is None or threshold is None else calibration.false_alarm_rate(threshold)
    image = (
        None
        if pixel is None or calibration is None or threshold is None
        else (calibration.false_alarm_rate(threshold, "image"))
    )
    return {
        "classes": list(seen.meaning.names),
        "share_of_pixels": [float(count) / seen.labels.size for count in counts],
        "threshold": threshold,
        "unknown_share": float(seen.above(threshold).mean()),
        "false_alarm_rate_per_pixel": pixel,
        "false_alarm_rate_per_image": image,
        "score": seen.meaning.score,
        "weights": None if calibration is None else calibration.weights,
    }
