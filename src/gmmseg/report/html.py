"""A report: a title, the numbers that matter most, and sections, as one HTML page.

The page fetches nothing: styles, charts and pictures are inside it, and so is the one script it has, which
makes pictures larger and moves thresholds. Without the script everything is shown, but nothing moves.
"""

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from gmmseg.atomic import write_bytes
from gmmseg.report.parts import Cell, Column, Figure, Gallery, Highlight, Matrix, Section, Slider, Table

# The browser itself refuses whatever is not in the file.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_LONG = 25  # rows: longer tables scroll in a box of their own


@dataclass(frozen=True)
class Report:
    """Everything on the page, in order. ``subtitle`` may hold `code`; ``facts``: (what, value) pairs."""

    title: str
    sections: tuple[Section, ...]
    subtitle: str = ""
    highlights: tuple[Highlight, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()

    def html(self) -> str:
        """One self-contained document: nothing is fetched, and the policy allows no script but its own."""
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
    script = _resource("report.js") if any(section.galleries for section in sections) else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{_resource("report.css")}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{f'<p class="subtitle">{_inline(subtitle)}</p>' if subtitle else ""}
{_facts(report.facts)}
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main>
{_highlights(report.highlights)}
{body}
</main>
{f"<script>{script}</script>" if script else ""}
</body>
</html>
"""


def _resource(name: str) -> str:
    return files("gmmseg.report").joinpath(name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """What the browser may do on the page: with a script, run exactly this one."""
    if not script:
        return _POLICY
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{_POLICY}; script-src 'sha256-{digest}'"


def _facts(facts: tuple[tuple[str, str], ...]) -> str:
    items = "".join(f"<div><dt>{escape(what)}</dt><dd>{_inline(value)}</dd></div>" for what, value in facts)
    return f'<dl class="facts">{items}</dl>' if items else ""


def _section(section: Section, anchor: str) -> str:
    parts = [
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">',
        f'<h2 id="{anchor}-title">{escape(section.title)}</h2>',
        *(f"<p>{_inline(text)}</p>" for text in re.split(r"\n\s*\n", section.text.strip()) if text),
        *(_table(table, section.title) for table in section.tables),
        _matrices(section.matrices),
        _charts(section.figures),
        _legend(section.legend),
        _slider(section.slider, anchor),
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
    return (
        _scrolling(
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>",
            table.caption or name,
            "table long" if len(table.rows) > _LONG else "table",
        )
        + caption
    )


def _scrolling(table: str, label: str, look: str) -> str:
    """A large table scrolls by itself, also by keyboard, and the page does not."""
    return f'<div class="{look}" role="region" aria-label="{escape(label)}" tabindex="0">{table}</div>'


def _matrices(matrices: tuple[Matrix, ...]) -> str:
    return f'<div class="matrices">{"".join(map(_matrix, matrices))}</div>' if matrices else ""


def _matrix(matrix: Matrix) -> str:
    """Rows of percentages, the darker the larger; what is right in one colour, what is wrong in another."""
    headings = [*matrix.names, *([matrix.others] if matrix.others else [])]
    heads = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in headings)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(_share(share, column == number) for column, share in enumerate(shares))
        + "</tr>"
        for number, (name, shares) in enumerate(zip(matrix.names, matrix.shares))
    )
    table = f"<table><thead><tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    caption = f'<p class="caption">{_inline(matrix.caption)}</p>'
    return f"<div>{_scrolling(table, matrix.caption, 'table matrix')}{caption}</div>"


def _share(share: float, right: bool) -> str:
    """A cell of a matrix; what rounds to nothing stays empty, so that the eye finds the rest."""
    if math.isnan(share):
        return "<td></td>"
    text = f"{100 * share:.0f}" if share >= 0.005 else ""
    return f'<td class="{"right" if right else "wrong"}" style="--share: {share:.3f}">{text}</td>'


def _slider(slider: Slider | None, anchor: str) -> str:
    """Hidden until the script, without which it would do nothing, shows it."""
    if slider is None:
        return ""
    steps = escape(json.dumps({"positions": slider.positions, "notes": slider.notes}))
    colour = " ".join(map(str, slider.colour))
    return (
        f'<div class="slider" hidden data-steps="{steps}" data-colour="{colour}">'
        f'<label for="{anchor}-slider">{escape(slider.label)}</label> <output for="{anchor}-slider"></output>'
        f'<input id="{anchor}-slider" type="range" min="0" max="{len(slider.positions) - 1}" step="1" '
        f'value="{slider.start}"><button type="button">Back to the start</button>'
        f'<p role="status"></p></div>'
    )


def _row(row: tuple[Cell, ...], columns: tuple[Column, ...], best: list[Cell]) -> str:
    cells = [_cell(value, column) for value, column in zip(row, columns)]
    marks = [_mark(value, column, top) for value, column, top in zip(row, columns, best)]
    data = "".join(f"<td{mark}>{text}</td>" for mark, text in zip(marks[1:], cells[1:]))
    return f'<tr><th scope="row">{cells[0]}</th>{data}</tr>'


def _mark(value: Cell, column: Column, best: Cell) -> str:
    """The look of a cell, as attributes."""
    looks = ["best"] if best is not None and value == best else []
    if column.bar and isinstance(value, float) and not math.isnan(value):
        return f' class="{" ".join([*looks, "bar"])}" style="--share: {min(max(value, 0), 100):.1f}"'
    return f' class="{looks[0]}"' if looks else ""


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
        f'<div class="gallery"{" data-compared" if gallery.compared else ""} '
        f'style="--columns: {gallery.columns}">{pictures}</div>'
    )


def _figure(figure: Figure) -> str:
    caption = f"<figcaption>{_inline(figure.caption)}</figcaption>" if figure.caption else ""
    levels = f' data-levels="{_address(figure.levels, "png")}"' if figure.levels else ""
    picture = _inlined_svg(figure) if figure.kind == "svg" else _image(figure)
    return f"<figure{levels}>{picture}{caption}</figure>"


def _image(figure: Figure) -> str:
    address = _address(figure.data, figure.kind)
    return f'<img src="{address}" alt="{escape(figure.alt)}" loading="lazy">'


def _address(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


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
