"""Tiny trees in the exact layouts of the data sets."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Write = Callable[..., Path]


@pytest.fixture
def write_image() -> Write:
    """write_image(path, size=(height, width), colour): an RGB image file."""

    def write(
        path: Path, size: tuple[int, int] = (6, 8), colour: tuple[int, int, int] = (90, 120, 60)
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size[::-1], colour).save(path)
        return path

    return write


@pytest.fixture
def write_ids() -> Write:
    """write_ids(path, *values, size): a label PNG whose rows hold the values in turn."""

    def write(path: Path, *values: int, size: tuple[int, int] = (6, 8)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = np.array([values[row % len(values)] for row in range(size[0])])
        ids = np.repeat(rows[:, None], size[1], 1)
        Image.fromarray(ids.astype(np.uint8 if ids.max() < 256 else np.uint16)).save(path)
        return path

    return write


@pytest.fixture
def folder_tree(tmp_path: Path, write_image: Write, write_ids: Write) -> Path:
    """A plain folder of three classes: two train images, one val image."""
    (tmp_path / "classes.txt").write_text("wall\nfloor\ndoor\n")
    for split, stem, values in (("train", "a", (0, 1)), ("train", "b", (1, 1, 255)), ("val", "c", (2, 0))):
        write_image(tmp_path / "images" / split / f"{stem}.jpg")
        write_ids(tmp_path / "labels" / split / f"{stem}.png", *values)
    return tmp_path
