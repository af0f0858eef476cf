import pickle
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gmmseg.models.backbones import TimmBackbone
from gmmseg.models.weights import WeightsError, load_backbone, read_weights


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))


@pytest.mark.parametrize("prefix", ["", "module.", "backbone."])
def test_safetensors_and_pickles_load_alike(tmp_path: Path, prefix: str) -> None:
    source = small()
    state = {prefix + name: value for name, value in source.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        target = small()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load_backbone(target, tmp_path / name)
        assert torch.equal(target[0].weight, source[0].weight)


def test_missing_and_misshapen_tensors_are_listed(tmp_path: Path) -> None:
    state = small().state_dict()
    del state["1.running_mean"]
    state["0.weight"] = torch.zeros(4, 9, 1, 1)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(
        WeightsError, match=r"w\.pth.*1\.running_mean.*0\.weight \(4, 9, 1, 1\), needed \(4, 3, 1, 1\)"
    ):
        load_backbone(small(), tmp_path / "w.pth")


def test_leftover_tensors_are_listed(tmp_path: Path) -> None:
    torch.save({**small().state_dict(), "classifier.weight": torch.zeros(2)}, tmp_path / "w.pth")
    with pytest.warns(UserWarning, match=r"1 tensors not used.*classifier\.weight"):
        load_backbone(small(), tmp_path / "w.pth")


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Bomb()}, tmp_path / "evil.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Bomb()))
    for name in ("evil.pth", "plain.pth"):
        with pytest.raises(WeightsError, match=f"{name}: refused"):
            read_weights(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def test_broken_and_absent_files(tmp_path: Path) -> None:
    save_file(small().state_dict(), tmp_path / "w.safetensors")
    whole = (tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "w.safetensors").write_bytes(whole[: len(whole) // 2])
    torch.save(small().state_dict(), tmp_path / "w.pth")
    (tmp_path / "w.pth").write_bytes((tmp_path / "w.pth").read_bytes()[:200])
    for name in ("w.safetensors", "w.pth", "absent.pth"):
        with pytest.raises(WeightsError, match=name):
            read_weights(tmp_path / name)


def test_timm_backbone_from_a_file(tmp_path: Path) -> None:
    import timm

    full = timm.create_model("resnet18", num_classes=3)
    save_file(full.state_dict(), tmp_path / "resnet18.safetensors")
    with pytest.warns(UserWarning, match=r"fc\.bias"):
        backbone = TimmBackbone(
            "resnet18", out_indices=(1, 4), weights=str(tmp_path / "resnet18.safetensors")
        )
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone.eval()(images)[-1], full.eval().forward_features(images))
    assert backbone.channels == [64, 512]
    assert backbone.reductions == [4, 32]


def test_real_weights_of_the_small_network(shared: Path) -> None:
    import gmmseg

    path = shared / "weights" / "tf_efficientnet_lite0.safetensors"
    with pytest.warns(UserWarning, match="conv_head"):
        segmenter = gmmseg.build("deeplabv3plus_efficientnet_lite0", num_classes=11, weights=str(path))
    stem = read_weights(path)["conv_stem.weight"]
    assert torch.equal(segmenter.backbone.net.conv_stem.weight, stem)
    torch.testing.assert_close(segmenter.mean.flatten(), torch.full((3,), 0.5))


def test_unknown_backbone() -> None:
    with pytest.raises(ValueError, match="timm has no model 'resnet_of_doom'"):
        TimmBackbone("resnet_of_doom", out_indices=(1,))
