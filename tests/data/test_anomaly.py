"""Anomaly data sets in their exact layouts, whole and broken."""

import json
from pathlib import Path

import pytest
import torch

from gmmseg.data import DataError, check_dataset, open_dataset
from gmmseg.labels import IGNORE, LabelError


def rows(labels: torch.Tensor) -> list[int]:
    return labels[:, 0].tolist()


def test_fishyscapes_lost_and_found(tmp_path: Path, write_image, write_ids) -> None:
    name = "04_Maurener_Weg_8_000000_000030"
    image = write_image(tmp_path / "leftImg8bit/test/04_Maurener_Weg_8" / f"{name}_leftImg8bit.png")
    write_image(image.with_name("another_leftImg8bit.png"))
    write_ids(tmp_path / "fishyscapes" / f"0000_{name}_labels.png", 0, 1, 255)
    data = open_dataset("fishyscapes_lost_and_found", tmp_path)
    assert (len(data), data.split, data.label_space) == (1, "val", None)
    assert rows(data[0].labels)[:3] == [0, 1, IGNORE]
    # Raw Lost and Found ids in place of Fishyscapes masks are not silently mapped.
    write_ids(tmp_path / "fishyscapes" / f"0000_{name}_labels.png", 1, 2, 34)
    with pytest.raises(LabelError, match=rf"{name}_labels\.png.* 2 \(16 pixels\), 34"):
        data[0]
    image.unlink()
    with pytest.raises(DataError, match=rf"{name}_leftImg8bit\.png: missing"):
        open_dataset("fishyscapes_lost_and_found", tmp_path, "val")


def test_fishyscapes_masks_must_be_numbered(tmp_path: Path, write_ids) -> None:
    write_ids(tmp_path / "maurener_labels.png", 0)
    with pytest.raises(DataError, match="must be called NNNN_"):
        open_dataset("fishyscapes_lost_and_found", tmp_path)


def test_fishyscapes_static_says_which_version(tmp_path: Path, write_image, write_ids) -> None:
    root = tmp_path / "fs_val_v3"
    for number in range(2):
        write_image(root / f"{number:04d}_fs_static_rgb.jpg")
        write_ids(root / f"{number:04d}_fs_static_labels.png", 0, 1, 255)
    data = open_dataset("fishyscapes_static", root)
    assert rows(data[1].labels)[:3] == [0, 1, IGNORE]
    assert data.version.startswith("v3, 2 masks, sha256 ")
    write_ids(root / "0001_fs_static_labels.png", 0, 0, 1)
    assert open_dataset("fishyscapes_static", root).version != data.version
    (root / "0000_fs_static_rgb.jpg").unlink()
    with pytest.raises(DataError, match=r"0000_fs_static_rgb\.jpg: missing"):
        open_dataset("fishyscapes_static", root)


@pytest.fixture
def road_anomaly(tmp_path: Path, write_image, write_ids) -> Path:
    frames = ["animals01_calves.jpg", "obstacles02_cone.webp"]
    (tmp_path / "frame_list.json").write_text(json.dumps(frames))
    for frame in frames:
        write_image(tmp_path / "frames" / frame)
        write_ids(tmp_path / "frames" / f"{Path(frame).stem}.labels" / "labels_semantic.png", 0, 2)
    return tmp_path


def test_road_anomaly_says_two_for_anomaly(road_anomaly: Path) -> None:
    data = open_dataset("road_anomaly", road_anomaly)
    assert [sample.name for sample in (data[0], data[1])] == ["animals01_calves", "obstacles02_cone"]
    assert rows(data[1].labels)[:2] == [0, 1]


@pytest.mark.parametrize("value", [1, 255])
def test_road_anomaly_defines_no_other_value(road_anomaly: Path, write_ids, value: int) -> None:
    write_ids(road_anomaly / "frames/animals01_calves.labels/labels_semantic.png", 0, value)
    with pytest.raises(LabelError, match=rf"animals01_calves.*{value} \(24 pixels\)"):
        open_dataset("road_anomaly", road_anomaly)[0]


def test_road_anomaly_broken_trees(road_anomaly: Path) -> None:
    (road_anomaly / "frames/animals01_calves.labels/labels_semantic.png").unlink()
    with pytest.raises(DataError, match=r"labels_semantic\.png: missing"):
        open_dataset("road_anomaly", road_anomaly)
    (road_anomaly / "frame_list.json").write_text("[")
    with pytest.raises(DataError, match="not valid JSON"):
        open_dataset("road_anomaly", road_anomaly)
    with pytest.raises(DataError, match=r"must be the folder that holds frame_list\.json"):
        open_dataset("road_anomaly", road_anomaly / "frames")


@pytest.mark.parametrize(
    ("name", "track", "suffix"),
    [
        ("segment_me_anomaly", "dataset_AnomalyTrack", "jpg"),
        ("segment_me_obstacle", "dataset_ObstacleTrack", "webp"),
    ],
)
def test_segment_me(tmp_path: Path, write_image, write_ids, name: str, track: str, suffix: str) -> None:
    root = tmp_path / track
    write_image(root / "images" / f"validation0000.{suffix}")
    write_image(root / "images" / f"airplane0000.{suffix}")
    write_ids(root / "labels_masks" / "validation0000_labels_semantic.png", 0, 1, 255)
    write_ids(root / "labels_masks" / "validation0000_labels_semantic_color.png", 0, 90)
    for place in (tmp_path, root):
        data = open_dataset(name, place)
        assert [sample.name for sample in (data[0],)] == ["validation0000"]
        assert rows(data[0].labels)[:3] == [0, 1, IGNORE]
    with pytest.raises(DataError, match="test masks are not public"):
        open_dataset(name, root, "test")
    write_ids(root / "labels_masks" / "validation0000_labels_semantic.png", 2)
    with pytest.raises(LabelError, match="2"):
        data[0]
    (root / "labels_masks" / "validation0000_labels_semantic.png").unlink()
    with pytest.raises(DataError, match=r"validation0000_labels_semantic\.png: missing"):
        open_dataset(name, root)


def test_lost_and_found(tmp_path: Path, write_image, write_ids) -> None:
    name = "02_Hanns_Klemm_Str_44_000000_000010"
    write_image(tmp_path / "leftImg8bit/test/02_Hanns_Klemm_Str_44" / f"{name}_leftImg8bit.png")
    mask = tmp_path / "gtCoarse/test/02_Hanns_Klemm_Str_44" / f"{name}_gtCoarse_labelIds.png"
    write_ids(mask, 0, 1, 2, 200)
    data = open_dataset("lost_and_found", tmp_path)
    assert rows(data[0].labels)[:4] == [IGNORE, 0, 1, 1]
    write_ids(mask, 201)
    with pytest.raises(LabelError, match=rf"{name}.*201"):
        data[0]
    mask.unlink()
    with pytest.raises(DataError, match=r"gtCoarse_labelIds\.png: missing"):
        open_dataset("lost_and_found", tmp_path)


def test_real_road_anomaly(shared: Path) -> None:
    data = open_dataset("road_anomaly", shared / "data" / "road_anomaly")
    assert len(data) == 60
    assert data[0].image.shape == (3, 720, 1280)
    assert set(data.labels(0).unique().tolist()) == {0, 1}


def test_masks_of_your_own_with_and_without_splits(tmp_path: Path, write_image, write_ids) -> None:
    for stem, values in (("a", (0, 1, 255)), ("b", (0, 0))):
        write_image(tmp_path / "images" / f"{stem}.jpg")
        write_ids(tmp_path / "masks" / f"{stem}.png", *values)
    data = open_dataset("anomaly_folder", tmp_path)
    assert (len(data), data.split, data.label_space) == (2, "test", None)
    assert rows(data[0].labels)[:3] == [0, 1, IGNORE]
    assert check_dataset("anomaly_folder", tmp_path).ok
    for split in ("night", "day"):
        for kind in ("images", "masks"):
            (tmp_path / "own" / kind / split).mkdir(parents=True)
        write_image(tmp_path / "own" / "images" / split / f"{split}.png")
        write_ids(tmp_path / "own" / "masks" / split / f"{split}.png", 0, 1)
    assert open_dataset("anomaly_folder", tmp_path / "own").split == "day"
    assert open_dataset("anomaly_folder", tmp_path / "own", "night")[0].name == "night"
    with pytest.raises(DataError, match="has no split 'val'; there are: day, night"):
        open_dataset("anomaly_folder", tmp_path / "own", "val")


def test_masks_of_your_own_that_cannot_be_meant_so(tmp_path: Path, write_image, write_ids) -> None:
    with pytest.raises(DataError, match=r"no images of split 'test' under .*; expected ``images/\*`` and"):
        open_dataset("anomaly_folder", tmp_path)
    write_image(tmp_path / "images" / "a.jpg")
    write_ids(tmp_path / "masks" / "a.png", 0, 255)  # white on anomalies: 255 is what to ignore
    write_ids(tmp_path / "masks" / "alone.png", 0)
    with pytest.raises(DataError, match=r"alone\.png: a label file without an image"):
        open_dataset("anomaly_folder", tmp_path)
    (tmp_path / "masks" / "alone.png").unlink()
    (problem,) = check_dataset("anomaly_folder", tmp_path).all_problems
    assert "no pixel is marked as an anomaly (1)" in problem
    assert "gmmseg data convert-masks" in problem
    write_ids(tmp_path / "masks" / "a.png", 0, 2)
    with pytest.raises(LabelError, match=r"a\.png: .* 2 \(24 pixels\)"):
        open_dataset("anomaly_folder", tmp_path)[0]
    (tmp_path / "images" / "split").mkdir()
    with pytest.raises(DataError, match=r"holds folders, which are splits \(split\), and images"):
        open_dataset("anomaly_folder", tmp_path)
