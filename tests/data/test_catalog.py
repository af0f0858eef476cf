"""Opening by name."""

from pathlib import Path

import pytest

from gmmseg.data import DATASETS, DataError, Scenes, ScenesAnomaly, open_dataset


def test_every_promised_name_is_there() -> None:
    assert set(DATASETS) == {
        "cityscapes", "ade20k", "coco_stuff_10k", "camvid", "folder", "scenes", "fishyscapes_lost_and_found",
        "fishyscapes_static", "road_anomaly", "segment_me_anomaly", "segment_me_obstacle", "lost_and_found",
        "scenes_anomaly", "streets", "streets_anomaly", "anomaly_folder", "hf", "hf_stream",
    }  # fmt: skip


def test_built_in_scenes_need_no_root() -> None:
    assert isinstance(open_dataset("scenes", None, "train"), Scenes)
    assert isinstance(open_dataset("scenes_anomaly", None), ScenesAnomaly)


def test_a_folder_for_a_built_in_set_is_refused_and_says_where_a_split_goes() -> None:
    """streets:test on the command line names a folder called test."""
    with pytest.raises(DataError, match=r"streets is built in .* got 'test': .*streets::test"):
        open_dataset("streets", "test")


def test_refusals_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data set called 'moon'; there are: cityscapes"):
        open_dataset("moon", tmp_path, "train")
    with pytest.raises(DataError, match="say in which folder"):
        open_dataset("camvid", None, "train")
    with pytest.raises(DataError, match="nowhere: there is no such folder"):
        open_dataset("camvid", tmp_path / "nowhere", "train")
    with pytest.raises(DataError, match=r"no images of split 'train'.*images/<split>"):
        open_dataset("camvid", tmp_path, "train")
    with pytest.raises(DataError, match="no split None"):
        open_dataset("scenes", None)


def test_many_missing_files_are_counted_and_lead_to_the_check(folder_tree: Path, write_image) -> None:
    for number in range(9):
        write_image(folder_tree / "images" / "train" / f"new{number}.jpg")
    with pytest.raises(DataError, match=r"(?s)9 problems, such as.*gmmseg data check folder"):
        open_dataset("folder", folder_tree, "train")
