"""COCO-Stuff 10k from raw .mat files."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from gmmseg.data import DataError, open_dataset
from gmmseg.data.coco_stuff import GAPS, convert, read_mat, stored_ids
from gmmseg.labels import IGNORE


@pytest.fixture
def raw(tmp_path: Path, write_image) -> Path:
    root = tmp_path / "raw"
    (root / "imageLists").mkdir(parents=True)
    (root / "annotations").mkdir()
    for split, stem in (("train", "COCO_train2014_000000000077"), ("test", "COCO_train2014_000000000081")):
        (root / "imageLists" / f"{split}.txt").write_text(f"{stem}\n")
        write_image(root / "images" / f"{stem}.jpg", size=(2, 3))
        savemat(root / "annotations" / f"{stem}.mat", {"S": np.array([[0, 1, 13], [90, 92, 182]], np.uint8)})
    return root


def test_the_table_closes_the_gaps() -> None:
    table = stored_ids()
    assert len(table) == 172
    assert not set(GAPS) & set(table)
    assert sorted(table.values()) == list(range(172))
    assert (table[11], table[13], table[90], table[92], table[182]) == (11, 12, 80, 81, 171)


def test_converted_files_open_as_the_data_set(raw: Path, tmp_path: Path) -> None:
    steps = []
    counts = convert(raw, tmp_path / "out", lambda done, total, name: steps.append((done, total)))
    assert counts == {"train": 1, "test": 1}
    assert steps == [(1, 2), (2, 2)]
    data = open_dataset("coco_stuff_10k", tmp_path / "out", "train")
    assert data[0].labels.tolist() == [[IGNORE, 0, 11], [79, 80, 170]]
    names = data.label_space.names
    assert (names[0], names[11], names[79], names[80]) == ("person", "stop sign", "toothbrush", "banner")


@pytest.mark.parametrize("cut", [0, 40, 140, 180])
def test_an_interrupted_conversion_goes_on(raw: Path, tmp_path: Path, cut: int) -> None:
    mat = raw / "annotations" / "COCO_train2014_000000000081.mat"
    whole = mat.read_bytes()
    mat.write_bytes(whole[:cut])
    with pytest.raises(DataError, match=r"000000000081\.mat: cannot be read"):
        convert(raw, tmp_path / "out")
    mat.write_bytes(whole)
    convert(raw, tmp_path / "out")
    assert len(open_dataset("coco_stuff_10k", tmp_path / "out", "test")) == 1
    assert not list((tmp_path / "out").rglob(".*"))


@pytest.mark.parametrize("value", [12, 91, 183, 255, 300])
def test_ids_of_no_class_are_refused(tmp_path: Path, value: int) -> None:
    savemat(tmp_path / "a.mat", {"S": np.array([[1, value]], np.uint16)})
    with pytest.raises(DataError, match=rf"a\.mat: holds ids .*: {value}$"):
        read_mat(tmp_path / "a.mat")


def test_other_mat_files_and_trees_are_refused(tmp_path: Path) -> None:
    savemat(tmp_path / "a.mat", {"T": np.zeros((2, 2))})
    with pytest.raises(DataError, match="no field S"):
        read_mat(tmp_path / "a.mat")
    with pytest.raises(DataError, match=r"train\.txt: missing"):
        convert(tmp_path, tmp_path / "out")
