"""Masks that hold a colour for each class, turned into masks of ids. No colour is guessed: each is named."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from gmmseg.atomic import write_bytes
from gmmseg.data.class_list import UNNAMED, Colour, read_coloured_classes
from gmmseg.data.reading import MAX_PIXELS, DataError, read_ids
from gmmseg.images import IMAGE_SUFFIXES, open_image, refuse_odd_file
from gmmseg.labels import IGNORE
from gmmseg.samples import Progress

COLOURS_FILE = "colours.txt"
"""The list that is written where none was given, for its colours to be named."""
MOST_COLOURS = 256
"""Masks of more colours than there are ids have colours that no class has."""
_PLAIN = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")


def convert_masks(
    masks: Path,
    out: Path,
    colours: Path,
    *,
    ignore: Iterable[Colour] = (),
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write every mask below ``masks`` as PNG of ids below ``out``, in the same folders.

    ``colours`` lists classes with their colours, as `class_list` describes: the first line is id 0. Pixels of
    the colours ``ignore`` become 255. A colour that neither names is a DataError with the file. A mask that
    is there already with the same ids is passed over, with other ids it is never replaced. Returns how many
    were written and how many were there.
    """
    files, table = _targets(masks, out), id_of_colours(colours, ignore)
    written = 0
    for number, (mask, target) in enumerate(files.items(), 1):
        ids = _encoded(read_colours(mask), table, mask, colours)
        written += _write_once(target, ids, mask)
        if progress:
            progress(number, len(files), str(mask))
    return written, len(files) - written


def id_of_colours(path: Path, ignore: Iterable[Colour] = ()) -> dict[Colour, int]:
    """The id of every colour that the file at ``path`` lists, and 255 for those of ``ignore``."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file of class names and colours")
    table = {colour: index for index, colour in enumerate(read_coloured_classes(path).colours)}
    for colour in ignore:
        if table.get(colour, IGNORE) != IGNORE:
            raise DataError(f"{path}: {colour} is the colour of a class, and to be ignored: choose one")
        table[colour] = IGNORE
    return table


def found_colours(masks: Path, out: Path, progress: Progress | None = None) -> dict[Colour, int]:
    """How many pixels of all masks below ``masks`` have each colour, the most frequent first."""
    counts: dict[int, int] = {}
    files = _targets(masks, out)
    for number, mask in enumerate(files, 1):
        for key, count in zip(*np.unique(read_colours(mask), return_counts=True)):
            counts[int(key)] = counts.get(int(key), 0) + int(count)
        if len(counts) > MOST_COLOURS:
            raise DataError(
                f"{mask}: brings the colours of these masks to {len(counts)}, more than classes can be; JPEG "
                "and resized images mix colours: take the masks as they were drawn, as PNG"
            )
        if progress:
            progress(number, len(files), str(mask))
    return {_colour(key): counts[key] for key in sorted(counts, key=lambda key: (-counts[key], key))}


def write_template(colours: Mapping[Colour, int], path: Path) -> None:
    """A list of ``colours`` at ``path``, one a line, each with ? in the place of its name."""
    if path.exists():
        raise DataError(f"{path}: is there already; name its colours and give it as --colours, or remove it")
    write_bytes(path, "".join(f"{UNNAMED} {r} {g} {b}\n" for r, g, b in colours).encode())


def read_colours(path: Path) -> np.ndarray:
    """The colour of every pixel (h w) as one number, 65536 red + 256 green + blue."""
    refuse_odd_file(path, DataError)
    try:
        with open_image(path, max_pixels=MAX_PIXELS) as file:
            mode, image = file.mode, file.convert("RGBA")
    except Exception as error:  # decoders fail in every way there is
        raise DataError(f"{path}: cannot be read as a mask ({error}); replace or remove it") from error
    if mode not in _PLAIN:
        raise DataError(f"{path}: its pixels are {mode}, not colours of 8 bits; save it as 8-bit PNG")
    pixels = np.asarray(image).astype(np.int32)
    if (pixels[..., 3] != 255).any():
        raise DataError(f"{path}: is transparent in places, which have no colour; save it without alpha")
    return (pixels[..., 0] << 16) | (pixels[..., 1] << 8) | pixels[..., 2]


def _targets(masks: Path, out: Path) -> dict[Path, Path]:
    """Every mask below ``masks`` and the file it becomes; what could not be told apart is refused."""
    if not masks.is_dir():
        raise DataError(f"{masks}: there is no such folder of masks")
    inside, outside = out.resolve(), masks.resolve()
    if inside == outside or outside in inside.parents:
        raise DataError(f"{out}: lies in the folder of the masks; choose a folder beside it")
    found = sorted(path for path in masks.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise DataError(f"{masks}: there are no images in it")
    targets: dict[Path, Path] = {}
    taken: dict[Path, Path] = {}
    for mask in found:
        target = (out / mask.relative_to(masks)).with_suffix(".png")
        if target in taken:
            raise DataError(f"{mask}: would become the same file as {taken[target]}; rename one of them")
        taken[target], targets[mask] = mask, target
    return targets


def _encoded(keys: np.ndarray, table: Mapping[Colour, int], mask: Path, colours: Path) -> np.ndarray:
    """Ids (h w) uint8 of colours (h w); DataError for colours that the table has not."""
    present, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    unknown = [(_colour(int(k)), int(n)) for k, n in zip(present, counts) if _colour(int(k)) not in table]
    if unknown:
        unknown.sort(key=lambda each: -each[1])
        listed = ", ".join(f"{r} {g} {b} ({count} pixels)" for (r, g, b), count in unknown[:8])
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        raise DataError(
            f"{mask}: colours that {colours} does not name: {listed}{more}; add them to it, or ignore them "
            "with --ignore R,G,B"
        )
    ids = np.array([table[_colour(int(key))] for key in present], np.uint8)
    return ids[places].reshape(keys.shape)


def _write_once(target: Path, ids: np.ndarray, mask: Path) -> bool:
    """Whether the mask was written: not where it is there already; DataError where other ids are."""
    if target.exists():
        there = read_ids(target)
        if there.shape == ids.shape and (there == ids).all():
            return False
        raise DataError(f"{target}: is there already and is not what {mask} becomes; choose another folder")
    buffer = io.BytesIO()
    Image.fromarray(ids).save(buffer, "PNG")
    write_bytes(target, buffer.getvalue())
    return True


def _colour(key: int) -> Colour:
    return key >> 16, key >> 8 & 255, key & 255


def parse_colour(text: str) -> Colour:
    """The colour written as R,G,B."""
    parts: Sequence[str] = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() and int(part) <= 255 for part in parts):
        raise DataError(f"--ignore {text}: a colour is three numbers from 0 to 255, such as 0,0,0")
    red, green, blue = (int(part) for part in parts)
    return red, green, blue
