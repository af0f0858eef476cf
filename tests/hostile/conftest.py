"""A small world of whole files, trained and judged once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tables import harness.py beside them

from harness import TINY, invoke, snapshot, write_data, write_scores


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """data/, run/ (trained, judged), scores/, masks/ and results.json, all whole; nobody may change them."""
    root = tmp_path_factory.mktemp("world")
    write_data(root / "data")
    write_scores(root)
    words = ["train", "folder", f"data.root={root / 'data'}", *TINY, "--out", root / "run", "--cpu"]
    trained = invoke(*words, patience=600)  # the first command imports everything
    assert trained.code == 0, trained.err
    judged = invoke("evaluate", root / "run", "-d", f"folder:{root / 'data'}:val")
    assert judged.code == 0, judged.err
    scored = invoke(
        "score", "--scores", root / "scores", "--masks", root / "masks", "--out", root / "results.json"
    )
    assert scored.code == 0, scored.err
    before = snapshot(root)
    yield root
    assert snapshot(root) == before, "a case has changed a file that it was only given to read"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder that is also the current one, so that anything written by default shows."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
