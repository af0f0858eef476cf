import re
from html.parser import HTMLParser

import pytest

from gmmseg.report.html import Report
from gmmseg.report.parts import Column, Figure, Highlight, Section, Table


class Reader(HTMLParser):
    """Collects tags with their attributes and checks that they nest."""

    VOID = {"meta", "link", "img", "path", "use", "br"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def table_html(*rows, **column) -> str:
    columns = (Column("model"), Column("score", **column))
    return Report("t", (Section("s", tables=(Table(columns, rows),)),)).html()


def test_the_page_is_well_formed_and_complete(report):
    reader = Reader(report.html())
    assert len(reader.all("section")) == len(report.sections)
    assert len(reader.all("svg")) == sum(len(section.figures) for section in report.sections)
    assert len(reader.all("img")) == 9
    assert len(reader.all("h1")) == len(reader.all("main")) == 1
    identifiers = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    targets = [attributes["href"] for attributes in reader.all("a")]
    assert {target[1:] for target in targets} <= set(identifiers)
    sections = [name for name in identifiers if name.startswith("section")]
    assert len(sections) == len(set(sections))


def test_nothing_is_fetched_from_anywhere(report):
    reader = Reader(report.html())
    for tag, attributes in reader.tags:
        for key in ("src", "href", "xlink:href", "data", "action", "srcset"):
            assert attributes.get(key, "#").startswith(("#", "data:")), (tag, attributes)
    assert reader.all("script") == []
    styles = report.html().split("<style>")[1].split("</style>")[0]
    assert "url(" not in styles
    assert "@import" not in styles
    policy = [meta["content"] for meta in reader.all("meta") if meta.get("http-equiv")]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_everything_seen_can_be_heard(report):
    reader = Reader(report.html())
    assert all(image["alt"] for image in reader.all("img"))
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in reader.all("svg"))
    assert {head["scope"] for head in reader.all("th")} == {"col", "row"}
    assert reader.all("html")[0]["lang"] == "en"


def test_what_is_written_by_others_is_escaped():
    evil = "<script>alert('x')</script> & \"quotes\""
    figure = Figure(b"\x89PNG", "png", evil, evil)
    section = Section(
        evil, evil, (Table((Column(evil),), ((evil,),), evil),), (figure,), ((evil, (1, 2, 3)),), (), evil
    )
    text = Report(evil, (section,), evil, (Highlight(evil, evil, evil),)).html()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 10
    assert Reader(text).all("img")[0]["alt"] == evil


def test_the_best_of_a_column_stands_out_whichever_end_is_better():
    rows = (("a", 1.0), ("b", 3.0), ("c", None), ("d", float("nan")), ("e", 3.0))
    best = re.findall(r'class="best">([\d.]+)<', table_html(*rows, better="higher"))
    assert best == ["3.0", "3.0"]
    assert re.findall(r'class="best">([\d.]+)<', table_html(*rows, better="lower", digits=2)) == ["1.00"]
    assert 'class="best"' not in table_html(*rows)
    assert 'class="best"' not in table_html(("a", 1.0), ("b", None), better="higher")
    assert table_html(*rows).count(">–<") == 2


def test_texts_become_paragraphs_with_code():
    text = Report("t", (Section("s", "first\nline\n\nsecond `a < b`"),)).html()
    assert "<p>first\nline</p>" in text
    assert "<p>second <code>a &lt; b</code></p>" in text


def test_both_themes_are_there(report):
    assert "prefers-color-scheme: dark" in report.html()
    assert Reader(report.html()).all("meta")[2]["content"] == "light dark"


def test_parts_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="alt text"):
        Figure(b"", "png", "")
    with pytest.raises(ValueError, match="choose svg, png or jpeg"):
        Figure(b"", "gif", "x")
    with pytest.raises(ValueError, match="better is 'higher', 'lower'"):
        Column("x", "bigger")
    with pytest.raises(ValueError, match="has 1 cells for 2 columns"):
        Table((Column("a"), Column("b")), (("x",),))


def test_a_report_is_written_whole_over_an_older_one(report, tmp_path):
    path = tmp_path / "new" / "report.html"
    report.write(path)
    assert path.read_text(encoding="utf-8") == report.html()
    other = Report("Other", (Section("One"),))
    other.write(path)
    assert path.read_text(encoding="utf-8") == other.html()
    assert list(path.parent.iterdir()) == [path]


def test_the_same_parts_give_the_same_page(report):
    assert report.html() == report.html()
    assert len(report.html()) < 2_000_000
