"""The check finds every planted fault and counts what is there."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gmmseg.data import DataError
from gmmseg.data.check import check_dataset


def test_a_sound_folder(folder_tree: Path) -> None:
    done = []
    report = check_dataset("folder", folder_tree, lambda *step: done.append(step))
    assert report.ok
    assert {split: found.pairs for split, found in report.splits.items()} == {"train": 2, "val": 1}
    assert report.splits["train"].pixels.tolist() == [24, 56, 0]
    assert report.splits["train"].ignored == 16
    assert [step[:2] for step in done] == [(1, 3), (2, 3), (3, 3)]
    text = str(report)
    assert "everything is in order" in text
    assert "train: 2 pairs" in text
    assert text.count("30.00%") == 1  # wall in train
    assert "16.67%" in text  # ignored in train


def test_every_fault_is_found_at_once(folder_tree: Path, write_image, write_ids) -> None:
    train = folder_tree / "images" / "train"
    write_image(train / "nolabel.jpg")
    write_ids(folder_tree / "labels/train/noimage.png", 0)
    write_image(train / "size.jpg", size=(3, 4))
    write_ids(folder_tree / "labels/train/size.png", 0)
    write_image(train / "value.jpg")
    write_ids(folder_tree / "labels/train/value.png", 0, 7, 9)
    write_image(train / "value2.jpg")
    write_ids(folder_tree / "labels/train/value2.png", 7)
    (train / "broken.jpg").write_bytes(b"\xff\xd8\xff broken")
    write_ids(folder_tree / "labels/train/broken.png", 0)
    write_image(train / "colour.jpg")
    write_image(folder_tree / "labels/train/colour.png")
    report = check_dataset("folder", folder_tree)
    assert not report.ok
    problems = "\n".join(report.all_problems)
    for expected in (
        "nolabel.png: missing", "noimage.png: a label file without an image",
        "size.jpg: is 4x3 but its labels are 8x6",
        "value.png: undefined label values 7 (16 pixels), 9 (16 pixels)", "broken.jpg: cannot be read",
        "colour.png: has 3 channels",
    ):  # fmt: skip
        assert expected in problems
    assert len(report.all_problems) == 7
    assert report.splits["train"].undefined == {7: 64, 9: 16}
    text = str(report)
    assert "undefined label value 7: 64 pixels" in text
    assert text.endswith("7 problems")
    assert not report.splits["val"].problems


def test_pixels_that_training_cannot_read_are_named(folder_tree: Path, write_ids) -> None:
    for name, high in (("raw", 4095.0), ("fine", 1.0)):
        ramp = np.linspace(0, high, 48, dtype=np.float32).reshape(6, 8)
        Image.fromarray(ramp).save(folder_tree / "images" / "train" / f"{name}.tif")
        write_ids(folder_tree / f"labels/train/{name}.png", 0)
    (problem,) = check_dataset("folder", folder_tree).all_problems
    assert "raw.tif: cannot be read as an image (float pixels must lie in [0, 1], not 0 .. 4095" in problem


def test_long_lists_are_cut_in_print_only(folder_tree: Path, write_image) -> None:
    for number in range(60):
        write_image(folder_tree / "images" / "train" / f"n{number}.jpg", size=(2, 2))
    report = check_dataset("folder", folder_tree)
    assert len(report.all_problems) == 60
    assert "- and 20 more" in str(report)


def test_what_is_not_there_at_all(tmp_path: Path) -> None:
    report = check_dataset("cityscapes", tmp_path)
    assert not report.ok
    assert "no images found; expected ``leftImg8bit/" in str(report)
    assert "frame_list.json" in str(check_dataset("road_anomaly", tmp_path))
    with pytest.raises(DataError, match="no data set called"):
        check_dataset("moon", tmp_path)


def test_counts_beside_the_official_ones(tmp_path: Path, write_image, write_ids) -> None:
    for split in ("train2014", "test2014"):
        write_image(tmp_path / "images" / split / "a.jpg")
        write_ids(tmp_path / "annotations" / split / "a_labelTrainIds.png", 0, 1)
    report = check_dataset("coco_stuff_10k", tmp_path)
    assert list(report.splits) == ["train", "val"], "test is another name of val"
    assert "train: 1 of 9000 pairs" in str(report)


def test_anomaly_masks(tmp_path: Path, write_image, write_ids) -> None:
    root = tmp_path / "fs_v2"
    write_image(root / "0000_a_rgb.jpg")
    write_ids(root / "0000_a_labels.png", 0, 1, 255)
    report = check_dataset("fishyscapes_static", root)
    assert report.classes == ("normal", "anomaly")
    assert report.splits["val"].pixels.tolist() == [16, 16]
    assert "version v2, 1 masks" in str(report)


@pytest.mark.slow
def test_real_camvid(shared: Path) -> None:
    report = check_dataset("camvid", shared / "data" / "camvid")
    assert report.ok
    assert {split: found.pairs for split, found in report.splits.items()} == {
        "train": 367,
        "val": 101,
        "test": 233,
    }
