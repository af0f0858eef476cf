"""The demo clears what an earlier demo left, and nothing else."""

import json
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from gmmseg.data import Streets, StreetsAnomaly
from gmmseg.models.packaged import PackagedWeights
from gmmseg.run import demo
from gmmseg.training.cached_crops import FOLDER, CachedCrops
from gmmseg.training.run_folder import FolderInUse, WorkInFolder, locked


class Trained(Exception):
    """Where the demo would begin to train."""


@pytest.fixture(autouse=True)
def no_training(monkeypatch, request):
    """Only a test that asks for ``training`` gets some; the others learn the configuration."""
    if "training" in request.fixturenames:
        return

    def train(config, folder, crops_in):
        raise Trained(config)

    monkeypatch.setattr(demo.run, "train", train)


@pytest.fixture
def training(monkeypatch):
    """Streets so few and small that both models are trained and judged in seconds."""
    for kind, lengths in ((Streets, {"train": 2, "val": 2, "test": 2}), (StreetsAnomaly, {"test": 6})):
        monkeypatch.setattr(kind, "lengths", lengths)
        monkeypatch.setattr(kind, "usual_size", (64, 96))


def tensors(folder):
    return load_file(folder / "model.safetensors")


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
    own = {write(tmp_path / each) for each in (name, "crops/crops.bin")}
    with pytest.raises(WorkInFolder, match="not made by `gmmseg demo`: choose another --out"):
        demo.run_demo(tmp_path, say=str)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == own, "no mark, no lock"
    assert all(path.read_text() == "work" for path in own)


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


def test_both_models_are_trained_on_the_pretrained_backbone_judged_and_shown(tmp_path, training, monkeypatch):
    said, written = [], []
    write = CachedCrops._write
    monkeypatch.setattr(CachedCrops, "_write", lambda *given: (written.append(given[1]), write(*given)))
    report = demo.run_demo(tmp_path, steps=1, say=said.append)
    assert len(written) == 1, "the twin finds the maps of the first model"
    assert not (tmp_path / FOLDER).exists()
    assert "gmm" in report.read_text()
    weights = [tensors(tmp_path / name / "final") for name in demo.MODELS]
    backbone = [key for key in weights[0] if "backbone" in key]
    assert backbone
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in backbone), "frozen, and the same"
    for name in demo.MODELS:
        sets = json.loads((tmp_path / name / "results.json").read_text())["sets"]
        assert sets.keys() == {"streets/test", "streets_anomaly/test"}
    assert "| gmm " in said[-2], "the table"
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.parametrize("asked", [True, False])
def test_without_pretrained_weights_the_demo_trains_from_scratch_and_says_so(tmp_path, monkeypatch, asked):
    said = []
    if not asked:
        absent = {"tf_efficientnet_lite0": PackagedWeights("no_such_package", "weights.pth")}
        monkeypatch.setattr(demo, "PACKAGED", absent)
    with pytest.raises(Trained) as reached:
        demo.run_demo(tmp_path, from_scratch=asked, seed=7, say=said.append)
    config = reached.value.args[0]
    assert (config.model.name, config.model.weights, config.data.name) == ("tiny_unet", None, "scenes")
    assert config.train.seed == 7
    told = [line for line in said if "trained from scratch instead" in line]
    assert len(told) == (0 if asked else 1)
    assert all("gmmseg[pretrained]" in line for line in told)
