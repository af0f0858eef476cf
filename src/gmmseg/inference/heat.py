"""Scores as colours: one scale for all images of a model, and the bar that says what the colours mean."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gmmseg.class_colours import Colours
from gmmseg.models import Calibration

Scores = NDArray[np.float32] | NDArray[np.float64]
"""Numbers that are shown as colours."""
THRESHOLD_AT = 0.5
"""Where on a model's scale its threshold is: below are known scores, above what is called unknown."""

# Both from dark to bright at an even pace, so that brightness alone (a grey print, a colour-blind eye) tells
# the order; warm for anomaly and cool for confidence, so that nobody takes one for the other.
_WARM = (
    (0, 0, 4),
    (40, 11, 84),
    (101, 21, 110),
    (159, 42, 99),
    (212, 72, 66),
    (245, 125, 21),
    (250, 193, 39),
    (252, 255, 164),
)
_COOL = (
    (6, 24, 54),
    (14, 58, 94),
    (22, 96, 124),
    (48, 134, 142),
    (104, 172, 160),
    (176, 212, 190),
    (240, 250, 236),
)
_INK, _PAPER = (30, 33, 38), (255, 255, 255)
_ENDS_OF_IMAGES = ("lowest of each image", "highest")
_SMALLEST_BAR = 260  # pixels: narrower, the numbers beneath would run into each other


@dataclass(frozen=True)
class HeatScale:
    """Anomaly scores as colours: dark at ``low`` and below, bright at ``high`` and above."""

    low: float
    high: float

    def shares(self, scores: Scores) -> NDArray[np.float32]:
        """Where scores (...) lie between ``low``, 0, and ``high``, 1: (...) float32."""
        length = np.float32(max(self.high - self.low, 1e-12))
        share: NDArray[np.float32] = (scores.astype(np.float32) - np.float32(self.low)) / length
        return share.clip(0, 1)

    def colours(self, scores: Scores) -> NDArray[np.uint8]:
        """Scores (...) as colours (... 3) uint8."""
        return _coloured(self.shares(scores), _WARM)

    def picture(self, scores: Scores) -> Image.Image:
        """Scores (h w) as a picture of exactly their size."""
        return Image.fromarray(self.colours(scores))

    def palette_picture(self, scores: Scores) -> Image.Image:
        """The same picture with a palette: a third of the bytes, and faster to write."""
        picture = Image.fromarray(_steps(self.shares(scores)))
        picture.putpalette(_table(_WARM).flatten().tolist())
        return picture


def confidence_colours(confidence: Scores) -> NDArray[np.uint8]:
    """Confidence (...) in [0, 1] as colours (... 3) uint8, dark = unsure, bright = sure."""
    return _coloured(confidence.astype(np.float32).clip(0, 1), _COOL)


def _coloured(shares: NDArray[np.float32], anchors: Colours) -> NDArray[np.uint8]:
    """The colours (... 3) uint8 of shares (...) of the way along ``anchors``."""
    return _table(anchors)[_steps(shares)]


def _steps(shares: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Shares (...) in [0, 1] as one of 256 steps."""
    return (shares * 255).round().astype(np.uint8)


@cache
def _table(anchors: Colours) -> NDArray[np.uint8]:
    """The colours of the 256 steps along ``anchors``, (256 3)."""
    steps = np.linspace(0, len(anchors) - 1, 256)
    table = np.stack([np.interp(steps, range(len(anchors)), each) for each in np.array(anchors).T], axis=-1)
    return table.round().astype(np.uint8)


def model_scale(calibration: Calibration | None) -> HeatScale | None:
    """The one scale for all images of a model; None where its calibration knows too little.

    It begins at the middle of the known scores, and the threshold is at THRESHOLD_AT: photographs in which
    nothing is strange look calm, and frames of a video do not flicker.
    """
    threshold = None if calibration is None else calibration.threshold
    if calibration is None or threshold is None or not calibration.quantiles:
        return None
    _, low = max(calibration.quantiles)
    return HeatScale(low, low + (threshold - low) / THRESHOLD_AT) if low < threshold else None


def image_scale(anomaly: Scores, threshold: float | None = None) -> HeatScale:
    """The 1st to the 99th percentile of an image's finite scores, stretched to reach ``threshold``.

    Stretched so that an image in which nothing is strange looks cold.
    """
    finite = anomaly[np.isfinite(anomaly)]
    if finite.size == 0:
        return HeatScale(0.0, 1.0)
    sample = finite[:: max(1, finite.size // 1_000_000)]  # a million pixels tell a percentile well enough
    low, high = (float(value) for value in np.percentile(sample, (1, 99)))
    return HeatScale(low, high if threshold is None else max(high, threshold))


def scale_of(calibration: Calibration | None, anomaly: Scores) -> HeatScale:
    """The model's scale, or that of the image where the model has none."""
    known = None if calibration is None else calibration.threshold
    return model_scale(calibration) or image_scale(anomaly, known)


def heat_overlay(pixels: NDArray[np.uint8], anomaly: Scores, scale: HeatScale) -> Image.Image:
    """Pixels (h w 3) uint8 in grey under the colours of scores (h w): the higher, the more they cover."""
    grey = pixels.astype(np.float32).mean(-1, keepdims=True) * np.float32(0.8)
    cover = scale.shares(anomaly)[..., None] * np.float32(0.75)
    return Image.fromarray((grey * (1 - cover) + scale.colours(anomaly) * cover).round().astype(np.uint8))


def scale_bar(scale: HeatScale | None, threshold: float | None = None, *, width: int = 480) -> Image.Image:
    """The colours of a scale, the scores at its ends, and a mark where unknown begins.

    Without a scale: the bar of images that have one each, with words at its ends and no mark.
    """
    width = max(width, _SMALLEST_BAR)
    size = min(max(width // 45, 11), 60)
    font, margin, line = ImageFont.load_default(size), size, round(size * 1.45)
    marked = scale is not None and threshold is not None
    bar = Image.new("RGB", (width, line * (4 if marked else 3) + size), _PAPER)
    draw = ImageDraw.Draw(bar)
    draw.text((width // 2, size // 2), "anomaly score, higher = stranger", _INK, font, anchor="ma")
    length, top, numbers = width - 2 * margin, size // 2 + line, size // 2 + line * 2 + size // 5
    ramp = _coloured(np.linspace(0, 1, length, dtype=np.float32)[None].repeat(line, 0), _WARM)
    bar.paste(Image.fromarray(ramp), (margin, top))
    low, high = _ENDS_OF_IMAGES if scale is None else (f"{scale.low:.4g}", f"{scale.high:.4g}")
    draw.text((margin, numbers), low, _INK, font, anchor="la")
    draw.text((width - margin, numbers), high, _INK, font, anchor="ra")
    if scale is not None and threshold is not None:
        at = margin + round(length * float(scale.shares(np.array(threshold))))
        _mark(draw, (at, top - 3, numbers + line), f"unknown above {threshold:.4g}", size)
    return bar


def _mark(draw: ImageDraw.ImageDraw, place: tuple[int, int, int], text: str, size: int) -> None:
    """A line at ``place`` (x, top, bottom), seen on dark and on bright, with words of ``size`` below it."""
    at, top, bottom = place
    draw.line([(at, top), (at, bottom)], _PAPER, 5)
    draw.line([(at, top), (at, bottom)], _INK, 2)
    font = ImageFont.load_default(size)
    half = draw.textlength(text, font) / 2
    draw.text((min(max(at, half + 4), draw.im.size[0] - half - 4), bottom), text, _INK, font, anchor="ma")
