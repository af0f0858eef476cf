import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest

from gmmseg.report.html import Report
from gmmseg.report.parts import Column, Figure, Highlight, Matrix, Section, Slider, Table


class Reader(HTMLParser):
    """Collects tags with their attributes and checks that they nest."""

    VOID = {"meta", "link", "img", "path", "use", "br", "input"}

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
    assert len(reader.all("img")) == 9 + 2
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
    styles = report.html().split("<style>")[1].split("</style>")[0]
    assert "url(" not in styles
    assert "@import" not in styles


POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def test_the_policy_allows_one_script_by_its_hash_and_none_on_a_page_without_pictures(report):
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', report.html())
    (script,) = re.findall(r"<script>(.*?)</script>", report.html(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"{POLICY}; script-src 'sha256-{digest}'"
    plain = Report("t", (Section("s"),)).html()
    assert f'content="{POLICY}"' in plain
    assert "<script" not in plain


def test_what_only_the_script_can_move_is_hidden_without_it(report):
    reader = Reader(report.html())
    (slider,) = [each for each in reader.all("div") if each.get("class") == "slider"]
    assert "hidden" in slider
    steps = json.loads(slider["data-steps"])
    assert steps["positions"] == ["1 %", "5 %", "20 %"]
    assert len(steps["notes"]) == 3
    assert len([each for each in reader.all("figure") if "data-levels" in each]) == 2
    (choice,) = reader.all("input")
    assert (choice["max"], choice["value"]) == ("2", "1")
    assert {label["for"] for label in reader.all("label")} == {choice["id"]}


def test_facts_bars_and_matrices_are_on_the_page(report):
    matrix = Matrix(("a<b", "c"), ((0.9, 0.004, 0.096), (math.nan,) * 3), "of two", "others")
    table = Table((Column("x"), Column("iou", bar=True)), (("a", 40.0), ("b", None), ("c", math.nan)))
    text = Report(
        "t", (Section("s", tables=(table,), matrices=(matrix,)),), facts=(("made", "today"),)
    ).html()
    assert "<dt>made</dt><dd>today</dd>" in text
    assert text.count('class="bar" style="--share: 40.0">40.0<') == text.count('class="bar"') == 1
    cells = re.findall(r'<td class="(right|wrong)" style="--share: ([\d.]+)">(\d*)</td>', text)
    assert cells == [("right", "0.900", "90"), ("wrong", "0.004", ""), ("wrong", "0.096", "10")]
    assert '<th scope="row">a&lt;b</th>' in text
    long = Table((Column("x"),), tuple((str(row),) for row in range(26)))
    assert 'class="table long"' in Report("t", (Section("s", tables=(long,)),)).html()
    with pytest.raises(ValueError, match="needs 1 rows of 1"):
        Matrix(("a",), ((0.5, 0.5),), "wrong")
    with pytest.raises(ValueError, match="a note for each"):
        Slider("x", ("1 %",), (), 0, (1, 2, 3))


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
