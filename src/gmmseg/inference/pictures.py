"""Predictions as pictures: label maps, overlays, heat maps, masks. Arrays in, PIL images out."""

import colorsys
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gmmseg.labels import IGNORE

Colours = tuple[tuple[int, int, int], ...]
Box = tuple[int, int, int, int]
"""Left, top, width and height in pixels."""

# Dark to bright at an even pace, so that brightness alone (a grey print, a colour-blind eye) tells the order.
_HEAT = (
    (0, 0, 4),
    (40, 11, 84),
    (101, 21, 110),
    (159, 42, 99),
    (212, 72, 66),
    (245, 125, 21),
    (250, 193, 39),
    (252, 255, 164),
)
_INK, _PAPER = (30, 33, 38), (255, 255, 255)
_OUTLINE = (255, 64, 160)  # of no class in the sets that come with colours, and seen on dark and on bright
_FRAME = (200, 0, 90)
_SMALLEST_SCALE = 260  # pixels: narrower, the numbers beneath the bar would run into each other

Scores = NDArray[np.float32] | NDArray[np.float64]
"""Numbers that are shown as colours."""


def default_colours(num_classes: int) -> Colours:
    """Distinct colours for classes that brought none: hues a golden angle apart, in three brightnesses."""
    hues = [(0.61 + i * 0.381966) % 1 for i in range(num_classes)]
    rgb = [colorsys.hsv_to_rgb(hue, 0.65, (0.85, 0.65, 0.95)[i % 3]) for i, hue in enumerate(hues)]
    return tuple((round(r * 255), round(g * 255), round(b * 255)) for r, g, b in rgb)


def label_picture(labels: NDArray[np.uint8], colours: Colours) -> Image.Image:
    """Labels (h w) uint8 as a palette image: its indices are the labels, its palette the colours."""
    picture = Image.fromarray(labels)
    picture.putpalette(palette(colours).flatten().tolist())
    return picture


def palette(colours: Colours) -> NDArray[np.uint8]:
    """The colour of every label value, (256 3) uint8; those that are no class, like IGNORE, are black."""
    table = np.zeros((IGNORE + 1, 3), dtype=np.uint8)
    table[: len(colours)] = colours
    return table


def overlay(
    pixels: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    colours: Colours,
    unknown: NDArray[np.bool] | None = None,
    *,
    opacity: float = 0.5,
) -> Image.Image:
    """Pixels (h w 3) uint8 under the colours of labels (h w); ``unknown`` (h w) bool is striped in white."""
    mixed = pixels * np.float32(1 - opacity) + palette(colours)[labels] * np.float32(opacity)
    if unknown is not None:
        mixed[unknown & _stripes(*labels.shape)] = 255
    return Image.fromarray(mixed.round().astype(np.uint8))


def _stripes(height: int, width: int) -> NDArray[np.bool]:
    """Diagonal stripes (h w) bool, as wide as the image is large."""
    period = max(4, min(height, width) // 25)
    return (np.arange(height)[:, None] + np.arange(width)) % period < period // 2


def unknown_picture(pixels: NDArray[np.uint8], unknown: NDArray[np.bool]) -> Image.Image:
    """Pixels (h w 3) uint8 in which ``unknown`` (h w) bool keeps its colours and has an outline; the rest is
    grey and dark, so that nothing covers what is strange."""
    grey = pixels.astype(np.float32).mean(-1, keepdims=True) * np.float32(0.4)
    picture = np.where(unknown[..., None], pixels, grey.round().astype(np.uint8))
    reach = max(1, min(unknown.shape) // 250)
    picture[_around(unknown, reach)] = _OUTLINE
    return Image.fromarray(picture.astype(np.uint8))


def _around(mask: NDArray[np.bool], reach: int) -> NDArray[np.bool]:
    """The pixels (h w) bool at most ``reach`` beside a mask (h w) bool."""
    grown = mask.copy()
    for _ in range(reach):
        padded = np.pad(grown, 1)
        grown = padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:] | grown
    return grown & ~mask


def with_boxes(picture: Image.Image, boxes: Sequence[Box], captions: Sequence[str]) -> Image.Image:
    """A copy of a picture with a frame round each box (left, top, width, height) and its caption."""
    marked = picture.copy()
    draw = ImageDraw.Draw(marked)
    shorter = min(picture.size)
    line = max(1, shorter // 200)
    font = ImageFont.load_default(min(max(shorter // 24, 9), 40))
    for (left, top, width, height), caption in zip(boxes, captions):
        frame = (left - line, top - line, left + width + line - 1, top + height + line - 1)
        draw.rectangle(frame, outline=_FRAME, width=line)
        _, _, wide, high = draw.textbbox((0, 0), caption, font)
        at = (min(max(left, 0), max(picture.width - wide, 0)), max(top - high - 2 * line, 0))
        draw.rectangle((*at, at[0] + wide, at[1] + high), _FRAME)
        draw.text(at, caption, _PAPER, font)
    return marked


def encoded(picture: Image.Image, kind: str) -> bytes:
    """The content of a file of this kind, png or jpeg."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=90) if kind == "jpeg" else picture.save(buffer, kind)
    return buffer.getvalue()


def mask_picture(mask: NDArray[np.bool]) -> Image.Image:
    """Mask (h w) bool as an 8-bit image: 255 where true, 0 elsewhere."""
    return Image.fromarray(mask.astype(np.uint8) * 255)


def heat_colours(values: Scores, low: float, high: float) -> NDArray[np.uint8]:
    """Values (...) as colours (... 3) uint8, dark at ``low`` and below, bright at ``high`` and above."""
    anchors = np.array(_HEAT, dtype=np.float32)
    steps = np.linspace(0, len(anchors) - 1, 256)
    table = np.stack([np.interp(steps, range(len(anchors)), channel) for channel in anchors.T], axis=-1)
    share = ((values.astype(np.float32) - low) / max(high - low, 1e-12)).clip(0, 1)
    return table.round().astype(np.uint8)[(share * 255).round().astype(np.uint8)]


def heat_limits(anomaly: Scores, threshold: float | None = None) -> tuple[float, float]:
    """The 1st and 99th percentile of the finite scores, stretched to reach ``threshold``.

    Stretched so that an image in which nothing is strange looks cold.
    """
    finite = anomaly[np.isfinite(anomaly)]
    if finite.size == 0:
        return 0.0, 1.0
    sample = finite[:: max(1, finite.size // 1_000_000)]  # a million pixels tell a percentile well enough
    low, high = (float(value) for value in np.percentile(sample, (1, 99)))
    return low, high if threshold is None else max(high, threshold)


def heat_map(anomaly: Scores, threshold: float | None = None) -> Image.Image:
    """Scores (h w) as colours, at the image's size, above a scale bar with numbers and the threshold."""
    low, high = heat_limits(anomaly, threshold)
    picture = Image.fromarray(heat_colours(anomaly, low, high))
    bar = _scale_bar(max(picture.width, _SMALLEST_SCALE), low, high, threshold)
    canvas = Image.new("RGB", (bar.width, picture.height + bar.height), _PAPER)
    canvas.paste(picture, (0, 0))
    canvas.paste(bar, (0, picture.height))
    return canvas


def _scale_bar(width: int, low: float, high: float, threshold: float | None) -> Image.Image:
    """The colours from ``low`` to ``high``, what they mean, and a mark where unknown begins."""
    size = min(max(width // 45, 11), 60)
    font = ImageFont.load_default(size)
    margin, line = size, round(size * 1.45)
    bar = Image.new("RGB", (width, line * (4 if threshold is not None else 3) + size), _PAPER)
    draw = ImageDraw.Draw(bar)
    draw.text((width // 2, size // 2), "anomaly score, higher = stranger", _INK, font, anchor="ma")
    length = width - 2 * margin
    ramp = heat_colours(np.linspace(low, high, length)[None].repeat(line, 0), low, high)
    bar.paste(Image.fromarray(ramp), (margin, size // 2 + line))
    numbers = size // 2 + line * 2 + size // 5
    draw.text((margin, numbers), f"{low:.4g}", _INK, font, anchor="la")
    draw.text((width - margin, numbers), f"{high:.4g}", _INK, font, anchor="ra")
    if threshold is not None:
        at = margin + round(length * min(max((threshold - low) / max(high - low, 1e-12), 0), 1))
        mark = [(at, size // 2 + line - 3), (at, numbers + line)]
        draw.line(mark, _PAPER, 5)
        draw.line(mark, _INK, 2)
        text = f"unknown above {threshold:.4g}"
        half = draw.textlength(text, font) / 2
        draw.text((min(max(at, half + 4), width - half - 4), numbers + line), text, _INK, font, anchor="ma")
    return bar


def crop_around(pixels: NDArray[np.uint8], x: int, y: int, side: int) -> Image.Image:
    """A square of pixels (h w 3) uint8 with (x, y) in its middle, as far as the border allows."""
    height, width = pixels.shape[:2]
    left, top = (max(0, min(place - side // 2, length - side)) for place, length in ((x, width), (y, height)))
    return Image.fromarray(np.ascontiguousarray(pixels[top : top + side, left : left + side]))


def with_cross(pixels: NDArray[np.uint8], x: int, y: int) -> Image.Image:
    """Pixels (h w 3) uint8 with a cross around (x, y), which itself stays free."""
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    draw = ImageDraw.Draw(picture)
    reach = max(6, min(picture.size) // 16)
    for colour, width in ((_INK, 5), (_PAPER, 2)):  # seen on dark and on bright pictures
        for step_x, step_y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            near, far = ((x + step_x * r, y + step_y * r) for r in (reach // 3, reach))
            draw.line((near, far), fill=colour, width=width)
    return picture
