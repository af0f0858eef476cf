from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gmmseg.models import huggingface
from gmmseg.models.weights import WeightsError

SIZES = ([1, 1, 1, 1], [8, 16, 40, 64], 16)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(huggingface.MIT_SIZES, "b0", SIZES)


@pytest.fixture
def published(tmp_path: Path, tiny: None) -> Path:
    """A backbone as its authors would publish it: a folder with config.json and model.safetensors."""
    torch.manual_seed(1)
    backbone = huggingface.segformer(*SIZES).backbone
    backbone.save_pretrained(tmp_path)
    return tmp_path


def _same(backbone: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return backbone.eval()(images).last_hidden_state


def test_backbone_from_a_folder_and_from_a_file(published: Path, generator: torch.Generator) -> None:
    torch.manual_seed(1)
    original = huggingface.segformer(*SIZES).backbone
    images = torch.rand(1, 3, 32, 32, generator=generator)
    for weights in (published, published / "model.safetensors"):
        torch.manual_seed(2)
        features = huggingface.mit_segformer("b0", str(weights))
        torch.testing.assert_close(_same(features.backbone, images), _same(original, images))


def test_weights_of_a_whole_segmenter_serve_its_backbone(published: Path, tmp_path: Path) -> None:
    state = {"segformer." + name: value for name, value in load_file(published / "model.safetensors").items()}
    state["decode_head.classifier.weight"] = torch.zeros(3)
    torch.save(state, tmp_path / "w.pth")
    with pytest.warns(UserWarning, match=r"w\.pth: tensors not used.*classifier"):
        features = huggingface.mit_segformer("b0", str(tmp_path / "w.pth"))
    found = features.backbone.state_dict()
    torch.manual_seed(1)
    for name, value in huggingface.segformer(*SIZES).backbone.state_dict().items():
        assert torch.equal(found[name], value)


def test_what_does_not_fit_is_listed(published: Path, tmp_path: Path) -> None:
    state = load_file(published / "model.safetensors")
    lost = state.pop("encoder.patch_embeddings.1.proj.bias")
    assert lost.shape == (16,)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(
        WeightsError, match=r"w\.pth does not fit SegformerModel.*patch_embeddings\.proj\.bias"
    ):
        huggingface.mit_segformer("b0", str(tmp_path / "w.pth"))


def test_a_published_swin_classifier_serves_as_backbone(tmp_path: Path, generator: torch.Generator) -> None:
    """The folder holds what the authors publish, a classifier: the backbone needs most of its tensors."""
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(1)
    sizes = {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4], "window_size": 4}
    classifier = SwinForImageClassification(SwinConfig(**sizes, num_labels=3)).eval()
    classifier.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"tensors not used.*classifier"):
        features = huggingface.swin_upernet(
            huggingface.swin_config(8, [1, 1, 1, 1], [1, 2, 2, 4], 4), str(tmp_path), channels=16
        )
    theirs = classifier.swin.state_dict()
    ours = {name.removeprefix("swin."): value for name, value in features.backbone.state_dict().items()}
    shared = [name for name in ours if name in theirs]
    assert len(shared) > 60
    for name in shared:
        assert torch.equal(ours[name], theirs[name]), name
