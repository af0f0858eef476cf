"""A contact sheet of the strangest images of a prediction."""

from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from gmmseg import distributed
from gmmseg.inference.image_maps import Meaning, explaining_pictures
from gmmseg.inference.pictures import beside, stacked
from gmmseg.inference.summary_files import ImageRow
from gmmseg.printable import printable

MOST = 12
"""Images on a sheet."""
STRETCH = 100
"""Of so many frames of a video one is shown: its neighbours look the same."""
_TILE, _CAPTION, _MARGIN = 600, 22, 8
_INK, _PAPER = (30, 33, 38), (255, 255, 255)


@dataclass(frozen=True)
class _Tile:
    row: ImageRow
    scene: str
    picture: Image.Image


class Strangest:
    """Keeps small pictures of the images with most unknown pixels, or the largest scores, of those seen."""

    def __init__(self) -> None:
        self._tiles: list[_Tile] = []

    def add(self, row: ImageRow, pictures: dict[str, Image.Image], frame: int | None) -> None:
        """Take in an image's line, its overlay and its heat map; ``frame``: its number in a video."""
        if len(self._tiles) >= MOST and row.strangeness <= self._tiles[-1].row.strangeness:
            return
        scene = row.name if frame is None else f"{row.name.rsplit('/', 1)[0]} {frame // STRETCH}"
        picture = beside([pictures["overlay"], pictures["anomaly"]], _TILE)
        self._keep([*self._tiles, _Tile(row, scene, picture)])

    def _keep(self, tiles: list[_Tile]) -> None:
        """The strangest, each scene once, in an order that does not depend on who saw them first."""
        ordered = sorted(tiles, key=lambda tile: tile.row.name)
        ordered.sort(key=lambda tile: tile.row.strangeness, reverse=True)
        by_scene = {tile.scene: tile for tile in reversed(ordered)}
        self._tiles = [tile for tile in ordered if by_scene[tile.scene] is tile][:MOST]

    def sheet(self, meaning: Meaning) -> Image.Image | None:
        """Those of all processes as one picture, with legend and colour bar; None where there are none."""
        self._keep([tile for part in distributed.gather_objects(self._tiles) for tile in part])
        if not self._tiles:
            return None
        columns = min(2, len(self._tiles))
        rows = [self._tiles[start : start + columns] for start in range(0, len(self._tiles), columns)]
        width = columns * (_TILE + _MARGIN)
        strips = [_row([_captioned(tile) for tile in row], width) for row in rows]
        return stacked(*strips, *explaining_pictures(meaning).values())


def _row(tiles: list[Image.Image], width: int) -> Image.Image:
    row = Image.new("RGB", (width, max(tile.height for tile in tiles) + _MARGIN), _PAPER)
    for place, tile in enumerate(tiles):
        row.paste(tile, (place * (_TILE + _MARGIN), 0))
    return row


def _captioned(tile: _Tile) -> Image.Image:
    """A tile with the image's name and its two numbers below."""
    row = tile.row
    largest = "infinite" if row.largest_score is None else f"{row.largest_score:.4g}"
    unknown = "" if row.unknown_share is None else f"{100 * row.unknown_share:.3g} % unknown, "
    numbers = f"{unknown}largest score {largest}"
    font = ImageFont.load_default(13)
    room = _TILE - font.getlength(f"...  {numbers}")
    name = printable(row.name)
    start = next(at for at in range(len(name) + 1) if font.getlength(name[at:]) <= room)
    caption = Image.new("RGB", (_TILE, _CAPTION), _PAPER)
    text = f"{'...' if start else ''}{name[start:]}  {numbers}"
    ImageDraw.Draw(caption).text((2, 2), text, _INK, font)
    return stacked(tile.picture, caption)
