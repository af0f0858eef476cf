"""Cached crops as a run has them: kept while it is unfinished, gone when it is done, refused in one line."""

import sys

import pytest
import torch

from gmmseg import cli
from gmmseg.config import load_config
from gmmseg.models import backbones
from gmmseg.run.train import train
from gmmseg.training import cached_crops

SETTINGS = [
    *("data.crop=[24,32]", "data.workers=0", "model.name=deeplabv3plus_efficientnet_lite0"),
    *("model.weights=null", "model.head=softmax", "train.steps=6", "train.batch_size=2"),
    *("train.warmup_steps=2", "train.validate_every=3", "train.save_every=2", "train.log_every=1"),
    *("train.backbone_multiplier=0", "train.cached_crops=2"),
]


@pytest.fixture
def config(root):
    return lambda *overrides: load_config("folder", [f"data.root={root}", *SETTINGS, *overrides])


def weights(folder):
    return (folder / "final" / "model.safetensors").read_bytes()


def test_a_stopped_run_keeps_its_crops_and_a_resumed_one_ends_alike_and_removes_them(
    config, tmp_path, stopped_at_step_3
):
    said = []
    train(config(), tmp_path / "whole", cpu=True, say=said.append)
    assert "bytes" in said[0]
    assert not (tmp_path / "whole" / "crops").exists()
    with stopped_at_step_3():
        train(config(), tmp_path / "cut", cpu=True)
    assert {each.name for each in (tmp_path / "cut" / "crops").iterdir()} == {"crops.bin", "crops.json"}
    said.clear()
    train(config(), tmp_path / "cut", resume=tmp_path / "cut", cpu=True, say=said.append)
    assert any("used again" in each for each in said)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    assert not (tmp_path / "cut" / "crops").exists()


def test_crops_of_a_resumed_run_are_those_of_its_own_backbone(config, tmp_path, monkeypatch):
    """The weights a run has started from may be gone when it is resumed; its state has them."""
    train(config("train.steps=4"), tmp_path / "run", cpu=True)
    (tmp_path / "run" / "finished.json").unlink()
    seen = []
    make = cached_crops.CachedCrops.make

    def spied(crops, segmenter, **given):
        seen.append({name: value.clone() for name, value in segmenter.backbone.state_dict().items()})
        return make(crops, segmenter, **given)

    build = backbones.TimmBackbone.__init__

    def other_weights(backbone, *given, **named):
        torch.manual_seed(99)
        build(backbone, *given, **named)

    monkeypatch.setattr(cached_crops.CachedCrops, "make", spied)
    monkeypatch.setattr(backbones.TimmBackbone, "__init__", other_weights)
    folder = tmp_path / "run"
    train(config("train.steps=5"), folder, resume=folder, cpu=True)
    state = torch.load(next(iter(sorted((folder / "checkpoints").glob("*.pt")))), weights_only=True)
    for name, value in seen[0].items():
        assert torch.equal(value, state["segmenter"][f"features.backbone.{name}"]), name


def test_a_network_frozen_by_itself_needs_no_other_setting(config, tmp_path):
    overrides = ("model.name=light_efficientnet_lite0", "train.backbone_multiplier=0.1", "train.steps=2")
    train(config(*overrides, "data.balanced=true", "train.ema=0.5"), tmp_path, cpu=True)
    assert (tmp_path / "final" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.backbone_multiplier=0.1", "set train.backbone_multiplier=0"),
        ("model.name=smp:Unet/resnet18", "cannot be run apart from its decoder"),
        ("train.cached_crops=-1", "cached_crops: "),
    ],
)
def test_what_cannot_be_cached_is_refused_and_nothing_is_left(
    root, tmp_path, monkeypatch, capsys, override, words
):
    command = ["train", "folder", f"data.root={root}", *SETTINGS, override, "--cpu"]
    monkeypatch.setattr(sys, "argv", ["gmmseg", *command, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr().err
    assert left.value.code == 1
    assert words in said
    assert not (tmp_path / "run").exists()
