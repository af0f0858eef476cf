"""The hub: asked only by its name, given up at once where it does not answer, never asked for a folder."""

import json
import socket

import pytest
import torch
from huggingface_hub import constants

import gmmseg
from gmmseg import hub_access
from gmmseg.models import hub
from gmmseg.models.hub import HubError
from gmmseg.models.huggingface import rebuild_transformers


@pytest.fixture
def dialled(monkeypatch):
    """Every attempt to connect to anything, each refused."""
    attempts = []

    def refuse(address, *rest, **options):
        attempts.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: refuse(address))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return attempts


@pytest.mark.parametrize("network", ["timm:resnet18", "segformer_mit_b0"])
def test_without_the_hub_pretrained_weights_fail_after_one_attempt(network, dialled, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        HubError, match=r"cannot be reached.*model\.weights=FILE.*model\.weights=null"
    ) as told:
        gmmseg.build(network, num_classes=3, weights="pretrained")
    assert "\n" not in str(told.value)
    assert len(dialled) == 1
    assert constants.HF_HUB_OFFLINE is False


def test_a_name_on_the_hub_is_told_from_a_folder(dialled):
    with pytest.raises(FileNotFoundError, match=r"runs/nope: no such folder; .*hf:owner/name"):
        gmmseg.from_pretrained("runs/nope")
    assert not dialled
    with pytest.raises(HubError, match=r"hf:runs/nope: .*cannot be reached.*config\.json"):
        gmmseg.from_pretrained("hf:runs/nope")


def test_other_failures_of_the_hub_are_one_line_too(monkeypatch):
    monkeypatch.setattr(hub_access, "_answers", lambda: True)
    with pytest.raises(HubError, match=r"^w: 404 not there; do this$"), hub.fetching("w", "do this"):
        raise OSError("404\n  not there")


def test_a_saved_folder_is_loaded_without_the_network_whatever_its_recipe_says(dialled, tmp_path):
    import segmentation_models_pytorch as smp

    torch.manual_seed(0)
    segmenter = gmmseg.convert(smp.Unet("resnet18", encoder_weights=None, classes=3), head="gmm").eval()
    segmenter.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["recipe"]["config"]["encoder_weights"] = "imagenet"
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = gmmseg.from_pretrained(tmp_path)
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(images).logits, segmenter(images).logits)
    assert not dialled


def test_transformers_are_rebuilt_without_pretrained_backbones(dialled):
    from transformers import ResNetConfig, UperNetConfig

    stages = [f"stage{number}" for number in range(1, 5)]
    inner = ResNetConfig(hidden_sizes=[8] * 4, depths=[1] * 4, out_features=stages)
    config = UperNetConfig(backbone_config=inner, hidden_size=8, auxiliary_in_channels=8).to_dict()
    config["use_pretrained_backbone"] = config["backbone_config"]["use_pretrained_backbone"] = True
    model = rebuild_transformers({"class": "UperNetForSemanticSegmentation", "config": config})
    assert not getattr(model.config, "use_pretrained_backbone", False)
    assert not getattr(model.config.backbone_config, "use_pretrained_backbone", False)
    assert not dialled
