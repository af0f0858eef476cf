"""What a report is made of: plain data, written by nobody but whoever assembles the report."""

from dataclasses import dataclass

Cell = str | float | int | None
"""A table's cell; None and NaN mean there is no number, shown as a dash."""


@dataclass(frozen=True)
class Figure:
    """An encoded picture. ``kind``: svg, png or jpeg; ``alt``: what it shows, for those who do not see it.

    An SVG may use ``currentColor``: it is set into the page itself and follows its light or dark theme.
    """

    data: bytes
    kind: str
    alt: str
    caption: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("svg", "png", "jpeg"):
            raise ValueError(f"figure of kind {self.kind!r}: choose svg, png or jpeg")
        if not self.alt:
            raise ValueError("a figure needs an alt text that says what it shows")


@dataclass(frozen=True)
class Gallery:
    """Pictures of one thing, ``columns`` to a row where the window is wide and two where it is narrow."""

    title: str
    pictures: tuple[Figure, ...]
    columns: int = 4


@dataclass(frozen=True)
class Column:
    """A heading; ``better``: higher, lower, or nothing to say; ``digits`` after the point of its numbers."""

    name: str
    better: str = ""
    digits: int = 1

    def __post_init__(self) -> None:
        if self.better not in ("", "higher", "lower"):
            raise ValueError(f"column {self.name!r}: better is 'higher', 'lower' or '', not {self.better!r}")


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; the first cell names the row. The best numbers of a column stand out."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"row {row} has {len(row)} cells for {len(self.columns)} columns")


@dataclass(frozen=True)
class Highlight:
    """One number for the top of the page: what it is, its value as text, and a remark."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A chapter: paragraphs (parted by blank lines, `code` in backticks), then whatever of the rest there is.

    ``legend``: (name, RGB colour) pairs. ``details``: long text such as a configuration, folded away.
    """

    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    legend: tuple[tuple[str, tuple[int, int, int]], ...] = ()
    galleries: tuple[Gallery, ...] = ()
    details: str = ""
