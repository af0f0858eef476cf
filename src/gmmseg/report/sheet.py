"""Galleries as one picture, for a README or a message."""

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from gmmseg.inference.pictures import encoded, legend, stacked
from gmmseg.report.parts import Figure, Gallery
from gmmseg.report.sections import Classes

_TILE, _CAPTION, _GAP = 400, 22, 8
_LEGEND = 0.6  # of the width: its letters are then about as large as those of the captions
_PAPER, _INK = "white", "#222222"


def contact_sheet(galleries: Sequence[Gallery], classes: Classes) -> bytes:
    """The pictures of all galleries in rows, each above its caption, and a legend; a PNG file's bytes."""
    rows = [
        gallery.pictures[start : start + gallery.columns]
        for gallery in galleries
        for start in range(0, len(gallery.pictures), gallery.columns)
    ]
    if not rows:
        raise ValueError("a contact sheet needs at least one picture")
    tiles = [[_tile(figure) for figure in row] for row in rows]
    width = max(sum(tile.width + _GAP for tile in row) for row in tiles) + _GAP
    height = sum(max(tile.height for tile in row) + _GAP for row in tiles) + _GAP
    sheet = Image.new("RGB", (width, height), _PAPER)
    top = _GAP
    for row in tiles:
        left = _GAP
        for tile in row:
            sheet.paste(tile, (left, top))
            left += tile.width + _GAP
        top += max(tile.height for tile in row) + _GAP
    strip = legend(classes.names, classes.colours, width=round(_LEGEND * width), unknown=True)
    return encoded(stacked(sheet, strip), "png")


def _tile(figure: Figure) -> Image.Image:
    with Image.open(io.BytesIO(figure.data)) as opened:
        picture = opened.convert("RGB")
    height = round(picture.height * _TILE / picture.width)
    tile = Image.new("RGB", (_TILE, height + _CAPTION), _PAPER)
    tile.paste(picture.resize((_TILE, height), Image.Resampling.LANCZOS))
    ImageDraw.Draw(tile).text((2, height + 3), figure.caption, _INK, ImageFont.load_default(14))
    return tile
