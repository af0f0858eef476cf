"""What a report says about whom: from results files alone."""

from pathlib import Path

import pytest

from gmmseg.evaluation import build_results, write_results
from gmmseg.run.report import distinct_names, open_sources, write_report


def closed(miou):
    return {"task": "closed_set", "metrics": {"miou": miou, "pixel_accuracy": 0.9, "ece": 0.1}}


def anomaly(ap):
    curve = {"thresholds": [2.0, 1.0], "tpr": [0.5, 1.0], "fpr": [0.1, 1.0], "precision": [0.5, 0.1]}
    return {"task": "anomaly", "scores": {"msp": {"auroc": 0.8, "ap": ap, "fpr95": 0.5, "curve": curve}}}


def results(path: Path, **sets) -> Path:
    write_results(build_results(path.parent.name, sets), path)
    return path


def test_runs_of_one_folder_name_are_told_apart(tmp_path):
    sources = [
        results(tmp_path / place / "gmm/results.json", val=closed(0.5), strange=anomaly(0.3)).parent
        for place in ("first", "second")
    ]
    write_report(sources, [], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for name in ("first/gmm", "second/gmm"):
        assert f"{name}: msp" in page
    with pytest.raises(ValueError, match="twice"):
        open_sources([sources[0], sources[0]])


def test_names_take_as_many_folders_as_they_need():
    sources = [Path("/x/a/run"), Path("/y/a/run"), Path("/x/b/run"), Path("/x/other")]
    names = distinct_names([source.name for source in sources], sources)
    assert names == ["x/a/run", "y/a/run", "b/run", "other"]
