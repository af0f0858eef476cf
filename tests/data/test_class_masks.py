"""Masks of one class: which file belongs to which image, what values mean, and what could mean two things."""

import numpy as np
import pytest
import torch
from PIL import Image

from gmmseg.data.class_masks import images_without_mask, open_class_masks
from gmmseg.data.reading import DataError
from gmmseg.labels import IGNORE


@pytest.fixture
def folders(tmp_path):
    images, masks = tmp_path / "images", tmp_path / "masks"
    images.mkdir()
    masks.mkdir()
    return images, masks


def picture(path, value=90):
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(path)


def mask(path, *values):
    """A mask whose first pixels have these values; the others are 0."""
    pixels = np.zeros((4, 6), np.uint8)
    pixels.flat[: len(values)] = values
    Image.fromarray(pixels).save(path)


@pytest.mark.parametrize(
    ("values", "expected"),
    [((1, 1), (1, 1, 0)), ((255, 255), (1, 1, 0)), ((1, 255), (1, IGNORE, 0))],
)
def test_one_or_255_marks_the_class(folders, values, expected):
    images, masks = folders
    picture(images / "a.png")
    mask(masks / "a.png", *values)
    dataset = open_class_masks(*folders)
    assert dataset[0].labels.flatten()[:3].tolist() == list(expected)
    assert dataset[0].name == "a.png"
    assert dataset.label_space is None


def test_masks_are_found_as_predict_names_them_or_by_stem(folders):
    images, masks = folders
    for name in ("a.jpg", "b.jpg", "c.png", "d.png"):
        picture(images / name)
    mask(masks / "a.jpg.png", 255)
    mask(masks / "b.png", 255)
    mask(masks / "c.png", 255)
    dataset = open_class_masks(*folders)
    assert [pair.labels.name for pair in dataset.pairs] == ["a.jpg.png", "b.png", "c.png"]
    assert [path.name for path in images_without_mask(images, dataset)] == ["d.png"]


def test_a_one_bit_mask_is_a_mask_of_ones(folders):
    images, masks = folders
    picture(images / "a.png")
    Image.fromarray(np.eye(4, 6, dtype=bool)).save(masks / "a.png")
    assert torch.equal(open_class_masks(*folders)[0].labels.long(), torch.eye(4, 6, dtype=torch.int64))


def test_files_that_could_belong_to_two(folders):
    images, masks = folders
    picture(images / "a.jpg")
    mask(masks / "a.png", 1)
    mask(masks / "a.jpg.png", 1)
    with pytest.raises(DataError, match=r"a\.jpg: .*could both be its mask; remove one"):
        open_class_masks(*folders)
    (masks / "a.jpg.png").unlink()
    picture(images / "a.bmp")
    with pytest.raises(DataError, match=r"a\.png: could be the mask of .*a\.bmp.*a\.bmp\.png"):
        open_class_masks(*folders)


def test_values_that_mean_nothing_or_two_things(folders):
    images, masks = folders
    for name in "ab":
        picture(images / f"{name}.png")
        mask(masks / f"{name}.png")
    with pytest.raises(DataError, match="masks: no pixel of its masks marks the class"):
        open_class_masks(*folders)
    mask(masks / "a.png", 3, 9)
    with pytest.raises(DataError, match=r"a\.png: holds 3, 9; a mask holds 1 where"):
        open_class_masks(*folders)
    mask(masks / "a.png", 1)
    mask(masks / "b.png", 255)
    with pytest.raises(DataError, match=r"a\.png holds 1 and .*b\.png only 255"):
        open_class_masks(*folders)


def test_files_that_are_missing(folders, tmp_path):
    images, masks = folders
    with pytest.raises(DataError, match="images: there are no images"):
        open_class_masks(*folders)
    picture(images / "a.png")
    with pytest.raises(DataError, match="masks: no mask for any image"):
        open_class_masks(*folders)
    mask(masks / "a.png", 1)
    mask(masks / "z.png", 1)
    with pytest.raises(DataError, match=r"z\.png: no image of that name"):
        open_class_masks(*folders)
    with pytest.raises(DataError, match="nowhere: no such folder"):
        open_class_masks(images, tmp_path / "nowhere")


def test_a_mask_of_another_size_is_refused_when_it_is_read(folders):
    images, masks = folders
    Image.fromarray(np.zeros((5, 6, 3), np.uint8)).save(images / "a.png")
    mask(masks / "a.png", 1)
    with pytest.raises(DataError, match="both must have the same size"):
        open_class_masks(*folders)[0]
