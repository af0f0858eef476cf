from gmmseg.report.report import Report
from gmmseg.report.sections import Section


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
