"""What a report is made of: plain data, written by nobody but whoever assembles the report."""

from dataclasses import dataclass

Cell = str | float | int | None
"""A table's cell; None and NaN mean there is no number, shown as a dash."""

NEVER = 255
"""The level of a pixel that no position of a slider makes unknown."""


@dataclass(frozen=True)
class Figure:
    """An encoded picture. ``kind``: svg, png or jpeg; ``alt``: what it shows, for those who do not see it.

    An SVG may use ``currentColor``: it is set into the page itself and follows its light or dark theme.
    ``levels``: a grey PNG of the same picture, by which a `Slider` shows what is unknown. A pixel's value is
    the first position of the slider at which it is; `NEVER`: at none. The picture itself shows the start.
    """

    data: bytes
    kind: str
    alt: str
    caption: str = ""
    levels: bytes = b""

    def __post_init__(self) -> None:
        if self.kind not in ("svg", "png", "jpeg"):
            raise ValueError(f"figure of kind {self.kind!r}: choose svg, png or jpeg")
        if not self.alt:
            raise ValueError("a figure needs an alt text that says what it shows")


@dataclass(frozen=True)
class Gallery:
    """Pictures of one thing, ``columns`` to a row where the window is wide and two where it is narrow.

    ``compared``: the others are maps of the first picture, and can be laid over it.
    """

    title: str
    pictures: tuple[Figure, ...]
    columns: int = 4
    compared: bool = False


@dataclass(frozen=True)
class Slider:
    """Moves what is unknown in the pictures of its section that have ``levels``.

    ``positions``: what it says at each, fewest unknown pixels first; ``notes``: a sentence for each of them;
    ``start``: where it begins; ``colour``: RGB of what is unknown.
    """

    label: str
    positions: tuple[str, ...]
    notes: tuple[str, ...]
    start: int
    colour: tuple[int, int, int]

    def __post_init__(self) -> None:
        if not 0 <= self.start < len(self.positions) <= NEVER or len(self.notes) != len(self.positions):
            raise ValueError(
                f"a slider needs 1 to {NEVER} positions, a note for each, and a start among them"
            )


@dataclass(frozen=True)
class Column:
    """A heading; ``better``: higher, lower, or nothing to say; ``digits`` after the point of its numbers.

    ``bar``: its numbers are percentages, and a bar behind each shows how large it is.
    """

    name: str
    better: str = ""
    digits: int = 1
    bar: bool = False

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
class Matrix:
    """Shares in [0, 1] of each row in each column, the diagonal being what is right; NaN: the row is empty.

    ``names``: of the rows and of as many columns; ``others``: heading of one column more, or nothing.
    """

    names: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    caption: str
    others: str = ""

    def __post_init__(self) -> None:
        width = len(self.names) + bool(self.others)
        if len(self.shares) != len(self.names) or any(len(row) != width for row in self.shares):
            raise ValueError(f"a matrix of {len(self.names)} names needs {len(self.names)} rows of {width}")


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
    matrices: tuple[Matrix, ...] = ()
    slider: Slider | None = None
