"""Reading images and labels, writing atomically."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gmmseg.data.reading import DataError, list_images, read_ids, read_image


def test_images_of_every_mode_come_as_rgb(tmp_path: Path) -> None:
    for mode in ("RGB", "L", "RGBA", "P", "1", "CMYK"):
        path = tmp_path / f"{mode}.{'jpg' if mode == 'CMYK' else 'png'}"
        Image.new(mode, (7, 5)).save(path)
        image = read_image(path)
        assert image.shape == (5, 7, 3)
        assert image.dtype == np.uint8


def test_a_turned_photograph_is_turned_upright(tmp_path: Path) -> None:
    picture = Image.fromarray(np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3))
    exif = picture.getexif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    picture.save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "a.png"), np.rot90(np.asarray(picture), -1))


def test_ids_are_read_as_stored(tmp_path: Path) -> None:
    ids = np.array([[0, 3], [200, 255]], np.uint8)
    Image.fromarray(ids).save(tmp_path / "grey.png")
    palette = Image.fromarray(ids, "P")
    palette.putpalette([9] * 768)
    palette.save(tmp_path / "palette.png")
    Image.fromarray(ids.astype(np.uint16) * 100).save(tmp_path / "deep.png")
    Image.fromarray(ids > 100).save(tmp_path / "bit.png")
    assert np.array_equal(read_ids(tmp_path / "grey.png"), ids)
    assert np.array_equal(read_ids(tmp_path / "palette.png"), ids)
    assert np.array_equal(read_ids(tmp_path / "deep.png"), ids.astype(np.int64) * 100)
    assert np.array_equal(read_ids(tmp_path / "bit.png"), [[0, 0], [1, 1]])


def test_colour_labels_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "sun.png")
    with pytest.raises(DataError, match=r"sun\.png: has 3 channels RGB.*single-channel PNG"):
        read_ids(tmp_path / "sun.png")


@pytest.mark.parametrize("read", [read_image, read_ids])
def test_truncated_empty_and_foreign_files_are_named(tmp_path: Path, read) -> None:
    whole = tmp_path / "whole.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8)).save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:2000])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("not a picture")
    for name in ("cut.png", "empty.png", "text.png", "absent.png"):
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            read(tmp_path / name)


def test_list_images_is_sorted_and_skips_other_files(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.webp", "notes.txt", "Thumbs.db"):
        (tmp_path / name).touch()
    assert [path.name for path in list_images(tmp_path)] == ["a.webp", "b.JPG"]
    assert list_images(tmp_path / "absent") == []
