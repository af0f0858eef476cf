"""The demo clears what an earlier demo left, and nothing else."""

from contextlib import nullcontext

import pytest

from gmmseg.run import demo
from gmmseg.training.run_folder import FolderInUse, WorkInFolder, locked


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
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own], "no mark, no lock"
    assert own.read_text() == "work"


@pytest.mark.parametrize("in_use", [False, True])
def test_nothing_is_cleared_before_all_folders_are_found_to_be_the_demos(tmp_path, in_use):
    with pytest.raises(Trained):
        demo.run_demo(tmp_path, say=str)
    own = write(tmp_path / "gmm/final/model.safetensors")
    (tmp_path / "softmax" / demo.MARK).unlink()
    write(tmp_path / "softmax/thesis.txt")
    holding = locked(tmp_path / "softmax") if in_use else nullcontext()
    refusal = FolderInUse if in_use else WorkInFolder
    with holding, pytest.raises(refusal, match="softmax"):
        demo.run_demo(tmp_path, say=str)
    assert own.exists()


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
