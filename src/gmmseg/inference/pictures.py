"""Predictions as pictures: label maps, overlays, legends, masks. Arrays in, PIL images out."""

import io
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from gmmseg.class_colours import UNKNOWN_COLOUR, Colour, Colours
from gmmseg.labels import IGNORE

Box = tuple[int, int, int, int]
"""Left, top, width and height in pixels."""

_INK, _PAPER = (30, 33, 38), (255, 255, 255)
_FRAME = (200, 0, 90)
_TINT = np.float32(0.25)
FAST = 1
"""How hard PNG files are packed, of 9: a third of the time for a tenth more bytes."""


def photograph_of(pixels: Tensor) -> NDArray[np.uint8]:
    """Pixels (3 h w) in [0, 1] as an array (h w 3) uint8."""
    return (pixels.movedim(0, -1) * 255).round().to(torch.uint8).numpy()


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
    """Pixels (h w 3) uint8 under the colours of labels (h w).

    What is ``unknown`` (h w) bool has an outline and a light tint instead, so that nothing hides it.
    """
    mixed = pixels * np.float32(1 - opacity) + palette(colours)[labels] * np.float32(opacity)
    if unknown is not None and unknown.any():
        mixed[unknown] = pixels[unknown] * (1 - _TINT) + np.array(UNKNOWN_COLOUR, np.float32) * _TINT
        mixed[_outline(unknown)] = UNKNOWN_COLOUR
    return Image.fromarray(mixed.round().astype(np.uint8))


def unknown_picture(pixels: NDArray[np.uint8], unknown: NDArray[np.bool]) -> Image.Image:
    """Pixels (h w 3) uint8 in which ``unknown`` (h w) bool keeps its colours and has an outline; the rest is
    grey and dark, so that nothing covers what is strange."""
    grey = pixels.astype(np.float32).mean(-1, keepdims=True) * np.float32(0.4)
    picture = np.where(unknown[..., None], pixels, grey.round().astype(np.uint8))
    picture[_outline(unknown)] = UNKNOWN_COLOUR
    return Image.fromarray(picture.astype(np.uint8))


def _outline(mask: NDArray[np.bool]) -> NDArray[np.bool]:
    """The pixels (h w) bool just beside a mask (h w) bool, in a line as wide as the image is large."""
    grown = mask.copy()
    for _ in range(max(1, min(mask.shape) // 180)):
        padded = np.pad(grown, 1)
        grown = padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:] | grown
    return grown & ~mask


def legend(
    names: Sequence[str], colours: Sequence[Colour], *, width: int, unknown: bool = False
) -> Image.Image:
    """A strip ``width`` pixels wide: each class with its colour, and how the unknown is drawn, if asked for.

    It goes below a picture that leaves the program, see `stacked`.
    """
    size = min(max(width // 45, 11), 60)
    font, row, gap = ImageFont.load_default(size), round(size * 1.7), round(size * 0.6)
    entries = [*zip(names, colours), *([("unknown", None)] if unknown else [])]
    texts = [_shortened(name, font, width - 3 * gap - size) for name, _ in entries]
    places, height = _flow([size + 2 * gap + round(font.getlength(text)) for text in texts], width - gap, row)
    strip = Image.new("RGB", (width, height + 2 * gap), _PAPER)
    draw = ImageDraw.Draw(strip)
    for text, (_, colour), (x, y) in zip(texts, entries, places):
        box = (x + gap, y + gap, x + gap + size, y + gap + size)
        draw.rectangle(box, colour, UNKNOWN_COLOUR if colour is None else None, max(2, size // 6))
        draw.text((box[2] + gap, y + gap + size // 2), text, _INK, font, anchor="lm")
    return strip


def _shortened(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: int) -> str:
    """The text on one line, cut to the room there is."""
    line = " ".join(text.split())
    if font.getlength(line) <= room:
        return line
    fits = next((end for end in range(len(line), 0, -1) if font.getlength(line[:end] + "…") <= room), 0)
    return line[:fits] + "…"


def _flow(lengths: Sequence[int], width: int, row: int) -> tuple[list[tuple[int, int]], int]:
    """Left and top of boxes of these lengths, in rows like words, and the height of all rows."""
    places, x, y = list[tuple[int, int]](), 0, 0
    for length in lengths:
        if x and x + length > width:
            x, y = 0, y + row
        places.append((x, y))
        x += length
    return places, y + row if lengths else 0


def beside(pictures: Sequence[Image.Image], width: int) -> Image.Image:
    """Pictures of one size in a row of ``width`` pixels, with thin gaps."""
    gap, first = 6, pictures[0]
    each = max(1, (width - gap * (len(pictures) - 1)) // len(pictures))
    size = (each, max(1, round(first.height * each / first.width)))
    row = Image.new("RGB", (width, size[1]), _PAPER)
    small = Image.Resampling.NEAREST if first.width < each else Image.Resampling.LANCZOS
    for place, picture in enumerate(pictures):
        row.paste(picture.convert("RGB").resize(size, small), (place * (each + gap), 0))
    return row


def stacked(*pictures: Image.Image) -> Image.Image:
    """Pictures one below the other, on white."""
    size = (max(picture.width for picture in pictures), sum(picture.height for picture in pictures))
    sheet, top = Image.new("RGB", size, _PAPER), 0
    for picture in pictures:
        sheet.paste(picture, (0, top))
        top += picture.height
    return sheet


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


def encoded(picture: Image.Image, kind: str = "png") -> bytes:
    """The content of a file of this kind, png or jpeg."""
    buffer = io.BytesIO()
    if kind == "jpeg":
        picture.save(buffer, kind, quality=90)
    else:
        picture.save(buffer, kind, compress_level=FAST)  # photographs pack badly, however long one tries
    return buffer.getvalue()


def mask_picture(mask: NDArray[np.bool]) -> Image.Image:
    """Mask (h w) bool as an 8-bit image: 255 where true, 0 elsewhere."""
    return Image.fromarray(mask.astype(np.uint8) * 255)


def crop_around(pixels: NDArray[np.uint8], x: int, y: int, side: int) -> Image.Image:
    """A square of pixels (h w 3) uint8 with (x, y) in its middle, as far as the border allows."""
    height, width = pixels.shape[:2]
    left, top = (max(0, min(place - side // 2, length - side)) for place, length in ((x, width), (y, height)))
    return Image.fromarray(np.ascontiguousarray(pixels[top : top + side, left : left + side]))
