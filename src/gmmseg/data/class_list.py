"""``classes.txt``: the classes of a set, one a line, in the order of their ids, with colours or without.

A line is ``NAME`` or ``NAME R G B``: a name, which may hold spaces, and then three whole numbers up to 255.
Either every line has a colour or none has. A name that itself ends in three numbers needs a colour behind it.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from gmmseg.class_colours import default_colours
from gmmseg.data.reading import DataError
from gmmseg.labels import IGNORE, LabelSpace

Colour = tuple[int, int, int]
UNNAMED = "?"
"""What stands for the name of a colour that nobody has named yet."""

_COLOURED = re.compile(r"(?P<name>.*?)\s*(?<!\S)(?P<red>\d+)\s+(?P<green>\d+)\s+(?P<blue>\d+)", re.ASCII)


def read_classes(path: Path) -> LabelSpace:
    """The classes that a file lists; their colours are chosen where it has none."""
    names, colours = _parsed(path)
    return LabelSpace(tuple(names), tuple(colours) if colours else default_colours(len(names)))


def read_coloured_classes(path: Path) -> LabelSpace:
    """The classes that a file lists with their colours; DataError where it has none."""
    names, colours = _parsed(path)
    if not colours:
        raise DataError(f"{path}: names no colours; write NAME R G B on every line, such as road 128 64 128")
    return LabelSpace(tuple(names), tuple(colours))


def _parsed(path: Path) -> tuple[list[str], list[Colour]]:
    """Names, and either as many colours or none."""
    lines = _lines(path)
    found = [_COLOURED.fullmatch(line) for line in lines]
    coloured = [each for each in found if each is not None]
    if coloured and len(coloured) < len(lines):
        raise _mixed(path, lines, [each is not None for each in found])
    names = [each["name"] for each in coloured] or lines
    if coloured and UNNAMED in names:
        raise DataError(f"{path}: write the name of a class in the place of every {UNNAMED}")
    _refuse_odd_names(path, names)
    colours = [_colour(path, number, each) for number, each in enumerate(coloured, 1)]
    _refuse_same_colour(path, names, colours)
    return names, colours


def _lines(path: Path) -> list[str]:
    """The lines without blanks at their ends, and without empty ones at the end of the file."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text ({error}); save it as UTF-8") from error
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _mixed(path: Path, lines: Sequence[str], coloured: Sequence[bool]) -> DataError:
    with_colour, without = coloured.index(True), coloured.index(False)
    return DataError(
        f"{path}: line {with_colour + 1} ({lines[with_colour]!r}) ends in a colour, line {without + 1} "
        f"({lines[without]!r}) does not; give every class a colour, NAME R G B, or none"
    )


def _refuse_odd_names(path: Path, names: Sequence[str]) -> None:
    if not names or not all(names) or len(set(names)) < len(names):
        raise DataError(f"{path}: must hold one different class name on every line, without empty lines")
    if not all(name.isprintable() for name in names):
        raise DataError(f"{path}: holds control characters; class names are plain text, one on every line")
    if len(names) > IGNORE:
        raise DataError(f"{path}: {len(names)} names; at most {IGNORE} classes fit beside the ignore label")


def _colour(path: Path, number: int, line: re.Match[str]) -> Colour:
    red, green, blue = (_number(line[part]) for part in ("red", "green", "blue"))
    if max(red, green, blue) > 255:
        raise DataError(
            f"{path}: line {number} ({line[0]!r}) ends in three numbers, but a colour has none above 255; "
            "correct it, or put the colour of the class behind a name that ends in numbers"
        )
    return red, green, blue


def _number(digits: str) -> int:
    """Their value; 256 stands for any that is too long to be one of a colour."""
    return int(digits) if len(digits) < 10 else 256


def _refuse_same_colour(path: Path, names: Sequence[str], colours: Sequence[Colour]) -> None:
    first: dict[Colour, str] = {}
    for name, colour in zip(names, colours):
        if colour in first:
            raise DataError(
                f"{path}: {first[colour]!r} and {name!r} have the same colour {colour}; give each its own"
            )
        first[colour] = name
