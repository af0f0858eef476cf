"""Class counts with their cache, and the class-balanced sampler's statistics."""

import os
from pathlib import Path

import numpy as np
import pytest

from gmmseg.data import Scenes, ScenesAnomaly, open_dataset
from gmmseg.data.samplers import ClassBalancedSampler, class_counts, class_shares


def test_counts_equal_a_loop() -> None:
    data = Scenes("val", size=(24, 32), length=4)
    counts = class_counts(data)
    for index in range(4):
        labels = data[index].labels
        assert counts[index].tolist() == [(labels == c).sum().item() for c in range(10)]


def test_shares_leave_ignored_pixels_out(folder_tree: Path) -> None:
    data = open_dataset("folder", folder_tree, "train")
    # a: rows 0 1 0 1 0 1; b: rows 1 1 - 1 1 -
    assert class_shares(data).tolist() == pytest.approx([3 / 10, 7 / 10, 0])


def test_anomaly_sets_and_unlabelled_sets_have_no_classes(folder_tree: Path, write_ids) -> None:
    with pytest.raises(ValueError, match="anomaly masks"):
        class_counts(ScenesAnomaly("val", length=1))
    write_ids(folder_tree / "labels/val/c.png", 255)
    with pytest.raises(ValueError, match="no pixel is labelled"):
        class_shares(open_dataset("folder", folder_tree, "val"))


def test_the_cache_is_used_until_a_label_file_changes(folder_tree: Path, write_ids, write_image) -> None:
    cache, read = folder_tree / "cache" / "counts.json", []

    def counted() -> np.ndarray:
        read.clear()
        data = open_dataset("folder", folder_tree, "train")
        return class_counts(data, cache=cache, progress=lambda done, total, name: read.append((done, total)))

    first = counted()
    assert read == [(1, 2), (2, 2)]
    assert np.array_equal(counted(), first)
    assert not read
    write_ids(folder_tree / "labels/train/a.png", 2)  # other contents
    os.utime(folder_tree / "labels/train/a.png", ns=(1, 1))
    assert counted()[0].tolist() == [0, 0, 48]
    assert len(read) == 2
    write_image(folder_tree / "images/train/z.jpg")  # another file
    write_ids(folder_tree / "labels/train/z.png", 0)
    assert counted().shape == (3, 3)
    cache.write_text('{"fingerprint": "x", "cou')  # a broken cache is made again
    assert counted().shape == (3, 3)
    assert len(read) == 3
    counted()
    assert not read


COUNTS = np.zeros((50, 4), np.int64)
COUNTS[:, 0] = 100  # everywhere
COUNTS[:5, 1] = 1  # in five images, one pixel each
COUNTS[7, 2] = 50  # in one image
# class 3 never occurs


def test_classes_are_drawn_evenly_then_their_images() -> None:
    drawn = np.array(list(ClassBalancedSampler(COUNTS, length=30000, seed=1))) % 50
    share = np.bincount(drawn, minlength=50) / len(drawn)
    expected = np.full(50, 1 / 3 / 50)
    expected[:5] += 1 / 3 / 5
    expected[7] += 1 / 3
    assert np.abs(share - expected).max() < 0.012


def test_order_depends_on_seed_and_epoch_alone() -> None:
    sampler = ClassBalancedSampler(COUNTS, seed=3)
    first = list(sampler)
    assert len(first) == len(sampler) == 50
    assert list(sampler) == first == list(ClassBalancedSampler(COUNTS, seed=3))
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(ClassBalancedSampler(COUNTS, seed=4)) != first


def test_repetitions_are_numbered() -> None:
    drawn = list(ClassBalancedSampler(COUNTS, length=400))
    assert len(set(drawn)) == 400
    for image in range(50):
        visits = sorted(index // 50 for index in drawn if index % 50 == image)
        assert visits == list(range(len(visits)))


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="no image holds a labelled pixel"):
        ClassBalancedSampler(np.zeros((3, 2), np.int64))
