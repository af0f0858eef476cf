import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import gmmseg
from gmmseg.mixture import PRESETS, OnlineEM
from gmmseg.models import SoftmaxHead, WeightsError
from gmmseg.models.heads import HeadSettings
from gmmseg.models.masks import MaskSegmenter
from gmmseg.models.segmenter import Segmenter
from gmmseg.models.unet import TinyUNetFeatures

HEAD = HeadSettings(components=2, dim=8)


@pytest.fixture
def segmenter() -> Segmenter:
    torch.manual_seed(0)
    return gmmseg.build("tiny_unet", num_classes=3, head=HEAD).eval()


@pytest.fixture
def folder(segmenter: Segmenter, tmp_path: Path) -> Path:
    segmenter.save_pretrained(tmp_path / "net")
    return tmp_path / "net"


IMAGES = torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(5))

ELSEWHERE = """
import sys, torch, gmmseg
images = torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(5))
torch.set_num_threads(1)
with torch.no_grad():
    output = gmmseg.from_pretrained(sys.argv[1])(images)
torch.save({"logits": output.logits, "evidence": output.evidence}, sys.argv[2])
"""


def test_round_trip_across_processes(segmenter: Segmenter, folder: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ELSEWHERE, folder, tmp_path / "out.pt"], check=True)
    elsewhere = torch.load(tmp_path / "out.pt", weights_only=True)
    with torch.no_grad():
        here = segmenter(IMAGES)
    assert torch.equal(elsewhere["logits"], here.logits)
    assert torch.equal(elsewhere["evidence"], here.evidence)


def test_weights_of_format_1_bring_what_was_found_after_training(segmenter, folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    old = {**config, "format": 1, "threshold": -1.5, "temperature": 1.25, "typical": [0.5, -2.0, 3.0]}
    (folder / "config.json").write_text(json.dumps(old))
    found = gmmseg.from_pretrained(folder).calibration
    assert (found.threshold, found.temperature, found.typical) == (-1.5, 1.25, (0.5, -2.0, 3.0))
    del old["temperature"], old["typical"]
    (folder / "config.json").write_text(json.dumps(old))
    older = gmmseg.from_pretrained(folder)
    assert (older.calibration.threshold, older.temperature, older.calibration.typical) == (-1.5, 1.0, None)
    (folder / "config.json").write_text(json.dumps({**old, "threshold": None}))
    assert gmmseg.from_pretrained(folder).calibration is None


def test_the_class_method_loads_the_same_and_only_its_own_kind(segmenter: Segmenter, folder: Path) -> None:
    again = Segmenter.from_pretrained(folder)
    with torch.no_grad():
        assert torch.equal(again(IMAGES).logits, segmenter(IMAGES).logits)
    with pytest.raises(TypeError, match="holds a Segmenter, not a MaskSegmenter"):
        MaskSegmenter.from_pretrained(folder)


def test_two_files_a_card_and_no_training_state(segmenter: Segmenter, folder: Path) -> None:
    em = OnlineEM(segmenter.mixture, PRESETS["paper"])
    labels = torch.zeros(1, 32, 48, dtype=torch.int64)
    with torch.no_grad():
        em.step(*segmenter.em_points(segmenter(IMAGES), labels))
    segmenter.save_pretrained(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert set(load_file(folder / "model.safetensors")) == set(segmenter.state_dict())


def test_names_and_colours_come_back(segmenter: Segmenter, tmp_path: Path) -> None:
    segmenter.label_names = ("road", "sky", "car")
    segmenter.colours = ((1, 2, 3), (4, 5, 6), (7, 8, 9))
    segmenter.save_pretrained(tmp_path)
    loaded = gmmseg.from_pretrained(tmp_path)
    assert loaded.label_names == segmenter.label_names
    assert loaded.colours == segmenter.colours
    assert not loaded.training


def test_names_for_other_classes_are_refused(segmenter: Segmenter, tmp_path: Path) -> None:
    segmenter.label_names = ("road", "sky")
    with pytest.raises(ValueError, match="label_names has 2 entries for 3 classes"):
        segmenter.save_pretrained(tmp_path)


def test_hand_made_segmenters_need_their_parts(tmp_path: Path) -> None:
    made = Segmenter(TinyUNetFeatures(), SoftmaxHead(64, 3))
    made.save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match="architecture="):
        gmmseg.from_pretrained(tmp_path)
    loaded = gmmseg.from_pretrained(tmp_path, architecture=Segmenter(TinyUNetFeatures(), SoftmaxHead(64, 3)))
    with torch.no_grad():
        assert torch.equal(loaded(IMAGES).logits, made.eval()(IMAGES).logits)


def test_incomplete_folders(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match=r"model\.safetensors: not a whole"):
        gmmseg.from_pretrained(folder)
    weights.unlink()
    with pytest.raises(WeightsError, match=r"model\.safetensors: no such file"):
        gmmseg.from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"config\.json is missing"):
        gmmseg.from_pretrained(folder)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        gmmseg.from_pretrained(folder / "deeper" / "down")


def _edit(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        (config["recipe"] if name in config["recipe"] and name != "num_classes" else config)[name] = value
    (folder / "config.json").write_text(json.dumps(config))


def test_weights_of_another_network(folder: Path) -> None:
    _edit(folder, name="deeplabv3plus_efficientnet_lite0")
    with pytest.raises(WeightsError, match=r"does not fit the architecture.*missing features\.backbone"):
        gmmseg.from_pretrained(folder)


def test_other_numbers_of_classes(folder: Path) -> None:
    _edit(folder, num_classes=4)
    with pytest.raises(WeightsError, match="4 classes, the architecture has 3"):
        gmmseg.from_pretrained(folder)
    _edit(folder, num_classes=3)
    with pytest.raises(WeightsError, match="3 classes, the architecture has 5"):
        gmmseg.from_pretrained(folder, architecture=gmmseg.build("tiny_unet", num_classes=5))


def test_altered_tensors(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state["head.mixture.means"] = state["head.mixture.means"][:, :1].contiguous()
    save_file(state, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"head\.mixture\.means: \(3, 1, 8\) in the file, \(3, 2, 8\)"):
        gmmseg.from_pretrained(folder)


def test_unknown_and_foreign_configurations(folder: Path) -> None:
    _edit(folder, name="no_such_net")
    with pytest.raises(ValueError, match="unknown network 'no_such_net'"):
        gmmseg.from_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "segformer"}')
    with pytest.raises(WeightsError, match=r"not the configuration of a gmmseg segmenter.*convert"):
        gmmseg.from_pretrained(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="not valid JSON"):
        gmmseg.from_pretrained(folder)


def test_recipes_cannot_reach_beyond_the_known_networks(folder: Path) -> None:
    for source, name in [("transformers", "pipeline"), ("smp", "create_model"), ("torchvision", "resnet18")]:
        config = json.loads((folder / "config.json").read_text())
        config["recipe"] |= {"source": source, "class": name, "name": name, "config": {}}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=name):
            gmmseg.from_pretrained(folder)


def test_push_uploads_what_is_saved(segmenter: Segmenter, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    uploaded = {}

    class Api:
        def __init__(self, token: str | None) -> None:
            uploaded["token"] = token

        def create_repo(self, repo_id: str, private: bool, exist_ok: bool) -> None:
            uploaded["repo"] = (repo_id, private)

        def upload_folder(self, repo_id: str, folder_path: str) -> None:
            uploaded["files"] = sorted(path.name for path in Path(folder_path).iterdir())

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    assert segmenter.push_to_hub("me/net", private=True, token="t") == "https://huggingface.co/me/net"
    assert uploaded == {
        "token": "t",
        "repo": ("me/net", True),
        "files": ["README.md", "config.json", "model.safetensors"],
    }


def test_hub_names_are_downloaded(
    segmenter: Segmenter, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub

    asked = []

    def snapshot_download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    loaded = gmmseg.from_pretrained("hf:me/published")
    assert asked == [("me/published", ["config.json", "model.safetensors", "calibration.json"])]
    with torch.no_grad():
        assert torch.equal(loaded(IMAGES).logits, segmenter(IMAGES).logits)


@pytest.mark.parametrize("entry", [7, {"zoom": 2}, {"window": "wide"}, {"short_side": -3}, {"stride": 4}])
def test_a_view_that_makes_no_sense_is_refused_by_file(tmp_path: Path, entry: object) -> None:
    gmmseg.build("tiny_unet", num_classes=3).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "inference": entry}))
    with pytest.raises(WeightsError, match=r"config\.json: the entry inference is not understood"):
        gmmseg.from_pretrained(tmp_path)
