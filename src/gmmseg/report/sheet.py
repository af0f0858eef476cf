"""Galleries as one picture, for a README or a message."""

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from gmmseg.report.parts import Figure, Gallery

_TILE, _CAPTION, _GAP = 320, 20, 8
_PAPER, _INK = "white", "#222222"


def contact_sheet(galleries: Sequence[Gallery]) -> bytes:
    """The pictures of all galleries in rows, each above its caption; a PNG file's bytes."""
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
    buffer = io.BytesIO()
    sheet.quantize(256).save(buffer, "png", optimize=True)
    return buffer.getvalue()


def _tile(figure: Figure) -> Image.Image:
    with Image.open(io.BytesIO(figure.data)) as opened:
        picture = opened.convert("RGB")
    height = round(picture.height * _TILE / picture.width)
    tile = Image.new("RGB", (_TILE, height + _CAPTION), _PAPER)
    tile.paste(picture.resize((_TILE, height), Image.Resampling.LANCZOS))
    ImageDraw.Draw(tile).text((2, height + 3), figure.caption, _INK, ImageFont.load_default(12))
    return tile
