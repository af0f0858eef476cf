"""Closed-set data sets in their exact layouts, whole and broken."""

from pathlib import Path

import pytest
import torch

from gmmseg.data import DataError, open_dataset
from gmmseg.labels import IGNORE, LabelError


def rows(labels: torch.Tensor) -> list[int]:
    return labels[:, 0].tolist()


@pytest.fixture
def cityscapes(tmp_path: Path, write_image, write_ids) -> Path:
    for split, city, number in (("train", "aachen", 0), ("train", "ulm", 1), ("val", "bonn", 0)):
        stem = f"{city}_{number:06d}_000019"
        write_image(tmp_path / "leftImg8bit" / split / city / f"{stem}_leftImg8bit.png")
        write_ids(tmp_path / "gtFine" / split / city / f"{stem}_gtFine_labelIds.png", 7, 26, 0, 33)
        write_ids(tmp_path / "gtFine" / split / city / f"{stem}_gtFine_instanceIds.png", 26001)
    return tmp_path


def test_cityscapes_label_ids(cityscapes: Path) -> None:
    data = open_dataset("cityscapes", cityscapes, "train")
    assert len(data) == 2
    assert data[0].name == "aachen_000000_000019"
    assert rows(data[1].labels)[:4] == [0, 13, IGNORE, 18]
    assert data[0].image.shape == (3, 6, 8)
    assert data.label_space.names[13] == "car"


def test_cityscapes_prefers_train_ids_where_present(cityscapes: Path, write_ids) -> None:
    folder = cityscapes / "gtFine" / "train" / "ulm"
    write_ids(folder / "ulm_000001_000019_gtFine_labelTrainIds.png", 5, 255)
    data = open_dataset("cityscapes", cityscapes, "train")
    assert rows(data[0].labels)[:2] == [0, 13]
    assert rows(data[1].labels)[:2] == [5, IGNORE]


def test_cityscapes_broken_trees(cityscapes: Path, write_ids, write_image) -> None:
    missing = cityscapes / "gtFine" / "train" / "ulm" / "ulm_000001_000019_gtFine_labelIds.png"
    missing.unlink()
    with pytest.raises(DataError, match=r"ulm_000001_000019_gtFine_labelIds\.png: missing"):
        open_dataset("cityscapes", cityscapes, "train")
    write_ids(missing, 40)
    with pytest.raises(LabelError, match=r"ulm_000001.*40 \(48 pixels\)"):
        open_dataset("cityscapes", cityscapes, "train")[1]
    (cityscapes / "leftImg8bit/val/bonn/bonn_000000_000019_leftImg8bit.png").unlink()
    with pytest.raises(DataError, match="label file without an image"):
        open_dataset("cityscapes", cityscapes, "val")
    with pytest.raises(DataError, match=r"no images of split 'test'.*leftImg8bit"):
        open_dataset("cityscapes", cityscapes, "test")
    with pytest.raises(DataError, match="no split 'dev'; there are: train, val, test"):
        open_dataset("cityscapes", cityscapes, "dev")


def test_ade20k_from_its_folder_or_the_one_above(tmp_path: Path, write_image, write_ids) -> None:
    root = tmp_path / "ADEChallengeData2016"
    for split, stem in (("training", "ADE_train_00000001"), ("validation", "ADE_val_00000001")):
        write_image(root / "images" / split / f"{stem}.jpg")
        write_ids(root / "annotations" / split / f"{stem}.png", 0, 1, 150)
    for place in (root, tmp_path):
        for split in ("train", "val"):
            assert rows(open_dataset("ade20k", place, split)[0].labels)[:3] == [IGNORE, 0, 149]
    write_ids(root / "annotations" / "validation" / "ADE_val_00000001.png", 151)
    with pytest.raises(LabelError, match=r"ADE_val_00000001\.png.*151"):
        open_dataset("ade20k", root, "val")[0]


def test_coco_stuff_10k(tmp_path: Path, write_image, write_ids) -> None:
    for split, stem in (
        ("train2014", "COCO_train2014_000000000077"),
        ("test2014", "COCO_train2014_000000000081"),
    ):
        write_image(tmp_path / "images" / split / f"{stem}.jpg")
        write_ids(tmp_path / "annotations" / split / f"{stem}_labelTrainIds.png", 0, 1, 171)
    for split in ("train", "val", "test"):
        assert rows(open_dataset("coco_stuff_10k", tmp_path, split)[0].labels)[:3] == [IGNORE, 0, 170]
    # 255 is how the 164k release says "ignore": its files are not ours.
    write_ids(tmp_path / "annotations/train2014/COCO_train2014_000000000077_labelTrainIds.png", 255)
    with pytest.raises(LabelError, match="255"):
        open_dataset("coco_stuff_10k", tmp_path, "train")[0]


def test_raw_coco_stuff_is_told_to_convert(tmp_path: Path, write_image) -> None:
    write_image(tmp_path / "images" / "COCO_train2014_000000000077.jpg")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "COCO_train2014_000000000077.mat").touch()
    with pytest.raises(DataError, match=r"raw \.mat files; convert"):
        open_dataset("coco_stuff_10k", tmp_path, "train")


def test_camvid_in_both_layouts(tmp_path: Path, write_image, write_ids) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    for split in ("train", "val", "test"):
        write_image(new / "images" / split / "0001TP_1.jpg")
        write_ids(new / "labels" / split / "0001TP_1.png", 0, 10, 255)
        write_image(old / split / "0001TP_1.png")
        write_ids(old / f"{split}annot" / "0001TP_1.png", 0, 10, 11)
    for root in (new, old):
        for split in ("train", "val", "test"):
            assert rows(open_dataset("camvid", root, split)[0].labels)[:3] == [0, 10, IGNORE]
    write_ids(new / "labels" / "train" / "0001TP_1.png", 11)
    with pytest.raises(LabelError, match="11"):
        open_dataset("camvid", new, "train")[0]


def test_folder(folder_tree: Path) -> None:
    data = open_dataset("folder", folder_tree, "train")
    assert [data[index].name for index in range(2)] == ["a", "b"]
    assert rows(data[1].labels)[:3] == [1, 1, IGNORE]
    assert data.label_space.names == ("wall", "floor", "door")
    assert torch.equal(data.labels(0), data[0].labels)


def test_folder_broken_trees(folder_tree: Path, write_image, write_ids) -> None:
    def opened():
        return open_dataset("folder", folder_tree, "train")

    write_image(folder_tree / "images/train/b.jpg", size=(5, 5))
    with pytest.raises(DataError, match=r"b\.jpg is 5x5 but .*b\.png is 8x6"):
        opened()[1]
    write_image(folder_tree / "images/train/b.png")
    with pytest.raises(DataError, match="several images share the stem 'b'"):
        opened()
    (folder_tree / "images/train/b.png").unlink()
    (folder_tree / "images/train/b.jpg").unlink()
    with pytest.raises(DataError, match=r"b\.png: a label file without an image"):
        opened()
    (folder_tree / "labels/train/b.png").unlink()
    (folder_tree / "classes.txt").write_text("wall\n\nfloor\n")
    with pytest.raises(DataError, match=r"classes\.txt: must hold one different class name"):
        opened()
    (folder_tree / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"classes\.txt: missing; write the class names"):
        opened()
    with pytest.raises(DataError, match="no split 'night'; there are: train, val"):
        open_dataset("folder", folder_tree, "night")
