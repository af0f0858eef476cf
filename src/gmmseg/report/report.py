"""A report: a title, the numbers that matter most, and sections; one HTML file."""

from dataclasses import dataclass
from pathlib import Path

from gmmseg.atomic import write_bytes
from gmmseg.report.html import page
from gmmseg.report.sections import Highlight, Section


@dataclass(frozen=True)
class Report:
    """Everything on the page, in order. ``subtitle`` may hold `code`."""

    title: str
    sections: tuple[Section, ...]
    subtitle: str = ""
    highlights: tuple[Highlight, ...] = ()

    def html(self) -> str:
        """One self-contained document: no scripts, and nothing fetched from anywhere."""
        return page(self.title, self.subtitle, self.highlights, self.sections)

    def write(self, path: Path) -> None:
        """Put the document at ``path``, whole or not at all."""
        write_bytes(path, self.html().encode("utf-8", "backslashreplace"))
