"""Images and label maps read from files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gmmseg import images
from gmmseg.images import IMAGE_SUFFIXES, ImageError, open_image, refuse_odd_file

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 178_956_970
"""Largest image or label map of a data set: where Pillow stops by itself."""


class DataError(ValueError):
    """Files of a data set are missing, unreadable or not where its layout puts them."""


def read_image(path: Path) -> np.ndarray:
    """RGB image (h w 3) uint8, read as prediction reads it: upright, 16 bits and floats scaled to 8 bits."""
    refuse_odd_file(path, DataError)
    try:
        return images.read_image(path, max_pixels=MAX_PIXELS)
    except (ImageError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{path}: cannot be read as an image ({reason}); replace or remove it") from error


def read_ids(path: Path) -> np.ndarray:
    """Label ids (h w), integers as stored: palette images give their indices."""
    refuse_odd_file(path, DataError)
    return _ids(lambda: open_image(path, max_pixels=MAX_PIXELS), str(path))


def decode_image(content: bytes, source: str) -> np.ndarray:
    """`read_image` for the content of a file; ``source`` is its name in messages."""
    try:
        return images.read_pixels(images.open_encoded(content, source, max_pixels=MAX_PIXELS), source)
    except (ImageError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{source}: cannot be read as an image ({reason}); replace or remove it") from error


def decode_ids(content: bytes, source: str) -> np.ndarray:
    """`read_ids` for the content of a file; ``source`` is its name in messages."""
    return _ids(lambda: images.open_encoded(content, source, max_pixels=MAX_PIXELS), source)


def _ids(opened: Callable[[], "Image"], path: str) -> np.ndarray:
    """Ids (h w) of the label image that ``opened`` opens; ``path`` is its name in messages."""
    try:
        with opened() as file:
            bands, ids = file.getbands(), np.array(file)
    except Exception as error:  # decoders fail in every way there is
        raise DataError(f"{path}: cannot be read as a label image ({error}); replace or remove it") from error
    if len(bands) != 1:
        raise DataError(
            f"{path}: has {len(bands)} channels {''.join(bands)}; label files hold one id per pixel, "
            "not colours: store them as single-channel PNG"
        )
    if not np.issubdtype(ids.dtype, np.integer) and ids.dtype != bool:
        raise DataError(
            f"{path}: holds {ids.dtype}, numbers with a fraction; label files hold whole ids: use PNG"
        )
    return ids.astype(np.uint8) if ids.dtype == bool else ids


def list_images(folder: Path) -> list[Path]:
    """Image files directly in ``folder``, by name; none when there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
