"""The demo clears what an earlier demo left, and nothing else."""

import pytest

from gmmseg import demo
from gmmseg.training.run_folder import WorkInFolder, locked


class Trained(Exception):
    """Where the demo would begin to train."""


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    def train(*arguments):
        raise Trained

    monkeypatch.setattr(demo.run, "train", train)


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("work")
    return path


@pytest.mark.parametrize(
    "name",
    [
        "gmm/checkpoints/step_00000005.pt",
        "softmax/final/model.safetensors",
        "gmm/results.json",
        "report.html",
    ],
)
def test_what_is_not_the_demos_own_is_refused_before_anything_runs(tmp_path, name):
    own = write(tmp_path / name)
    with pytest.raises(WorkInFolder, match="not made by `gmmseg demo`: choose another --out"):
        demo.run_demo(tmp_path, say=str)
    assert own.read_text() == "work"


def test_a_second_demo_replaces_the_first(tmp_path):
    with pytest.raises(Trained):
        demo.run_demo(tmp_path, say=str)
    names = ("gmm/checkpoints/step_00000005.pt", "gmm/log.jsonl", "softmax/final/model.safetensors")
    first = [write(tmp_path / name) for name in names]
    write(tmp_path / "report.html")
    notes = write(tmp_path / "notes.txt")
    with pytest.raises(Trained):
        demo.run_demo(tmp_path, say=str)
    assert not any(path.exists() for path in first)
    assert notes.exists()


def test_two_demos_do_not_share_a_folder(tmp_path):
    with locked(tmp_path), pytest.raises(RuntimeError, match="is writing here"):
        demo.run_demo(tmp_path, say=str)
