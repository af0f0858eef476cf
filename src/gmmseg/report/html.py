"""A report: a title, the numbers that matter most, and sections, as one HTML page.

The page fetches nothing: styles, charts and pictures are inside it.
"""

import base64
import math
import re
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from gmmseg.atomic import write_bytes
from gmmseg.report.parts import Cell, Column, Figure, Gallery, Highlight, Section, Table

# The browser itself refuses whatever is not in the file.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Report:
    """Everything on the page, in order. ``subtitle`` may hold `code`."""

    title: str
    sections: tuple[Section, ...]
    subtitle: str = ""
    highlights: tuple[Highlight, ...] = ()

    def html(self) -> str:
        """One self-contained document: no scripts, and nothing fetched from anywhere."""
        return _page(self)

    def write(self, path: Path) -> None:
        """Put the document at ``path``, whole or not at all."""
        write_bytes(path, self.html().encode("utf-8", "backslashreplace"))


def _page(report: Report) -> str:
    """The whole document."""
    title, subtitle, sections = report.title, report.subtitle, report.sections
    anchors = [f"section-{number}" for number in range(1, len(sections) + 1)]
    links = "".join(
        f'<li><a href="#{anchor}">{escape(section.title)}</a></li>'
        for anchor, section in zip(anchors, sections)
    )
    body = "\n".join(_section(section, anchor) for section, anchor in zip(sections, anchors))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{files("gmmseg.report").joinpath("report.css").read_text()}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{f'<p class="subtitle">{_inline(subtitle)}</p>' if subtitle else ""}
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main>
{_highlights(report.highlights)}
{body}
</main>
</body>
</html>
"""


def _section(section: Section, anchor: str) -> str:
    parts = [
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">',
        f'<h2 id="{anchor}-title">{escape(section.title)}</h2>',
        *(f"<p>{_inline(text)}</p>" for text in re.split(r"\n\s*\n", section.text.strip()) if text),
        *(_table(table, section.title) for table in section.tables),
        _charts(section.figures),
        _legend(section.legend),
        *(_gallery(gallery) for gallery in section.galleries),
        _details(section.details),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _inline(text: str) -> str:
    """Escaped text with `code` set as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _highlights(highlights: tuple[Highlight, ...]) -> str:
    cards = "".join(
        f"<div><dt>{escape(item.label)}</dt><dd><strong>{escape(item.value)}</strong>"
        f"{f'<span>{_inline(item.note)}</span>' if item.note else ''}</dd></div>"
        for item in highlights
    )
    return f'<dl class="highlights">{cards}</dl>' if cards else ""


def _table(table: Table, name: str) -> str:
    best = [_best([row[i] for row in table.rows], column) for i, column in enumerate(table.columns)]
    heads = "".join(f'<th scope="col">{_heading(column)}</th>' for column in table.columns)
    rows = "".join(_row(row, table.columns, best) for row in table.rows)
    caption = f'<p class="caption">{_inline(table.caption)}</p>' if table.caption else ""
    # A wide table scrolls by itself, also by keyboard, and the page does not.
    return (
        f'<div class="table" role="region" aria-label="{escape(table.caption or name)}" tabindex="0"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{caption}"
    )


def _row(row: tuple[Cell, ...], columns: tuple[Column, ...], best: list[Cell]) -> str:
    cells = [_cell(value, column) for value, column in zip(row, columns)]
    marks = [' class="best"' if top is not None and value == top else "" for value, top in zip(row, best)]
    data = "".join(f"<td{mark}>{text}</td>" for mark, text in zip(marks[1:], cells[1:]))
    return f'<tr><th scope="row">{cells[0]}</th>{data}</tr>'


def _heading(column: Column) -> str:
    arrow = {"higher": "↑", "lower": "↓", "": ""}[column.better]
    hint = f' <span title="{column.better} is better" aria-label="{column.better} is better">{arrow}</span>'
    return escape(column.name) + (hint if arrow else "")


def _best(values: list[Cell], column: Column) -> Cell:
    """The best number of a column; None when it has no better end or nothing to compare."""
    numbers = [value for value in values if isinstance(value, int | float) and not math.isnan(value)]
    if not column.better or len(numbers) < 2:
        return None
    return max(numbers) if column.better == "higher" else min(numbers)


def _cell(value: Cell, column: Column) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return '<span aria-label="no value">–</span>'
    return f"{value:.{column.digits}f}" if isinstance(value, float) else _inline(str(value))


def _charts(figures: tuple[Figure, ...]) -> str:
    return f'<div class="charts">{"".join(map(_figure, figures))}</div>' if figures else ""


def _gallery(gallery: Gallery) -> str:
    pictures = "".join(map(_figure, gallery.pictures))
    return (
        f"<h3>{escape(gallery.title)}</h3>"
        f'<div class="gallery" style="--columns: {gallery.columns}">{pictures}</div>'
    )


def _figure(figure: Figure) -> str:
    caption = f"<figcaption>{_inline(figure.caption)}</figcaption>" if figure.caption else ""
    return f"<figure>{_inlined_svg(figure) if figure.kind == 'svg' else _image(figure)}{caption}</figure>"


def _image(figure: Figure) -> str:
    data = base64.b64encode(figure.data).decode()
    return f'<img src="data:image/{figure.kind};base64,{data}" alt="{escape(figure.alt)}" loading="lazy">'


def _inlined_svg(figure: Figure) -> str:
    """The <svg> element alone, as wide as its place, read out by its alt text."""
    text = figure.data.decode()
    element = text[text.index("<svg") :]
    opening, rest = element.split(">", 1)
    opening = re.sub(r'\s(width|height)="[^"]*"', "", opening)
    return f'{opening} role="img" aria-label="{escape(figure.alt)}">{rest.strip()}'


def _legend(legend: tuple[tuple[str, tuple[int, int, int]], ...]) -> str:
    items = "".join(
        f'<li><span style="background: rgb({red} {green} {blue})"></span>{escape(name)}</li>'
        for name, (red, green, blue) in legend
    )
    return f'<ul class="legend" aria-label="Colours of the classes">{items}</ul>' if items else ""


def _details(text: str) -> str:
    return f"<details><summary>Details</summary><pre>{escape(text)}</pre></details>" if text else ""
